//! The functions that the server provides to repository agents in libraries.
//!
//! This server hosts none, so no object of theirs exists and every function
//! answers that it is unsupported. They are there because a library that needs one
//! could not be loaded, or a program that links to them not be started, without.

use core::ffi::{c_char, c_void};

use galatea_abi::repoagent::*;
use galatea_abi::*;
use galatea_c_objects::{guard, text};
use galatea_infer::Status;

/// Defines functions that answer that they are unsupported.
macro_rules! unsupported {
    ($what:literal: $($name:ident($($argument:ident: $kind:ty),*);)*) => {
        $(
            const _: $name = $name;
            /// Answers that this server does not host such libraries.
            ///
            /// # Safety
            ///
            /// None of its own; C functions are declared unsafe.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> *mut TRITONSERVER_Error {
                $(let _ = $argument;)*
                guard(stringify!($name), || {
                    Err(Status::unsupported(concat!(
                        stringify!($name), ": this server does not host ", $what
                    )))
                })
            }
        )*
    };
}

/// Defines functions that tell a version.
macro_rules! versions {
    ($($name:ident $version:ident)*) => {
        $(
            const _: $name = $name;
            /// The version of the header whose functions are here.
            ///
            /// # Safety
            ///
            /// The places must be null or valid for writes.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                major: *mut u32,
                minor: *mut u32,
            ) -> *mut TRITONSERVER_Error {
                guard(stringify!($name), || {
                    // SAFETY: the caller's promises are passed on.
                    unsafe {
                        text::write(major, $version.0, "major")?;
                        text::write(minor, $version.1, "minor")
                    }
                })
            }
        )*
    };
}

versions! {
    TRITONREPOAGENT_ApiVersion REPOAGENT_API_VERSION
}

unsupported! {
    "repository agents":
    TRITONREPOAGENT_ModelRepositoryLocation(agent: *mut TRITONREPOAGENT_Agent, model: *mut TRITONREPOAGENT_AgentModel, artifact_type: *mut TRITONREPOAGENT_ArtifactType, location: *mut *const c_char);
    TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent: *mut TRITONREPOAGENT_Agent, model: *mut TRITONREPOAGENT_AgentModel, artifact_type: TRITONREPOAGENT_ArtifactType, location: *mut *const c_char);
    TRITONREPOAGENT_ModelRepositoryLocationRelease(agent: *mut TRITONREPOAGENT_Agent, model: *mut TRITONREPOAGENT_AgentModel, location: *const c_char);
    TRITONREPOAGENT_ModelRepositoryUpdate(agent: *mut TRITONREPOAGENT_Agent, model: *mut TRITONREPOAGENT_AgentModel, artifact_type: TRITONREPOAGENT_ArtifactType, location: *const c_char);
    TRITONREPOAGENT_ModelParameterCount(agent: *mut TRITONREPOAGENT_Agent, model: *mut TRITONREPOAGENT_AgentModel, count: *mut u32);
    TRITONREPOAGENT_ModelParameter(agent: *mut TRITONREPOAGENT_Agent, model: *mut TRITONREPOAGENT_AgentModel, index: u32, parameter_name: *mut *const c_char, parameter_value: *mut *const c_char);
    TRITONREPOAGENT_ModelConfig(agent: *mut TRITONREPOAGENT_Agent, model: *mut TRITONREPOAGENT_AgentModel, config_version: u32, model_config: *mut *mut TRITONSERVER_Message);
    TRITONREPOAGENT_ModelState(model: *mut TRITONREPOAGENT_AgentModel, state: *mut *mut c_void);
    TRITONREPOAGENT_ModelSetState(model: *mut TRITONREPOAGENT_AgentModel, state: *mut c_void);
    TRITONREPOAGENT_State(agent: *mut TRITONREPOAGENT_Agent, state: *mut *mut c_void);
    TRITONREPOAGENT_SetState(agent: *mut TRITONREPOAGENT_Agent, state: *mut c_void);
}

#[cfg(test)]
mod tests {
    use galatea_infer::Code;

    use super::*;

    #[test]
    fn they_say_what_is_not_hosted() {
        // SAFETY: nothing is done with the arguments.
        let status = unsafe {
            let error = TRITONREPOAGENT_SetState(core::ptr::null_mut(), core::ptr::null_mut());
            galatea_c_objects::error::take_c(error).unwrap_err()
        };
        assert_eq!(status.code(), Code::Unsupported);
        let expected = "TRITONREPOAGENT_SetState: this server does not host repository agents";
        assert_eq!(status.message(), expected);
    }
}
