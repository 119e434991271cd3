//! Warmup: each instance executes the configuration's sample requests before its model serves, so
//! that no client waits for a backend's one-time work.
//!
//! Samples go directly to the instance, bypassing the queue, cache and scheduler. Otherwise they
//! are treated like client requests: admitted by the same rules, extended with a sequence's
//! controls and states, and counted in the model's statistics, as in Triton.
//!
//! The scheduler learns the cost of executions from the samples.

mod run;
#[cfg(test)]
mod tests;

use galatea_backend::{FileReadLimit, LogLevel, ModelFiles};
use galatea_config::{ModelSpec, SchedulingChoice, WarmupContent, WarmupInput, WarmupSample};
use galatea_infer::{InferenceRequest, InputTensor, Status};
use galatea_stdx::len64;
use galatea_tensor::{Buffer, DataType, Shape};

pub(crate) use self::run::{InstanceWarmup, WarmupCosts};
use crate::LogSink;
use crate::admission::Admission;
use crate::tensor_contents::{
    CONFIG_TENSOR_BYTES_MAX, STRING_FILE_BYTES_MAX, check_strings, zeros,
};

/// A model's samples, ready to be executed on each of its instances.
#[derive(Debug)]
pub(crate) struct Warmup {
    samples: Vec<PreparedSample>,
    /// True if a backend may reschedule a request.
    is_iterative: bool,
}

/// Identical requests that are executed as one batch.
#[derive(Debug)]
struct PreparedSample {
    name: String,
    batch_size: u32,
    count: u32,
    request: Box<InferenceRequest>,
    /// The number of rows in each request, and their length.
    rows: u32,
    length: u32,
    /// Inputs that replace controls and states.
    replacements: Vec<InputTensor>,
}

impl Warmup {
    /// Reads or generates the tensors for a model's samples.
    ///
    /// # Errors
    ///
    /// Returns an error if a file can't be used, or if such a request would be refused. Triton's
    /// messages don't name the sample; our own messages do.
    pub(crate) fn new(
        spec: &ModelSpec,
        files: &dyn ModelFiles,
        log: &LogSink,
    ) -> Result<Self, Status> {
        for skipped in spec.warmup.iter().filter(|sample| sample.batch_size == 0) {
            let line = format_args!("skipping batch 0 warmup sample '{}'", skipped.name);
            log.write(LogLevel::Verbose(1), line);
        }
        // This is not the version's own admission, which assigns correlation IDs.
        let admission = Admission::new(spec);
        let samples = spec.warmup.iter().filter(|sample| sample.batch_size > 0);
        let mut bytes_left = CONFIG_TENSOR_BYTES_MAX;
        let new_sample = |sample: &WarmupSample| {
            PreparedSample::new(spec, sample, files, &admission, &mut bytes_left)
        };
        let is_iterative = match &spec.scheduling {
            SchedulingChoice::Sequence(batching) => batching.iterative,
            SchedulingChoice::Default
            | SchedulingChoice::Dynamic(_)
            | SchedulingChoice::Ensemble(_) => false,
        };
        Ok(Self { samples: samples.map(new_sample).collect::<Result<_, _>>()?, is_iterative })
    }
}

/// The start of a message about a sample.
fn failure_prefix(sample: &str) -> String {
    format!("failed to run warmup sample '{sample}'")
}

impl PreparedSample {
    fn new(
        spec: &ModelSpec,
        sample: &WarmupSample,
        files: &dyn ModelFiles,
        admission: &Admission,
        bytes_left: &mut u64,
    ) -> Result<Self, Status> {
        let named =
            |status: Status| status.prefixed(format_args!("{}: ", failure_prefix(&sample.name)));
        let mut seed = 0;
        let mut tensor = |input: &WarmupInput| {
            seed += 1;
            let tensor = tensor(spec, &sample.name, input, files, seed, *bytes_left)?;
            *bytes_left = bytes_left.saturating_sub(len64(tensor.data.len()));
            Ok::<_, Status>(tensor)
        };
        let (sequence_inputs, own): (Vec<_>, Vec<_>) =
            sample.inputs.iter().partition(|input| is_sequence_input(spec, &input.name));
        let request = InferenceRequest {
            model_name: spec.name.clone(),
            inputs: own.into_iter().map(&mut tensor).collect::<Result<_, _>>()?,
            ..InferenceRequest::default()
        };
        let replacements: Vec<InputTensor> =
            sequence_inputs.into_iter().map(tensor).collect::<Result<_, _>>()?;
        replacements.iter().try_for_each(|one| check_replacement(spec, one)).map_err(named)?;
        let admitted = admission.admit(request)?;
        Ok(Self {
            name: sample.name.clone(),
            batch_size: sample.batch_size,
            count: sample.count,
            request: admitted.request,
            rows: admitted.batch_size,
            length: admitted.length,
            replacements,
        })
    }
}

/// Returns true if the sequence batcher provides this input.
fn is_sequence_input(spec: &ModelSpec, name: &str) -> bool {
    sequence_input(spec, name).is_some()
}

/// The type and the dimensions, without the batch dimension, of an input that the sequence batcher
/// provides.
fn sequence_input<'a>(spec: &'a ModelSpec, name: &str) -> Option<(DataType, &'a [i64])> {
    const ONE: &[i64] = &[1];
    let control = spec.sequence_controls().iter().find(|control| control.name == name);
    let state = || spec.sequence_states().iter().find(|state| state.input_name == name);
    control
        .map(|control| (control.datatype, ONE))
        .or_else(|| state().map(|state| (state.datatype, state.dims.as_slice())))
}

/// Checks that an input has the type and shape of the control or state that it replaces, because
/// backends rely on them.
fn check_replacement(spec: &ModelSpec, input: &InputTensor) -> Result<(), Status> {
    let Some((datatype, expected)) = sequence_input(spec, &input.name) else { return Ok(()) };
    let dims = input.shape.dims().get(usize::from(spec.max_batch_size > 0)..).unwrap_or_default();
    let fits = dims.len() == expected.len()
        && dims.iter().zip(expected).all(|(dim, expected)| dim == expected || *expected == -1);
    if fits && input.datatype == datatype {
        return check_replaced_strings(input);
    }
    Err(Status::invalid_argument(format!(
        "input '{}' is {} with dims {dims:?}, but model '{}' expects {datatype} with dims \
         {expected:?}",
        input.name, input.datatype, spec.name
    )))
}

/// Checks the strings in an input that admission does not check.
fn check_replaced_strings(input: &InputTensor) -> Result<(), Status> {
    let (DataType::Bytes, Some(bytes)) = (input.datatype, input.data.host_bytes()) else {
        return Ok(());
    };
    check_strings(bytes, &input.shape)
        .map_err(|reason| Status::invalid_argument(format!("input '{}' {reason}", input.name)))
}

fn tensor(
    spec: &ModelSpec,
    sample: &str,
    input: &WarmupInput,
    files: &dyn ModelFiles,
    seed: u64,
    bytes_left: u64,
) -> Result<InputTensor, Status> {
    let batch = (spec.max_batch_size > 0).then_some(1);
    let dims: Vec<i64> = batch.into_iter().chain(input.dims.iter().copied()).collect();
    let prefix = failure_prefix(sample);
    let invalid = |reason: String| {
        Status::invalid_argument(format!("{prefix}: input '{}': {reason}", input.name))
    };
    let shape = Shape::new(&dims).map_err(|error| invalid(error.to_string()))?;
    let most = CONFIG_TENSOR_BYTES_MAX;
    if shape.byte_size(input.datatype).is_some_and(|size| bytes_left < size && size <= most) {
        return Err(invalid(format!("all samples together take more than {most} bytes")));
    }
    let data = match &input.content {
        WarmupContent::Zero => zeros(&shape, input.datatype).map_err(invalid)?,
        WarmupContent::Random => {
            let mut bytes = zeros(&shape, input.datatype).map_err(invalid)?;
            randomize(&mut bytes, input.datatype, seed);
            bytes
        }
        WarmupContent::File(name) => read(&shape, input, name, files)?,
    };
    Ok(InputTensor {
        name: input.name.clone(),
        datatype: input.datatype,
        shape,
        data: Buffer::from_vec(data),
    })
}

/// Fills in pseudo-random bytes, which are the same at each load. As in Triton, strings stay empty.
/// Booleans are 0 or 1, because other values are undefined for backends.
fn randomize(bytes: &mut [u8], datatype: DataType, seed: u64) {
    let mask = match datatype {
        DataType::Bytes => return,
        DataType::Bool => 1,
        _ => 0xff,
    };
    // SplitMix64 is small and good enough for sample data.
    let mut state = seed;
    for chunk in bytes.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        for (byte, random) in chunk.iter_mut().zip(mixed.to_le_bytes()) {
            *byte = random & mask;
        }
    }
}

/// Reads a tensor from the start of a file. Strings are checked by admission.
fn read(
    shape: &Shape,
    input: &WarmupInput,
    name: &str,
    files: &dyn ModelFiles,
) -> Result<Vec<u8>, Status> {
    if input.datatype == DataType::Bytes {
        return files.read_warmup(name, FileReadLimit::AtMost(STRING_FILE_BYTES_MAX));
    }
    let expected = shape.byte_size(input.datatype);
    let expected = expected.filter(|size| *size <= CONFIG_TENSOR_BYTES_MAX).ok_or_else(|| {
        Status::invalid_argument(format!(
            "input '{}': file '{name}' can't hold a tensor of shape {shape}",
            input.name
        ))
    })?;
    let bytes = files.read_warmup(name, FileReadLimit::Beginning(expected))?;
    if len64(bytes.len()) < expected {
        // The message is Triton's, with the missing space added.
        let text = format!(
            "warmup setting expects {expected} bytes, but the data provided from {name}only has {} \
             bytes",
            bytes.len()
        );
        let prefix = InferenceRequest::default().log_prefix();
        return Err(Status::invalid_argument(text).prefixed(prefix));
    }
    Ok(bytes)
}
