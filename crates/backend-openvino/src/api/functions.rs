//! The library's functions, each of which is looked up once, when the library is opened.

use std::ffi::{c_char, c_int, c_void};

use super::shape::{OvPartialShape, OvShape};

/// The status that a library call returns; 0 means success.
pub(super) type OvStatus = c_int;

/// The object that reads and compiles models.
#[repr(C)]
pub(super) struct RawCore([u8; 0]);

/// A model that has been read.
#[repr(C)]
pub(super) struct RawModel([u8; 0]);

/// An input or output of a model.
#[repr(C)]
pub(super) struct RawPort([u8; 0]);

/// A model that is compiled for a device.
#[repr(C)]
pub(super) struct RawCompiledModel([u8; 0]);

/// The state of one execution at a time.
#[repr(C)]
pub(super) struct RawInferRequest([u8; 0]);

/// A tensor.
#[repr(C)]
pub(super) struct RawTensor([u8; 0]);

/// The object that changes the types of a model's tensors.
#[repr(C)]
pub(super) struct RawProcessor([u8; 0]);

/// An input that is being changed.
#[repr(C)]
pub(super) struct RawInputInfo([u8; 0]);

/// The tensor of such an input.
#[repr(C)]
pub(super) struct RawInputTensorInfo([u8; 0]);

/// An output that is being changed.
#[repr(C)]
pub(super) struct RawOutputInfo([u8; 0]);

/// The tensor of such an output.
#[repr(C)]
pub(super) struct RawOutputTensorInfo([u8; 0]);

/// The library's version.
#[repr(C)]
pub(super) struct OvVersion {
    pub(super) build_number: *const c_char,
    pub(super) description: *const c_char,
}

/// Stores the model's port with this name.
pub(super) type PortByName =
    unsafe extern "C" fn(*const RawModel, *const c_char, *mut *mut RawPort) -> OvStatus;

/// Defines the table of functions, which have the names that the library exports.
macro_rules! functions {
    ($($name:ident: $signature:ty;)*) => {
        /// The library's functions.
        #[derive(Copy, Clone)]
        pub(super) struct Functions {
            $(pub(super) $name: $signature,)*
        }

        impl Functions {
            /// Looks up all functions.
            ///
            /// # Safety
            ///
            /// The library is OpenVINO's, so its functions have these signatures, and it is never
            /// closed.
            pub(super) unsafe fn of(
                library: &libloading::Library,
            ) -> Result<Self, libloading::Error> {
                // SAFETY: the signatures are those of the library's headers.
                unsafe {
                    Ok(Self {
                        $($name: *library.get::<$signature>(
                            concat!(stringify!($name), "\0").as_bytes(),
                        )?,)*
                    })
                }
            }
        }
    };
}

functions! {
    ov_get_error_info: unsafe extern "C" fn(OvStatus) -> *const c_char;
    ov_get_last_err_msg: unsafe extern "C" fn() -> *const c_char;
    ov_free: unsafe extern "C" fn(*const c_char);

    ov_core_create: unsafe extern "C" fn(*mut *mut RawCore) -> OvStatus;
    ov_core_free: unsafe extern "C" fn(*mut RawCore);
    ov_core_add_extension: unsafe extern "C" fn(*const RawCore, *const c_char) -> OvStatus;
    ov_core_set_property:
        unsafe extern "C" fn(*const RawCore, *const c_char, ...) -> OvStatus;
    ov_core_get_property: unsafe extern "C" fn(
        *const RawCore,
        *const c_char,
        *const c_char,
        *mut *mut c_char,
    ) -> OvStatus;
    ov_core_read_model: unsafe extern "C" fn(
        *const RawCore,
        *const c_char,
        *const c_char,
        *mut *mut RawModel,
    ) -> OvStatus;
    ov_core_compile_model: unsafe extern "C" fn(
        *const RawCore,
        *const RawModel,
        *const c_char,
        usize,
        *mut *mut RawCompiledModel,
        ...
    ) -> OvStatus;

    ov_model_free: unsafe extern "C" fn(*mut RawModel);
    ov_model_inputs_size: unsafe extern "C" fn(*const RawModel, *mut usize) -> OvStatus;
    ov_model_outputs_size: unsafe extern "C" fn(*const RawModel, *mut usize) -> OvStatus;
    ov_model_const_input_by_index:
        unsafe extern "C" fn(*const RawModel, usize, *mut *mut RawPort) -> OvStatus;
    ov_model_const_output_by_index:
        unsafe extern "C" fn(*const RawModel, usize, *mut *mut RawPort) -> OvStatus;
    ov_model_const_input_by_name: PortByName;
    ov_model_const_output_by_name: PortByName;
    ov_model_reshape_by_port_indexes: unsafe extern "C" fn(
        *const RawModel,
        *const usize,
        *const OvPartialShape,
        usize,
    ) -> OvStatus;

    ov_preprocess_prepostprocessor_create:
        unsafe extern "C" fn(*const RawModel, *mut *mut RawProcessor) -> OvStatus;
    ov_preprocess_prepostprocessor_free: unsafe extern "C" fn(*mut RawProcessor);
    ov_preprocess_prepostprocessor_get_input_info_by_index:
        unsafe extern "C" fn(*const RawProcessor, usize, *mut *mut RawInputInfo) -> OvStatus;
    ov_preprocess_input_info_free: unsafe extern "C" fn(*mut RawInputInfo);
    ov_preprocess_input_info_get_tensor_info:
        unsafe extern "C" fn(*const RawInputInfo, *mut *mut RawInputTensorInfo) -> OvStatus;
    ov_preprocess_input_tensor_info_free: unsafe extern "C" fn(*mut RawInputTensorInfo);
    ov_preprocess_input_tensor_info_set_element_type:
        unsafe extern "C" fn(*mut RawInputTensorInfo, c_int) -> OvStatus;
    ov_preprocess_prepostprocessor_get_output_info_by_index:
        unsafe extern "C" fn(*const RawProcessor, usize, *mut *mut RawOutputInfo) -> OvStatus;
    ov_preprocess_output_info_free: unsafe extern "C" fn(*mut RawOutputInfo);
    ov_preprocess_output_info_get_tensor_info:
        unsafe extern "C" fn(*const RawOutputInfo, *mut *mut RawOutputTensorInfo) -> OvStatus;
    ov_preprocess_output_tensor_info_free: unsafe extern "C" fn(*mut RawOutputTensorInfo);
    ov_preprocess_output_set_element_type:
        unsafe extern "C" fn(*mut RawOutputTensorInfo, c_int) -> OvStatus;
    ov_preprocess_prepostprocessor_build:
        unsafe extern "C" fn(*const RawProcessor, *mut *mut RawModel) -> OvStatus;

    ov_output_const_port_free: unsafe extern "C" fn(*mut RawPort);
    ov_port_get_any_name: unsafe extern "C" fn(*const RawPort, *mut *mut c_char) -> OvStatus;
    ov_port_get_element_type: unsafe extern "C" fn(*const RawPort, *mut c_int) -> OvStatus;
    ov_port_get_partial_shape:
        unsafe extern "C" fn(*const RawPort, *mut OvPartialShape) -> OvStatus;
    ov_partial_shape_free: unsafe extern "C" fn(*mut OvPartialShape);

    ov_compiled_model_free: unsafe extern "C" fn(*mut RawCompiledModel);
    ov_compiled_model_get_property: unsafe extern "C" fn(
        *const RawCompiledModel,
        *const c_char,
        *mut *mut c_char,
    ) -> OvStatus;
    ov_compiled_model_create_infer_request:
        unsafe extern "C" fn(*const RawCompiledModel, *mut *mut RawInferRequest) -> OvStatus;

    ov_infer_request_free: unsafe extern "C" fn(*mut RawInferRequest);
    ov_infer_request_set_input_tensor_by_index:
        unsafe extern "C" fn(*mut RawInferRequest, usize, *const RawTensor) -> OvStatus;
    ov_infer_request_set_output_tensor_by_index:
        unsafe extern "C" fn(*mut RawInferRequest, usize, *const RawTensor) -> OvStatus;
    ov_infer_request_get_input_tensor_by_index:
        unsafe extern "C" fn(*const RawInferRequest, usize, *mut *mut RawTensor) -> OvStatus;
    ov_infer_request_infer: unsafe extern "C" fn(*mut RawInferRequest) -> OvStatus;
    ov_infer_request_cancel: unsafe extern "C" fn(*mut RawInferRequest) -> OvStatus;

    ov_tensor_create: unsafe extern "C" fn(c_int, OvShape, *mut *mut RawTensor) -> OvStatus;
    ov_tensor_create_from_host_ptr:
        unsafe extern "C" fn(c_int, OvShape, *mut c_void, *mut *mut RawTensor) -> OvStatus;
    ov_tensor_free: unsafe extern "C" fn(*mut RawTensor);
    ov_tensor_get_element_type: unsafe extern "C" fn(*const RawTensor, *mut c_int) -> OvStatus;
    ov_tensor_get_shape: unsafe extern "C" fn(*const RawTensor, *mut OvShape) -> OvStatus;
    ov_tensor_data: unsafe extern "C" fn(*const RawTensor, *mut *mut c_void) -> OvStatus;
    ov_shape_free: unsafe extern "C" fn(*mut OvShape) -> OvStatus;
}
