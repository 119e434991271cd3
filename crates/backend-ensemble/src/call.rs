//! A request to a composing model.

use std::sync::Arc;

use galatea_infer::{
    Backpressure, CancelToken, CongestionPoint, DeviceOutputs, InferenceRequest, InputTensor,
    Reply, ResponseSink, Status, StepExecutionObserver, Trace,
};
use galatea_policy::{StepCallKey, StepIndex};

use crate::ensemble::Ensemble;
use crate::event::{RunEvent, RunInbox};
use crate::gates::DownstreamCongestion;
use crate::plan::{PlannedStep, StepOutput};
use crate::tensor::{SequencePosition, StepTensor};
use crate::times::StepTimes;

/// The tensors for a call's inputs; `None` for an omitted input.
pub(crate) type CallInputs = Vec<Option<Arc<StepTensor>>>;

/// The parts of the ensemble's request that a run's calls inherit.
pub(crate) struct CallTemplate {
    /// The ensemble's request, without its inputs.
    pub(crate) request: InferenceRequest,
    pub(crate) sequence: Arc<SequencePosition>,
    pub(crate) times: Arc<StepTimes>,
    /// The trace of the ensemble's request. It is dropped after the last call.
    pub(crate) trace: Option<Arc<Trace>>,
}

/// A call that is about to start.
pub(crate) struct NewCall<'a> {
    pub(crate) step: StepIndex,
    pub(crate) inputs: &'a [Option<Arc<StepTensor>>],
    pub(crate) sequence: &'a SequencePosition,
    pub(crate) cancel: &'a CancelToken,
}

impl CallTemplate {
    /// The sequence position for a call. It comes from the inputs that steps produced or, if there
    /// are none, from the ensemble's request. Returns `Err` if the inputs disagree, which is a
    /// mistake in the ensemble. As in Triton, the first input's position then takes precedence, and
    /// the error contains it.
    pub(crate) fn sequence_of(
        &self,
        inputs: &[Option<Arc<StepTensor>>],
    ) -> Result<Arc<SequencePosition>, Arc<SequencePosition>> {
        let mut positions = inputs.iter().flatten().filter_map(|tensor| tensor.sequence.as_ref());
        let Some(first) = positions.next() else { return Ok(self.sequence.clone()) };
        let agree = positions.all(|other| other == first);
        if agree { Ok(first.clone()) } else { Err(first.clone()) }
    }

    /// Creates the request to the composing model.
    pub(crate) fn request(
        &self,
        ensemble: &Ensemble,
        run: &Arc<dyn RunInbox>,
        call: &NewCall<'_>,
    ) -> Result<InferenceRequest, Status> {
        let step = ensemble.plan.step(call.step);
        let template = &self.request;
        let observer: Arc<dyn StepExecutionObserver> = self.times.clone();
        Ok(InferenceRequest {
            id: template.id.clone(),
            model_name: step.model.clone(),
            model_version: step.version,
            // The service uses the versions that the ensemble was checked with.
            found_model: None,
            inputs: inputs(step, call.inputs)?,
            malformed_inputs: Vec::new(),
            outputs: step.outputs.iter().map(|output| output.name.clone()).collect(),
            parameters: template.parameters.clone(),
            priority: template.priority,
            timeout_microseconds: template.timeout_microseconds,
            deadline: template.deadline,
            correlation_id: call.sequence.correlation_id.clone(),
            sequence_flags: call.sequence.flags,
            cancel: call.cancel.clone(),
            backpressure: self.backpressure(ensemble, run, call.step),
            execution_observer: Some(observer),
            trace: self.trace.as_ref().and_then(Trace::child),
            classes: None,
            output_query: None,
            device_outputs: self.device_outputs(ensemble, step),
            held: None,
        })
    }

    /// The outputs that may stay in GPU memory: those that only other steps use, or all of the
    /// step's outputs if the caller accepts the ensemble's outputs there.
    fn device_outputs(&self, ensemble: &Ensemble, step: &PlannedStep) -> DeviceOutputs {
        let taken = &self.request.device_outputs;
        let goes_on = |output: &StepOutput| {
            let mut same = ensemble.plan.outputs.iter().filter(|one| one.tensor == output.tensor);
            same.all(|one| taken.include(&one.name))
        };
        if *taken != DeviceOutputs::None && step.outputs.iter().all(goes_on) {
            DeviceOutputs::All
        } else {
            DeviceOutputs::Named(step.inner_outputs.clone())
        }
    }

    /// The backpressure for a decoupled step, which pauses for the caller, its run and later steps.
    fn backpressure(
        &self,
        ensemble: &Ensemble,
        run: &Arc<dyn RunInbox>,
        step: StepIndex,
    ) -> Backpressure {
        if !ensemble.plan.step(step).decoupled {
            return Backpressure::default();
        }
        let run: Arc<dyn CongestionPoint> = run.clone();
        let backpressure = self.request.backpressure.clone().with_congestion_point(run);
        match &ensemble.gates {
            None => backpressure,
            Some(gates) => backpressure.with_congestion_point(Arc::new(DownstreamCongestion {
                gates: gates.clone(),
                step,
            })),
        }
    }
}

fn inputs(
    step: &PlannedStep,
    tensors: &[Option<Arc<StepTensor>>],
) -> Result<Vec<InputTensor>, Status> {
    let mut inputs = Vec::with_capacity(step.inputs.len());
    for (input, tensor) in step.inputs.iter().zip(tensors) {
        if let Some(tensor) = tensor {
            inputs.push(InputTensor {
                name: input.name.clone(),
                datatype: tensor.datatype,
                shape: tensor.shape_for(&input.dims, step.batches)?,
                data: tensor.data.clone(),
            });
        }
    }
    Ok(inputs)
}

/// The batch size of a request to this step; `None` if the step's model doesn't support batching.
pub(crate) fn batch_size(step: &PlannedStep, request: &InferenceRequest) -> Option<u32> {
    if !step.batches {
        return None;
    }
    let first = request.inputs.first().and_then(|input| input.shape.dims().first().copied());
    Some(first.and_then(|size| u32::try_from(size).ok()).unwrap_or(1))
}

/// Posts a call's replies to the call's run.
pub(crate) struct CallSink {
    pub(crate) run: Arc<dyn RunInbox>,
    pub(crate) call: StepCallKey,
}

impl ResponseSink for CallSink {
    fn deliver(&mut self, reply: Reply) {
        self.run.clone().post(RunEvent::Reply(self.call, reply));
    }
}
