//! Models that a worker executes, a process of Python with PyTorch, because the library can't.
//!
//! The server finds out which tensors have which names, and the worker's script receives the result
//! as a job. The worker's requests lack what the server computes for a batch.

use std::sync::Arc;

use galatea_backend::{Model, ModelFiles, ModelHost};
use galatea_config::ModelSpec;
use galatea_infer::Status;
use galatea_runtime::CpuOrGpu;
use serde_json::{Value, json};

use crate::parameters::ModelParameters;

/// Loads models into workers.
pub trait TorchWorkers: Send + Sync {
    /// Asks the workers' script about the model of a job, which is not executed.
    ///
    /// # Errors
    ///
    /// A status whose message identifies the error.
    fn describe(
        &self,
        spec: &ModelSpec,
        files: &dyn ModelFiles,
        job: Value,
    ) -> Result<Value, Status>;

    /// Loads a version. Each instance has a worker, whose script receives the job.
    ///
    /// # Errors
    ///
    /// A status whose message identifies the error.
    fn load(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
        job: Value,
    ) -> Result<Box<dyn Model>, Status>;
}

/// Refuses settings that a worker can't follow. The reason for the worker ends the error.
pub(crate) fn check_for_worker(spec: &ModelSpec, reason: &str) -> Result<(), Status> {
    let setting = if !spec.sequence_states().is_empty() {
        "states of sequences"
    } else if !spec.batch_inputs.is_empty() || !spec.batch_outputs.is_empty() {
        "batch inputs or outputs"
    } else if spec.inputs.iter().any(|input| input.allow_ragged_batch) {
        "ragged batches"
    } else {
        return Ok(());
    };
    Err(Status::unsupported(format!(
        "unable to load model '{}': a model in a worker has no {setting}, and {reason}",
        spec.name
    )))
}

/// An output of the model as the job describes it; `None` if the configuration lacks it.
pub(crate) fn worker_output(spec: &ModelSpec, index: usize, name: &str) -> Option<Value> {
    let output = spec.output(name)?;
    let datatype = output.datatype.protocol_name();
    Some(json!({ "name": name, "index": index, "datatype": datatype }))
}

/// The number of threads in an operation: as many as the configuration asks for, or else as many as
/// keep the processors busy if all instances execute.
pub(crate) fn worker_threads(
    spec: &ModelSpec,
    parameters: &ModelParameters,
    processors: usize,
) -> i32 {
    let instances = CpuOrGpu::Cpu.sharing_instance_count(spec).max(1);
    let instances = usize::try_from(instances).unwrap_or(1);
    let share = i32::try_from(processors / instances).unwrap_or(i32::MAX).max(1);
    parameters.intra_op_threads.unwrap_or(share)
}
