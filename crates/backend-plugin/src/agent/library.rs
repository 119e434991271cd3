//! An agent's library, which is open for as long as any model uses it.

use core::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;

use galatea_abi::TRITONREPOAGENT_Agent;
use galatea_abi::repoagent::{
    TRITONREPOAGENT_Finalize, TRITONREPOAGENT_Initialize, TRITONREPOAGENT_ModelAction,
    TRITONREPOAGENT_ModelFinalize, TRITONREPOAGENT_ModelInitialize,
};
use galatea_c_objects::error::take_c_error;
use galatea_c_objects::log;
use galatea_infer::Status;
use galatea_stdx::Lock;
use libloading::os::unix::Library;

use crate::library::search::check_component;
use crate::library::{LibraryOpener, function};
use crate::owned::Owned;

/// Finds an agent's library.
pub(super) fn find(directory: &Path, name: &str) -> Result<PathBuf, Status> {
    check_component("repository agent", name)?;
    let library = format!("libtritonrepoagent_{name}.so");
    let path = directory.join(name).join(&library);
    if path.is_file() {
        return Ok(path);
    }
    Err(Status::invalid_argument(format!(
        "unable to find '{library}' for repo agent '{name}', searched: '{}'; is \
         --repoagent-directory right?",
        directory.join(name).display()
    )))
}

/// The target of `TRITONREPOAGENT_Agent` pointers: the agent's own state.
#[derive(Debug, Default)]
pub(super) struct AgentObject {
    pub(super) state: AtomicPtr<c_void>,
}
galatea_c_objects::object!(AgentObject as TRITONREPOAGENT_Agent, kind 33);

/// An agent's functions.
#[derive(Copy, Clone)]
pub(super) struct AgentEntryPoints {
    pub(super) initialize: Option<TRITONREPOAGENT_Initialize>,
    pub(super) finalize: Option<TRITONREPOAGENT_Finalize>,
    pub(super) model_initialize: Option<TRITONREPOAGENT_ModelInitialize>,
    pub(super) model_finalize: Option<TRITONREPOAGENT_ModelFinalize>,
    pub(super) action: TRITONREPOAGENT_ModelAction,
}

impl AgentEntryPoints {
    fn of(library: &Library, path: &Path) -> Result<Self, Status> {
        // SAFETY: each function has the type that the header declares for its name, and is called
        // only while the library is open.
        unsafe {
            let action = function(library, c"TRITONREPOAGENT_ModelAction").ok_or_else(|| {
                Status::not_found(format!(
                    "unable to find required entrypoint 'TRITONREPOAGENT_ModelAction' in shared \
                     library '{}'",
                    path.display()
                ))
            })?;
            Ok(Self {
                initialize: function(library, c"TRITONREPOAGENT_Initialize"),
                finalize: function(library, c"TRITONREPOAGENT_Finalize"),
                model_initialize: function(library, c"TRITONREPOAGENT_ModelInitialize"),
                model_finalize: function(library, c"TRITONREPOAGENT_ModelFinalize"),
                action,
            })
        }
    }
}

/// An initialised agent. Dropping it finalises it and closes its library.
struct Agent {
    name: String,
    object: Owned<AgentObject>,
    entry_points: AgentEntryPoints,
    /// Dropped last, because it contains the functions' code.
    _library: Option<Library>,
}

impl Agent {
    /// Initialises an agent with these functions from `library`.
    ///
    /// As in Triton, an agent whose initialisation fails is also finalised.
    fn initialize(
        name: &str,
        entry_points: AgentEntryPoints,
        library: Option<Library>,
    ) -> Result<Self, Status> {
        let object = Owned::new(AgentObject::default());
        let agent = Self { name: name.to_owned(), object, entry_points, _library: library };
        if let Some(initialize) = entry_points.initialize {
            // SAFETY: the object outlives the call.
            unsafe { take_c_error(initialize(agent.object.address())) }?;
        }
        Ok(agent)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let Some(finalize) = self.entry_points.finalize else { return };
        // SAFETY: the object outlives the call, and the agent has no models left.
        if let Err(status) = unsafe { take_c_error(finalize(self.object.address())) } {
            log::error(&format!("repository agent '{}' failed to finalize: {status}", self.name));
        }
    }
}

/// Stores an agent while models use it. The lock is held during initialisation and finalisation, so
/// that the two never overlap.
pub(super) struct AgentSlot {
    pub(super) name: String,
    pub(super) path: PathBuf,
    state: Lock<SlotState>,
}

#[derive(Default)]
struct SlotState {
    agent: Option<Agent>,
    users: usize,
}

impl AgentSlot {
    pub(super) fn new(name: &str, path: &Path) -> Self {
        Self { name: name.to_owned(), path: path.to_owned(), state: Lock::default() }
    }

    pub(super) fn is_used(&self) -> bool {
        self.state.lock("count the users").users > 0
    }
}

/// The address of an agent object.
#[derive(Copy, Clone)]
pub(super) struct AgentAddress(pub(super) *mut TRITONREPOAGENT_Agent);

// SAFETY: the address isn't dereferenced here, and the object behind it may be used from any
// thread.
unsafe impl Send for AgentAddress {}
// SAFETY: as above.
unsafe impl Sync for AgentAddress {}

/// One model's use of an agent. Dropping the last one finalises the agent.
pub(super) struct AgentRef {
    slot: Arc<AgentSlot>,
    pub(super) address: AgentAddress,
    pub(super) entry_points: AgentEntryPoints,
}

impl AgentRef {
    /// Returns the slot's agent. Opens and initialises the agent if no model uses it yet.
    pub(super) fn acquire(slot: Arc<AgentSlot>, opener: &LibraryOpener) -> Result<Self, Status> {
        let path = slot.path.clone();
        Self::acquire_with(slot, || {
            let library = opener.library(&path)?;
            let entry_points = AgentEntryPoints::of(&library, &path)?;
            Ok((entry_points, Some(library)))
        })
    }

    /// Like [`Self::acquire`], but with functions that need not come from a library.
    pub(super) fn acquire_with(
        slot: Arc<AgentSlot>,
        open: impl FnOnce() -> Result<(AgentEntryPoints, Option<Library>), Status>,
    ) -> Result<Self, Status> {
        let mut state = slot.state.lock("add a user");
        let agent = match state.agent.take() {
            Some(agent) => agent,
            None => {
                let (entry_points, library) = open()?;
                Agent::initialize(&slot.name, entry_points, library)?
            }
        };
        let (address, entry_points) = (AgentAddress(agent.object.address()), agent.entry_points);
        state.agent = Some(agent);
        state.users += 1;
        drop(state);
        Ok(Self { slot, address, entry_points })
    }

    /// The agent's name.
    pub(super) fn name(&self) -> &str {
        &self.slot.name
    }
}

impl Drop for AgentRef {
    fn drop(&mut self) {
        let mut state = self.slot.state.lock("remove a user");
        state.users -= 1;
        if state.users == 0 {
            state.agent = None;
        }
    }
}
