//! A TorchScript model, executed through the shim.

use std::ffi::CString;
use std::ops::Range;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use galatea_infer::Status;
use galatea_runtime::{PackedStrings, with_causes};
use smallvec::SmallVec;

use super::functions::{RawInput, RawModule, RawOptions, RawResults, RawTensor, ShimFunctions};
use super::library::{Library, open_local, text};
use super::outputs::{OutputValue, TorchOutputs};
use super::tensor::{BorrowedTensor, TensorHandle};
use crate::parameters::ModelParameters;

/// The shim, which is never unloaded.
pub(crate) struct Shim {
    functions: ShimFunctions,
    library: Arc<Library>,
}

/// A loaded model.
pub(crate) struct ScriptModule {
    raw: *mut RawModule,
    shim: Arc<Shim>,
    options: RawOptions,
}

/// An argument of a model's `forward` function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Argument {
    pub(crate) name: String,
    /// The type, under PyTorch's name.
    pub(crate) type_name: String,
    pub(crate) kind: ArgumentKind,
}

/// The kind of an argument.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum ArgumentKind {
    Tensor,
    List,
    Dictionary,
    Other,
}

/// An input for a run. Specifies whether a model may read and write files as the server's user.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileAccess {
    Allowed,
    /// A model is refused if its code names an operator for files or other computers.
    Refused,
}

pub(crate) enum InputValue<'data> {
    Tensor(BorrowedTensor<'data>),
    /// Concatenated strings, and the end of each.
    Strings(Vec<u8>, Vec<usize>),
}

// SAFETY: a module is not bound to a thread. PyTorch can execute a module on several threads, each
// with its own interpreter.
unsafe impl Send for ScriptModule {}
// SAFETY: as above.
unsafe impl Sync for ScriptModule {}

impl Shim {
    /// Opens the shim at `path`, which was compiled for this library.
    pub(crate) fn open(library: Arc<Library>, path: &Path) -> Result<Arc<Self>, Status> {
        let unusable = |reason: String| {
            Status::unavailable(format!("can't use '{}': {reason}", path.display()))
        };
        // SAFETY: the server compiled this file from its own source.
        let code = unsafe { open_local(path) }.map_err(|error| unusable(with_causes(&error)))?;
        // SAFETY: as above, so the functions have these signatures. It is never closed.
        let functions = unsafe { ShimFunctions::of(&code) };
        let functions = functions.map_err(|error| unusable(with_causes(&error)))?;
        std::mem::forget(code);
        Ok(Arc::new(Self { functions, library }))
    }

    /// Sets the number of threads for independent operations. PyTorch accepts this only once,
    /// before it starts the threads; after that, the number doesn't change.
    pub(crate) fn set_inter_op_threads(&self, count: i32) {
        // SAFETY: the function catches exceptions.
        unsafe { (self.functions.inter_op_threads)(count.max(1)) };
    }

    fn error(&self) -> String {
        // SAFETY: the text lives until the thread's next error.
        unsafe { text((self.functions.error)()) }.trim().to_owned()
    }
}

impl ScriptModule {
    /// Loads the model at `path`.
    pub(crate) fn load(
        shim: Arc<Shim>,
        path: &Path,
        parameters: &ModelParameters,
        files: FileAccess,
    ) -> Result<Self, Status> {
        let name = path.to_str().and_then(|path| CString::new(path).ok());
        let name = name.ok_or_else(|| Status::internal("the path is not in UTF-8"))?;
        let option = |value: Option<bool>| value.map_or(-1, i32::from);
        let options = RawOptions {
            optimized: parameters.is_optimized.into(),
            inference_mode: parameters.inference_mode.into(),
            profiling: option(parameters.jit_profiling),
            executor: option(parameters.jit_executor),
            fuser: option(parameters.tensor_fuser),
        };
        // Code in the file runs as soon as it is loaded.
        if files == FileAccess::Refused {
            // SAFETY: the path lives during the call.
            let status = unsafe { (shim.functions.check_untrusted)(name.as_ptr()) };
            if status != 0 {
                return Err(Status::invalid_argument(shim.error()));
            }
        }
        let mut raw = ptr::null_mut();
        // SAFETY: the path lives during the call, and the out pointer is valid.
        let status =
            unsafe { (shim.functions.load)(name.as_ptr(), options.inference_mode, &raw mut raw) };
        if status != 0 || raw.is_null() {
            return Err(Status::internal(shim.error()));
        }
        Ok(Self { raw, shim, options })
    }

    /// Returns true if a run may wait for other threads, other computers or files.
    pub(crate) fn may_block(&self) -> bool {
        // SAFETY: the module is alive.
        unsafe { (self.shim.functions.may_block)(self.raw) != 0 }
    }

    /// The names of the model's operators and statements. A name may occur more than once.
    pub(crate) fn operators(&self) -> Vec<String> {
        // SAFETY: the module is alive, and so are its names, which are NUL-terminated.
        let name = |index: usize| unsafe { (self.shim.functions.operator)(self.raw, index) };
        let names = (0..).map(name).take_while(|name| !name.is_null());
        // SAFETY: as above.
        names.map(|name| unsafe { text(name) }).collect()
    }

    /// The arguments of the model's `forward` function, except the model itself.
    pub(crate) fn arguments(&self) -> Vec<Argument> {
        let functions = &self.shim.functions;
        // SAFETY: the module is alive.
        let count = unsafe { (functions.argument_count)(self.raw) };
        let argument = |index: usize| {
            let (mut name, mut type_name) = (ptr::null(), ptr::null());
            // SAFETY: the module is alive and has this argument, whose texts live as long.
            let (kind, name, type_name) = unsafe {
                let get = functions.argument;
                let kind = get(self.raw, index, &raw mut name, &raw mut type_name);
                (kind, text(name), text(type_name))
            };
            let kind = match kind {
                0 => ArgumentKind::Tensor,
                1 => ArgumentKind::List,
                2 => ArgumentKind::Dictionary,
                _ => ArgumentKind::Other,
            };
            Argument { name, type_name, kind }
        };
        (0..count).map(argument).collect()
    }

    /// Computes the outputs, and keeps those with these indices. Each input comes with its key,
    /// which a model that takes a dictionary needs. Also returns the number of outputs.
    pub(crate) fn run<'data>(
        self: &Arc<Self>,
        inputs: &[(&InputValue<'data>, &CString)],
        wanted: impl ExactSizeIterator<Item = usize>,
    ) -> Result<(TorchOutputs<'data>, usize), Status> {
        let library = &self.shim.library;
        let mut handles: SmallVec<[Option<TensorHandle>; 8]> = SmallVec::new();
        let mut strings: Vec<(Vec<*const i8>, Vec<usize>)> = Vec::new();
        let mut regions: SmallVec<[Range<usize>; 8]> = SmallVec::new();
        for (input, _) in inputs {
            let (handle, texts) = match input {
                InputValue::Tensor(tensor) => {
                    regions.push(tensor.region());
                    (Some(tensor.handle(library)?), (Vec::new(), Vec::new()))
                }
                InputValue::Strings(content, ends) => (None, pointers(content, ends)),
            };
            handles.push(handle);
            strings.push(texts);
        }
        let raw =
            inputs.iter().zip(&handles).zip(&strings).map(|(((_, key), handle), texts)| RawInput {
                tensor: handle.as_ref().map_or(ptr::null_mut(), TensorHandle::as_ptr),
                texts: texts.0.as_ptr().cast(),
                lengths: texts.1.as_ptr(),
                count: texts.1.len(),
                key: key.as_ptr(),
            });
        let raw: SmallVec<[RawInput; 8]> = raw.collect();
        let mut results: *mut RawResults = ptr::null_mut();
        // SAFETY: the module is alive. All inputs refer to memory that lives during the call. The
        // shim copies an input if the model writes to it or may keep it.
        let status = unsafe {
            let run = self.shim.functions.run;
            run(self.raw, &raw const self.options, raw.as_ptr(), raw.len(), &raw mut results)
        };
        if status != 0 || results.is_null() {
            return Err(Status::internal(self.shim.error()));
        }
        let results = Results { raw: results, shim: &self.shim };
        let outputs = wanted.map(|index| results.value(index));
        let outputs = outputs.collect::<Result<_, Status>>()?;
        Ok((TorchOutputs::new(self.clone(), outputs, regions), results.count()))
    }
}

impl Drop for ScriptModule {
    fn drop(&mut self) {
        // SAFETY: the value owns the object, and only this frees it.
        unsafe { (self.shim.functions.free)(self.raw) };
    }
}

/// The results of a run.
struct Results<'a> {
    raw: *mut RawResults,
    shim: &'a Arc<Shim>,
}

impl Results<'_> {
    fn count(&self) -> usize {
        // SAFETY: the results are alive.
        unsafe { (self.shim.functions.result_count)(self.raw) }
    }

    fn value(&self, index: usize) -> Result<Option<OutputValue>, Status> {
        if index >= self.count() {
            return Ok(None);
        }
        let functions = &self.shim.functions;
        let mut raw: *mut RawTensor = ptr::null_mut();
        // SAFETY: the results are alive, and the out pointer is valid.
        self.check(unsafe { (functions.result_tensor)(self.raw, index, &raw mut raw) })?;
        // SAFETY: the new handle is the caller's.
        if let Some(tensor) = unsafe { TensorHandle::of(&self.shim.library, raw) } {
            return Ok(Some(OutputValue::Tensor(tensor)));
        }
        let mut count = 0;
        // SAFETY: the results are alive, and the out pointer is valid.
        self.check(unsafe { (functions.string_count)(self.raw, index, &raw mut count) })?;
        let (mut content, mut ends) = (Vec::new(), Vec::with_capacity(count));
        for element in 0..count {
            let (mut start, mut length) = (ptr::null(), 0);
            // SAFETY: as above.
            self.check(unsafe {
                (functions.string)(self.raw, index, element, &raw mut start, &raw mut length)
            })?;
            // SAFETY: this is the string, which lives as long as the results.
            let string = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) };
            content.extend_from_slice(string);
            ends.push(content.len());
        }
        let bytes = content.len();
        Ok(Some(OutputValue::Strings(PackedStrings::new(content, ends), count, bytes)))
    }

    fn check(&self, status: i32) -> Result<(), Status> {
        if status == 0 { Ok(()) } else { Err(Status::internal(self.shim.error())) }
    }
}

impl Drop for Results<'_> {
    fn drop(&mut self) {
        // SAFETY: the value owns the object, and only this frees it.
        unsafe { (self.shim.functions.free_results)(self.raw) };
    }
}

/// The addresses and lengths of the strings.
fn pointers(content: &[u8], ends: &[usize]) -> (Vec<*const i8>, Vec<usize>) {
    let mut start = 0;
    let string = |&end: &usize| {
        let string = content.get(start..end).unwrap_or_default();
        start = end;
        (string.as_ptr().cast::<i8>(), string.len())
    };
    ends.iter().map(string).unzip()
}
