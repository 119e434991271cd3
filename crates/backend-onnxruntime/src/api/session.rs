//! Sessions: loaded models.

use std::ffi::{CString, c_char};
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use galatea_infer::Status;
use galatea_runtime::{ElementKind, OutputPlace, SessionInterface, TensorInfo, path_string};
use ort_sys::{
    ONNXType, OrtAllocator, OrtSession, OrtStatusPtr, OrtTensorTypeAndShapeInfo, OrtTypeInfo,
    OrtValue,
};
use smallvec::SmallVec;

use super::element::{element_and_dims, not_a_tensor};
use super::environment::OrtEnvironment;
use super::error::OrtError;
use super::handle::OrtHandle;
use super::options::{RunOptions, SessionOptions};
use super::table::ApiTable;
use super::value::{OrtTensor, RunOutputs};

/// A loaded model. Any number of threads may run it concurrently.
pub(crate) struct ModelSession {
    pub(super) raw: OrtHandle<OrtSession>,
    environment: Arc<OrtEnvironment>,
    /// The names of the interface's inputs.
    pub(super) input_names: Vec<CString>,
    /// The names of the interface's outputs.
    pub(super) output_names: Vec<CString>,
}

// SAFETY: the library documents that several threads may run a session concurrently; sessions are
// not bound to a thread.
unsafe impl Send for ModelSession {}
// SAFETY: as above; after construction, a session is only run.
unsafe impl Sync for ModelSession {}

impl ModelSession {
    /// Loads the model at `path`. Its inputs are the required ones, followed by those with
    /// defaults.
    pub(crate) fn open(
        environment: Arc<OrtEnvironment>,
        path: &Path,
        options: &SessionOptions,
    ) -> Result<(Self, SessionInterface), Status> {
        if options.stream().is_some() {
            return Err(Status::internal("a session with a stream needs an owner of both"));
        }
        Self::open_with_stream(environment, path, options)
    }

    /// Like [`Self::open`], but the caller must keep the stream in the options alive longer than
    /// the session.
    pub(super) fn open_with_stream(
        environment: Arc<OrtEnvironment>,
        path: &Path,
        options: &SessionOptions,
    ) -> Result<(Self, SessionInterface), Status> {
        let api = environment.api();
        let table = api.table();
        let c_path = path_string(path)?;
        let lock = options.needs_exclusive_creation().then(|| environment.lock_creation());
        // SAFETY: the environment and options are alive, the path lives during the call, and the
        // given function releases the session.
        let raw = unsafe {
            OrtHandle::create(api, table.ReleaseSession, "session", |out| {
                (table.CreateSession)(environment.as_ptr(), c_path.as_ptr(), options.as_ptr(), out)
            })?
        };
        drop(lock);
        let reader =
            SessionReader { api, session: raw.as_ptr(), allocator: api.default_allocator()? };
        let (mut input_names, mut inputs) = reader.list(&INPUTS)?;
        let required_inputs = inputs.len();
        let (optional_names, optional_inputs) = reader.list(&OVERRIDABLE_INITIALIZERS)?;
        input_names.extend(optional_names);
        inputs.extend(optional_inputs);
        let (output_names, outputs) = reader.list(&OUTPUTS)?;
        let session = Self { raw, environment, input_names, output_names };
        Ok((session, SessionInterface { inputs, required_inputs, outputs }))
    }

    /// The session's environment.
    pub(crate) const fn environment(&self) -> &Arc<OrtEnvironment> {
        &self.environment
    }

    /// Computes the outputs with the given indices in host memory. Each input is given with its
    /// index.
    pub(crate) fn run<'data>(
        &self,
        options: &RunOptions,
        inputs: &[(usize, OrtTensor<'data>)],
        outputs: &[(usize, OutputPlace)],
    ) -> Result<RunOutputs<'data>, OrtError> {
        let api = self.environment.api();
        let unknown = |index: &usize| OrtError::invalid(format!("there is no tensor {index}"));
        let mut input_names: SmallVec<[*const c_char; 8]> = SmallVec::new();
        let mut input_values: SmallVec<[*const OrtValue; 8]> = SmallVec::new();
        for (index, value) in inputs {
            let name = self.input_names.get(*index).ok_or_else(|| unknown(index))?;
            input_names.push(name.as_ptr());
            input_values.push(value.as_ptr().cast_const());
        }
        let mut output_names: SmallVec<[*const c_char; 8]> = SmallVec::new();
        for (index, _) in outputs {
            let name = self.output_names.get(*index).ok_or_else(|| unknown(index))?;
            output_names.push(name.as_ptr());
        }
        let mut raw: SmallVec<[*mut OrtValue; 8]> =
            SmallVec::from_elem(ptr::null_mut(), outputs.len());
        // SAFETY: any thread may run the session. The names and values are arrays of the given
        // lengths, all of which live during the call; the inputs are only read. For null outputs,
        // the library allocates values.
        let status = unsafe {
            (api.table().Run)(
                self.raw.as_ptr(),
                options.as_ptr(),
                input_names.as_ptr(),
                input_values.as_ptr(),
                input_values.len(),
                output_names.as_ptr(),
                output_names.len(),
                raw.as_mut_ptr(),
            )
        };
        // SAFETY: the run stored null or values that we now own, even if it failed; each may refer
        // to the inputs' memory, which lives as long as `'data`.
        let values = raw.into_iter().map(|value| unsafe { OrtTensor::output(value, api) });
        let values: SmallVec<[Option<OrtTensor<'data>>; 4]> = values.collect();
        // SAFETY: the status comes from the run.
        unsafe { api.check(status)? };
        let input_regions = inputs.iter().map(|(_, value)| value.region()).collect();
        Ok(RunOutputs::new(values.into_iter().map(|value| (value, None)).collect(), input_regions))
    }
}

/// The functions that list one kind of a session's tensors.
struct TensorListFunctions {
    count: fn(ApiTable) -> unsafe extern "system" fn(*const OrtSession, *mut usize) -> OrtStatusPtr,
    name: fn(ApiTable) -> GetName,
    type_info: fn(ApiTable) -> GetTypeInfo,
}

type GetName = unsafe extern "system" fn(
    *const OrtSession,
    usize,
    *mut OrtAllocator,
    *mut *mut c_char,
) -> OrtStatusPtr;

type GetTypeInfo =
    unsafe extern "system" fn(*const OrtSession, usize, *mut *mut OrtTypeInfo) -> OrtStatusPtr;

const INPUTS: TensorListFunctions = TensorListFunctions {
    count: |api| api.table().SessionGetInputCount,
    name: |api| api.table().SessionGetInputName,
    type_info: |api| api.table().SessionGetInputTypeInfo,
};

const OVERRIDABLE_INITIALIZERS: TensorListFunctions = TensorListFunctions {
    count: |api| api.table().SessionGetOverridableInitializerCount,
    name: |api| api.table().SessionGetOverridableInitializerName,
    type_info: |api| api.table().SessionGetOverridableInitializerTypeInfo,
};

const OUTPUTS: TensorListFunctions = TensorListFunctions {
    count: |api| api.table().SessionGetOutputCount,
    name: |api| api.table().SessionGetOutputName,
    type_info: |api| api.table().SessionGetOutputTypeInfo,
};

/// Reads a session's inputs and outputs. The session outlives the reader.
struct SessionReader {
    api: ApiTable,
    session: *const OrtSession,
    allocator: *mut OrtAllocator,
}

impl SessionReader {
    fn list(
        &self,
        functions: &TensorListFunctions,
    ) -> Result<(Vec<CString>, Vec<TensorInfo>), OrtError> {
        let mut count = 0;
        // SAFETY: the session is alive, and the out pointer is valid.
        unsafe { self.api.check((functions.count)(self.api)(self.session, &raw mut count))? };
        (0..count).map(|index| self.info(functions, index)).collect()
    }

    fn info(
        &self,
        functions: &TensorListFunctions,
        index: usize,
    ) -> Result<(CString, TensorInfo), OrtError> {
        let c_name = self.name((functions.name)(self.api), index)?;
        let name = c_name.to_string_lossy().into_owned();
        let get_type_info = (functions.type_info)(self.api);
        // SAFETY: the session is alive, and the index is less than the count; the function stores a
        // description, which the given function releases.
        let info = unsafe {
            OrtHandle::create(self.api, self.api.table().ReleaseTypeInfo, "type", |out| {
                get_type_info(self.session, index, out)
            })?
        };
        let (element, dims) = self.describe(&name, &info)?;
        Ok((c_name, TensorInfo { name, element, dims }))
    }

    fn name(&self, get_name: GetName, index: usize) -> Result<CString, OrtError> {
        let mut raw: *mut c_char = ptr::null_mut();
        // SAFETY: the session is alive, the index is less than the count, and the allocator is the
        // library's own.
        unsafe { self.api.check(get_name(self.session, index, self.allocator, &raw mut raw))? };
        if raw.is_null() {
            return Err(OrtError::missing("tensor name"));
        }
        // SAFETY: the library stored a NUL-terminated string, which the caller frees with the same
        // allocator.
        unsafe {
            let name = std::ffi::CStr::from_ptr(raw).to_owned();
            self.api.check((self.api.table().AllocatorFree)(self.allocator, raw.cast()))?;
            Ok(name)
        }
    }

    fn describe(
        &self,
        name: &str,
        info: &OrtHandle<OrtTypeInfo>,
    ) -> Result<(ElementKind, Vec<i64>), OrtError> {
        let table = self.api.table();
        let mut kind: i32 = 0;
        let mut tensor: *const OrtTensorTypeAndShapeInfo = ptr::null();
        // SAFETY: the description is alive, and the out pointer is valid; the enumeration is stored
        // in an integer of the same size.
        unsafe {
            let kind = (&raw mut kind).cast::<ONNXType>();
            self.api.check((table.GetOnnxTypeFromTypeInfo)(info.as_ptr(), kind))?;
        }
        if kind != ONNXType::ONNX_TYPE_TENSOR as i32 {
            return Ok((not_a_tensor(name, kind), Vec::new()));
        }
        // SAFETY: the description is alive and describes a tensor, and the out pointer is valid.
        // The tensor's description belongs to `info`.
        unsafe {
            self.api.check((table.CastTypeInfoToTensorInfo)(info.as_ptr(), &raw mut tensor))?;
        }
        if tensor.is_null() {
            return Err(OrtError::missing("tensor description"));
        }
        // SAFETY: `tensor` belongs to `info`, which is alive.
        let (element, dims) = unsafe { element_and_dims(self.api, tensor)? };
        Ok((element.kind(), dims.to_vec()))
    }
}
