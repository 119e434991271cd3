//! Waiting for a model that is loaded on demand.

use std::sync::Arc;

use galatea_control::{ModelWait, ServedModel};
use galatea_infer::{AccessPass, CancelToken, Code, Deadline, Status, api};
use tokio::sync::oneshot;

use super::Api;
use crate::single_response::CancelOnDrop;

impl Api {
    /// Waits for a model that was not found. If the server doesn't load the model on demand, the
    /// lookup's error, `missing`, stands. If the client disconnects, the future is dropped, which
    /// ends the wait.
    pub(crate) async fn wait_for_model(
        &self,
        pass: AccessPass<api::Inference>,
        name: &str,
        version: Option<i64>,
        deadline: Deadline,
        missing: Status,
    ) -> Result<Arc<dyn ServedModel>, Status> {
        if !matches!(missing.code(), Code::NotFound | Code::Unavailable) {
            return Err(missing);
        }
        let (sender, receiver) = oneshot::channel();
        let cancel = CancelToken::new();
        let ended = CancelOnDrop::new(cancel.clone());
        let wait = ModelWait {
            name: name.to_owned(),
            version,
            deadline,
            cancel,
            // The receiver is gone if the client has disconnected.
            found: Box::new(move |result| drop(sender.send(result))),
        };
        if self.control.wait_for_model(pass, wait).is_err() {
            return Err(missing);
        }
        let result = receiver.await.unwrap_or(Err(missing));
        ended.disarm();
        result
    }
}
