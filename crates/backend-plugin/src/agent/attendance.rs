//! One agent and one model.

use core::ffi::{CStr, c_void};
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, Mutex};

use galatea_abi::repoagent::TRITONREPOAGENT_ModelInitialize;
use galatea_abi::{
    TRITONREPOAGENT_ACTION_LOAD, TRITONREPOAGENT_ACTION_LOAD_COMPLETE,
    TRITONREPOAGENT_ACTION_LOAD_FAIL, TRITONREPOAGENT_ACTION_UNLOAD,
    TRITONREPOAGENT_ACTION_UNLOAD_COMPLETE, TRITONREPOAGENT_ARTIFACT_FILESYSTEM,
    TRITONREPOAGENT_ActionType, TRITONREPOAGENT_ArtifactType,
};
use galatea_c_objects::error::{c_text, take_c};
use galatea_c_objects::log;
use galatea_infer::Status;

use super::Places;
use super::library::Lease;
use crate::owned::Owned;
use crate::plugins::lock;

/// What an agent is notified of.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// The model is to be loaded. The agent may refuse that, or move the model.
    Load,
    /// The model is loaded.
    LoadComplete,
    /// The model could not be loaded.
    LoadFail,
    /// The model is about to be unloaded.
    Unload,
    /// The model is unloaded.
    UnloadComplete,
}

impl Action {
    const fn to_c(self) -> TRITONREPOAGENT_ActionType {
        match self {
            Self::Load => TRITONREPOAGENT_ACTION_LOAD,
            Self::LoadComplete => TRITONREPOAGENT_ACTION_LOAD_COMPLETE,
            Self::LoadFail => TRITONREPOAGENT_ACTION_LOAD_FAIL,
            Self::Unload => TRITONREPOAGENT_ACTION_UNLOAD,
            Self::UnloadComplete => TRITONREPOAGENT_ACTION_UNLOAD_COMPLETE,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Load => "TRITONREPOAGENT_ACTION_LOAD",
            Self::LoadComplete => "TRITONREPOAGENT_ACTION_LOAD_COMPLETE",
            Self::LoadFail => "TRITONREPOAGENT_ACTION_LOAD_FAIL",
            Self::Unload => "TRITONREPOAGENT_ACTION_UNLOAD",
            Self::UnloadComplete => "TRITONREPOAGENT_ACTION_UNLOAD_COMPLETE",
        }
    }
}

/// What `TRITONREPOAGENT_AgentModel` points to: what an agent may see of a model.
pub(super) struct Facts {
    /// The agent's own state for the model.
    pub(super) state: AtomicPtr<c_void>,
    /// The agent's parameters for this model, by name.
    pub(super) parameters: Vec<(CString, CString)>,
    /// The model's configuration as JSON.
    pub(super) config: String,
    place: Mutex<Place>,
    places: Arc<Places>,
}
galatea_c_objects::object!(Facts as TRITONREPOAGENT_AgentModel, kind 34);

/// Where the model is.
struct Place {
    /// The last one is current. The others stay, because C may still read them.
    locations: Vec<CString>,
    /// A directory that was created for the agent to fill.
    acquired: Option<CString>,
    /// The last action that the agent was notified of.
    told: Option<Action>,
}

impl Facts {
    pub(super) fn new(
        location: &Path,
        config: String,
        parameters: &BTreeMap<String, String>,
        places: Arc<Places>,
    ) -> Self {
        let parameters = parameters.iter().map(|(name, value)| (c_text(name), c_text(value)));
        Self {
            state: AtomicPtr::default(),
            parameters: parameters.collect(),
            config,
            place: Mutex::new(Place {
                locations: vec![c_path(location)],
                acquired: None,
                told: None,
            }),
            places,
        }
    }

    /// Where the model is. The text lives as long as the object.
    pub(super) fn location(&self) -> Result<*const core::ffi::c_char, Status> {
        let place = lock(&self.place);
        let location = place.locations.last().map(|location| location.as_ptr());
        location.ok_or_else(|| Status::internal("Model repository location is not set"))
    }

    /// Moves the model.
    pub(super) fn move_to(
        &self,
        kind: TRITONREPOAGENT_ArtifactType,
        location: &CStr,
    ) -> Result<(), Status> {
        let mut place = lock(&self.place);
        if place.told != Some(Action::Load) {
            let told = place.told.map_or("not set", Action::name);
            return Err(Status::invalid_argument(format!(
                "location can only be updated during {}, current action type is {told}",
                Action::Load.name()
            )));
        }
        if kind != TRITONREPOAGENT_ARTIFACT_FILESYSTEM {
            return Err(Status::unsupported(
                "a model can only be moved to a directory: the artifact type must be \
                 'TRITONREPOAGENT_ARTIFACT_FILESYSTEM'",
            ));
        }
        if location.is_empty() {
            return Err(Status::invalid_argument("location must not be empty"));
        }
        place.locations.push(location.to_owned());
        Ok(())
    }

    /// A directory that the agent may fill. Repeated calls return the same one.
    pub(super) fn acquire(
        &self,
        kind: TRITONREPOAGENT_ArtifactType,
    ) -> Result<*const core::ffi::c_char, Status> {
        if kind != TRITONREPOAGENT_ARTIFACT_FILESYSTEM {
            return Err(Status::invalid_argument(
                "Unexpected artifact type, expects 'TRITONREPOAGENT_ARTIFACT_FILESYSTEM'",
            ));
        }
        let mut place = lock(&self.place);
        if place.acquired.is_none() {
            let made = self.places.make().map_err(|error| {
                Status::internal(format!("can't make a directory for a repository agent: {error}"))
            })?;
            place.acquired = Some(c_path(&made));
        }
        let acquired = place.acquired.as_ref().map(|path| path.as_ptr());
        acquired.ok_or_else(|| Status::internal("there is no directory for a repository agent"))
    }

    /// Removes the directory that the agent acquired, with its contents.
    pub(super) fn release(&self) -> Result<(), Status> {
        let Some(acquired) = lock(&self.place).acquired.take() else {
            return Err(Status::unavailable("No mutable location to be deleted"));
        };
        let path = path_of(&acquired);
        if let Err(error) = std::fs::remove_dir_all(&path) {
            log::error(&format!(
                "can't remove '{}' of a repository agent: {error}",
                path.display()
            ));
        }
        Ok(())
    }

    pub(super) fn tell(&self, action: Action) {
        lock(&self.place).told = Some(action);
    }

    fn told(&self) -> Option<Action> {
        lock(&self.place).told
    }
}

/// A path as a C string. A path with a zero byte can't be opened anyway.
fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

pub(super) fn path_of(text: &CStr) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(text.to_bytes()))
}

/// An agent that was given a model. Dropping it takes the model from the agent, after the
/// notifications that the agent must have had by then.
pub(super) struct Attendance {
    model: Owned<Facts>,
    /// Dropped after the model.
    lease: Lease,
}

impl Attendance {
    /// Gives the model to the agent.
    ///
    /// # Errors
    ///
    /// The agent's error. As in Triton, the model is then taken from the agent all the
    /// same.
    pub(super) fn begin(lease: Lease, facts: Facts) -> Result<Self, Status> {
        let attendance = Self { model: Owned::new(facts), lease };
        attendance.call(attendance.lease.entry_points.model_initialize)?;
        Ok(attendance)
    }

    fn call(&self, function: Option<TRITONREPOAGENT_ModelInitialize>) -> Result<(), Status> {
        let Some(function) = function else { return Ok(()) };
        // SAFETY: both objects live longer than the call, and the lease keeps the library
        // open.
        unsafe { take_c(function(self.lease.address.0, self.model.address())) }
    }

    fn facts(&self) -> Result<&Facts, Status> {
        let gone = || Status::internal("a repository agent released its model");
        self.model.get().ok_or_else(gone)
    }

    /// Asks the agent whether the model may be loaded.
    pub(super) fn load(&self) -> Result<(), Status> {
        self.act(Action::Load)
    }

    fn act(&self, action: Action) -> Result<(), Status> {
        self.facts()?.tell(action);
        let act = self.lease.entry_points.action;
        // SAFETY: as in `call`.
        unsafe { take_c(act(self.lease.address.0, self.model.address(), action.to_c())) }
    }

    /// Notifies the agent. An error of the agent is only logged.
    pub(super) fn tell(&self, action: Action) {
        if let Err(status) = self.act(action) {
            log::error(&format!(
                "repository agent '{}' returned an error on {}: {status}",
                self.lease.name(),
                action.name()
            ));
        }
    }

    /// Where the agent left the model.
    pub(super) fn location(&self) -> Result<PathBuf, Status> {
        let location = self.facts()?.location()?;
        // SAFETY: the text lives as long as the object, which is borrowed.
        Ok(path_of(unsafe { CStr::from_ptr(location) }))
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        if self.facts().is_ok_and(|facts| facts.told() == Some(Action::Load)) {
            self.tell(Action::LoadFail);
        }
        if let Err(status) = self.call(self.lease.entry_points.model_finalize) {
            let name = self.lease.name();
            log::error(&format!("repository agent '{name}' failed to finalize a model: {status}"));
        }
        if let Ok(facts) = self.facts() {
            // An agent that released its directory leaves nothing to remove.
            let _ = facts.release();
        }
    }
}
