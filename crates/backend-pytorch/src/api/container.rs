//! A compiled model in its own library.

use std::ffi::{CString, c_char};
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use galatea_infer::Status;
use galatea_runtime::with_causes;
use smallvec::SmallVec;

use super::functions::{
    LastError, ModelFunctions, RawContainer, RawTensor, TorchStatus, WeightFunctions,
};
use super::library::{Library, open_local, text};
use super::tensor::{BorrowedTensor, TensorHandle};
use super::weights::AlignedBytes;

/// A compiled model. Several threads may execute it concurrently, up to the number of its runners.
pub(crate) struct Container {
    raw: *mut RawContainer,
    functions: ModelFunctions,
    last_error: Option<LastError>,
    /// The model's library. It is closed after the container has been deleted.
    code: libloading::Library,
    /// The weights that the library refers to, if they aren't in it. They are dropped after the
    /// container has been deleted.
    weights: Option<AlignedBytes>,
    library: Arc<Library>,
    input_count: usize,
    output_count: usize,
}

// SAFETY: the container locks its runners, and its other functions only read.
unsafe impl Send for Container {}
// SAFETY: as above.
unsafe impl Sync for Container {}

impl Container {
    /// Loads the model in the library at `path`, with the given number of runners, and with its
    /// weights if they aren't in the library.
    pub(crate) fn load(
        library: Arc<Library>,
        path: &Path,
        runners: u32,
        weights: Option<AlignedBytes>,
    ) -> Result<Self, Status> {
        let failed = |reason: &str| Status::internal(format!("can't load the model: {reason}"));
        let folder = path.parent().unwrap_or(path).to_str().and_then(|one| CString::new(one).ok());
        let folder = folder.ok_or_else(|| failed("its directory has no name in UTF-8"))?;
        // SAFETY: the operator put this model into the repository and trusts its code.
        let code = unsafe { open_local(path) }.map_err(|error| failed(&with_causes(&error)))?;
        // SAFETY: the library is that of a package, whose functions have these signatures; the
        // container keeps it loaded.
        let functions =
            unsafe { ModelFunctions::of(&code) }.map_err(|error| failed(&with_causes(&error)))?;
        // SAFETY: as above.
        let last_error = unsafe { code.get::<LastError>(b"AOTInductorGetLastError") };
        let last_error = last_error.ok().map(|function| *function);
        let mut raw = ptr::null_mut();
        let runners = usize::try_from(runners.max(1)).unwrap_or(1);
        // SAFETY: the out pointer is valid, and the texts live during the call.
        let status =
            unsafe { (functions.create)(&raw mut raw, runners, c"cpu".as_ptr(), folder.as_ptr()) };
        if status != 0 || raw.is_null() {
            return Err(failed(&reason(last_error)));
        }
        let mut container = Self {
            raw,
            functions,
            last_error,
            code,
            weights,
            library,
            input_count: 0,
            output_count: 0,
        };
        container.use_weights()?;
        container.input_count = container.count(functions.num_inputs)?;
        container.output_count = container.count(functions.num_outputs)?;
        Ok(container)
    }

    /// Makes the model refer to the weights that aren't in its library.
    fn use_weights(&self) -> Result<(), Status> {
        let Some(weights) = self.weights.as_ref().map(AlignedBytes::as_slice) else {
            return Ok(());
        };
        let failed = |reason: &str| Status::internal(format!("can't load the weights: {reason}"));
        // SAFETY: the library is that of a package, whose functions have these signatures.
        let functions = unsafe { WeightFunctions::of(&self.code) };
        let functions = functions.map_err(|error| failed(&with_causes(&error)))?;
        let mut size = 0_u64;
        // SAFETY: the container is alive, and the out pointer is valid.
        self.check(unsafe { (functions.size)(self.raw, &raw mut size) })?;
        if size > weights.len() as u64 {
            return Err(failed(&format!(
                "the model needs {size} bytes, and has {}",
                weights.len()
            )));
        }
        // SAFETY: the container is alive. The model reads that many bytes, which outlive it and
        // don't change.
        self.check(unsafe { (functions.load)(self.raw, weights.as_ptr()) })
    }

    fn count(
        &self,
        get: unsafe extern "C" fn(*mut RawContainer, *mut usize) -> TorchStatus,
    ) -> Result<usize, Status> {
        let mut count = 0;
        // SAFETY: the container is alive, and the out pointer is valid.
        self.check(unsafe { get(self.raw, &raw mut count) })?;
        Ok(count)
    }

    fn check(&self, status: TorchStatus) -> Result<(), Status> {
        if status == 0 { Ok(()) } else { Err(Status::internal(reason(self.last_error))) }
    }

    /// The number of inputs.
    pub(crate) const fn input_count(&self) -> usize {
        self.input_count
    }

    /// The number of outputs.
    pub(crate) const fn output_count(&self) -> usize {
        self.output_count
    }

    /// The structures of the arguments and results, as JSON.
    pub(crate) fn call_spec(&self) -> Result<(String, String), Status> {
        let (mut arguments, mut results): (*const c_char, *const c_char) =
            (ptr::null(), ptr::null());
        // SAFETY: the container is alive, the out pointers are valid, and the texts live as long as
        // the container.
        unsafe {
            let get = self.functions.call_spec;
            self.check(get(self.raw, &raw mut arguments, &raw mut results))?;
            Ok((text(arguments), text(results)))
        }
    }

    /// Computes all outputs from all inputs. An output without a value, such as Python's `None`, is
    /// `None`.
    pub(super) fn run(
        &self,
        inputs: &[&BorrowedTensor<'_>],
    ) -> Result<SmallVec<[Option<TensorHandle>; 8]>, Status> {
        if inputs.len() != self.input_count {
            return Err(Status::internal(format!(
                "the model has {} inputs, and {} are given",
                self.input_count,
                inputs.len()
            )));
        }
        let mut handles: SmallVec<[TensorHandle; 8]> = SmallVec::with_capacity(inputs.len());
        for input in inputs {
            handles.push(input.handle(&self.library)?);
        }
        // The call takes ownership of the handles, even if it fails.
        let mut raw: SmallVec<[*mut RawTensor; 8]> =
            handles.into_iter().map(TensorHandle::into_raw).collect();
        // An output without a value, such as Python's `None`, stays null.
        let mut outputs: SmallVec<[*mut RawTensor; 8]> =
            SmallVec::from_elem(ptr::null_mut(), self.output_count);
        // SAFETY: the container is alive. All inputs refer to memory that lives during the call and
        // have shapes that the model was compiled for. Both arrays have the given lengths. There is
        // no stream on a CPU, and the model has no operation that needs a proxy.
        let status = unsafe {
            (self.functions.run)(
                self.raw,
                raw.as_mut_ptr(),
                raw.len(),
                outputs.as_mut_ptr(),
                outputs.len(),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        let made = self.own(&outputs);
        self.check(status)?;
        made
    }

    /// Takes ownership of the outputs. A tensor that the model returns several times has only one
    /// handle, so each further occurrence gets a new handle.
    fn own(
        &self,
        outputs: &[*mut RawTensor],
    ) -> Result<SmallVec<[Option<TensorHandle>; 8]>, Status> {
        let library = &self.library;
        let is_repeated = |index: usize| {
            let (before, rest) = outputs.split_at(index);
            rest.first().is_some_and(|raw| !raw.is_null() && before.contains(raw))
        };
        // The function takes ownership of all of them before anything can fail.
        let own = |(index, &raw): (usize, &*mut RawTensor)| {
            if is_repeated(index) {
                return None;
            }
            // SAFETY: the run returned a handle that is the caller's, and this is its first place.
            unsafe { TensorHandle::of(library, raw) }
        };
        let mut owned: SmallVec<[Option<TensorHandle>; 8]> =
            outputs.iter().enumerate().map(own).collect();
        for (index, raw) in outputs.iter().enumerate().filter(|(index, _)| is_repeated(*index)) {
            let first = outputs.iter().position(|other| other == raw);
            let first = first.and_then(|first| owned.get(first)).and_then(Option::as_ref);
            let copy = first.map(TensorHandle::another).transpose()?;
            if let Some(place) = owned.get_mut(index) {
                *place = copy;
            }
        }
        Ok(owned)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // SAFETY: the container owns the object, and only this deletes it. A failure can't be
        // handled here.
        let _ = unsafe { (self.functions.delete)(self.raw) };
    }
}

/// The model's message about the last error on this thread.
fn reason(last_error: Option<LastError>) -> String {
    let Some(last_error) = last_error else {
        return String::from("the model's library wrote the reason to the standard error output");
    };
    let mut message: *const c_char = ptr::null();
    // SAFETY: the out pointer is valid, and the text lives until the thread's next error.
    let message = unsafe {
        last_error(&raw mut message);
        text(message)
    };
    let message = message.trim();
    if message.is_empty() { String::from("unknown error") } else { message.to_owned() }
}
