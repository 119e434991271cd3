//! The server as a whole.

use super::{Flag, Group, value};

pub(super) const GROUP: Group = Group { title: "Server", flags: &[ID, EXIT_TIMEOUT_SECS] };

const ID: Flag = Flag {
    name: "id",
    argument: Some("string"),
    default: "triton",
    help: "The server's name, as its metadata shows it.",
    apply: |settings, value| {
        settings.id = value.to_owned();
        Ok(())
    },
};

const EXIT_TIMEOUT_SECS: Flag = Flag {
    name: "exit-timeout-secs",
    argument: Some("integer"),
    default: "30",
    help: "How many seconds requests may go on after the order to stop. Then the server ends \
           even if some are still running.",
    apply: |settings, value| {
        settings.exit_timeout_secs = value::not_negative(value)?;
        Ok(())
    },
};
