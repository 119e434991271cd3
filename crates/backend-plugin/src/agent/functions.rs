//! Functions that agents call.

use core::ffi::{CStr, c_char, c_void};
use std::sync::atomic::Ordering;

use galatea_abi::{
    REPOAGENT_API_VERSION, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, TRITONREPOAGENT_Agent,
    TRITONREPOAGENT_AgentModel, TRITONREPOAGENT_ArtifactType, TRITONSERVER_Message,
};
use galatea_c_objects::{handle, list, message, pointer};
use galatea_infer::Status;

use super::library::AgentObject;
use super::session::AgentModel;

/// The version of the JSON configuration.
const CONFIG_VERSION: u32 = 1;

/// # Safety
///
/// Same requirements as for [`handle::borrow`].
unsafe fn object<'a>(model: *mut TRITONREPOAGENT_AgentModel) -> Result<&'a AgentModel, Status> {
    // SAFETY: guaranteed by the caller.
    unsafe { handle::borrow(model, "model") }
}

functions! {
    use repoagent;

    /// Returns the version of the implemented header.
    fn TRITONREPOAGENT_ApiVersion(major: *mut u32, minor: *mut u32) {
        pointer::write(major, REPOAGENT_API_VERSION.0, "major")?;
        pointer::write(minor, REPOAGENT_API_VERSION.1, "minor")
    }

    /// Returns the model's location.
    fn TRITONREPOAGENT_ModelRepositoryLocation(
        _agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        artifact_type: *mut TRITONREPOAGENT_ArtifactType,
        location: *mut *const c_char,
    ) {
        let found = object(model)?.location()?;
        pointer::write(artifact_type, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, "artifact_type")?;
        pointer::write(location, found, "location")
    }

    /// Creates an empty directory for the agent to fill. It is removed together with the model at
    /// the latest.
    fn TRITONREPOAGENT_ModelRepositoryLocationAcquire(
        _agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        artifact_type: TRITONREPOAGENT_ArtifactType,
        location: *mut *const c_char,
    ) {
        let model = object(model)?;
        if location.is_null() {
            return Err(Status::invalid_argument("location must not be null"));
        }
        pointer::write(location, model.acquire(artifact_type)?, "location")
    }

    /// Removes the directory that was created for the agent. There is at most one such directory,
    /// so the location argument is ignored.
    fn TRITONREPOAGENT_ModelRepositoryLocationRelease(
        _agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        _location: *const c_char,
    ) {
        object(model)?.release()
    }

    /// Makes the server load the model from another directory.
    fn TRITONREPOAGENT_ModelRepositoryUpdate(
        _agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        artifact_type: TRITONREPOAGENT_ArtifactType,
        location: *const c_char,
    ) {
        let model = object(model)?;
        if location.is_null() {
            return Err(Status::invalid_argument("location must not be null"));
        }
        model.move_to(artifact_type, CStr::from_ptr(location))
    }

    /// Returns the number of the agent's parameters for this model.
    fn TRITONREPOAGENT_ModelParameterCount(
        _agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        count: *mut u32,
    ) {
        let parameters = &object(model)?.parameters;
        pointer::write(count, list::len_u32(parameters), "count")
    }

    /// Returns one of the parameters, which are sorted by name. The strings live as long as the
    /// model object.
    fn TRITONREPOAGENT_ModelParameter(
        _agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        index: u32,
        parameter_name: *mut *const c_char,
        parameter_value: *mut *const c_char,
    ) {
        let parameters = &object(model)?.parameters;
        let found = list::get_u32(parameters, index);
        let (name, value) = found.ok_or_else(|| {
            Status::invalid_argument("index out of range for model parameters")
        })?;
        pointer::write(parameter_name, name.as_ptr(), "parameter_name")?;
        pointer::write(parameter_value, value.as_ptr(), "parameter_value")
    }

    /// Returns the model's configuration as known before the model is loaded.
    fn TRITONREPOAGENT_ModelConfig(
        _agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        config_version: u32,
        model_config: *mut *mut TRITONSERVER_Message,
    ) {
        let model = object(model)?;
        if config_version != CONFIG_VERSION {
            return Err(Status::invalid_argument(format!(
                "model configuration version {config_version} not supported, supported versions \
                 are: {CONFIG_VERSION}"
            )));
        }
        if model_config.is_null() {
            return Err(Status::invalid_argument("model_config must not be null"));
        }
        pointer::write(model_config, message::into_c(model.config.clone()), "model_config")
    }

    /// Returns the state that the agent has attached to this model.
    fn TRITONREPOAGENT_ModelState(
        model: *mut TRITONREPOAGENT_AgentModel,
        state: *mut *mut c_void,
    ) {
        pointer::write(state, object(model)?.state.load(Ordering::Acquire), "state")
    }

    /// Attaches the agent's state to this model.
    fn TRITONREPOAGENT_ModelSetState(
        model: *mut TRITONREPOAGENT_AgentModel,
        state: *mut c_void,
    ) {
        object(model)?.state.store(state, Ordering::Release);
        Ok(())
    }

    /// Returns the state that the agent has attached to itself.
    fn TRITONREPOAGENT_State(agent: *mut TRITONREPOAGENT_Agent, state: *mut *mut c_void) {
        let agent = handle::borrow::<AgentObject>(agent, "agent")?;
        pointer::write(state, agent.state.load(Ordering::Acquire), "state")
    }

    /// Attaches state to the agent.
    fn TRITONREPOAGENT_SetState(agent: *mut TRITONREPOAGENT_Agent, state: *mut c_void) {
        handle::borrow::<AgentObject>(agent, "agent")?.state.store(state, Ordering::Release);
        Ok(())
    }
}
