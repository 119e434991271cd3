//! A request to a composing model, and where its answers go.

use std::sync::Arc;

use galatea_infer::{
    CancelToken, ExecutionObserver, InferenceRequest, InputTensor, Reply, ResponseSink, Status,
    Throttle, Trace,
};
use galatea_policy::{StepCallKey, StepIndex};

use crate::gates::BehindStep;
use crate::model::Ensemble;
use crate::plan::PlannedStep;
use crate::run::{Event, Run};
use crate::tensor::{Carried, SequencePlace};
use crate::times::StepTimes;

/// The tensors of a call's inputs; `None` for those that are left out.
pub(crate) type CallInputs = Vec<Option<Arc<Carried>>>;

/// What the calls of a run have in common.
pub(crate) struct Whole {
    /// The ensemble's request, without its inputs.
    pub(crate) request: InferenceRequest,
    pub(crate) sequence: Arc<SequencePlace>,
    pub(crate) times: Arc<StepTimes>,
    /// Ends when all calls are over.
    pub(crate) trace: Option<Arc<Trace>>,
}

/// A call that is about to start.
pub(crate) struct NewCall<'a> {
    pub(crate) step: StepIndex,
    pub(crate) inputs: &'a [Option<Arc<Carried>>],
    pub(crate) sequence: &'a SequencePlace,
    pub(crate) cancel: &'a CancelToken,
}

impl Whole {
    /// The sequence that a call goes on with: that of its inputs which steps
    /// made, or else the request's. Inputs of different sequences are an error
    /// of whoever made the ensemble; the first one counts, as in the original.
    pub(crate) fn sequence_of(
        &self,
        inputs: &[Option<Arc<Carried>>],
    ) -> Result<Arc<SequencePlace>, Arc<SequencePlace>> {
        let mut said = inputs.iter().flatten().filter_map(|carried| carried.sequence.as_ref());
        let Some(first) = said.next() else { return Ok(self.sequence.clone()) };
        if said.all(|other| other == first) { Ok(first.clone()) } else { Err(first.clone()) }
    }

    /// The request to the composing model.
    pub(crate) fn request(
        &self,
        ensemble: &Ensemble,
        run: &Arc<Run>,
        call: &NewCall<'_>,
    ) -> Result<InferenceRequest, Status> {
        let step = ensemble.plan.step(call.step);
        let whole = &self.request;
        let observer: Arc<dyn ExecutionObserver> = self.times.clone();
        Ok(InferenceRequest {
            id: whole.id.clone(),
            model_name: step.model.clone(),
            model_version: step.version,
            inputs: inputs(step, call.inputs)?,
            outputs: step.outputs.iter().map(|output| output.name.clone()).collect(),
            parameters: whole.parameters.clone(),
            priority: whole.priority,
            timeout_microseconds: whole.timeout_microseconds,
            correlation_id: call.sequence.correlation_id.clone(),
            sequence_flags: call.sequence.flags,
            cancel: call.cancel.clone(),
            throttle: self.throttle(ensemble, run, call.step),
            execution_observer: Some(observer),
            trace: self.trace.as_ref().and_then(Trace::child),
            classes: None,
            output_query: None,
        })
    }

    /// A model that answers many times pauses for whoever waits behind it.
    fn throttle(&self, ensemble: &Ensemble, run: &Arc<Run>, step: StepIndex) -> Throttle {
        if !ensemble.plan.step(step).decoupled {
            return Throttle::default();
        }
        let throttle = self.request.throttle.clone().with(run.clone());
        match &ensemble.gates {
            None => throttle,
            Some(gates) => throttle.with(Arc::new(BehindStep { gates: gates.clone(), step })),
        }
    }
}

fn inputs(
    step: &PlannedStep,
    tensors: &[Option<Arc<Carried>>],
) -> Result<Vec<InputTensor>, Status> {
    let mut inputs = Vec::with_capacity(step.inputs.len());
    for (input, carried) in step.inputs.iter().zip(tensors) {
        if let Some(carried) = carried {
            inputs.push(InputTensor {
                name: input.name.clone(),
                datatype: carried.datatype,
                shape: carried.shape_for(&input.dims, step.batches)?,
                data: carried.data.clone(),
            });
        }
    }
    Ok(inputs)
}

/// The batch size of a request to this step, for those who get its outputs.
pub(crate) fn batch_size(step: &PlannedStep, request: &InferenceRequest) -> Option<u32> {
    if !step.batches {
        return None;
    }
    let first = request.inputs.first().and_then(|input| input.shape.dims().first().copied());
    Some(first.and_then(|size| u32::try_from(size).ok()).unwrap_or(1))
}

/// Brings the answers to a call into its run's mailbox.
pub(crate) struct CallSink {
    pub(crate) run: Arc<Run>,
    pub(crate) call: StepCallKey,
}

impl ResponseSink for CallSink {
    fn deliver(&mut self, reply: Reply) {
        self.run.post(Event::Reply(self.call, reply));
    }
}
