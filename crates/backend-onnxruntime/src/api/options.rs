//! Options for sessions and runs.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

use galatea_devices::CudaStream;
use galatea_infer::Status;
use galatea_runtime::{OnOff, c_string};
use ort_sys::{GraphOptimizationLevel, OrtRunOptions, OrtSessionOptions, OrtStatusPtr};

use super::environment::OrtEnvironment;
use super::error::OrtError;
use super::handle::OrtHandle;
use super::table::ApiTable;

/// The graph optimizations that the library may apply.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum GraphLevel {
    /// No optimizations.
    None,
    /// Optimizations that are independent of the execution provider.
    Basic,
    /// Basic optimizations and fusions.
    Extended,
    /// All optimizations.
    All,
}

/// The order in which a graph's operators run.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExecutionMode {
    /// One operator after another.
    Sequential,
    /// Independent operators in parallel.
    Parallel,
}

/// The name of the option that makes a provider use the caller's stream.
const USER_COMPUTE_STREAM: &CStr = c"user_compute_stream";

/// The options for a session.
pub(crate) struct SessionOptions {
    raw: OrtHandle<OrtSessionOptions>,
    api: ApiTable,
    needs_exclusive_creation: bool,
    /// The stream that was passed to a provider.
    stream: Option<*mut c_void>,
}

impl SessionOptions {
    /// Creates options with the library's defaults.
    pub(crate) fn new(environment: &OrtEnvironment) -> Result<Self, OrtError> {
        let api = environment.api();
        let table = api.table();
        // SAFETY: the constructor stores options, which the given function releases.
        let raw = unsafe {
            OrtHandle::create(api, table.ReleaseSessionOptions, "session options", |out| {
                (table.CreateSessionOptions)(out)
            })?
        };
        Ok(Self { raw, api, needs_exclusive_creation: false, stream: None })
    }

    /// Calls a setter that takes the options and a single plain value.
    fn set<T>(
        &mut self,
        setter: unsafe extern "system" fn(*mut OrtSessionOptions, T) -> OrtStatusPtr,
        value: T,
    ) -> Result<(), OrtError> {
        // SAFETY: the options are alive and borrowed exclusively; the value is copied.
        unsafe { self.api.check(setter(self.raw.as_ptr(), value)) }
    }

    /// Calls a setter that takes only the options.
    fn apply(
        &mut self,
        setter: unsafe extern "system" fn(*mut OrtSessionOptions) -> OrtStatusPtr,
    ) -> Result<(), OrtError> {
        // SAFETY: the same as for `set`.
        unsafe { self.api.check(setter(self.raw.as_ptr())) }
    }

    pub(crate) fn set_graph_level(&mut self, level: GraphLevel) -> Result<(), OrtError> {
        let level = match level {
            GraphLevel::None => GraphOptimizationLevel::ORT_DISABLE_ALL,
            GraphLevel::Basic => GraphOptimizationLevel::ORT_ENABLE_BASIC,
            GraphLevel::Extended => GraphOptimizationLevel::ORT_ENABLE_EXTENDED,
            GraphLevel::All => GraphOptimizationLevel::ORT_ENABLE_ALL,
        };
        self.set(self.api.table().SetSessionGraphOptimizationLevel, level)
    }

    pub(crate) fn set_execution_mode(&mut self, mode: ExecutionMode) -> Result<(), OrtError> {
        let mode = match mode {
            ExecutionMode::Sequential => ort_sys::ExecutionMode::ORT_SEQUENTIAL,
            ExecutionMode::Parallel => ort_sys::ExecutionMode::ORT_PARALLEL,
        };
        self.set(self.api.table().SetSessionExecutionMode, mode)
    }

    pub(crate) fn set_intra_op_threads(&mut self, threads: c_int) -> Result<(), OrtError> {
        self.set(self.api.table().SetIntraOpNumThreads, threads)
    }

    pub(crate) fn set_inter_op_threads(&mut self, threads: c_int) -> Result<(), OrtError> {
        self.set(self.api.table().SetInterOpNumThreads, threads)
    }

    pub(crate) fn use_global_threads(&mut self) -> Result<(), OrtError> {
        self.apply(self.api.table().DisablePerSessionThreads)
    }

    pub(crate) fn set_memory_arena(&mut self, arena: OnOff) -> Result<(), OrtError> {
        self.apply(match arena {
            OnOff::On => self.api.table().EnableCpuMemArena,
            OnOff::Off => self.api.table().DisableCpuMemArena,
        })
    }

    pub(crate) fn set_memory_pattern(&mut self, pattern: OnOff) -> Result<(), OrtError> {
        self.apply(match pattern {
            OnOff::On => self.api.table().EnableMemPattern,
            OnOff::Off => self.api.table().DisableMemPattern,
        })
    }

    /// Sets a configuration entry.
    pub(crate) fn set_entry(&mut self, key: &str, value: &str) -> Result<(), Status> {
        let (key, value) = (c_string(key, "a session option")?, c_string(value, key)?);
        // SAFETY: the options are alive; both strings live during the call.
        unsafe {
            self.api.check((self.api.table().AddSessionConfigEntry)(
                self.raw.as_ptr(),
                key.as_ptr(),
                value.as_ptr(),
            ))?;
        }
        Ok(())
    }

    /// Appends TensorRT to the execution providers.
    pub(crate) fn append_tensorrt(
        &mut self,
        options: &BTreeMap<String, String>,
        stream: Option<&CudaStream>,
    ) -> Result<(), Status> {
        let table = self.api.table();
        let pairs = KeyValueArrays::new(options)?;
        // SAFETY: the constructor stores options, which the given function releases; the keys and
        // values are arrays of `pairs.len()` strings that live during the calls; the session
        // options copy them. The stream is recorded below.
        unsafe {
            let provider = OrtHandle::create(
                self.api,
                table.ReleaseTensorRTProviderOptions,
                "TensorRT options",
                |out| (table.CreateTensorRTProviderOptions)(out),
            )?;
            self.api.check((table.UpdateTensorRTProviderOptions)(
                provider.as_ptr(),
                pairs.keys.as_ptr(),
                pairs.values.as_ptr(),
                pairs.len(),
            ))?;
            if let Some(stream) = stream {
                self.api.check((table.UpdateTensorRTProviderOptionsWithValue)(
                    provider.as_ptr(),
                    USER_COMPUTE_STREAM.as_ptr(),
                    stream.raw(),
                ))?;
            }
            self.api.check((table.SessionOptionsAppendExecutionProvider_TensorRT_V2)(
                self.raw.as_ptr(),
                provider.as_ptr(),
            ))?;
        }
        self.stream = stream.map(CudaStream::raw);
        Ok(())
    }

    /// Appends CUDA to the execution providers.
    pub(crate) fn append_cuda(
        &mut self,
        options: &BTreeMap<String, String>,
        stream: Option<&CudaStream>,
    ) -> Result<(), Status> {
        let table = self.api.table();
        let has_stream = if stream.is_some() { "1" } else { "0" };
        let mut options = options.clone();
        options.insert(String::from("has_user_compute_stream"), has_stream.to_owned());
        let pairs = KeyValueArrays::new(&options)?;
        // SAFETY: the same as for TensorRT.
        unsafe {
            let provider = OrtHandle::create(
                self.api,
                table.ReleaseCUDAProviderOptions,
                "CUDA options",
                |out| (table.CreateCUDAProviderOptions)(out),
            )?;
            self.api.check((table.UpdateCUDAProviderOptions)(
                provider.as_ptr(),
                pairs.keys.as_ptr(),
                pairs.values.as_ptr(),
                pairs.len(),
            ))?;
            if let Some(stream) = stream {
                self.api.check((table.UpdateCUDAProviderOptionsWithValue)(
                    provider.as_ptr(),
                    USER_COMPUTE_STREAM.as_ptr(),
                    stream.raw(),
                ))?;
            }
            self.api.check((table.SessionOptionsAppendExecutionProvider_CUDA_V2)(
                self.raw.as_ptr(),
                provider.as_ptr(),
            ))?;
        }
        self.stream = stream.map(CudaStream::raw);
        Ok(())
    }

    /// Appends OpenVINO to the execution providers.
    pub(crate) fn append_openvino(
        &mut self,
        options: &BTreeMap<String, String>,
    ) -> Result<(), Status> {
        let pairs = KeyValueArrays::new(options)?;
        // SAFETY: the options are alive; the keys and values are arrays of `pairs.len()` strings
        // that live during the call.
        unsafe {
            self.api.check(
                (self.api.table().SessionOptionsAppendExecutionProvider_OpenVINO_V2)(
                    self.raw.as_ptr(),
                    pairs.keys.as_ptr(),
                    pairs.values.as_ptr(),
                    pairs.len(),
                ),
            )?;
        }
        self.needs_exclusive_creation = true;
        Ok(())
    }

    /// The stream on which a session with these options executes, if one was specified.
    pub(super) const fn stream(&self) -> Option<*mut c_void> {
        self.stream
    }

    pub(super) const fn as_ptr(&self) -> *const OrtSessionOptions {
        self.raw.as_ptr()
    }

    pub(super) const fn as_mut_ptr(&mut self) -> *mut OrtSessionOptions {
        self.raw.as_ptr()
    }

    /// Records that the session must be created under [`OrtEnvironment::lock_creation`].
    pub(super) const fn require_exclusive_creation(&mut self) {
        self.needs_exclusive_creation = true;
    }

    /// Returns true if the session must be created under [`OrtEnvironment::lock_creation`]. This is
    /// the case for the OpenVINO provider and for operator libraries.
    pub(super) const fn needs_exclusive_creation(&self) -> bool {
        self.needs_exclusive_creation
    }
}

/// Keys and values in the form that the library expects.
struct KeyValueArrays {
    keys: Vec<*const c_char>,
    values: Vec<*const c_char>,
    /// Owns the memory that the pointers refer to.
    _strings: Vec<CString>,
}

impl KeyValueArrays {
    fn new(options: &BTreeMap<String, String>) -> Result<Self, Status> {
        let mut pairs = Self { keys: Vec::new(), values: Vec::new(), _strings: Vec::new() };
        for (key, value) in options {
            let (key_string, value_string) =
                (c_string(key, "an option's name")?, c_string(value, key)?);
            pairs.keys.push(key_string.as_ptr());
            pairs.values.push(value_string.as_ptr());
            pairs._strings.extend([key_string, value_string]);
        }
        Ok(pairs)
    }

    const fn len(&self) -> usize {
        self.keys.len()
    }
}

/// The options for a run. An instance reuses them for all of its runs.
pub(crate) struct RunOptions {
    raw: OrtHandle<OrtRunOptions>,
    api: ApiTable,
}

// SAFETY: the options are not bound to a thread.
unsafe impl Send for RunOptions {}
// SAFETY: through a shared reference, runs only read the options. The only other access is to a
// flag that, according to the library's documentation, other threads may set during a run.
unsafe impl Sync for RunOptions {}

impl RunOptions {
    /// Creates options with the library's defaults.
    pub(crate) fn new(environment: &OrtEnvironment) -> Result<Self, OrtError> {
        let api = environment.api();
        // SAFETY: the constructor stores options, which the given function releases.
        let raw = unsafe {
            OrtHandle::create(api, api.table().ReleaseRunOptions, "run options", |out| {
                (api.table().CreateRunOptions)(out)
            })?
        };
        Ok(Self { raw, api })
    }

    /// Sets a configuration entry.
    pub(crate) fn set_entry(&mut self, key: &CStr, value: &CStr) -> Result<(), OrtError> {
        let api = self.api;
        // SAFETY: the options are alive and borrowed exclusively; both strings live during
        // the call.
        unsafe {
            api.check((api.table().AddRunConfigEntry)(
                self.raw.as_ptr(),
                key.as_ptr(),
                value.as_ptr(),
            ))
        }
    }

    /// Makes current and later runs with these options fail soon.
    pub(crate) fn terminate(&self) {
        // SAFETY: the options are alive, and any thread may set the flag.
        let set =
            unsafe { self.api.check((self.api.table().RunOptionsSetTerminate)(self.raw.as_ptr())) };
        // The library never fails to set a flag. If it did, the run would simply continue.
        drop(set);
    }

    /// Lets later runs complete again.
    pub(crate) fn reset_terminate(&self) {
        // SAFETY: as above.
        let reset = unsafe {
            self.api.check((self.api.table().RunOptionsUnsetTerminate)(self.raw.as_ptr()))
        };
        drop(reset);
    }

    pub(super) const fn as_ptr(&self) -> *const OrtRunOptions {
        self.raw.as_ptr()
    }
}
