//! Questions to a server, and commands for its models.

use core::ffi::{c_char, c_void};

use galatea_abi::server::*;
use galatea_abi::*;
use galatea_c_objects::parameter::{ParameterContents, ParameterObject};
use galatea_c_objects::{guard, handle, message, pointer};
use galatea_codec::http;
use galatea_infer::{LoadParameters, NameMapping, ParameterValue, Pass, Status};

use crate::server::{ServerRef, model_name, running, version};

/// Defines functions that ask a server. `$body` gets the running server and the
/// arguments. Its result is written to the last argument.
macro_rules! getters {
    ($($function:ident($($argument:ident: $kind:ty),*) -> $out:ident: $result:ty { $body:expr })*) => {
        $(
            const _: $function = $function;
            /// Writes the result to the last argument.
            ///
            /// # Safety
            ///
            /// `server` must be null or a server, texts null or ended by a zero byte, and
            /// the out pointer null or valid for a write.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $function(
                server: *mut TRITONSERVER_Server,
                $($argument: $kind,)*
                $out: *mut $result,
            ) -> *mut TRITONSERVER_Error {
                guard(stringify!($function), || {
                    // SAFETY: the caller's promise is passed on.
                    let server = unsafe { running(server)? };
                    pointer::check_not_null($out, stringify!($out))?;
                    let get: fn(&ServerRef, $($kind),*) -> Result<$result, Status> = $body;
                    let result = get(&server, $($argument),*)?;
                    // SAFETY: the caller's promise is passed on.
                    unsafe { pointer::write($out, result, stringify!($out)) }
                })
            }
        )*
    };
}

/// A JSON document for C.
fn document(json: Vec<u8>) -> Result<*mut TRITONSERVER_Message, Status> {
    let json = String::from_utf8(json)
        .map_err(|_| Status::internal("the server made a document that is not UTF-8"))?;
    Ok(message::into_c(json))
}

getters! {
    TRITONSERVER_ServerIsLive() -> live: bool { |server| Ok(server.check_live()?.control.live(Pass::in_process())) }
    TRITONSERVER_ServerIsReady() -> ready: bool {
        |server| Ok(server.check_live()?.control.ready(Pass::in_process()).unwrap_or(false))
    }
    TRITONSERVER_ServerModelIsReady(name: *const c_char, number: i64) -> ready: bool {
        |server, name, number| {
            // SAFETY: the caller of the exported function promises a text.
            let name = unsafe { model_name(name)? };
            let server = server.check_ready()?;
            Ok(server.control.model_ready(Pass::in_process(), name, version(number)).unwrap_or(false))
        }
    }
    TRITONSERVER_ServerMetadata() -> server_metadata: *mut TRITONSERVER_Message {
        |server| document(http::encode_server_metadata(&server.control.server_metadata(Pass::in_process())))
    }
    TRITONSERVER_ServerModelMetadata(name: *const c_char, number: i64)
        -> model_metadata: *mut TRITONSERVER_Message {
        |server, name, number| {
            // SAFETY: the caller of the exported function promises a text.
            let name = unsafe { model_name(name)? };
            let metadata = server.control.model_metadata(Pass::in_process(), name, version(number))?;
            document(http::encode_model_metadata(&metadata))
        }
    }
    TRITONSERVER_ServerModelStatistics(name: *const c_char, number: i64)
        -> model_stats: *mut TRITONSERVER_Message {
        |server, name, number| {
            // SAFETY: the caller of the exported function promises a text.
            let name = unsafe { model_name(name)? };
            let name = Some(name).filter(|name| !name.is_empty());
            let statistics = server.check_ready()?.control.statistics(Pass::in_process(), name, version(number))?;
            document(http::encode_statistics(&statistics))
        }
    }
    TRITONSERVER_ServerModelConfig(name: *const c_char, number: i64, config_version: u32)
        -> model_config: *mut TRITONSERVER_Message {
        |server, name, number, config_version| {
            if config_version != 1 {
                return Err(Status::invalid_argument(format!(
                    "model configuration version {config_version} is not supported, only 1 is"
                )));
            }
            // SAFETY: the caller of the exported function promises a text.
            let name = unsafe { model_name(name)? };
            let config = server.control.model_config(Pass::in_process(), name, version(number))?;
            Ok(message::into_c(config.json.clone()))
        }
    }
    TRITONSERVER_ServerModelIndex(flags: u32) -> model_index: *mut TRITONSERVER_Message {
        |server, flags| {
            let only_ready = flags & TRITONSERVER_INDEX_FLAG_READY.0 != 0;
            let index = server.check_ready()?.control.repository_index(Pass::in_process(), only_ready)?;
            document(http::encode_repository_index(&index))
        }
    }
    TRITONSERVER_ServerMetrics() -> metrics: *mut TRITONSERVER_Metrics {
        |server| {
            let text = (server.metrics)();
            Ok(handle::into_raw(MetricsObject { text }))
        }
    }
}

/// Defines the functions that return a property of a model as flags.
macro_rules! properties {
    ($($function:ident { $body:expr })*) => {
        $(
            const _: $function = $function;
            /// Returns the model's property as flags. `voidp` is reserved and set to
            /// null.
            ///
            /// # Safety
            ///
            /// `server` must be null or a server, `name` null or a text, the out pointers
            /// null or valid for writes.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $function(
                server: *mut TRITONSERVER_Server,
                name: *const c_char,
                number: i64,
                flags: *mut u32,
                voidp: *mut *mut c_void,
            ) -> *mut TRITONSERVER_Error {
                guard(stringify!($function), || {
                    // SAFETY: the caller's promises are passed on.
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
            let config = server.control.model_config(Pass::in_process(), name, number)?;
            let config: serde_json::Value = serde_json::from_str(&config.json)
                .map_err(|error| Status::internal(error.to_string()))?;
            let max_batch_size = config.get("max_batch_size").and_then(serde_json::Value::as_i64);
            let batches = max_batch_size.is_some_and(|size| size > 0);
            let flag =
                if batches { TRITONSERVER_BATCH_FIRST_DIM } else { TRITONSERVER_BATCH_UNKNOWN };
            Ok(flag.0)
        }
    }
    TRITONSERVER_ServerModelTransactionProperties {
        |server, name, number| {
            let decoupled = server.control.is_decoupled(Pass::in_process(), name, number)?;
            let flag =
                if decoupled { TRITONSERVER_TXN_DECOUPLED } else { TRITONSERVER_TXN_ONE_TO_ONE };
            Ok(flag.0)
        }
    }
}

/// Defines functions that execute a command for a model.
macro_rules! commands {
    ($($function:ident { $body:expr })*) => {
        $(
            const _: $function = $function;
            /// Executes the command and waits until it is done.
            ///
            /// # Safety
            ///
            /// `server` must be null or a server, `name` null or a text.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $function(
                server: *mut TRITONSERVER_Server,
                name: *const c_char,
            ) -> *mut TRITONSERVER_Error {
                guard(stringify!($function), || {
                    // SAFETY: the caller's promises are passed on.
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
        |server, name| server.check_ready()?.control.load_model(Pass::in_process(), name, LoadParameters::default())
    }
    TRITONSERVER_ServerUnloadModel {
        |server, name| server.check_ready()?.control.unload_model(Pass::in_process(), name, false)
    }
    TRITONSERVER_ServerUnloadModelAndDependents {
        |server, name| server.check_ready()?.control.unload_model(Pass::in_process(), name, true)
    }
    TRITONSERVER_ServerUnregisterModelRepository {
        |server, path| server.control.unregister_repository(Pass::in_process(), path)
    }
}

const _: TRITONSERVER_ServerLoadModelWithParameters = TRITONSERVER_ServerLoadModelWithParameters;
/// Loads a model with a configuration, and optionally files, instead of the repository's.
///
/// # Safety
///
/// `server` must be null or a server, `name` null or a text, `parameters` valid for
/// `parameter_count` pointers to parameters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerLoadModelWithParameters(
    server: *mut TRITONSERVER_Server,
    name: *const c_char,
    parameters: *mut *const TRITONSERVER_Parameter,
    parameter_count: u64,
) -> *mut TRITONSERVER_Error {
    guard("TRITONSERVER_ServerLoadModelWithParameters", || {
        let count = usize::try_from(parameter_count)
            .map_err(|_| Status::invalid_argument("parameter_count is too large"))?;
        if parameters.is_null() && count > 0 {
            return Err(Status::invalid_argument(
                "load parameters are not provided while parameter count is non-zero",
            ));
        }
        // SAFETY: the caller's promises are passed on.
        let (server, name, pointers) = unsafe {
            (running(server)?, model_name(name)?, pointer::slice(parameters, count, "parameters")?)
        };
        let mut load = LoadParameters::default();
        for pointer in pointers {
            let parameter = {
                // SAFETY: the caller's promise is passed on.
                unsafe { handle::borrow::<ParameterObject>(*pointer, "a load parameter")? }
            };
            add(&mut load, parameter).map_err(|reason| {
                Status::internal(format!(
                    "failed to load '{name}', failed to poll from model repository: {reason}"
                ))
            })?;
        }
        server.check_ready()?.control.load_model(Pass::in_process(), name, load)
    })
}

/// Adds a parameter, or says what is wrong with it. As in Triton, the first configuration
/// counts, and what is unknown behind it is not read.
fn add(load: &mut LoadParameters, parameter: &ParameterObject) -> Result<(), String> {
    let name = &parameter.name;
    match (&parameter.value, name.strip_prefix("file:")) {
        (ParameterContents::Value(ParameterValue::String(config)), None) if name == "config" => {
            load.config.get_or_insert_with(|| config.clone());
            Ok(())
        }
        (ParameterContents::Bytes(base, size), Some(path)) => {
            let size = usize::try_from(*size).map_err(|_| format!("'{name}' is too large"))?;
            // SAFETY: the parameter's maker promised `size` bytes for its life.
            let bytes = unsafe { pointer::slice(base.cast::<u8>(), size, "a file's bytes") };
            let bytes = bytes.map_err(|error| error.message().to_owned())?;
            load.files.push((path.to_owned(), bytes.to_vec()));
            Ok(())
        }
        (_, Some(_)) => Err(format!("File parameter '{name}' must have bytes type for its value")),
        (_, None) if load.config.is_some() => Ok(()),
        (value, None) => {
            let kind = match value {
                ParameterContents::Value(ParameterValue::String(_)) => "STRING",
                ParameterContents::Value(ParameterValue::Int64(_)) => "INT",
                ParameterContents::Value(ParameterValue::Bool(_)) => "BOOL",
                ParameterContents::Value(ParameterValue::Double(_)) => "DOUBLE",
                ParameterContents::Bytes(..) => "BYTES",
            };
            Err(format!("Unrecognized load parameter '{name}' with type '{kind}'"))
        }
    }
}

const _: TRITONSERVER_ServerRegisterModelRepository = TRITONSERVER_ServerRegisterModelRepository;
/// Adds a repository to a server with explicit control. Each parameter of the mapping
/// has a directory's name as its name and the model's name as its value.
///
/// # Safety
///
/// `server` must be null or a server, `repository_path` null or a text, `name_mapping`
/// valid for `mapping_count` pointers to parameters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerRegisterModelRepository(
    server: *mut TRITONSERVER_Server,
    repository_path: *const c_char,
    name_mapping: *mut *const TRITONSERVER_Parameter,
    mapping_count: u32,
) -> *mut TRITONSERVER_Error {
    guard("TRITONSERVER_ServerRegisterModelRepository", || {
        let count = usize::try_from(mapping_count)
            .map_err(|_| Status::invalid_argument("mapping_count is too large"))?;
        if name_mapping.is_null() && count > 0 {
            return Err(Status::invalid_argument(
                "model mappings are not provided while mapping count is non-zero",
            ));
        }
        // SAFETY: the caller's promises are passed on.
        let (server, path, pointers) = unsafe {
            (
                running(server)?,
                pointer::required_text(repository_path, "repository_path")?,
                pointer::slice(name_mapping, count, "name_mapping")?,
            )
        };
        let mut names: Vec<NameMapping> = Vec::new();
        for pointer in pointers {
            // SAFETY: the caller's promise is passed on.
            let parameter = unsafe { handle::borrow(*pointer, "a name mapping")? };
            let mapping = name_mapping_of(parameter)?;
            if names.iter().any(|known| known.name == mapping.name) {
                return Err(Status::invalid_argument(format!(
                    "failed to register '{path}', there is a conflicting mapping for '{}'",
                    mapping.name
                )));
            }
            names.push(mapping);
        }
        server.control.register_repository(Pass::in_process(), path, &names)
    })
}

fn name_mapping_of(parameter: &ParameterObject) -> Result<NameMapping, Status> {
    let directory = parameter.name.clone();
    match &parameter.value {
        ParameterContents::Value(ParameterValue::String(name)) => {
            Ok(NameMapping { directory, name: name.clone() })
        }
        ParameterContents::Value(_) | ParameterContents::Bytes(..) => {
            Err(Status::invalid_argument(format!(
                "Mapped model name must be a string, found another type for {directory}"
            )))
        }
    }
}

const _: TRITONSERVER_ServerPollModelRepository = TRITONSERVER_ServerPollModelRepository;
/// Polls the repositories: loads and unloads models that changed. For servers in control
/// mode poll, which in the library poll only when this is called.
///
/// # Safety
///
/// `server` must be null or a server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerPollModelRepository(
    server: *mut TRITONSERVER_Server,
) -> *mut TRITONSERVER_Error {
    guard("TRITONSERVER_ServerPollModelRepository", || {
        // SAFETY: the caller's promise is passed on.
        let server = unsafe { running(server)? };
        server.poll()
    })
}

/// A snapshot of the metrics.
struct MetricsObject {
    text: String,
}
galatea_c_objects::object!(MetricsObject as TRITONSERVER_Metrics, kind 42);

const _: TRITONSERVER_MetricsFormatted = TRITONSERVER_MetricsFormatted;
/// The metrics' text. It lives as long as the metrics.
///
/// # Safety
///
/// `metrics` must be null or metrics; the out pointers null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MetricsFormatted(
    metrics: *mut TRITONSERVER_Metrics,
    format: TRITONSERVER_MetricFormat,
    base: *mut *const c_char,
    byte_size: *mut usize,
) -> *mut TRITONSERVER_Error {
    guard("TRITONSERVER_MetricsFormatted", || {
        if format != TRITONSERVER_METRIC_PROMETHEUS {
            let text = format!("unknown metrics format '{}'", format.0);
            return Err(Status::invalid_argument(text));
        }
        // SAFETY: the caller's promises are passed on.
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
/// `metrics` must be null or metrics that are not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_MetricsDelete(
    metrics: *mut TRITONSERVER_Metrics,
) -> *mut TRITONSERVER_Error {
    guard("TRITONSERVER_MetricsDelete", || {
        // SAFETY: the caller's promise is passed on.
        unsafe { handle::delete::<MetricsObject>(metrics, "metrics") }
    })
}
