//! A loaded model.

use std::ffi::{CString, c_char};
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use galatea_infer::Status;
use ort_sys::{
    ONNXTensorElementDataType, ONNXType, OrtAllocator, OrtSession, OrtStatusPtr,
    OrtTensorTypeAndShapeInfo, OrtTypeInfo, OrtValue,
};
use smallvec::SmallVec;

use super::element::{ElementType, ValueType};
use super::environment::Environment;
use super::error::OrtError;
use super::library::Api;
use super::options::{RunOptions, SessionOptions, path_string};
use super::owned::Owned;
use super::value::{Outcome, Value};

/// A loaded model, which any number of threads may run at the same time.
pub(crate) struct Session {
    raw: Owned<OrtSession>,
    environment: Arc<Environment>,
    /// First the inputs that every run needs, then those with a default.
    inputs: Vec<TensorInfo>,
    required_inputs: usize,
    outputs: Vec<TensorInfo>,
}

// SAFETY: the library documents that a session may be run from several
// threads at once, and sessions belong to no thread.
unsafe impl Send for Session {}
// SAFETY: as above; nothing but runs happens after construction.
unsafe impl Sync for Session {}

/// What a model says of one of its inputs or outputs.
#[derive(Clone, Debug)]
pub(crate) struct TensorInfo {
    /// Its name.
    pub(crate) name: String,
    /// What it holds.
    pub(crate) value_type: ValueType,
    /// Its dimensions; -1 is any size.
    pub(crate) dims: Vec<i64>,
    c_name: CString,
}

impl Session {
    /// Loads the model at `path`.
    pub(crate) fn open(
        environment: Arc<Environment>,
        path: &Path,
        options: &SessionOptions,
    ) -> Result<Self, Status> {
        let api = environment.api();
        let table = api.table();
        let c_path = path_string(path)?;
        let lock = options.is_made_alone().then(|| environment.creation_lock());
        // SAFETY: environment and options are alive, the path lives during
        // the call, and the named function releases the session.
        let raw = unsafe {
            Owned::create(api, table.ReleaseSession, "session", |out| {
                (table.CreateSession)(environment.as_ptr(), c_path.as_ptr(), options.as_ptr(), out)
            })?
        };
        drop(lock);
        let reader = Reader { api, session: raw.as_ptr(), allocator: api.default_allocator()? };
        let mut inputs = reader.list(&INPUTS)?;
        let required_inputs = inputs.len();
        inputs.extend(reader.list(&OVERRIDABLE_INITIALIZERS)?);
        let outputs = reader.list(&OUTPUTS)?;
        Ok(Self { raw, environment, inputs, required_inputs, outputs })
    }

    /// The inputs: first those that every run needs, then those that have a
    /// default and may be left out.
    pub(crate) fn inputs(&self) -> &[TensorInfo] {
        &self.inputs
    }

    /// How many of the inputs every run needs.
    pub(crate) const fn required_inputs(&self) -> usize {
        self.required_inputs
    }

    /// The outputs.
    pub(crate) fn outputs(&self) -> &[TensorInfo] {
        &self.outputs
    }

    /// The environment that the session was made in.
    pub(crate) const fn environment(&self) -> &Arc<Environment> {
        &self.environment
    }

    /// Computes the outputs with the given indices from inputs, each with its
    /// index.
    pub(crate) fn run<'data>(
        &self,
        options: &RunOptions,
        inputs: &[(usize, Value<'data>)],
        outputs: &[usize],
    ) -> Result<Outcome<'data>, OrtError> {
        let api = self.environment.api();
        let unknown = |index: &usize| OrtError::invalid(format!("there is no tensor {index}"));
        let mut input_names: SmallVec<[*const c_char; 8]> = SmallVec::new();
        let mut input_values: SmallVec<[*const OrtValue; 8]> = SmallVec::new();
        for (index, value) in inputs {
            let info = self.inputs.get(*index).ok_or_else(|| unknown(index))?;
            input_names.push(info.c_name.as_ptr());
            input_values.push(value.as_ptr().cast_const());
        }
        let mut output_names: SmallVec<[*const c_char; 8]> = SmallVec::new();
        for index in outputs {
            let info = self.outputs.get(*index).ok_or_else(|| unknown(index))?;
            output_names.push(info.c_name.as_ptr());
        }
        let mut raw: SmallVec<[*mut OrtValue; 8]> =
            SmallVec::from_elem(ptr::null_mut(), outputs.len());
        // SAFETY: the session takes runs from any thread. Names and values
        // are arrays of the lengths given, all alive during the call; the
        // inputs are only read. Null outputs ask the library to make them.
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
        // SAFETY: the run wrote null or values that are ours now, also if it
        // failed; each may refer to memory of the inputs, which live as long
        // as `'data`.
        let values = raw.into_iter().map(|value| unsafe { Value::output(value, api) });
        let values: SmallVec<[Option<Value<'data>>; 4]> = values.collect();
        // SAFETY: the status is the run's.
        unsafe { api.check(status)? };
        let lent = inputs.iter().map(|(_, value)| value.region()).collect();
        Ok(Outcome::new(values, lent))
    }
}

/// Reads what a session says of one kind of its tensors.
struct Functions {
    count: fn(Api) -> unsafe extern "system" fn(*const OrtSession, *mut usize) -> OrtStatusPtr,
    name: fn(Api) -> GetName,
    type_info: fn(Api) -> GetTypeInfo,
}

type GetName = unsafe extern "system" fn(
    *const OrtSession,
    usize,
    *mut OrtAllocator,
    *mut *mut c_char,
) -> OrtStatusPtr;

type GetTypeInfo =
    unsafe extern "system" fn(*const OrtSession, usize, *mut *mut OrtTypeInfo) -> OrtStatusPtr;

const INPUTS: Functions = Functions {
    count: |api| api.table().SessionGetInputCount,
    name: |api| api.table().SessionGetInputName,
    type_info: |api| api.table().SessionGetInputTypeInfo,
};

const OVERRIDABLE_INITIALIZERS: Functions = Functions {
    count: |api| api.table().SessionGetOverridableInitializerCount,
    name: |api| api.table().SessionGetOverridableInitializerName,
    type_info: |api| api.table().SessionGetOverridableInitializerTypeInfo,
};

const OUTPUTS: Functions = Functions {
    count: |api| api.table().SessionGetOutputCount,
    name: |api| api.table().SessionGetOutputName,
    type_info: |api| api.table().SessionGetOutputTypeInfo,
};

/// A session that is being asked; the session outlives it.
struct Reader {
    api: Api,
    session: *const OrtSession,
    allocator: *mut OrtAllocator,
}

impl Reader {
    fn list(&self, functions: &Functions) -> Result<Vec<TensorInfo>, OrtError> {
        let mut count = 0;
        // SAFETY: the session is alive, the out pointer valid.
        unsafe { self.api.check((functions.count)(self.api)(self.session, &raw mut count))? };
        (0..count).map(|index| self.info(functions, index)).collect()
    }

    fn info(&self, functions: &Functions, index: usize) -> Result<TensorInfo, OrtError> {
        let c_name = self.name((functions.name)(self.api), index)?;
        let name = c_name.to_string_lossy().into_owned();
        let get_type_info = (functions.type_info)(self.api);
        // SAFETY: the session is alive, the index within the count; the
        // function stores a description that the named function releases.
        let info = unsafe {
            Owned::create(self.api, self.api.table().ReleaseTypeInfo, "type", |out| {
                get_type_info(self.session, index, out)
            })?
        };
        let (value_type, dims) = self.describe(&info)?;
        Ok(TensorInfo { name, value_type, dims, c_name })
    }

    fn name(&self, get_name: GetName, index: usize) -> Result<CString, OrtError> {
        let mut raw: *mut c_char = ptr::null_mut();
        // SAFETY: the session is alive, the index within the count, and the
        // allocator the library's own.
        unsafe { self.api.check(get_name(self.session, index, self.allocator, &raw mut raw))? };
        if raw.is_null() {
            return Err(OrtError::missing("tensor name"));
        }
        // SAFETY: the library stored a NUL-terminated string that the caller
        // frees with the same allocator.
        unsafe {
            let name = std::ffi::CStr::from_ptr(raw).to_owned();
            self.api.check((self.api.table().AllocatorFree)(self.allocator, raw.cast()))?;
            Ok(name)
        }
    }

    fn describe(&self, info: &Owned<OrtTypeInfo>) -> Result<(ValueType, Vec<i64>), OrtError> {
        let table = self.api.table();
        let mut kind: i32 = 0;
        let mut tensor: *const OrtTensorTypeAndShapeInfo = ptr::null();
        // SAFETY: the description is alive, the out pointers valid; the
        // enumeration is stored into an integer of its size. The tensor's
        // description belongs to `info`.
        unsafe {
            let kind = (&raw mut kind).cast::<ONNXType>();
            self.api.check((table.GetOnnxTypeFromTypeInfo)(info.as_ptr(), kind))?;
        }
        if kind != ONNXType::ONNX_TYPE_TENSOR as i32 {
            return Ok((ValueType::other(kind), Vec::new()));
        }
        // SAFETY: as above.
        unsafe {
            self.api.check((table.CastTypeInfoToTensorInfo)(info.as_ptr(), &raw mut tensor))?;
        }
        if tensor.is_null() {
            return Err(OrtError::missing("tensor description"));
        }
        // SAFETY: `tensor` belongs to `info`, which is alive.
        let (element, dims) = unsafe { element_and_dims(self.api, tensor)? };
        Ok((ValueType::Tensor(element), dims.to_vec()))
    }
}

/// Reads a tensor's description.
///
/// # Safety
///
/// `tensor` is alive.
pub(super) unsafe fn element_and_dims(
    api: Api,
    tensor: *const OrtTensorTypeAndShapeInfo,
) -> Result<(ElementType, SmallVec<[i64; 6]>), OrtError> {
    let table = api.table();
    let mut element: i32 = 0;
    let mut rank: usize = 0;
    // SAFETY: the out pointers are valid; the enumeration is stored into an
    // integer of its size; the dimensions into an array of their number.
    unsafe {
        let element_out = (&raw mut element).cast::<ONNXTensorElementDataType>();
        api.check((table.GetTensorElementType)(tensor, element_out))?;
        api.check((table.GetDimensionsCount)(tensor, &raw mut rank))?;
        let mut dims: SmallVec<[i64; 6]> = SmallVec::from_elem(0, rank);
        api.check((table.GetDimensions)(tensor, dims.as_mut_ptr(), rank))?;
        Ok((ElementType(element), dims))
    }
}
