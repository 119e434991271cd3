//! The functions that this crate calls, each of which is looked up once, when its library is
//! opened.

use std::ffi::{c_char, c_int, c_void};

/// The status of a call; 0 means success.
pub(super) type TorchStatus = i32;

/// A library tensor.
#[repr(C)]
pub(super) struct RawTensor([u8; 0]);

/// A compiled model.
#[repr(C)]
pub(super) struct RawContainer([u8; 0]);

/// Declares a table of functions with the names that a library exports.
macro_rules! functions {
    ($struct:tt $table:ident, $about:literal { $($name:ident $symbol:literal: $signature:ty;)* }) => {
        #[doc = $about]
        #[derive(Copy, Clone)]
        pub(super) $struct $table {
            $(pub(super) $name: $signature,)*
        }

        impl $table {
            /// Looks up all functions.
            ///
            /// # Safety
            ///
            /// If the library exports these names, their functions have these signatures, and the
            /// library stays loaded as long as the table is used.
            pub(super) unsafe fn of(library: &libloading::Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    $($name: {
                        // SAFETY: by this function's own contract.
                        unsafe { *library.get::<$signature>($symbol.as_bytes())? }
                    },)*
                })
            }
        }
    };
}

functions! {
    struct TorchFunctions,
    "The functions of `libtorch_cpu.so`: the interface for compiled models, and the number of \
     threads, which has no other name than its C++ one." {
        tensor_from_blob "aoti_torch_create_tensor_from_blob": unsafe extern "C" fn(
            *mut c_void, i64, *const i64, *const i64, i64, i32, i32, i32, *mut *mut RawTensor,
        ) -> TorchStatus;
        empty_strided "aoti_torch_empty_strided": unsafe extern "C" fn(
            i64, *const i64, *const i64, i32, i32, i32, *mut *mut RawTensor,
        ) -> TorchStatus;
        copy "aoti_torch_copy_":
            unsafe extern "C" fn(*mut RawTensor, *mut RawTensor, i32) -> TorchStatus;
        new_handle "aoti_torch_new_tensor_handle":
            unsafe extern "C" fn(*mut RawTensor, *mut *mut RawTensor) -> TorchStatus;
        delete_tensor "aoti_torch_delete_tensor_object":
            unsafe extern "C" fn(*mut RawTensor) -> TorchStatus;
        data_ptr "aoti_torch_get_data_ptr":
            unsafe extern "C" fn(*mut RawTensor, *mut *mut c_void) -> TorchStatus;
        dim "aoti_torch_get_dim": unsafe extern "C" fn(*mut RawTensor, *mut i64) -> TorchStatus;
        sizes "aoti_torch_get_sizes":
            unsafe extern "C" fn(*mut RawTensor, *mut *mut i64) -> TorchStatus;
        strides "aoti_torch_get_strides":
            unsafe extern "C" fn(*mut RawTensor, *mut *mut i64) -> TorchStatus;
        dtype "aoti_torch_get_dtype":
            unsafe extern "C" fn(*mut RawTensor, *mut i32) -> TorchStatus;
        device_type "aoti_torch_get_device_type":
            unsafe extern "C" fn(*mut RawTensor, *mut i32) -> TorchStatus;
        get_num_threads "_ZN2at15get_num_threadsEv": unsafe extern "C" fn() -> c_int;
        set_num_threads "_ZN2at15set_num_threadsEi": unsafe extern "C" fn(c_int);
    }
}

functions! {
    struct ModelFunctions, "The functions of a compiled model's library." {
        create "AOTInductorModelContainerCreateWithDevice": unsafe extern "C" fn(
            *mut *mut RawContainer, usize, *const c_char, *const c_char,
        ) -> TorchStatus;
        delete "AOTInductorModelContainerDelete":
            unsafe extern "C" fn(*mut RawContainer) -> TorchStatus;
        run "AOTInductorModelContainerRun": unsafe extern "C" fn(
            *mut RawContainer,
            *mut *mut RawTensor,
            usize,
            *mut *mut RawTensor,
            usize,
            *mut c_void,
            *mut c_void,
        ) -> TorchStatus;
        num_inputs "AOTInductorModelContainerGetNumInputs":
            unsafe extern "C" fn(*mut RawContainer, *mut usize) -> TorchStatus;
        num_outputs "AOTInductorModelContainerGetNumOutputs":
            unsafe extern "C" fn(*mut RawContainer, *mut usize) -> TorchStatus;
        call_spec "AOTInductorModelContainerGetCallSpec": unsafe extern "C" fn(
            *mut RawContainer, *mut *const c_char, *mut *const c_char,
        ) -> TorchStatus;
    }
}

functions! {
    struct WeightFunctions,
    "The functions of a compiled model's library whose weights are in another file." {
        size "AOTInductorModelContainerGetConstantsBlobSize":
            unsafe extern "C" fn(*mut RawContainer, *mut u64) -> TorchStatus;
        load "AOTInductorModelUpdateConstantsFromBlob":
            unsafe extern "C" fn(*mut RawContainer, *const u8) -> TorchStatus;
    }
}

/// A TorchScript model.
#[repr(C)]
pub(super) struct RawModule([u8; 0]);

/// The results of a TorchScript model.
#[repr(C)]
pub(super) struct RawResults([u8; 0]);

/// The mode in which a TorchScript model is executed; -1 keeps PyTorch's default.
#[derive(Copy, Clone)]
#[repr(C)]
pub(super) struct RawOptions {
    pub(super) optimized: c_int,
    pub(super) inference_mode: c_int,
    pub(super) profiling: c_int,
    pub(super) executor: c_int,
    pub(super) fuser: c_int,
}

/// An input: a tensor, or strings if the tensor is null.
#[repr(C)]
pub(super) struct RawInput {
    pub(super) tensor: *mut RawTensor,
    pub(super) texts: *const *const c_char,
    pub(super) lengths: *const usize,
    pub(super) count: usize,
    pub(super) key: *const c_char,
}

functions! {
    struct ShimFunctions, "The functions of `torchscript/shim.cpp`." {
        error "galatea_torch_error": unsafe extern "C" fn() -> *const c_char;
        load "galatea_torch_load":
            unsafe extern "C" fn(*const c_char, c_int, *mut *mut RawModule) -> c_int;
        check_untrusted "galatea_torch_check_untrusted":
            unsafe extern "C" fn(*const c_char) -> c_int;
        free "galatea_torch_free": unsafe extern "C" fn(*mut RawModule);
        may_block "galatea_torch_may_block": unsafe extern "C" fn(*const RawModule) -> c_int;
        operator "galatea_torch_operator":
            unsafe extern "C" fn(*const RawModule, usize) -> *const c_char;
        argument_count "galatea_torch_argument_count":
            unsafe extern "C" fn(*const RawModule) -> usize;
        argument "galatea_torch_argument": unsafe extern "C" fn(
            *const RawModule, usize, *mut *const c_char, *mut *const c_char,
        ) -> c_int;
        inter_op_threads "galatea_torch_inter_op_threads": unsafe extern "C" fn(c_int);
        run "galatea_torch_run": unsafe extern "C" fn(
            *mut RawModule, *const RawOptions, *const RawInput, usize, *mut *mut RawResults,
        ) -> c_int;
        free_results "galatea_torch_free_results": unsafe extern "C" fn(*mut RawResults);
        result_count "galatea_torch_result_count":
            unsafe extern "C" fn(*const RawResults) -> usize;
        result_tensor "galatea_torch_result_tensor":
            unsafe extern "C" fn(*const RawResults, usize, *mut *mut RawTensor) -> c_int;
        string_count "galatea_torch_string_count":
            unsafe extern "C" fn(*const RawResults, usize, *mut usize) -> c_int;
        string "galatea_torch_string": unsafe extern "C" fn(
            *const RawResults, usize, usize, *mut *const c_char, *mut usize,
        ) -> c_int;
    }
}

/// The message about a model's last error on this thread, which the libraries of PyTorch 2.12 and
/// later keep. The name in the library is `AOTInductorGetLastError`.
pub(super) type LastError = unsafe extern "C" fn(*mut *const c_char) -> TorchStatus;
