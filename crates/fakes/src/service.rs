//! Request handling.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use galatea_infer::{
    AccessPass, InferenceRequest, InferenceResponse, InferenceService, OutputTensor,
    ResponseSender, Status, api,
};

use crate::FakeServer;

impl InferenceService for FakeServer {
    fn infer(
        &self,
        _: AccessPass<api::Inference>,
        request: Box<InferenceRequest>,
        mut sender: ResponseSender,
    ) {
        let request = *request;
        self.requests.fetch_add(1, Ordering::SeqCst);
        if request.found_model.is_none() {
            self.lookups.fetch_add(1, Ordering::SeqCst);
        }
        if self.holds_all.load(Ordering::SeqCst) {
            return (self.hold)((request, sender));
        }
        let name = if self.names_have_effects { request.model_name.as_str() } else { "" };
        match name {
            "held" | "decoupled" => (self.hold)((request, sender)),
            "thread" => {
                std::thread::spawn(move || sender.send_final(Ok(echo(request))));
            }
            "split" => {
                sender.send(Ok(echo(request)));
                sender.finish_without_response();
            }
            "twice" => {
                sender.send(Ok(echo(request.clone())));
                sender.send_final(Ok(echo(request)));
            }
            "silent" => sender.finish_without_response(),
            "refusing" => sender.fail(Status::unavailable("nicht jetzt – später")),
            "dropping" => drop(sender),
            "panicking" => panic!("on purpose"),
            _ => sender.send_final(Ok(echo(request))),
        }
    }
}

/// A response with the inputs as outputs. `INPUT0` becomes `OUTPUT0`; other names are unchanged.
#[must_use]
pub fn echo(request: InferenceRequest) -> InferenceResponse {
    if let Some(slot) = &request.classes {
        slot.set_once(&Arc::default());
    }
    let outputs = request.inputs.into_iter().map(|input| OutputTensor {
        name: input.name.replace("INPUT", "OUTPUT").into(),
        datatype: input.datatype,
        shape: input.shape,
        data: input.data,
    });
    InferenceResponse {
        model_name: request.model_name.into(),
        model_version: request.model_version.unwrap_or(1),
        id: request.id,
        parameters: request.parameters.into(),
        outputs: outputs.collect(),
    }
}
