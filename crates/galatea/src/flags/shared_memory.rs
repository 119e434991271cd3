//! Flags for client shared memory.

use super::Group;
use super::flag::Flag;

pub(super) const GROUP: Group = Group {
    title: "Shared Memory",
    flags: &[&[Flag::boolean(
        "allow-client-shm",
        "Whether clients on this machine may register shared memory, and use it for inputs \
             and outputs of inferences. The memory between the server and worker processes of \
             backends is not affected.",
        |settings| &mut settings.allow_client_shm,
    )]],
};
