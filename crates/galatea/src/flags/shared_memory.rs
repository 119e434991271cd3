//! Memory that clients share.

use super::{Flag, Group, value};

pub(super) const GROUP: Group = Group { title: "Shared Memory", flags: &[ALLOW_CLIENT_SHM] };

const ALLOW_CLIENT_SHM: Flag = Flag {
    name: "allow-client-shm",
    argument: Some("boolean"),
    default: "false",
    help: "Whether clients on this machine may register shared memory, and use it for inputs and \
           outputs of inferences. The memory between the server and worker processes of backends \
           is not affected.",
    apply: |settings, value| {
        settings.allow_client_shm = value::boolean(value)?;
        Ok(())
    },
};
