//! The encoding of inference responses.
//!
//! Short ones are encoded on the I/O thread. Long texts go to threads for such work, of which
//! there are no more than processors, because an I/O thread serves many other connections.

use std::pin::Pin;
use std::sync::Arc;

use galatea_codec::http::{
    EncodedResponse, OutputEncoding, encode_infer_response, json_bytes_estimate,
};
use galatea_door::BlockingPermits;
use galatea_gate::ledger::Account;
use galatea_infer::{InferenceResponse, Status};

use crate::guard::{exiting, guarded};

/// An I/O thread encodes about this many bytes of JSON: less than a millisecond.
const INLINE_JSON_BYTES: usize = 128 << 10;

/// Encodes responses to inference requests.
pub(crate) struct ResponseEncoder {
    permits: BlockingPermits,
}

impl ResponseEncoder {
    pub(crate) fn new() -> Self {
        Self { permits: BlockingPermits::per_processor() }
    }

    /// The body of a response in the forms that its request selected.
    ///
    /// A short one is there at once, so that the futures of requests hold nothing of it.
    pub(crate) fn encode(
        &self,
        response: InferenceResponse,
        encoding: OutputEncoding,
        account: &Arc<Account>,
    ) -> EncodeOutcome {
        if json_bytes_estimate(&response, &encoding) <= INLINE_JSON_BYTES {
            return EncodeOutcome::Done(guarded(|| {
                encode_infer_response(&response, &encoding, account)
            }));
        }
        let (permits, account) = (self.permits.clone(), account.clone());
        EncodeOutcome::Elsewhere(Box::pin(async move {
            let permit = permits.acquire().await;
            let work = move || {
                let _permit = permit;
                guarded(|| encode_infer_response(&response, &encoding, &account))
            };
            tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(exiting()))
        }))
    }
}

/// A response that is encoded, or will be.
pub(crate) enum EncodeOutcome {
    Done(Result<EncodedResponse, Status>),
    Elsewhere(Pin<Box<dyn Future<Output = Result<EncodedResponse, Status>> + Send>>),
}

#[cfg(test)]
mod tests {
    use galatea_codec::http::{DecodeBounds, OutputForm, TargetModel, decode_infer};
    use galatea_fakes::echo;
    use galatea_gate::limits::Limits;
    use galatea_infer::{NoRegions, Pass, Regions};

    use super::*;

    /// A response with one output of this length.
    fn response(length: usize, account: &Arc<Account>) -> InferenceResponse {
        let json = format!(
            r#"{{"inputs":[{{"name":"INPUT0","datatype":"UINT8","shape":[{length}],
            "parameters":{{"binary_data_size":{length}}}}}]}}"#
        );
        let mut body = json.clone().into_bytes();
        body.extend(std::iter::repeat_n(7, length));
        let target = TargetModel { model_name: "m".into(), model_version: None };
        let limits = Limits { input_bytes_max: u64::MAX };
        let bounds = DecodeBounds {
            limits: &limits,
            account,
            regions: Regions::new(&NoRegions { has_gpus: false }, Pass::in_process()),
        };
        echo(decode_infer(&body.into(), json.len(), target, &bounds).unwrap().0)
    }

    /// Whether an output of this length is encoded on the thread that asks.
    fn is_encoded_at_once(length: usize, form: OutputForm) -> bool {
        let account = Arc::new(Account::unlimited());
        let response = response(length, &account);
        let encoder = ResponseEncoder::new();
        let encoding = encoder.encode(response, OutputEncoding::uniform(form), &account);
        let at_once = matches!(encoding, EncodeOutcome::Done(_));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let encoded = match encoding {
            EncodeOutcome::Done(encoded) => encoded,
            EncodeOutcome::Elsewhere(encoding) => runtime.block_on(encoding),
        };
        let bytes: usize = encoded.unwrap().chunks.iter().map(bytes::Bytes::len).sum();
        assert!(bytes > length);
        at_once
    }

    #[test]
    fn io_threads_encode_short_texts_and_tensors_alone() {
        assert!(is_encoded_at_once(1000, OutputForm::Json));
        assert!(is_encoded_at_once(10 << 20, OutputForm::Binary));
        assert!(!is_encoded_at_once(10 << 20, OutputForm::Json));
    }
}
