//! The library's functions. Each is looked up once, when the library is opened.

use std::ffi::{c_char, c_int, c_void};

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])* #[repr(C)] pub(super) struct $name([u8; 0]);)*
    };
}

opaque! {
    /// The result of a call.
    RawStatus;
    /// A tensor.
    RawTensor;
    /// A graph.
    RawGraph;
    /// A node of a graph.
    RawOperation;
    /// The settings of a session.
    RawSessionOptions;
    /// A session.
    RawSession;
    /// The settings for importing a graph.
    RawImportOptions;
    /// A library of operators.
    RawOpLibrary;
}

/// The bytes of a message.
#[repr(C)]
pub(super) struct RawBuffer {
    pub(super) data: *const c_void,
    pub(super) length: usize,
    data_deallocator: Option<unsafe extern "C" fn(*mut c_void, usize)>,
}

impl RawBuffer {
    /// A buffer that refers to a constant message.
    pub(super) const fn of(message: &'static [u8]) -> Self {
        Self { data: message.as_ptr().cast(), length: message.len(), data_deallocator: None }
    }
}

/// An output of a node.
#[repr(C)]
#[derive(Copy, Clone)]
pub(super) struct RawOutput {
    pub(super) operation: *mut RawOperation,
    pub(super) index: c_int,
}

/// A string element, in the library's form.
#[repr(C, align(8))]
pub(super) struct RawString([u8; 24]);

/// Frees a tensor's memory. It receives the memory, the size of the memory and an argument.
pub(super) type Deallocator = unsafe extern "C" fn(*mut c_void, usize, *mut c_void);

/// Defines the table of functions, which have the names that the library exports.
macro_rules! functions {
    ($($name:ident: $signature:ty;)*) => {
        /// The library's functions.
        #[expect(non_snake_case, reason = "the names are those of the library")]
        #[derive(Copy, Clone)]
        pub(super) struct Functions {
            $(pub(super) $name: $signature,)*
        }

        impl Functions {
            /// Looks up all functions.
            ///
            /// # Safety
            ///
            /// The library is TensorFlow's, so its functions have these signatures, and it is never
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
    TF_Version: unsafe extern "C" fn() -> *const c_char;
    TF_LoadLibrary: unsafe extern "C" fn(*const c_char, *mut RawStatus) -> *mut RawOpLibrary;

    TF_NewStatus: unsafe extern "C" fn() -> *mut RawStatus;
    TF_DeleteStatus: unsafe extern "C" fn(*mut RawStatus);
    TF_GetCode: unsafe extern "C" fn(*const RawStatus) -> c_int;
    TF_Message: unsafe extern "C" fn(*const RawStatus) -> *const c_char;

    TF_NewBuffer: unsafe extern "C" fn() -> *mut RawBuffer;
    TF_NewBufferFromString: unsafe extern "C" fn(*const c_void, usize) -> *mut RawBuffer;
    TF_DeleteBuffer: unsafe extern "C" fn(*mut RawBuffer);

    TF_NewTensor: unsafe extern "C" fn(
        c_int,
        *const i64,
        c_int,
        *mut c_void,
        usize,
        Deallocator,
        *mut c_void,
    ) -> *mut RawTensor;
    TF_AllocateTensor:
        unsafe extern "C" fn(c_int, *const i64, c_int, usize) -> *mut RawTensor;
    TF_DeleteTensor: unsafe extern "C" fn(*mut RawTensor);
    TF_TensorType: unsafe extern "C" fn(*const RawTensor) -> c_int;
    TF_NumDims: unsafe extern "C" fn(*const RawTensor) -> c_int;
    TF_Dim: unsafe extern "C" fn(*const RawTensor, c_int) -> i64;
    TF_TensorByteSize: unsafe extern "C" fn(*const RawTensor) -> usize;
    TF_TensorData: unsafe extern "C" fn(*const RawTensor) -> *mut c_void;

    TF_StringInit: unsafe extern "C" fn(*mut RawString);
    TF_StringCopy: unsafe extern "C" fn(*mut RawString, *const c_char, usize);
    TF_StringDealloc: unsafe extern "C" fn(*mut RawString);
    TF_StringGetDataPointer: unsafe extern "C" fn(*const RawString) -> *const c_char;
    TF_StringGetSize: unsafe extern "C" fn(*const RawString) -> usize;

    TF_NewGraph: unsafe extern "C" fn() -> *mut RawGraph;
    TF_DeleteGraph: unsafe extern "C" fn(*mut RawGraph);
    TF_GraphOperationByName:
        unsafe extern "C" fn(*mut RawGraph, *const c_char) -> *mut RawOperation;
    TF_NewImportGraphDefOptions: unsafe extern "C" fn() -> *mut RawImportOptions;
    TF_ImportGraphDefOptionsSetDefaultDevice:
        unsafe extern "C" fn(*mut RawImportOptions, *const c_char);
    TF_DeleteImportGraphDefOptions: unsafe extern "C" fn(*mut RawImportOptions);
    TF_GraphImportGraphDef: unsafe extern "C" fn(
        *mut RawGraph,
        *const RawBuffer,
        *const RawImportOptions,
        *mut RawStatus,
    );

    TF_NewSessionOptions: unsafe extern "C" fn() -> *mut RawSessionOptions;
    TF_SetConfig: unsafe extern "C" fn(
        *mut RawSessionOptions,
        *const c_void,
        usize,
        *mut RawStatus,
    );
    TF_DeleteSessionOptions: unsafe extern "C" fn(*mut RawSessionOptions);
    TF_NewSession: unsafe extern "C" fn(
        *mut RawGraph,
        *const RawSessionOptions,
        *mut RawStatus,
    ) -> *mut RawSession;
    TF_LoadSessionFromSavedModel: unsafe extern "C" fn(
        *const RawSessionOptions,
        *const RawBuffer,
        *const c_char,
        *const *const c_char,
        c_int,
        *mut RawGraph,
        *mut RawBuffer,
        *mut RawStatus,
    ) -> *mut RawSession;
    TF_CloseSession: unsafe extern "C" fn(*mut RawSession, *mut RawStatus);
    TF_DeleteSession: unsafe extern "C" fn(*mut RawSession, *mut RawStatus);
    TF_SessionRun: unsafe extern "C" fn(
        *mut RawSession,
        *const RawBuffer,
        *const RawOutput,
        *const *mut RawTensor,
        c_int,
        *const RawOutput,
        *mut *mut RawTensor,
        c_int,
        *const *const RawOperation,
        c_int,
        *mut RawBuffer,
        *mut RawStatus,
    );
}
