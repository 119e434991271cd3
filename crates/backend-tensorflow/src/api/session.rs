//! Sessions: loaded graphs.

use std::ffi::{CString, c_char, c_int};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use galatea_infer::Status;
use galatea_runtime::{c_string, path_string};
use smallvec::SmallVec;

use super::buffer::Buffer;
use super::functions::{
    RawBuffer, RawGraph, RawImportOptions, RawOperation, RawOutput, RawSession, RawSessionOptions,
    RawTensor,
};
use super::library::Library;
use super::outputs::TfOutputs;
use super::status::{CallStatus, missing};
use super::tensor::TfTensor;
use crate::graph::{ExecutorChoice, GraphFacts};

/// A graph tensor: an output of a node.
#[derive(Copy, Clone)]
pub(crate) struct TensorName(RawOutput);

// SAFETY: the name refers to a node of the session's graph, which lives as long as the session that
// it is used with, and doesn't change.
unsafe impl Send for TensorName {}
// SAFETY: as above.
unsafe impl Sync for TensorName {}

/// The encoded `RunOptions` message in which `inter_op_thread_pool`, the third field, is -1: the
/// calling thread executes the operators.
const IN_CALLER: &[u8] = &[0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];

/// A loaded graph. Any number of threads may run it concurrently.
pub(crate) struct GraphSession {
    session: NonNull<RawSession>,
    graph: TfGraph,
}

// SAFETY: the library documents that several threads may run a session concurrently; sessions are
// not bound to a thread.
unsafe impl Send for GraphSession {}
// SAFETY: as above; after construction, a session is only run, and its graph only read.
unsafe impl Sync for GraphSession {}

impl GraphSession {
    /// Loads the graph with the given tag from the `SavedModel` in a directory, and returns its
    /// `MetaGraphDef` if requested.
    pub(crate) fn of_saved_model(
        library: &Arc<Library>,
        directory: &Path,
        tag: &str,
        config: &[u8],
        wants_message: bool,
    ) -> Result<(Self, Option<Vec<u8>>), Status> {
        let functions = library.functions();
        let (options, graph) = (TfSessionOptions::new(library, config)?, TfGraph::new(library)?);
        let (path, tag) = (path_string(directory)?, c_string(tag, "the tag")?);
        let tags: [*const c_char; 1] = [tag.as_ptr()];
        let message = wants_message.then(|| Buffer::new(functions)).transpose()?;
        let status = CallStatus::new(functions)?;
        // SAFETY: the options, the new graph, the buffer and the status are alive; the path and the
        // tag live during the call; a null buffer stands for no settings, or no message.
        let raw = unsafe {
            (functions.TF_LoadSessionFromSavedModel)(
                options.raw.as_ptr(),
                ptr::null(),
                path.as_ptr(),
                tags.as_ptr(),
                1,
                graph.raw.as_ptr(),
                message.as_ref().map_or(ptr::null_mut(), Buffer::as_ptr),
                status.as_ptr(),
            )
        };
        status.check()?;
        let session = NonNull::new(raw).ok_or_else(|| missing("session"))?;
        let message = message.map(|buffer| buffer.to_vec());
        Ok((Self { session, graph }, message))
    }

    /// Creates a session for a graph. Nodes without a device are placed on the default device.
    pub(crate) fn of_graph(
        library: &Arc<Library>,
        graph_def: &[u8],
        default_device: Option<&str>,
        config: &[u8],
    ) -> Result<Self, Status> {
        let functions = library.functions();
        let (options, graph) = (TfSessionOptions::new(library, config)?, TfGraph::new(library)?);
        graph.import(graph_def, default_device)?;
        let status = CallStatus::new(functions)?;
        // SAFETY: the graph, the options and the status are alive.
        let raw = unsafe {
            let new_session = functions.TF_NewSession;
            new_session(graph.raw.as_ptr(), options.raw.as_ptr(), status.as_ptr())
        };
        status.check()?;
        let session = NonNull::new(raw).ok_or_else(|| missing("session"))?;
        Ok(Self { session, graph })
    }

    /// The tensor with a name such as `dense/Relu:0`; without a number, the name refers to the
    /// node's first output. `None` if the graph has no such node.
    pub(crate) fn tensor(&self, name: &str) -> Result<Option<TensorName>, Status> {
        let numbered = name.rsplit_once(':').and_then(|(operation, index)| {
            Some((operation, index.parse::<u16>().ok().map(c_int::from)?))
        });
        let (operation, index) = numbered.unwrap_or((name, 0));
        let operation = self.graph.operation(operation)?;
        Ok(operation.map(|operation| TensorName(RawOutput { operation, index })))
    }

    /// Runs a node for its side effect.
    pub(crate) fn run_operation(&self, name: &str) -> Result<(), Status> {
        let Some(operation) = self.graph.operation(name)? else {
            return Err(Status::internal(format!(
                "Tensor {name}, specified in target_nodes was not found in the Graph"
            )));
        };
        self.run_raw(&[], &[], &mut [], Some(operation), ExecutorChoice::Pool)
    }

    /// Computes outputs from inputs.
    pub(crate) fn run<'a>(
        &self,
        inputs: impl Iterator<Item = (TensorName, &'a TfTensor)>,
        outputs: impl Iterator<Item = TensorName>,
        facts: GraphFacts,
    ) -> Result<TfOutputs, Status> {
        let mut names: SmallVec<[RawOutput; 8]> = SmallVec::new();
        let mut values: SmallVec<[*mut RawTensor; 8]> = SmallVec::new();
        for (name, tensor) in inputs {
            names.push(name.0);
            values.push(tensor.as_ptr());
        }
        let wanted: SmallVec<[RawOutput; 4]> = outputs.map(|name| name.0).collect();
        let mut raw: SmallVec<[*mut RawTensor; 4]> =
            SmallVec::from_elem(ptr::null_mut(), wanted.len());
        let fed: SmallVec<[(RawOutput, *mut RawTensor); 8]> =
            names.into_iter().zip(values).collect();
        let result = self.run_raw(&fed, &wanted, &mut raw, None, facts.executor);
        // SAFETY: the run stored null or tensors that we now own, even if it failed.
        let tensors = raw.iter().map(|&raw| unsafe { TfTensor::output(raw, &self.graph.library) });
        let tensors: SmallVec<[Option<TfTensor>; 4]> = tensors.collect();
        result?;
        let tensors: Option<SmallVec<[TfTensor; 4]>> = tensors.into_iter().collect();
        let tensors = tensors.ok_or_else(|| missing("tensor for an output"))?;
        Ok(TfOutputs::new(tensors, facts.output_memory))
    }

    /// Runs the graph. Tensors are stored in `values`, one for each output.
    fn run_raw(
        &self,
        fed: &[(RawOutput, *mut RawTensor)],
        outputs: &[RawOutput],
        values: &mut [*mut RawTensor],
        target: Option<*mut RawOperation>,
        executor: ExecutorChoice,
    ) -> Result<(), Status> {
        let functions = self.graph.library.functions();
        let names: SmallVec<[RawOutput; 8]> = fed.iter().map(|(name, _)| *name).collect();
        let inputs: SmallVec<[*mut RawTensor; 8]> = fed.iter().map(|(_, value)| *value).collect();
        let targets: SmallVec<[*const RawOperation; 1]> =
            target.into_iter().map(<*mut RawOperation>::cast_const).collect();
        let in_caller = RawBuffer::of(IN_CALLER);
        let settings = match executor {
            ExecutorChoice::Pool => ptr::null(),
            ExecutorChoice::Caller => &raw const in_caller,
        };
        let status = CallStatus::new(functions)?;
        let (input_count, output_count) = (length(names.len())?, length(outputs.len())?);
        if outputs.len() != values.len() {
            return Err(Status::internal("a run needs a place for each output"));
        }
        // SAFETY: any thread may run the session. The arrays have the given lengths and live during
        // the call, and so do the tensors, the nodes and the settings; the inputs and the settings
        // are only read. The library checks indices of outputs and types. Null buffers stand for no
        // settings and no statistics.
        unsafe {
            (functions.TF_SessionRun)(
                self.session.as_ptr(),
                settings,
                names.as_ptr(),
                inputs.as_ptr(),
                input_count,
                outputs.as_ptr(),
                values.as_mut_ptr(),
                output_count,
                targets.as_ptr(),
                length(targets.len())?,
                ptr::null_mut(),
                status.as_ptr(),
            );
        }
        status.check()
    }
}

impl Drop for GraphSession {
    fn drop(&mut self) {
        let functions = self.graph.library.functions();
        let Ok(status) = CallStatus::new(functions) else { return };
        // SAFETY: the session is alive and not running, and only this closes and deletes it.
        unsafe {
            (functions.TF_CloseSession)(self.session.as_ptr(), status.as_ptr());
            (functions.TF_DeleteSession)(self.session.as_ptr(), status.as_ptr());
        }
    }
}

fn length(length: usize) -> Result<c_int, Status> {
    c_int::try_from(length).map_err(|_| Status::internal("a run has too many tensors"))
}

/// A graph. A session deletes its graph after deleting itself.
struct TfGraph {
    raw: NonNull<RawGraph>,
    library: Arc<Library>,
}

impl TfGraph {
    fn new(library: &Arc<Library>) -> Result<Self, Status> {
        // SAFETY: the constructor takes no arguments.
        let raw = NonNull::new(unsafe { (library.functions().TF_NewGraph)() });
        Ok(Self { raw: raw.ok_or_else(|| missing("graph"))?, library: library.clone() })
    }

    /// Adds the nodes of a `GraphDef`.
    fn import(&self, graph_def: &[u8], default_device: Option<&str>) -> Result<(), Status> {
        let functions = self.library.functions();
        let message = Buffer::copied(functions, graph_def)?;
        let options = TfImportOptions::new(&self.library)?;
        let device = default_device.map(|device| c_string(device, "the device")).transpose()?;
        if let Some(device) = &device {
            // SAFETY: the options are alive, and the name is copied.
            unsafe {
                let set_device = functions.TF_ImportGraphDefOptionsSetDefaultDevice;
                set_device(options.raw.as_ptr(), device.as_ptr());
            }
        }
        let status = CallStatus::new(functions)?;
        // SAFETY: the graph, the message, the options and the status are alive.
        unsafe {
            (functions.TF_GraphImportGraphDef)(
                self.raw.as_ptr(),
                message.as_ptr(),
                options.raw.as_ptr(),
                status.as_ptr(),
            );
        }
        status.check()
    }

    fn operation(&self, name: &str) -> Result<Option<*mut RawOperation>, Status> {
        let name: CString = c_string(name, "the name of a node")?;
        // SAFETY: the graph is alive, and the name lives during the call.
        let found = unsafe {
            (self.library.functions().TF_GraphOperationByName)(self.raw.as_ptr(), name.as_ptr())
        };
        Ok(Some(found).filter(|found| !found.is_null()))
    }
}

impl Drop for TfGraph {
    fn drop(&mut self) {
        // SAFETY: the graph is alive, and only this deletes it. Its session has been deleted.
        unsafe { (self.library.functions().TF_DeleteGraph)(self.raw.as_ptr()) };
    }
}

/// Session settings.
struct TfSessionOptions<'a> {
    raw: NonNull<RawSessionOptions>,
    library: &'a Library,
}

impl<'a> TfSessionOptions<'a> {
    /// Settings from a `ConfigProto`.
    fn new(library: &'a Library, config: &[u8]) -> Result<Self, Status> {
        let functions = library.functions();
        // SAFETY: the constructor takes no arguments.
        let raw = NonNull::new(unsafe { (functions.TF_NewSessionOptions)() });
        let options = Self { raw: raw.ok_or_else(|| missing("session options"))?, library };
        let status = CallStatus::new(functions)?;
        let (data, length) = (config.as_ptr().cast(), config.len());
        // SAFETY: the options and the status are alive, and the message has this many bytes.
        unsafe {
            (functions.TF_SetConfig)(options.raw.as_ptr(), data, length, status.as_ptr());
        }
        status.check()?;
        Ok(options)
    }
}

impl Drop for TfSessionOptions<'_> {
    fn drop(&mut self) {
        // SAFETY: the options are alive, and only this deletes them.
        unsafe { (self.library.functions().TF_DeleteSessionOptions)(self.raw.as_ptr()) };
    }
}

/// The settings for importing a graph.
struct TfImportOptions<'a> {
    raw: NonNull<RawImportOptions>,
    library: &'a Library,
}

impl<'a> TfImportOptions<'a> {
    fn new(library: &'a Library) -> Result<Self, Status> {
        // SAFETY: the constructor takes no arguments.
        let raw = NonNull::new(unsafe { (library.functions().TF_NewImportGraphDefOptions)() });
        Ok(Self { raw: raw.ok_or_else(|| missing("import options"))?, library })
    }
}

impl Drop for TfImportOptions<'_> {
    fn drop(&mut self) {
        // SAFETY: the options are alive, and only this deletes them.
        unsafe { (self.library.functions().TF_DeleteImportGraphDefOptions)(self.raw.as_ptr()) };
    }
}
