//! Infer requests: the state of one execution at a time.

use std::ffi::c_int;
use std::ops::Range;
use std::sync::Arc;

use galatea_backend::ExecutionTerminator;
use galatea_infer::Status;
use smallvec::SmallVec;

use super::core::CompiledModel;
use super::functions::RawInferRequest;
use super::handle::Handle;
use super::library::Library;
use super::model::Port;
use super::tensor::{KeptRows, MadeOutput, OvOutputs, OvTensor, OwnedTensor};

/// An infer request, which belongs to one instance.
pub(crate) struct InferRequest {
    raw: Arc<RequestHandle>,
    library: Arc<Library>,
    inputs: Vec<BoundInput>,
    outputs: Vec<BoundOutput>,
    rows: BatchRows,
}

/// The maximum size of a tensor that is copied from or to memory of the request, which stays bound
/// from run to run. Binding other memory costs more than such a copy: OpenVINO takes microseconds
/// for it, a third of the time of a small model.
const COPIED_BYTES_MAX: usize = 4096;

/// An input.
#[derive(Default)]
struct BoundInput {
    /// The request's own memory, with its type and shape, while it is bound.
    own: Option<(OwnedTensor, c_int, SmallVec<[i64; 6]>)>,
}

/// The batch sizes that a model executes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum BatchRows {
    /// Any size.
    Variable,
    /// Only this size. Smaller batches are padded with rows of zeros, whose outputs are removed.
    Fixed(usize),
}

/// The request itself, which is shared with a terminator.
pub(crate) struct RequestHandle {
    raw: Handle<RawInferRequest>,
    library: Arc<Library>,
}

// SAFETY: infer requests are not bound to a thread.
unsafe impl Send for RequestHandle {}
// SAFETY: behind a shared reference the only access by other threads is a cancellation, which the
// library documents as possible during an execution.
unsafe impl Sync for RequestHandle {}

/// An output.
struct BoundOutput {
    number: c_int,
    /// The input that the output is identical to, if there is no operator between them.
    source: Option<usize>,
    /// The shape for which memory is allocated; variable sizes are 0 at first, and grow.
    dims: Vec<i64>,
    /// The request's own memory, while it is bound.
    own: Option<OwnedTensor>,
}

impl InferRequest {
    /// Creates an infer request for a model whose outputs have these types and shapes.
    pub(crate) fn new(
        model: &CompiledModel,
        input_count: usize,
        outputs: &[Port],
        rows: BatchRows,
    ) -> Result<Self, Status> {
        let library = model.library.clone();
        let functions = library.api().functions();
        // SAFETY: the model is alive; the constructor stores a request, which the named function
        // frees.
        let raw = unsafe {
            let free = functions.ov_infer_request_free;
            Handle::load(library.api(), free, "creating infer request object", |out| {
                (functions.ov_compiled_model_create_infer_request)(model.raw.as_ptr(), out)
            })?
        };
        let memory = |port: &Port| BoundOutput {
            number: port.number,
            source: port.source,
            dims: port.dims().into_iter().map(|dim| dim.max(0)).collect(),
            own: None,
        };
        let raw = Arc::new(RequestHandle { raw, library: library.clone() });
        let inputs = (0..input_count).map(|_| BoundInput::default()).collect();
        let bound = outputs.iter().map(memory).collect();
        let mut request = Self { raw, library, inputs, outputs: bound, rows };
        for (index, _) in outputs.iter().enumerate().filter(|(_, port)| !port.is_named) {
            let source = request.identical_input(index)?;
            if let Some(output) = request.outputs.get_mut(index) {
                output.source = source;
            }
        }
        Ok(request)
    }

    /// The input that an output without a name is identical to. The library then takes memory that
    /// is bound to the output for the input's memory. The next run binds other memory to both.
    fn identical_input(&self, index: usize) -> Result<Option<usize>, Status> {
        let Some(output) = self.outputs.get(index) else { return Ok(None) };
        let (api, raw) = (self.library.api(), self.raw.raw.as_ptr());
        let functions = api.functions();
        // A tensor without elements might have no memory.
        let dims: SmallVec<[i64; 6]> = output.dims.iter().map(|&dim| dim.max(1)).collect();
        let probe = OwnedTensor::new(&self.library, output.number, &dims)?;
        let set = functions.ov_infer_request_set_output_tensor_by_index;
        // SAFETY: request and tensor are alive.
        if api.probe(|| unsafe { set(raw, index, probe.as_ptr()) }) != 0 {
            return Ok(None);
        }
        let address = probe.address(api)?;
        let has_address = |input: &usize| {
            // SAFETY: the request is alive, and the named function frees the tensor that is stored.
            let tensor = unsafe {
                let get = functions.ov_infer_request_get_input_tensor_by_index;
                OwnedTensor::load(&self.library, |out| get(raw, *input, out))
            };
            tensor.and_then(|tensor| tensor.address(api)).is_ok_and(|found| found == address)
        };
        Ok((0..self.inputs.len()).find(has_address))
    }

    /// Computes the outputs with the given indices, each in its own memory.
    pub(crate) fn run<'data>(
        &mut self,
        inputs: &[(usize, OvTensor<'data>)],
        outputs: impl ExactSizeIterator<Item = usize> + Clone,
    ) -> Result<OvOutputs<'data>, Status> {
        let (padded, cut) = match self.rows {
            BatchRows::Fixed(rows) => padded(&self.library, inputs, rows)?,
            BatchRows::Variable => (SmallVec::new(), None),
        };
        let input_regions = self.bind_inputs(inputs, &padded)?;
        self.bind_outputs()?;
        let is_padded = !padded.is_empty();
        let copies = outputs.clone().map(|index| self.copied_input(index, inputs, is_padded));
        let copies: SmallVec<[Option<OwnedTensor>; 4]> = copies.collect::<Result<_, _>>()?;
        let status = {
            let infer = self.library.api().functions().ov_infer_request_infer;
            // SAFETY: the request is alive and used by this thread alone. All inputs refer to
            // memory that lives during the call, all outputs to memory of the request.
            unsafe { infer(self.raw.raw.as_ptr()) }
        };
        self.library.api().check(status, "running inference - wait")?;
        let made = outputs.zip(copies).map(|(index, copy)| match copy {
            Some(copy) => Ok(MadeOutput::Tensor(copy)),
            None => self.take_output(index),
        });
        let made = made.collect::<Result<_, _>>()?;
        Ok(OvOutputs::new(self.library.clone(), made, input_regions, cut))
    }

    /// Binds tensors to all inputs, and returns the addresses of their elements. Otherwise the
    /// request would use those of its last run, whose memory may have been freed.
    fn bind_inputs(
        &mut self,
        inputs: &[(usize, OvTensor<'_>)],
        padded: &[OwnedTensor],
    ) -> Result<SmallVec<[Range<usize>; 8]>, Status> {
        if let Some(missing) =
            (0..self.inputs.len()).find(|index| inputs.iter().all(|(given, _)| given != index))
        {
            return Err(Status::invalid_argument(format!("input {missing} is not given")));
        }
        let mut regions = SmallVec::with_capacity(inputs.len());
        for (place, (index, tensor)) in inputs.iter().enumerate() {
            let bound = self.inputs.get_mut(*index);
            let bound =
                bound.ok_or_else(|| Status::internal(format!("there is no input {index}")))?;
            let is_copied =
                padded.is_empty() && (1..=COPIED_BYTES_MAX).contains(&tensor.byte_size());
            let own = bound
                .own
                .take()
                .filter(|(_, number, dims)| is_copied && tensor.is_like(*number, dims));
            let is_bound = own.is_some();
            if !is_copied {
                let handle;
                let tensor_to_bind = match padded.get(place) {
                    Some(padded) => padded,
                    None => {
                        handle = tensor.handle(&self.library)?;
                        &handle
                    }
                };
                set_input(&self.library, &self.raw, *index, tensor_to_bind)?;
                regions.push(tensor.region());
                continue;
            }
            let own = match own {
                Some(own) => own,
                None => tensor.like(&self.library)?,
            };
            if !is_bound {
                set_input(&self.library, &self.raw, *index, &own.0)?;
            }
            regions.push(tensor.copy_to(&self.library, &own.0)?);
            bound.own = Some(own);
        }
        Ok(regions)
    }

    /// Binds memory of the request to all outputs that have none.
    fn bind_outputs(&mut self) -> Result<(), Status> {
        let (api, raw) = (self.library.api(), self.raw.raw.as_ptr());
        let set = api.functions().ov_infer_request_set_output_tensor_by_index;
        for (index, output) in self.outputs.iter_mut().enumerate() {
            if output.source.is_some() || output.own.is_some() {
                continue;
            }
            let tensor = OwnedTensor::new(&self.library, output.number, &output.dims)?;
            // SAFETY: request and tensor are alive.
            api.check(unsafe { set(raw, index, tensor.as_ptr()) }, "setting an output")?;
            output.own = Some(tensor);
        }
        Ok(())
    }

    /// An output of the last run. Small outputs are copied; the memory of others is given away.
    fn take_output(&mut self, index: usize) -> Result<MadeOutput, Status> {
        let missing = || Status::internal(format!("there is no output {index}"));
        let output = self.outputs.get_mut(index).ok_or_else(missing)?;
        let own = output.own.take().ok_or_else(missing)?;
        match own.copied(self.library.api(), COPIED_BYTES_MAX)? {
            Some(copy) => {
                output.own = Some(own);
                Ok(MadeOutput::Copied(copy))
            }
            None => Ok(MadeOutput::Tensor(own)),
        }
    }

    /// A copy of the input that an output is identical to; `None` for other outputs. The library
    /// would mistake the memory of such an output for the input's memory.
    fn copied_input(
        &self,
        output: usize,
        inputs: &[(usize, OvTensor<'_>)],
        is_padded: bool,
    ) -> Result<Option<OwnedTensor>, Status> {
        let output = self.outputs.get(output);
        let Some(source) = output.and_then(|output| output.source) else { return Ok(None) };
        let rows = match self.rows {
            BatchRows::Fixed(rows) if is_padded => Some(rows),
            BatchRows::Fixed(_) | BatchRows::Variable => None,
        };
        let input = inputs.iter().find(|(given, _)| *given == source);
        input.map(|(_, input)| input.copied(&self.library, rows)).transpose()
    }

    pub(crate) fn terminator(&self) -> Arc<dyn ExecutionTerminator> {
        self.raw.clone()
    }
}

fn set_input(
    library: &Library,
    request: &RequestHandle,
    index: usize,
    tensor: &OwnedTensor,
) -> Result<(), Status> {
    let set = library.api().functions().ov_infer_request_set_input_tensor_by_index;
    // SAFETY: request and tensor are alive; the index is checked by the library.
    let status = unsafe { set(request.raw.as_ptr(), index, tensor.as_ptr()) };
    library.api().check(status, "setting tensor data")
}

/// Copies of the inputs of a batch that has fewer rows than the model executes, and the rows to
/// keep of each output; `None` for a full batch.
fn padded<'data>(
    library: &Library,
    inputs: &[(usize, OvTensor<'data>)],
    rows: usize,
) -> Result<(SmallVec<[OwnedTensor; 4]>, Option<KeptRows>), Status> {
    let given = inputs.iter().map(|(_, tensor)| tensor.rows()).max().unwrap_or(rows);
    if given >= rows {
        return Ok((SmallVec::new(), None));
    }
    let copies = inputs.iter().map(|(_, tensor)| tensor.padded(library, rows));
    Ok((copies.collect::<Result<_, _>>()?, Some(KeptRows { given, executed: rows })))
}

impl ExecutionTerminator for RequestHandle {
    fn terminate(&self) {
        // SAFETY: the request is alive, and any thread may cancel its execution.
        let status =
            unsafe { (self.library.api().functions().ov_infer_request_cancel)(self.raw.as_ptr()) };
        // A request that isn't executing can't be cancelled, which has the same result.
        let _ = status;
    }

    /// A cancellation affects only one execution and leaves nothing behind.
    fn reset(&self) {}
}
