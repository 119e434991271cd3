//! Flags for the server as a whole.

use super::Group;
use super::flag::Flag;

pub(super) const GROUP: Group = Group {
    title: "Server",
    flags: &[&[
        Flag::text("id", "The server's name, as its metadata shows it.", |settings| {
            &mut settings.id
        }),
        Flag::number(
            "exit-timeout-secs",
            "How many seconds requests may go on after the order to stop. Then the server ends \
             even if some are still running.",
            |settings| &mut settings.exit_timeout_secs,
        ),
        Flag::file(
            "tenants-file",
            "A file of tenants with their keys, which 'galatea keys new' writes. Every request \
             but those for health then needs a key, over all protocols. A changed file is put \
             into use.",
            |settings| &mut settings.tenants_file,
        ),
    ]],
};
