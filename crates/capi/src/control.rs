//! Server queries and model commands.

use core::ffi::{c_char, c_void};

use galatea_abi::server::*;
use galatea_abi::*;
use galatea_c_objects::parameter::{ParameterContents, ParameterObject};
use galatea_c_objects::{catch_panic, handle, message, pointer};
use galatea_control::{LoadParameters, ModelNameMapping};
use galatea_infer::{ParameterValue, Status};

use crate::calls::{self, LoadParameterValue};
use crate::server::{ServerRef, model_name, running, version};

/// Defines functions that query a server. `$body` receives the running server and the arguments.
/// Its result is written through the last argument.
macro_rules! getters {
    ($($function:ident($($argument:ident: $kind:ty),*) -> $out:ident: $result:ty { $body:expr })*) => {
        $(
            const _: $function = $function;
            /// Writes the result through the last argument.
            ///
            /// # Safety
            ///
            /// `server` must be null or a server, strings must be null or NUL-terminated, and the
            /// out pointer must be null or valid for a write.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $function(
                server: *mut TRITONSERVER_Server,
                $($argument: $kind,)*
                $out: *mut $result,
            ) -> *mut TRITONSERVER_Error {
                catch_panic(stringify!($function), || {
                    // SAFETY: guaranteed by the caller.
                    let server = unsafe { running(server)? };
                    pointer::check_not_null($out, stringify!($out))?;
                    let get: fn(&ServerRef, $($kind),*) -> Result<$result, Status> = $body;
                    let result = get(&server, $($argument),*)?;
                    // SAFETY: guaranteed by the caller.
                    unsafe { pointer::write($out, result, stringify!($out)) }
                })
            }
        )*
    };
}

getters! {
    TRITONSERVER_ServerIsLive() -> live: bool { ServerRef::is_live }
    TRITONSERVER_ServerIsReady() -> ready: bool { ServerRef::is_ready }
    TRITONSERVER_ServerModelIsReady(name: *const c_char, number: i64) -> ready: bool {
        |server, name, number| {
            // SAFETY: the caller of the exported function guarantees a valid string.
            let name = unsafe { model_name(name)? };
            server.model_is_ready(name, version(number))
        }
    }
    TRITONSERVER_ServerMetadata() -> server_metadata: *mut TRITONSERVER_Message {
        |server| server.metadata().map(message::into_c)
    }
    TRITONSERVER_ServerModelMetadata(name: *const c_char, number: i64)
        -> model_metadata: *mut TRITONSERVER_Message {
        |server, name, number| {
            // SAFETY: the caller of the exported function guarantees a valid string.
            let name = unsafe { model_name(name)? };
            server.model_metadata(name, version(number)).map(message::into_c)
        }
    }
    TRITONSERVER_ServerModelStatistics(name: *const c_char, number: i64)
        -> model_stats: *mut TRITONSERVER_Message {
        |server, name, number| {
            // SAFETY: the caller of the exported function guarantees a valid string.
            let name = unsafe { model_name(name)? };
            server.model_statistics(name, version(number)).map(message::into_c)
        }
    }
    TRITONSERVER_ServerModelConfig(name: *const c_char, number: i64, config_version: u32)
        -> model_config: *mut TRITONSERVER_Message {
        |server, name, number, config_version| {
            // SAFETY: the caller of the exported function guarantees a valid string.
            let name = unsafe { model_name(name)? };
            server.model_config(name, version(number), config_version).map(message::into_c)
        }
    }
    TRITONSERVER_ServerModelIndex(flags: u32) -> model_index: *mut TRITONSERVER_Message {
        |server, flags| {
            let only_ready = flags & TRITONSERVER_INDEX_FLAG_READY.0 != 0;
            server.model_index(only_ready).map(message::into_c)
        }
    }
    TRITONSERVER_ServerMetrics() -> metrics: *mut TRITONSERVER_Metrics {
        |server| {
            let text = (server.metrics)();
            Ok(handle::into_raw(MetricsObject { text }))
        }
    }
}

/// Defines the functions that return a model property as flags.
macro_rules! properties {
    ($($function:ident { $body:expr })*) => {
        $(
            const _: $function = $function;
            /// Returns a model property as flags. `voidp` is reserved and set to null.
            ///
            /// # Safety
            ///
            /// `server` must be null or a server, `name` must be null or a string, and the out
            /// pointers must be null or valid for writes.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $function(
                server: *mut TRITONSERVER_Server,
                name: *const c_char,
                number: i64,
                flags: *mut u32,
                voidp: *mut *mut c_void,
            ) -> *mut TRITONSERVER_Error {
                catch_panic(stringify!($function), || {
                    // SAFETY: guaranteed by the caller.
                    unsafe {
                        if !voidp.is_null() {
                            voidp.write(core::ptr::null_mut());
                        }
                        let server = running(server)?;
                        let name = model_name(name)?;
                        let property: fn(&ServerRef, &str, Option<i64>) -> Result<u32, Status> =
                            $body;
                        pointer::write(flags, property(&server, name, version(number))?, "flags")
                    }
                })
            }
        )*
    };
}

properties! {
    TRITONSERVER_ServerModelBatchProperties {
        |server, name, number| {
            let batches = server.model_supports_batching(name, number)?;
            let flag =
                if batches { TRITONSERVER_BATCH_FIRST_DIM } else { TRITONSERVER_BATCH_UNKNOWN };
            Ok(flag.0)
        }
    }
    TRITONSERVER_ServerModelTransactionProperties {
        |server, name, number| {
            let decoupled = server.model_is_decoupled(name, number)?;
            let flag =
                if decoupled { TRITONSERVER_TXN_DECOUPLED } else { TRITONSERVER_TXN_ONE_TO_ONE };
            Ok(flag.0)
        }
    }
}

/// Defines functions that execute a model command.
macro_rules! commands {
    ($($function:ident { $body:expr })*) => {
        $(
            const _: $function = $function;
            /// Executes the command and waits until it completes.
            ///
            /// # Safety
            ///
            /// `server` must be null or a server, and `name` must be null or a string.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $function(
                server: *mut TRITONSERVER_Server,
                name: *const c_char,
            ) -> *mut TRITONSERVER_Error {
                catch_panic(stringify!($function), || {
                    // SAFETY: guaranteed by the caller.
                    let (server, name) = unsafe { (running(server)?, model_name(name)?) };
                    let command: fn(&ServerRef, &str) -> Result<(), Status> = $body;
                    command(&server, name)
                })
            }
        )*
    };
}

commands! {
    TRITONSERVER_ServerLoadModel {
        |server, name| server.load_model(name, LoadParameters::default())
    }
    TRITONSERVER_ServerUnloadModel { |server, name| server.unload_model(name, false) }
    TRITONSERVER_ServerUnloadModelAndDependents { |server, name| server.unload_model(name, true) }
    TRITONSERVER_ServerUnregisterModelRepository { ServerRef::unregister_repository }
}

const _: TRITONSERVER_ServerLoadModelWithParameters = TRITONSERVER_ServerLoadModelWithParameters;
/// Loads a model with a specified configuration, and optionally files, instead of the repository's.
///
/// # Safety
///
/// `server` must be null or a server, `name` must be null or a string, and `parameters` must be
/// valid for `parameter_count` pointers to parameters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerLoadModelWithParameters(
    server: *mut TRITONSERVER_Server,
    name: *const c_char,
    parameters: *mut *const TRITONSERVER_Parameter,
    parameter_count: u64,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_ServerLoadModelWithParameters", || {
        let count = usize::try_from(parameter_count)
            .map_err(|_| Status::invalid_argument("parameter_count is too large"))?;
        if parameters.is_null() && count > 0 {
            return Err(Status::invalid_argument(
                "load parameters are not provided while parameter count is non-zero",
            ));
        }
        // SAFETY: guaranteed by the caller.
        let (server, name, pointers) = unsafe {
            (running(server)?, model_name(name)?, pointer::slice(parameters, count, "parameters")?)
        };
        let mut load = LoadParameters::default();
        for pointer in pointers {
            let parameter = {
                // SAFETY: guaranteed by the caller.
                unsafe { handle::borrow::<ParameterObject>(*pointer, "a load parameter")? }
            };
            add(&mut load, parameter)
                .map_err(|reason| calls::load_parameter_error(name, &reason))?;
        }
        server.load_model(name, load)
    })
}

/// Adds a parameter or returns the reason why it is invalid.
fn add(load: &mut LoadParameters, parameter: &ParameterObject) -> Result<(), String> {
    let name = &parameter.name;
    match &parameter.value {
        ParameterContents::Value(value) => {
            calls::add_load_parameter(load, name, LoadParameterValue::Value(value))
        }
        ParameterContents::Bytes(base, size) => {
            let size = usize::try_from(*size).map_err(|_| format!("'{name}' is too large"))?;
            // SAFETY: the parameter's creator guaranteed `size` bytes for the parameter's lifetime.
            let bytes = unsafe { pointer::slice(base.cast::<u8>(), size, "a file's bytes") };
            let bytes = bytes.map_err(|error| error.message().to_owned())?;
            calls::add_load_parameter(load, name, LoadParameterValue::Bytes(bytes))
        }
    }
}

const _: TRITONSERVER_ServerRegisterModelRepository = TRITONSERVER_ServerRegisterModelRepository;
/// Adds a repository to a server in explicit control mode. In each parameter of the mapping, the
/// name is a directory's name and the value is the model's name.
///
/// # Safety
///
/// `server` must be null or a server, `repository_path` must be null or a string, and
/// `name_mapping` must be valid for `mapping_count` pointers to parameters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerRegisterModelRepository(
    server: *mut TRITONSERVER_Server,
    repository_path: *const c_char,
    name_mapping: *mut *const TRITONSERVER_Parameter,
    mapping_count: u32,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_ServerRegisterModelRepository", || {
        let count = usize::try_from(mapping_count)
            .map_err(|_| Status::invalid_argument("mapping_count is too large"))?;
        if name_mapping.is_null() && count > 0 {
            return Err(Status::invalid_argument(
                "model mappings are not provided while mapping count is non-zero",
            ));
        }
        // SAFETY: guaranteed by the caller.
        let (server, path, pointers) = unsafe {
            (
                running(server)?,
                pointer::required_c_str(repository_path, "repository_path")?,
                pointer::slice(name_mapping, count, "name_mapping")?,
            )
        };
        let mut names: Vec<ModelNameMapping> = Vec::new();
        for pointer in pointers {
            // SAFETY: guaranteed by the caller.
            let parameter = unsafe { handle::borrow(*pointer, "a name mapping")? };
            names.push(name_mapping_of(parameter)?);
        }
        server.register_repository(path, &names)
    })
}

fn name_mapping_of(parameter: &ParameterObject) -> Result<ModelNameMapping, Status> {
    let directory = parameter.name.clone();
    match &parameter.value {
        ParameterContents::Value(ParameterValue::String(name)) => {
            Ok(ModelNameMapping { directory, name: name.clone() })
        }
        ParameterContents::Value(_) | ParameterContents::Bytes(..) => {
            Err(Status::invalid_argument(format!(
                "Mapped model name must be a string, found another type for {directory}"
            )))
        }
    }
}

const _: TRITONSERVER_ServerPollModelRepository = TRITONSERVER_ServerPollModelRepository;
/// Polls the repositories and loads or unloads models that have changed. Intended for servers in
/// poll mode, which the library polls only when this function is called.
///
/// # Safety
///
/// `server` must be null or a server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerPollModelRepository(
    server: *mut TRITONSERVER_Server,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_ServerPollModelRepository", || {
        // SAFETY: guaranteed by the caller.
        let server = unsafe { running(server)? };
        server.poll_repositories()
    })
}

/// A snapshot of the metrics.
struct MetricsObject {
    text: String,
}
galatea_c_objects::object!(MetricsObject as TRITONSERVER_Metrics, kind 42);

const _: TRITONSERVER_MetricsFormatted = TRITONSERVER_MetricsFormatted;
/// Returns the formatted metrics. The string lives as long as the metrics object.
///
/// # Safety
///
/// `metrics` must be null or refer to metrics, and the out pointers must be null or valid for
/// writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MetricsFormatted(
    metrics: *mut TRITONSERVER_Metrics,
    format: TRITONSERVER_MetricFormat,
    base: *mut *const c_char,
    byte_size: *mut usize,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_MetricsFormatted", || {
        if format != TRITONSERVER_METRIC_PROMETHEUS {
            let text = format!("unknown metrics format '{}'", format.0);
            return Err(Status::invalid_argument(text));
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            let metrics = handle::borrow::<MetricsObject>(metrics, "metrics")?;
            pointer::write(base, metrics.text.as_ptr().cast(), "base")?;
            pointer::write(byte_size, metrics.text.len(), "byte_size")
        }
    })
}

const _: TRITONSERVER_MetricsDelete = TRITONSERVER_MetricsDelete;
/// Deletes metrics.
///
/// # Safety
///
/// `metrics` must be null or refer to metrics that are not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MetricsDelete(
    metrics: *mut TRITONSERVER_Metrics,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_MetricsDelete", || {
        // SAFETY: guaranteed by the caller.
        unsafe { handle::delete::<MetricsObject>(metrics, "metrics") }
    })
}
