//! Custom batching: a library that decides which requests share a batch.

use core::ffi::c_void;
use std::path::Path;
use std::sync::Arc;

use galatea_abi::TRITONBACKEND_Batcher;
use galatea_abi::backend::{
    TRITONBACKEND_ModelBatchFinalize, TRITONBACKEND_ModelBatchIncludeRequest,
    TRITONBACKEND_ModelBatchInitialize, TRITONBACKEND_ModelBatcherFinalize,
    TRITONBACKEND_ModelBatcherInitialize,
};
use galatea_backend::CustomBatchStrategy;
use galatea_c_objects::error::take_c_error;
use galatea_c_objects::log;
use galatea_infer::{InferenceRequest, PendingRequest, Status};
use libloading::os::unix::Library;

use crate::library::function;
use crate::model::Model;
use crate::owned::Owned;
use crate::request::RequestObject;

/// A strategy library's functions.
struct StrategyFunctions {
    batcher_initialize: TRITONBACKEND_ModelBatcherInitialize,
    batcher_finalize: TRITONBACKEND_ModelBatcherFinalize,
    initialize: TRITONBACKEND_ModelBatchInitialize,
    include: TRITONBACKEND_ModelBatchIncludeRequest,
    finalize: TRITONBACKEND_ModelBatchFinalize,
}

impl StrategyFunctions {
    /// Looks up all functions. Returns `None` if the library has none of them, and an error if it
    /// has only some of them.
    fn of(library: &Library) -> Result<Option<Self>, ()> {
        // SAFETY: each function has the type that the header declares for its name.
        let found = unsafe {
            (
                function(library, c"TRITONBACKEND_ModelBatcherInitialize"),
                function(library, c"TRITONBACKEND_ModelBatcherFinalize"),
                function(library, c"TRITONBACKEND_ModelBatchInitialize"),
                function(library, c"TRITONBACKEND_ModelBatchIncludeRequest"),
                function(library, c"TRITONBACKEND_ModelBatchFinalize"),
            )
        };
        match found {
            (
                Some(batcher_initialize),
                Some(batcher_finalize),
                Some(initialize),
                Some(include),
                Some(finalize),
            ) => Ok(Some(Self {
                batcher_initialize,
                batcher_finalize,
                initialize,
                include,
                finalize,
            })),
            (None, None, None, None, None) => Ok(None),
            _ => Err(()),
        }
    }
}

/// An initialised strategy. Dropping it finalises it and closes its library.
pub(crate) struct Strategy {
    functions: StrategyFunctions,
    /// The library's object that represents the model.
    batcher: *mut TRITONBACKEND_Batcher,
    /// The library's object that represents the open batch.
    batch: *mut c_void,
    model: Arc<Model>,
    /// Dropped last, because it contains the functions' code.
    _library: Library,
}

// SAFETY: the addresses belong to the library and are only passed back to it, from one thread at a
// time.
unsafe impl Send for Strategy {}

impl Strategy {
    /// Initialises the strategy in an opened library. Returns `None` if the library has no strategy
    /// functions.
    pub(crate) fn initialize(
        library: Library,
        path: &Path,
        model: Arc<Model>,
    ) -> Result<Option<Self>, Status> {
        let functions = StrategyFunctions::of(&library).map_err(|()| {
            Status::invalid_argument(format!(
                "'{}' does not define all required custom batching functions for model '{}'",
                path.display(),
                model.info.display_name()
            ))
        })?;
        let Some(functions) = functions else { return Ok(None) };
        let mut batcher = core::ptr::null_mut();
        // SAFETY: the model's object lives as long as the strategy.
        unsafe { take_c_error((functions.batcher_initialize)(&raw mut batcher, model.address())) }?;
        let batch = core::ptr::null_mut();
        Ok(Some(Self { functions, batcher, batch, model, _library: library }))
    }
}

impl CustomBatchStrategy for Strategy {
    fn open(&mut self) -> Result<(), Status> {
        self.batch = core::ptr::null_mut();
        // SAFETY: the library gets back the pointer that it returned.
        unsafe { take_c_error((self.functions.initialize)(self.batcher, &raw mut self.batch)) }
    }

    fn include(&mut self, request: &InferenceRequest, batch_size: u32) -> Result<bool, Status> {
        let copy = PendingRequest::read_only_copy(request.clone(), batch_size);
        let object = RequestObject::queued(copy, self.model.serving()?, self.model.clone());
        let object = Owned::new(object);
        let mut included = false;
        // SAFETY: the object outlives the call, and the library gets back the pointer that it
        // returned for this batch.
        unsafe {
            take_c_error((self.functions.include)(object.address(), self.batch, &raw mut included))
        }?;
        Ok(included)
    }

    fn close(&mut self) -> Result<(), Status> {
        let batch = std::mem::replace(&mut self.batch, core::ptr::null_mut());
        // As in Triton, a batch with a null pointer isn't finalised.
        if batch.is_null() {
            return Ok(());
        }
        // SAFETY: the library gets back the pointer that it returned for this batch, exactly once.
        unsafe { take_c_error((self.functions.finalize)(batch)) }
    }
}

impl Drop for Strategy {
    fn drop(&mut self) {
        let closed = self.close();
        // SAFETY: no batch is open, and the library gets back the pointer that it returned, exactly
        // once.
        let finalized = unsafe { take_c_error((self.functions.batcher_finalize)(self.batcher)) };
        for status in [closed, finalized].into_iter().filter_map(Result::err) {
            let name = self.model.info.display_name();
            log::error(&format!("failed finalizing the batching strategy of '{name}': {status}"));
        }
    }
}
