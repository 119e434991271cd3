//! The functions that the server calls, and the server's functions that they use.

use core::ffi::{CStr, c_char};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;

use galatea_abi::repoagent as header;
use galatea_abi::server;
use galatea_abi::{
    REPOAGENT_API_VERSION, TRITONREPOAGENT_ACTION_LOAD, TRITONREPOAGENT_ARTIFACT_FILESYSTEM,
    TRITONREPOAGENT_ActionType, TRITONREPOAGENT_Agent, TRITONREPOAGENT_AgentModel,
    TRITONREPOAGENT_ArtifactType, TRITONSERVER_ERROR_INVALID_ARG, TRITONSERVER_ERROR_UNSUPPORTED,
    TRITONSERVER_Error, TRITONSERVER_Error_Code,
};

use crate::checksum::{Refusal, check};

// Found in the server's process when it opens this library.
unsafe extern "C" {
    fn TRITONSERVER_ErrorNew(
        code: TRITONSERVER_Error_Code,
        msg: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONREPOAGENT_ApiVersion(major: *mut u32, minor: *mut u32) -> *mut TRITONSERVER_Error;
    fn TRITONREPOAGENT_ModelRepositoryLocation(
        agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        artifact_type: *mut TRITONREPOAGENT_ArtifactType,
        location: *mut *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONREPOAGENT_ModelParameterCount(
        agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        count: *mut u32,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONREPOAGENT_ModelParameter(
        agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        index: u32,
        parameter_name: *mut *const c_char,
        parameter_value: *mut *const c_char,
    ) -> *mut TRITONSERVER_Error;
}

// This compiles only if all of them are as the header declares them.
const _: server::TRITONSERVER_ErrorNew = TRITONSERVER_ErrorNew;
const _: header::TRITONREPOAGENT_ApiVersion = TRITONREPOAGENT_ApiVersion;
const _: header::TRITONREPOAGENT_ModelRepositoryLocation = TRITONREPOAGENT_ModelRepositoryLocation;
const _: header::TRITONREPOAGENT_ModelParameterCount = TRITONREPOAGENT_ModelParameterCount;
const _: header::TRITONREPOAGENT_ModelParameter = TRITONREPOAGENT_ModelParameter;
const _: header::TRITONREPOAGENT_Initialize = TRITONREPOAGENT_Initialize;
const _: header::TRITONREPOAGENT_ModelAction = TRITONREPOAGENT_ModelAction;

/// An error for the server. The server deletes it.
fn error(code: TRITONSERVER_Error_Code, text: &str) -> *mut TRITONSERVER_Error {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // SAFETY: the text ends in a zero byte, and the server copies it.
    unsafe { TRITONSERVER_ErrorNew(code, text.as_ptr()) }
}

/// The result of a function of the server. An error is returned to the server.
fn check_error(error: *mut TRITONSERVER_Error) -> Result<(), *mut TRITONSERVER_Error> {
    if error.is_null() { Ok(()) } else { Err(error) }
}

/// Checks that the server implements the interface that this agent needs.
///
/// # Safety
///
/// None of its own; C functions are declared unsafe.
#[unsafe(no_mangle)]
unsafe extern "C" fn TRITONREPOAGENT_Initialize(
    _: *mut TRITONREPOAGENT_Agent,
) -> *mut TRITONSERVER_Error {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both pointers can be written to.
    let failed = unsafe { TRITONREPOAGENT_ApiVersion(&raw mut major, &raw mut minor) };
    if !failed.is_null() {
        return failed;
    }
    if major != REPOAGENT_API_VERSION.0 || minor < REPOAGENT_API_VERSION.1 {
        let text = "the server's repository agent API version does not support this agent";
        return error(TRITONSERVER_ERROR_UNSUPPORTED, text);
    }
    null_mut()
}

/// Checks a model before it is loaded.
///
/// # Safety
///
/// Agent and model must be objects of the server.
#[unsafe(no_mangle)]
unsafe extern "C" fn TRITONREPOAGENT_ModelAction(
    agent: *mut TRITONREPOAGENT_Agent,
    model: *mut TRITONREPOAGENT_AgentModel,
    action_type: TRITONREPOAGENT_ActionType,
) -> *mut TRITONSERVER_Error {
    if action_type != TRITONREPOAGENT_ACTION_LOAD {
        return null_mut();
    }
    // SAFETY: the server's promise is passed on.
    unsafe { load(agent, model) }.err().unwrap_or(null_mut())
}

/// # Safety
///
/// As [`TRITONREPOAGENT_ModelAction`].
unsafe fn load(
    agent: *mut TRITONREPOAGENT_Agent,
    model: *mut TRITONREPOAGENT_AgentModel,
) -> Result<(), *mut TRITONSERVER_Error> {
    let mut kind = TRITONREPOAGENT_ARTIFACT_FILESYSTEM;
    let mut location: *const c_char = null_mut();
    let (kind_out, location_out) = (&raw mut kind, &raw mut location);
    let mut count = 0;
    // SAFETY: the pointers can be written to; the server promises the objects.
    unsafe {
        check_error(TRITONREPOAGENT_ModelRepositoryLocation(agent, model, kind_out, location_out))?;
        check_error(TRITONREPOAGENT_ModelParameterCount(agent, model, &raw mut count))?;
    }
    if kind != TRITONREPOAGENT_ARTIFACT_FILESYSTEM {
        let text = "the model is not in a directory of this machine";
        return Err(error(TRITONSERVER_ERROR_UNSUPPORTED, text));
    }
    // SAFETY: the server keeps the text as long as the model.
    let location = unsafe { CStr::from_ptr(location) };
    let directory = Path::new(OsStr::from_bytes(location.to_bytes()));
    for index in 0..count {
        // SAFETY: the server's promise is passed on.
        let (key, value) = unsafe { parameter(agent, model, index)? };
        check(directory, &key, &value).map_err(|refusal| match refusal {
            Refusal::Unsupported(text) => error(TRITONSERVER_ERROR_UNSUPPORTED, &text),
            Refusal::Malformed(text) | Refusal::Mismatch(text) => {
                error(TRITONSERVER_ERROR_INVALID_ARG, &text)
            }
        })?;
    }
    Ok(())
}

/// Name and value of a parameter.
///
/// # Safety
///
/// As [`TRITONREPOAGENT_ModelAction`].
unsafe fn parameter(
    agent: *mut TRITONREPOAGENT_Agent,
    model: *mut TRITONREPOAGENT_AgentModel,
    index: u32,
) -> Result<(String, String), *mut TRITONSERVER_Error> {
    let (mut key, mut value): (*const c_char, *const c_char) = (null_mut(), null_mut());
    let (key_out, value_out) = (&raw mut key, &raw mut value);
    // SAFETY: the pointers can be written to; the server promises the objects, and keeps
    // the texts as long as the model.
    unsafe {
        check_error(TRITONREPOAGENT_ModelParameter(agent, model, index, key_out, value_out))?;
        let text = |text| CStr::from_ptr(text).to_string_lossy().into_owned();
        Ok((text(key), text(value)))
    }
}
