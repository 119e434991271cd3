//! The interaction between one agent and one model.

use core::ffi::{CStr, c_void};
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;

use galatea_abi::repoagent::TRITONREPOAGENT_ModelInitialize;
use galatea_abi::{
    TRITONREPOAGENT_ACTION_LOAD, TRITONREPOAGENT_ACTION_LOAD_COMPLETE,
    TRITONREPOAGENT_ACTION_LOAD_FAIL, TRITONREPOAGENT_ACTION_UNLOAD,
    TRITONREPOAGENT_ACTION_UNLOAD_COMPLETE, TRITONREPOAGENT_ARTIFACT_FILESYSTEM,
    TRITONREPOAGENT_ActionType, TRITONREPOAGENT_ArtifactType,
};
use galatea_c_objects::error::{take_c_error, to_c_string};
use galatea_c_objects::log;
use galatea_infer::Status;
use galatea_stdx::Lock;

use super::directories::AgentDirectories;
use super::library::AgentRef;
use crate::owned::Owned;

/// An event that an agent is notified of.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum AgentAction {
    /// The model is about to be loaded. The agent may reject the load or move the model.
    Load,
    /// The model has been loaded.
    LoadComplete,
    /// The model could not be loaded.
    LoadFail,
    /// The model is about to be unloaded.
    Unload,
    /// The model has been unloaded.
    UnloadComplete,
}

impl AgentAction {
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

/// The target of `TRITONREPOAGENT_AgentModel` pointers: what an agent may see of a model.
pub(super) struct AgentModel {
    /// The agent's own state for the model.
    pub(super) state: AtomicPtr<c_void>,
    /// The agent's parameters for this model, sorted by name.
    pub(super) parameters: Vec<(CString, CString)>,
    /// The model's configuration as JSON.
    pub(super) config: String,
    location: Lock<ModelLocation>,
    directories: Arc<AgentDirectories>,
}
galatea_c_objects::object!(AgentModel as TRITONREPOAGENT_AgentModel, kind 34);

/// A model's current and previous locations.
struct ModelLocation {
    /// The model's paths, the last of which is current. The others are kept because C may still
    /// read them.
    paths: Vec<CString>,
    /// A directory that was created for the agent to fill, if any.
    acquired: Option<CString>,
    /// The last action that the agent was notified of, if any.
    last_action: Option<AgentAction>,
}

impl AgentModel {
    pub(super) fn new(
        location: &Path,
        config: String,
        parameters: &BTreeMap<String, String>,
        directories: Arc<AgentDirectories>,
    ) -> Self {
        let parameters =
            parameters.iter().map(|(name, value)| (to_c_string(name), to_c_string(value)));
        Self {
            state: AtomicPtr::default(),
            parameters: parameters.collect(),
            config,
            location: Lock::new(ModelLocation {
                paths: vec![c_path(location)],
                acquired: None,
                last_action: None,
            }),
            directories,
        }
    }

    /// The model's location. The string lives as long as the object.
    pub(super) fn location(&self) -> Result<*const core::ffi::c_char, Status> {
        let location = self.location.lock("read the location");
        let location = location.paths.last().map(|location| location.as_ptr());
        location.ok_or_else(|| Status::internal("Model repository location is not set"))
    }

    /// Moves the model.
    pub(super) fn move_to(
        &self,
        kind: TRITONREPOAGENT_ArtifactType,
        location: &CStr,
    ) -> Result<(), Status> {
        let mut state = self.location.lock("move the model");
        if state.last_action != Some(AgentAction::Load) {
            let last_action = state.last_action.map_or("not set", AgentAction::name);
            return Err(Status::invalid_argument(format!(
                "location can only be updated during {}, current action type is {last_action}",
                AgentAction::Load.name()
            )));
        }
        // As in Triton, the path's form determines its kind, regardless of what the agent
        // specifies.
        if kind != TRITONREPOAGENT_ARTIFACT_FILESYSTEM
            && location.to_bytes().windows(3).any(|part| part == b"://")
        {
            return Err(Status::unsupported(format!(
                "a model can only be moved to a directory of this machine, not to '{}'",
                location.to_string_lossy()
            )));
        }
        if location.is_empty() {
            return Err(Status::invalid_argument("location must not be empty"));
        }
        state.paths.push(location.to_owned());
        Ok(())
    }

    /// Returns a directory that the agent may fill. Repeated calls return the same directory.
    pub(super) fn acquire(
        &self,
        kind: TRITONREPOAGENT_ArtifactType,
    ) -> Result<*const core::ffi::c_char, Status> {
        if kind != TRITONREPOAGENT_ARTIFACT_FILESYSTEM {
            return Err(Status::invalid_argument(
                "Unexpected artifact type, expects 'TRITONREPOAGENT_ARTIFACT_FILESYSTEM'",
            ));
        }
        let mut state = self.location.lock("acquire a directory");
        if state.acquired.is_none() {
            let made = self.directories.create().map_err(|error| {
                Status::internal(format!("can't make a directory for a repository agent: {error}"))
            })?;
            state.acquired = Some(c_path(&made));
        }
        let acquired = state.acquired.as_ref().map(|path| path.as_ptr());
        acquired.ok_or_else(|| Status::internal("there is no directory for a repository agent"))
    }

    /// Removes the directory that the agent acquired, including its contents.
    pub(super) fn release(&self) -> Result<(), Status> {
        let Some(acquired) = self.location.lock("release the directory").acquired.take() else {
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

    pub(super) fn set_last_action(&self, action: AgentAction) {
        self.location.lock("set the last action").last_action = Some(action);
    }

    fn last_action(&self) -> Option<AgentAction> {
        self.location.lock("read the last action").last_action
    }
}

/// Converts a path to a C string. A path that contains a zero byte can't be opened anyway.
fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

pub(super) fn path_of(text: &CStr) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(text.to_bytes()))
}

/// An agent with a model in its care. Dropping the session sends any outstanding notifications and
/// then takes the model away from the agent.
pub(super) struct AgentSession {
    model: Owned<AgentModel>,
    /// Dropped after the model, because ending the model's session requires the agent.
    agent: AgentRef,
}

impl AgentSession {
    /// Hands the model to the agent.
    ///
    /// # Errors
    ///
    /// The agent's error. As in Triton, the model is then still taken away from the agent.
    pub(super) fn begin(agent: AgentRef, model: AgentModel) -> Result<Self, Status> {
        let session = Self { model: Owned::new(model), agent };
        session.call(session.agent.entry_points.model_initialize)?;
        Ok(session)
    }

    fn call(&self, function: Option<TRITONREPOAGENT_ModelInitialize>) -> Result<(), Status> {
        let Some(function) = function else { return Ok(()) };
        // SAFETY: both objects outlive the call, and `self.agent` keeps the library open.
        unsafe { take_c_error(function(self.agent.address.0, self.model.address())) }
    }

    fn model(&self) -> Result<&AgentModel, Status> {
        let released = || Status::internal("a repository agent released its model");
        self.model.get().ok_or_else(released)
    }

    /// Asks the agent whether the model may be loaded.
    pub(super) fn load(&self) -> Result<(), Status> {
        self.act(AgentAction::Load)
    }

    fn act(&self, action: AgentAction) -> Result<(), Status> {
        self.model()?.set_last_action(action);
        let act = self.agent.entry_points.action;
        // SAFETY: as in `call`.
        unsafe { take_c_error(act(self.agent.address.0, self.model.address(), action.to_c())) }
    }

    /// Notifies the agent. An error from the agent is only logged.
    pub(super) fn notify(&self, action: AgentAction) {
        if let Err(status) = self.act(action) {
            log::error(&format!(
                "repository agent '{}' returned an error on {}: {status}",
                self.agent.name(),
                action.name()
            ));
        }
    }

    /// The location where the agent left the model.
    pub(super) fn location(&self) -> Result<PathBuf, Status> {
        let location = self.model()?.location()?;
        // SAFETY: the string lives as long as the borrowed object.
        Ok(path_of(unsafe { CStr::from_ptr(location) }))
    }
}

impl Drop for AgentSession {
    fn drop(&mut self) {
        if self.model().is_ok_and(|model| model.last_action() == Some(AgentAction::Load)) {
            self.notify(AgentAction::LoadFail);
        }
        if let Err(status) = self.call(self.agent.entry_points.model_finalize) {
            let name = self.agent.name();
            log::error(&format!("repository agent '{name}' failed to finalize a model: {status}"));
        }
        if let Ok(model) = self.model() {
            // If the agent has already released its directory, there is nothing to remove.
            let _ = model.release();
        }
    }
}
