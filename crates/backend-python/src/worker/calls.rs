//! A model's calls to other models.

use std::sync::{Arc, Weak};

use galatea_infer::{
    CancelToken, Code, Finality, InferenceRequest, InferenceResponse, InputTensor, Reply,
    ResponseSender, ResponseSink, Status,
};

use super::Worker;
use crate::wire::{Call, CallReply, Frame, PreferredMemory, to_a, to_b};

/// The socket that a call arrived on and that the reply is sent on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallSocket {
    /// The socket for executions. The executing thread waits for the reply.
    Executions,
    /// The second socket.
    Others,
}

/// Passes the replies to a call on to the worker.
struct WorkerCallSink {
    worker: Weak<Worker>,
    call: u64,
    model: String,
    version: Option<i64>,
    via: CallSocket,
    /// True if each response is passed on as it arrives.
    is_stream: bool,
    /// The memory that the responses should be in.
    preferred: PreferredMemory,
    /// The response, for a call that receives exactly one.
    single: Option<Result<InferenceResponse, Status>>,
}

/// The beginning of the errors for models that were not found.
const LOOKUP: &str = "Request for unknown model: ";

impl Worker {
    /// Sends a call to its model. Every call receives a reply.
    pub(crate) fn begin_call(self: &Arc<Self>, call: Call, via: CallSocket) {
        let via = if call.wants_stream { CallSocket::Others } else { via };
        let (id, is_stream) = (call.id, call.wants_stream);
        let sink = WorkerCallSink {
            worker: Arc::downgrade(self),
            call: id,
            model: call.model.clone(),
            version: call.version,
            via,
            is_stream,
            preferred: call.preferred,
            single: None,
        };
        let sender = ResponseSender::new(Box::new(sink));
        match self.request(call, via) {
            Ok(request) => {
                self.calls.lock("begin a call").insert(id, request.cancel.clone());
                self.model.server.infer(request, sender);
            }
            Err(status) => sender.refuse(status),
        }
    }

    /// The error for a call that didn't reach a model, as Triton words it.
    fn refusal(&self, sink: &WorkerCallSink, status: &Status) -> Status {
        let WorkerCallSink { model, version, .. } = sink;
        // A model that can't be loaded on demand has a reason, which Triton's text would hide.
        let is_lookup = status.message().starts_with(LOOKUP) && status.retry_after_ms().is_none();
        let may_be_unready =
            status.code() == Code::NotFound || (status.code() == Code::Unavailable && is_lookup);
        let ready = self.model.server.is_model_ready(model, *version);
        let text = if may_be_unready && ready == Ok(false) {
            format!("Failed for execute the inference request. Model '{model}' is not ready.")
        } else {
            status.message().to_owned()
        };
        Status::internal(format!("Model {model} - Error when running inference: {text}"))
    }

    /// Cancels a call.
    pub(crate) fn cancel_call(&self, id: u64) {
        let cancel = self.calls.lock("cancel a call").get(&id).cloned();
        if let Some(cancel) = cancel {
            cancel.cancel();
        }
    }

    fn request(&self, call: Call, via: CallSocket) -> Result<InferenceRequest, Status> {
        let mut free = Vec::new();
        let inputs = call.inputs.into_iter().map(|mut tensor| {
            free.extend(tensor.place.output_block());
            let data = self.arenas.read(&mut tensor)?;
            let (name, datatype, shape) = (tensor.name, tensor.datatype, tensor.shape);
            Ok(InputTensor { name, datatype, shape, data })
        });
        let inputs = inputs.collect::<Result<Vec<_>, Status>>();
        if via == CallSocket::Others {
            self.free_outputs(&free);
        }
        let inputs = inputs?;
        if !call.wants_stream && self.model.server.is_decoupled(&call.model, call.version)? {
            return Err(Status::internal(format!(
                "Model {} is using the decoupled. The current BLS request call doesn't support \
                 models using the decoupled transaction policy. Please use \
                 'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled \
                 models.'",
                call.model
            )));
        }
        Ok(InferenceRequest {
            id: call.request_id,
            model_name: call.model,
            model_version: call.version,
            inputs,
            outputs: call.outputs,
            parameters: call.parameters,
            priority: call.priority,
            timeout_microseconds: call.timeout_microseconds,
            deadline: self.held.deadline_of(call.parent),
            correlation_id: call.correlation,
            sequence_flags: call.flags,
            cancel: CancelToken::new(),
            trace: call.parent.and_then(|key| self.held.trace_of(key)?.child()),
            ..InferenceRequest::default()
        })
    }

    /// Tells the worker that blocks in the arena of outputs have been read.
    pub(crate) fn free_outputs(&self, offsets: &[u64]) {
        if offsets.is_empty() {
            return;
        }
        let mut frame = Frame::new(to_b::FREE);
        frame.write_count(offsets.len());
        offsets.iter().for_each(|offset| frame.u64(*offset));
        self.link.send_b(&frame.finish());
    }

    fn send_reply(
        &self,
        sink: &WorkerCallSink,
        response: Option<&Result<InferenceResponse, Status>>,
        is_last: bool,
    ) {
        let mut stored = Vec::new();
        let kind = match sink.via {
            CallSocket::Executions => to_a::CALL_REPLY,
            CallSocket::Others => to_b::CALL_REPLY,
        };
        let encoded = response.map(|response| match response {
            Ok(response) => self
                .arenas
                .encode_outputs(&response.outputs, sink.preferred, &mut stored)
                .map(|outputs| (&response.parameters[..], outputs)),
            Err(status) => Err(status.clone()),
        });
        let response = encoded.as_ref().map(|encoded| match encoded {
            Ok((parameters, outputs)) => Ok((*parameters, &outputs[..])),
            Err(status) => Err(status),
        });
        let frame = Frame::call_reply(kind, &CallReply { call: sink.call, is_last, response });
        let frame = frame.finish();
        let sent = match sink.via {
            CallSocket::Executions => self.link.send_a(&frame),
            CallSocket::Others => self.link.send_b(&frame),
        };
        if !sent {
            self.arenas.discard(&stored);
        }
    }
}

impl ResponseSink for WorkerCallSink {
    fn refuse(&mut self, status: Status) {
        let Some(worker) = self.worker.upgrade() else { return };
        let result = Err(worker.refusal(self, &status));
        self.deliver(Reply::Response { result, finality: Finality::Final });
    }

    fn deliver(&mut self, reply: Reply) {
        let Some(worker) = self.worker.upgrade() else { return };
        let is_last = reply.is_final();
        if is_last {
            worker.calls.lock("end a call").remove(&self.call);
        }
        let result = match reply {
            Reply::Response { result, finality } => Some((result, finality)),
            Reply::Finished => None,
        };
        if self.is_stream {
            let apart = matches!(result, Some((_, Finality::EndApart)));
            let result = result.map(|(result, _)| result);
            worker.send_reply(self, result.as_ref(), is_last && !apart);
            if apart {
                worker.send_reply(self, None, true);
            }
            return;
        }
        if let Some((result, _)) = result {
            self.single.get_or_insert(result);
        }
        if is_last {
            let none = || Err(Status::internal("the model sent no response"));
            let single = self.single.take().unwrap_or_else(none);
            worker.send_reply(self, Some(&single), true);
        }
    }
}
