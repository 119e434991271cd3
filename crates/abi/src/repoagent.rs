//! Repository agents: tritonrepoagent.h.

use core::ffi::{c_char, c_void};

use crate::enums::*;
use crate::functions;
use crate::opaque::*;

functions! {
    /// The functions that the server provides.
    PROVIDED:
    TRITONREPOAGENT_ApiVersion(major: *mut u32, minor: *mut u32) -> *mut TRITONSERVER_Error;
    TRITONREPOAGENT_ModelRepositoryLocation(agent: *mut TRITONREPOAGENT_Agent, model: *mut TRITONREPOAGENT_AgentModel, artifact_type: *mut TRITONREPOAGENT_ArtifactType, location: *mut *const c_char) -> *mut TRITONSERVER_Error;
    TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent: *mut TRITONREPOAGENT_Agent, model: *mut TRITONREPOAGENT_AgentModel, artifact_type: TRITONREPOAGENT_ArtifactType, location: *mut *const c_char) -> *mut TRITONSERVER_Error;
    TRITONREPOAGENT_ModelRepositoryLocationRelease(agent: *mut TRITONREPOAGENT_Agent, model: *mut TRITONREPOAGENT_AgentModel, location: *const c_char) -> *mut TRITONSERVER_Error;
    TRITONREPOAGENT_ModelRepositoryUpdate(agent: *mut TRITONREPOAGENT_Agent, model: *mut TRITONREPOAGENT_AgentModel, artifact_type: TRITONREPOAGENT_ArtifactType, location: *const c_char) -> *mut TRITONSERVER_Error;
    TRITONREPOAGENT_ModelParameterCount(agent: *mut TRITONREPOAGENT_Agent, model: *mut TRITONREPOAGENT_AgentModel, count: *mut u32) -> *mut TRITONSERVER_Error;
    TRITONREPOAGENT_ModelParameter(agent: *mut TRITONREPOAGENT_Agent, model: *mut TRITONREPOAGENT_AgentModel, index: u32, parameter_name: *mut *const c_char, parameter_value: *mut *const c_char) -> *mut TRITONSERVER_Error;
    TRITONREPOAGENT_ModelConfig(agent: *mut TRITONREPOAGENT_Agent, model: *mut TRITONREPOAGENT_AgentModel, config_version: u32, model_config: *mut *mut TRITONSERVER_Message) -> *mut TRITONSERVER_Error;
    TRITONREPOAGENT_ModelState(model: *mut TRITONREPOAGENT_AgentModel, state: *mut *mut c_void) -> *mut TRITONSERVER_Error;
    TRITONREPOAGENT_ModelSetState(model: *mut TRITONREPOAGENT_AgentModel, state: *mut c_void) -> *mut TRITONSERVER_Error;
    TRITONREPOAGENT_State(agent: *mut TRITONREPOAGENT_Agent, state: *mut *mut c_void) -> *mut TRITONSERVER_Error;
    TRITONREPOAGENT_SetState(agent: *mut TRITONREPOAGENT_Agent, state: *mut c_void) -> *mut TRITONSERVER_Error;
}

functions! {
    /// The functions that a plug-in provides.
    PLUGIN:
    TRITONREPOAGENT_Initialize(agent: *mut TRITONREPOAGENT_Agent) -> *mut TRITONSERVER_Error;
    TRITONREPOAGENT_Finalize(agent: *mut TRITONREPOAGENT_Agent) -> *mut TRITONSERVER_Error;
    TRITONREPOAGENT_ModelInitialize(agent: *mut TRITONREPOAGENT_Agent, model: *mut TRITONREPOAGENT_AgentModel) -> *mut TRITONSERVER_Error;
    TRITONREPOAGENT_ModelFinalize(agent: *mut TRITONREPOAGENT_Agent, model: *mut TRITONREPOAGENT_AgentModel) -> *mut TRITONSERVER_Error;
    TRITONREPOAGENT_ModelAction(agent: *mut TRITONREPOAGENT_Agent, model: *mut TRITONREPOAGENT_AgentModel, action_type: TRITONREPOAGENT_ActionType) -> *mut TRITONSERVER_Error;
}
