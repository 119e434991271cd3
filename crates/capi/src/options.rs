//! Options for creating a server. Each option is represented as a command-line flag.

use core::ffi::{c_char, c_int, c_uint};
use std::collections::BTreeMap;

use galatea_abi::server::*;
use galatea_abi::*;
use galatea_c_objects::log::{self, ApiLogFormat, ApiLogLevel, ApiLogSetting};
use galatea_c_objects::{catch_panic, handle, pointer};
use galatea_infer::Status;

/// The options for a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerCreateOptions {
    /// The command-line flags, which represent most options.
    pub flags: Vec<String>,
    /// The response cache's name and its configuration, unchanged.
    pub cache: Option<(String, String)>,
    /// Host-policy settings as policy, setting and value, each of which may be empty.
    pub host_policies: Vec<[String; 3]>,
}

/// The options that have been set.
#[derive(Clone, Debug)]
pub(crate) struct OptionsObject {
    /// The flags as `--name=value`, in the order in which they were set.
    flags: Vec<String>,
    control_mode: &'static str,
    /// True if model configurations must be complete.
    strict_model_config: bool,
    /// Each cache's configuration as a string.
    caches: BTreeMap<String, String>,
    /// Host-policy settings, in the order in which they were set.
    host_policies: Vec<[String; 3]>,
}
galatea_c_objects::object!(OptionsObject as TRITONSERVER_ServerOptions, kind 40);

/// The defaults of Triton's library, which differ from those of its executable: models are loaded
/// at startup and when the program polls, and configurations aren't completed automatically.
impl Default for OptionsObject {
    fn default() -> Self {
        Self {
            flags: Vec::new(),
            control_mode: "poll",
            strict_model_config: true,
            caches: BTreeMap::new(),
            host_policies: Vec::new(),
        }
    }
}

impl OptionsObject {
    /// The options for creating a server.
    pub(crate) fn chosen(&self) -> ServerCreateOptions {
        ServerCreateOptions {
            flags: self.flags(),
            cache: self.caches.iter().next().map(|(name, text)| (name.clone(), text.clone())),
            host_policies: self.host_policies.clone(),
        }
    }

    fn flags(&self) -> Vec<String> {
        let mut flags = vec![format!("--model-control-mode={}", self.control_mode)];
        if self.strict_model_config {
            flags.push(String::from("--disable-auto-complete-config"));
        }
        flags.extend_from_slice(&self.flags);
        flags
    }

    /// Checks for options that prevent a server from being created. As in Triton, the setters
    /// accept such options.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` with Triton's message.
    pub(crate) fn check(&self) -> Result<(), Status> {
        if self.caches.len() <= 1 {
            return Ok(());
        }
        Err(Status::invalid_argument(
            "found multiple cache configurations, but only a single cache is currently supported",
        ))
    }

    fn set(&mut self, flag: &str, value: impl std::fmt::Display) {
        self.flags.push(format!("--{flag}={value}"));
    }
}

const _: TRITONSERVER_ServerOptionsNew = TRITONSERVER_ServerOptionsNew;
/// Creates options with the defaults of Triton's library.
///
/// # Safety
///
/// `options` must be null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerOptionsNew(
    options: *mut *mut TRITONSERVER_ServerOptions,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_ServerOptionsNew", || {
        pointer::check_not_null(options, "options")?;
        let made = handle::into_raw(OptionsObject::default());
        // SAFETY: guaranteed by the caller.
        unsafe { pointer::write(options, made, "options") }
    })
}

const _: TRITONSERVER_ServerOptionsDelete = TRITONSERVER_ServerOptionsDelete;
/// Deletes options.
///
/// # Safety
///
/// `options` must be null or refer to options that are not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONSERVER_ServerOptionsDelete(
    options: *mut TRITONSERVER_ServerOptions,
) -> *mut TRITONSERVER_Error {
    catch_panic("TRITONSERVER_ServerOptionsDelete", || {
        // SAFETY: guaranteed by the caller.
        unsafe { handle::delete::<OptionsObject>(options, "options") }
    })
}

/// Defines functions that each set one flag from their arguments. `$body` receives the options and
/// the arguments, with strings already converted to `&str`.
macro_rules! setters {
    ($($function:ident($($argument:ident: $kind:ident),*) $body:expr;)*) => {
        $(
            const _: $function = $function;
            /// Sets the option.
            ///
            /// # Safety
            ///
            /// `options` must be null or refer to options that no other thread uses. Strings must
            /// be null or NUL-terminated.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $function(
                options: *mut TRITONSERVER_ServerOptions,
                $($argument: setters!(@type $kind)),*
            ) -> *mut TRITONSERVER_Error {
                catch_panic(stringify!($function), || {
                    let options = {
                        // SAFETY: guaranteed by the caller.
                        unsafe { handle::borrow_mut::<OptionsObject>(options, "options")? }
                    };
                    $(let $argument = setters!(@value $kind $argument);)*
                    let set: fn(
                        &mut OptionsObject,
                        $(setters!(@parameter $kind)),*
                    ) -> Result<(), Status> = $body;
                    set(options, $($argument),*)
                })
            }
        )*
    };
    (@type text) => { *const c_char };
    (@type $kind:ident) => { $kind };
    (@parameter text) => { &str };
    (@parameter $kind:ident) => { $kind };
    (@value text $argument:ident) => {
        // SAFETY: the caller guarantees valid strings.
        unsafe { pointer::required_c_str($argument, stringify!($argument))? }
    };
    (@value $kind:ident $argument:ident) => { $argument };
}

/// Defines a setter whose only argument is the flag's value.
macro_rules! flag {
    ($flag:literal) => {
        |options, value| {
            options.set($flag, value);
            Ok(())
        }
    };
}

setters! {
    TRITONSERVER_ServerOptionsSetServerId(server_id: text) flag!("id");
    TRITONSERVER_ServerOptionsSetModelRepositoryPath(path: text) flag!("model-repository");
    TRITONSERVER_ServerOptionsSetModelControlMode(mode: TRITONSERVER_ModelControlMode)
        control_mode;
    TRITONSERVER_ServerOptionsSetStartupModel(model_name: text) flag!("load-model");
    TRITONSERVER_ServerOptionsSetStrictModelConfig(strict: bool) |options, strict| {
        options.strict_model_config = strict;
        Ok(())
    };
    TRITONSERVER_ServerOptionsSetModelConfigName(name: text) |options, name| {
        if !name.is_empty() {
            options.set("model-config-name", name);
        }
        Ok(())
    };
    TRITONSERVER_ServerOptionsSetRateLimiterMode(mode: TRITONSERVER_RateLimitMode) rate_limit;
    TRITONSERVER_ServerOptionsAddRateLimiterResource(name: text, count: usize, device: c_int)
        |options, name, count, device| {
            if device < 0 {
                options.set("rate-limit-resource", format_args!("{name}:{count}"));
            } else {
                options.set("rate-limit-resource", format_args!("{name}:{count}:{device}"));
            }
            Ok(())
        };
    TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize(size: u64)
        flag!("pinned-memory-pool-byte-size");
    TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize(gpu_device: c_int, size: u64)
        |options, gpu_device, size| {
            options.set("cuda-memory-pool-byte-size", format_args!("{gpu_device}:{size}"));
            Ok(())
        };
    TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize(gpu_device: c_int, size: usize)
        |options, gpu_device, size| {
            options.set("cuda-virtual-address-size", format_args!("{gpu_device}:{size}"));
            Ok(())
        };
    TRITONSERVER_ServerOptionsSetResponseCacheByteSize(size: u64) cache_byte_size;
    TRITONSERVER_ServerOptionsSetCacheConfig(cache_name: text, config_json: text) cache_config;
    TRITONSERVER_ServerOptionsSetCacheDirectory(cache_dir: text) flag!("cache-directory");
    TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability(cc: f64)
        flag!("min-supported-compute-capability");
    TRITONSERVER_ServerOptionsSetExitOnError(exit: bool) flag!("exit-on-error");
    TRITONSERVER_ServerOptionsSetStrictReadiness(strict: bool) flag!("strict-readiness");
    TRITONSERVER_ServerOptionsSetExitTimeout(timeout: c_uint) flag!("exit-timeout-secs");
    TRITONSERVER_ServerOptionsSetBufferManagerThreadCount(count: c_uint)
        flag!("buffer-manager-thread-count");
    TRITONSERVER_ServerOptionsSetModelLoadThreadCount(count: c_uint)
        flag!("model-load-thread-count");
    TRITONSERVER_ServerOptionsSetModelLoadRetryCount(count: c_uint)
        flag!("model-load-retry-count");
    TRITONSERVER_ServerOptionsSetModelNamespacing(enable: bool) flag!("model-namespacing");
    TRITONSERVER_ServerOptionsSetEnablePeerAccess(enable: bool) flag!("enable-peer-access");
    TRITONSERVER_ServerOptionsSetMetrics(metrics: bool) flag!("allow-metrics");
    TRITONSERVER_ServerOptionsSetGpuMetrics(gpu_metrics: bool) flag!("allow-gpu-metrics");
    TRITONSERVER_ServerOptionsSetCpuMetrics(cpu_metrics: bool) flag!("allow-cpu-metrics");
    TRITONSERVER_ServerOptionsSetMetricsInterval(interval_ms: u64) flag!("metrics-interval-ms");
    TRITONSERVER_ServerOptionsSetBackendDirectory(backend_dir: text) flag!("backend-directory");
    TRITONSERVER_ServerOptionsSetRepoAgentDirectory(repoagent_dir: text)
        flag!("repoagent-directory");
    TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit(
        kind: TRITONSERVER_InstanceGroupKind, device_id: c_int, fraction: f64) load_limit;
    TRITONSERVER_ServerOptionsSetBackendConfig(backend_name: text, setting: text, value: text)
        |options, backend_name, setting, value| {
            if backend_name.is_empty() {
                options.set("backend-config", format_args!("{setting}={value}"));
            } else {
                options.set("backend-config", format_args!("{backend_name},{setting}={value}"));
            }
            Ok(())
        };
    TRITONSERVER_ServerOptionsSetHostPolicy(policy_name: text, setting: text, value: text)
        |options, policy_name, setting, value| {
            if !matches!(setting, "numa-node" | "cpu-cores") {
                return Err(Status::unsupported(format!(
                    "Unsupported host policy setting '{setting}' is specified, supported \
                     settings are 'numa-node', 'cpu-cores'"
                )));
            }
            options.host_policies.push([policy_name, setting, value].map(str::to_owned));
            Ok(())
        };
    TRITONSERVER_ServerOptionsSetMetricsConfig(name: text, setting: text, value: text)
        |options, name, setting, value| {
            if name.is_empty() {
                options.set("metrics-config", format_args!("{setting}={value}"));
            } else {
                options.set("metrics-config", format_args!("{name},{setting}={value}"));
            }
            Ok(())
        };
}

/// Defines functions that change a log setting. `$body` receives the argument.
macro_rules! log_setters {
    ($($function:ident($argument:ident: $kind:ty) $body:expr;)*) => {
        $(
            const _: $function = $function;
            /// Changes the process's log immediately. All servers in the process share the log. The
            /// last setting takes effect, even if the options are never used to create a server.
            ///
            /// # Safety
            ///
            /// `options` must be null or refer to options. A string must be null or NUL-terminated.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $function(
                options: *mut TRITONSERVER_ServerOptions,
                $argument: $kind,
            ) -> *mut TRITONSERVER_Error {
                catch_panic(stringify!($function), || {
                    if !options.is_null() {
                        // SAFETY: guaranteed by the caller.
                        unsafe { handle::borrow::<OptionsObject>(options, "options")? };
                    }
                    let setting: unsafe fn($kind) -> Result<Option<ApiLogSetting>, Status> = $body;
                    // SAFETY: as above.
                    unsafe { setting($argument)? }.map_or(Ok(()), |setting| log::set(&setting))
                })
            }
        )*
    };
}

log_setters! {
    TRITONSERVER_ServerOptionsSetLogFile(file: *const c_char) |file| {
        if file.is_null() {
            return Ok(Some(ApiLogSetting::File(String::new())));
        }
        // SAFETY: the caller of the exported function guarantees a valid string.
        let file = unsafe { pointer::required_c_str(file, "file")? };
        Ok(Some(ApiLogSetting::File(file.to_owned())))
    };
    TRITONSERVER_ServerOptionsSetLogInfo(log_: bool)
        |on| Ok(Some(ApiLogSetting::Enabled(ApiLogLevel::Info, on)));
    TRITONSERVER_ServerOptionsSetLogWarn(log_: bool)
        |on| Ok(Some(ApiLogSetting::Enabled(ApiLogLevel::Warning, on)));
    TRITONSERVER_ServerOptionsSetLogError(log_: bool)
        |on| Ok(Some(ApiLogSetting::Enabled(ApiLogLevel::Error, on)));
    TRITONSERVER_ServerOptionsSetLogFormat(format: TRITONSERVER_LogFormat)
        |format| Ok(log_format(format).map(ApiLogSetting::Format));
    TRITONSERVER_ServerOptionsSetLogVerbose(level: c_int)
        |level| Ok(Some(ApiLogSetting::VerboseLevel(u32::try_from(level).unwrap_or(0))));
}

fn control_mode(
    options: &mut OptionsObject,
    mode: TRITONSERVER_ModelControlMode,
) -> Result<(), Status> {
    options.control_mode = match mode {
        TRITONSERVER_MODEL_CONTROL_NONE => "none",
        TRITONSERVER_MODEL_CONTROL_POLL => "poll",
        TRITONSERVER_MODEL_CONTROL_EXPLICIT => "explicit",
        TRITONSERVER_ModelControlMode(other) => {
            return Err(Status::invalid_argument(format!("unknown control mode '{other}'")));
        }
    };
    Ok(())
}

fn rate_limit(options: &mut OptionsObject, mode: TRITONSERVER_RateLimitMode) -> Result<(), Status> {
    let name = match mode {
        TRITONSERVER_RATE_LIMIT_OFF => "off",
        TRITONSERVER_RATE_LIMIT_EXEC_COUNT => "execution_count",
        TRITONSERVER_RateLimitMode(other) => {
            return Err(Status::invalid_argument(format!("unknown rate limit mode '{other}'")));
        }
    };
    options.set("rate-limit", name);
    Ok(())
}

/// The log format. As in Triton, an unknown format changes nothing.
fn log_format(format: TRITONSERVER_LogFormat) -> Option<ApiLogFormat> {
    match format {
        TRITONSERVER_LOG_DEFAULT => Some(ApiLogFormat::Default),
        TRITONSERVER_LOG_ISO8601 => Some(ApiLogFormat::Iso8601),
        TRITONSERVER_LogFormat(_) => None,
    }
}

fn load_limit(
    options: &mut OptionsObject,
    kind: TRITONSERVER_InstanceGroupKind,
    device: c_int,
    fraction: f64,
) -> Result<(), Status> {
    let refuse = |why: String| Err(Status::invalid_argument(why));
    if device < 0 {
        return refuse(format!("expects device ID >= 0, got {device}"));
    }
    if !(0.0..=1.0).contains(&fraction) && !fraction.is_nan() {
        return refuse(format!(
            "expects limit fraction to be in range [0.0, 1.0], got {fraction:.6}"
        ));
    }
    if kind != TRITONSERVER_INSTANCEGROUPKIND_GPU {
        let kind = match kind {
            TRITONSERVER_INSTANCEGROUPKIND_AUTO => "AUTO",
            TRITONSERVER_INSTANCEGROUPKIND_CPU => "CPU",
            TRITONSERVER_INSTANCEGROUPKIND_MODEL => "MODEL",
            _ => "<invalid>",
        };
        return refuse(format!("given device kind is not supported, got: {kind}"));
    }
    options.set("model-load-gpu-limit", format_args!("{device}:{fraction}"));
    Ok(())
}

/// The configuration is passed to the cache unchanged.
fn cache_config(options: &mut OptionsObject, name: &str, json: &str) -> Result<(), Status> {
    options.caches.insert(name.to_owned(), json.to_owned());
    Ok(())
}

/// Sets the local cache's size through the older option. As in Triton, 0 disables the cache.
fn cache_byte_size(options: &mut OptionsObject, size: u64) -> Result<(), Status> {
    if size > 0 {
        let json = format!("{{\"size\": \"{size}\"}}");
        options.caches.insert(String::from("local"), json);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_flags() {
        let mut options = core::ptr::null_mut();
        // SAFETY: the pointers belong to this test, and the strings are NUL-terminated.
        unsafe {
            assert!(TRITONSERVER_ServerOptionsNew(&raw mut options).is_null());
            let load_limit = |device, fraction| {
                let kind = TRITONSERVER_INSTANCEGROUPKIND_GPU;
                TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit(options, kind, device, fraction)
            };
            let ok = [
                TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, c"/models".as_ptr()),
                TRITONSERVER_ServerOptionsSetModelControlMode(
                    options,
                    TRITONSERVER_MODEL_CONTROL_EXPLICIT,
                ),
                TRITONSERVER_ServerOptionsSetStrictModelConfig(options, false),
                TRITONSERVER_ServerOptionsSetStrictModelConfig(options, true),
                TRITONSERVER_ServerOptionsSetCacheConfig(
                    options,
                    c"local".as_ptr(),
                    c" {\"size\": 7}\n".as_ptr(),
                ),
                TRITONSERVER_ServerOptionsSetHostPolicy(
                    options,
                    c"".as_ptr(),
                    c"cpu-cores".as_ptr(),
                    c"".as_ptr(),
                ),
                TRITONSERVER_ServerOptionsSetResponseCacheByteSize(options, 9),
                TRITONSERVER_ServerOptionsSetResponseCacheByteSize(options, 0),
                TRITONSERVER_ServerOptionsAddRateLimiterResource(options, c"R".as_ptr(), 3, -1),
                TRITONSERVER_ServerOptionsSetBackendConfig(
                    options,
                    c"python".as_ptr(),
                    c"a".as_ptr(),
                    c"b".as_ptr(),
                ),
            ];
            assert!(ok.iter().all(|error| error.is_null()));
            let unknown = TRITONSERVER_LogFormat(9);
            assert!(TRITONSERVER_ServerOptionsSetLogFormat(options, unknown).is_null());
            let bad = [
                TRITONSERVER_ServerOptionsSetServerId(options, core::ptr::null()),
                TRITONSERVER_ServerOptionsSetExitTimeout(core::ptr::null_mut(), 1),
                load_limit(-1, 0.5),
                load_limit(0, 1.5),
                TRITONSERVER_ServerOptionsSetHostPolicy(
                    options,
                    c"near".as_ptr(),
                    c"colour".as_ptr(),
                    c"red".as_ptr(),
                ),
            ];
            for error in bad {
                assert!(galatea_c_objects::error::take_c_error(error).is_err());
            }
            let taken = handle::take::<OptionsObject>(options, "options").unwrap();
            let expected = [
                "--model-control-mode=explicit",
                "--disable-auto-complete-config",
                "--model-repository=/models",
                "--rate-limit-resource=R:3",
                "--backend-config=python,a=b",
            ];
            let chosen = taken.chosen();
            assert_eq!(chosen.flags, expected);
            let cache = (String::from("local"), String::from("{\"size\": \"9\"}"));
            assert_eq!(chosen.cache, Some(cache));
            let policy = ["", "cpu-cores", ""].map(str::to_owned);
            assert_eq!(chosen.host_policies, [policy]);
        }
    }

    #[test]
    fn a_server_has_one_cache_with_its_own_configuration() {
        let mut options = OptionsObject::default();
        for text in ["{}", " no JSON\n"] {
            cache_config(&mut options, "own", text).unwrap();
            assert_eq!(options.check(), Ok(()));
            assert_eq!(options.chosen().cache, Some((String::from("own"), text.to_owned())));
        }
        cache_config(&mut options, "redis", "{}").unwrap();
        let status = options.check().unwrap_err();
        assert!(status.message().ends_with("only a single cache is currently supported"));
    }

    #[test]
    fn the_defaults_are_those_of_tritons_library() {
        let mut options = OptionsObject::default();
        let strict = ["--model-control-mode=poll", "--disable-auto-complete-config"];
        assert_eq!(options.flags(), strict);
        let address = handle::into_raw(options);
        // SAFETY: the options are alive, and only this test uses them.
        unsafe {
            for (mode, strict) in [
                (TRITONSERVER_MODEL_CONTROL_EXPLICIT, true),
                (TRITONSERVER_MODEL_CONTROL_NONE, false),
            ] {
                let set = [
                    TRITONSERVER_ServerOptionsSetModelControlMode(address, mode),
                    TRITONSERVER_ServerOptionsSetStrictModelConfig(address, strict),
                ];
                assert!(set.iter().all(|error| error.is_null()));
            }
            options = handle::take::<OptionsObject>(address, "options").unwrap();
        }
        // The last setting takes effect.
        assert_eq!(options.flags(), ["--model-control-mode=none"]);
    }
}
