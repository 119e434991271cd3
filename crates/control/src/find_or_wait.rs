//! The lookup of a model by a caller that may block.

use std::sync::{Arc, mpsc};

use galatea_gate::access::{AccessPass, api};
use galatea_infer::{CancelToken, Deadline, Status};

use crate::{ModelWait, ServedModel, ServerControl};

/// Looks up the model of an in-process request, and blocks while the model is loaded on demand.
///
/// # Errors
///
/// The errors of [`ServerControl::model_for_inference`], and those of the load.
pub fn find_or_wait(
    control: &dyn ServerControl,
    pass: AccessPass<api::Inference>,
    name: &str,
    version: Option<i64>,
) -> Result<Arc<dyn ServedModel>, Status> {
    let missing = match control.model_for_inference(pass, name, version) {
        Ok(model) => return Ok(model),
        Err(status) => status,
    };
    let (sender, receiver) = mpsc::channel();
    let wait = ModelWait {
        name: name.to_owned(),
        version,
        deadline: Deadline::None,
        cancel: CancelToken::default(),
        found: Box::new(move |result| drop(sender.send(result))),
    };
    match control.wait_for_model(pass, wait) {
        Ok(()) => receiver.recv().unwrap_or(Err(missing)),
        Err(_) => Err(missing),
    }
}
