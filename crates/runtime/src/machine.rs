//! The machine that models execute on.

use std::sync::Arc;

use galatea_devices::Devices;
use galatea_gate::ledger::MemoryAccount;

/// The machine's resources that models use.
#[derive(Clone)]
pub struct MachineResources {
    /// The GPUs that models may use.
    pub devices: Devices,
    /// The account for string memory; libraries store strings as objects.
    pub account: Arc<MemoryAccount>,
}
