//! The JSON of inference requests and responses.
//!
//! Short texts are read and written on the I/O thread. Long ones go to threads for such work, of
//! which there are no more than processors, because an I/O thread serves many other connections.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use galatea_codec::http::{
    DecodeBounds, EncodedResponse, OutputEncoding, TargetModel, decode_infer,
    encode_infer_response, json_bytes_estimate,
};
use galatea_door::BlockingPermits;
use galatea_gate::ledger::Account;
use galatea_gate::limits::Limits;
use galatea_infer::{
    InferenceRequest, InferenceResponse, Pass, RegionControl, Regions, Status, api,
};

use crate::guard::{exiting, guarded};

/// An I/O thread reads or writes about this many bytes of JSON: less than a millisecond.
const INLINE_JSON_BYTES: usize = 128 << 10;

/// A request with the forms of its outputs.
pub(crate) type DecodedRequest = (InferenceRequest, OutputEncoding);

/// A text that was read or written, or will be.
///
/// A short one is there at once, so that the futures of requests hold nothing of it.
pub(crate) enum TextOutcome<T> {
    Done(Result<T, Status>),
    Elsewhere(Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>),
}

/// The bounds of a request's text, and the regions that its tensors may be in.
pub(crate) struct TextBounds<'a> {
    pub(crate) limits: &'a Limits,
    pub(crate) account: &'a Arc<Account>,
    pub(crate) regions: &'a Arc<dyn RegionControl>,
    pub(crate) pass: Pass<api::Inference>,
}

/// The threads that read and write long texts.
pub(crate) struct TextThreads {
    permits: BlockingPermits,
}

impl TextThreads {
    pub(crate) fn new() -> Self {
        Self { permits: BlockingPermits::per_processor() }
    }

    /// Reads a request whose body begins with JSON of this length.
    pub(crate) fn decode(
        &self,
        body: Bytes,
        header_length: usize,
        target: TargetModel,
        bounds: &TextBounds<'_>,
    ) -> TextOutcome<DecodedRequest> {
        let TextBounds { limits, account, regions, pass } = *bounds;
        if header_length <= INLINE_JSON_BYTES {
            return TextOutcome::Done(guarded(|| {
                let regions = Regions::new(&**regions, pass);
                let bounds = DecodeBounds { limits, account, regions };
                decode_infer(&body, header_length, target, &bounds)
            }));
        }
        let (limits, account, regions) = (*limits, account.clone(), regions.clone());
        self.elsewhere(move || {
            let regions = Regions::new(&*regions, pass);
            let bounds = DecodeBounds { limits: &limits, account: &account, regions };
            decode_infer(&body, header_length, target, &bounds)
        })
    }

    /// Writes the body of a response in the forms that its request selected.
    pub(crate) fn encode(
        &self,
        response: InferenceResponse,
        encoding: OutputEncoding,
        account: &Arc<Account>,
    ) -> TextOutcome<EncodedResponse> {
        if json_bytes_estimate(&response, &encoding) <= INLINE_JSON_BYTES {
            let encoded = guarded(|| encode_infer_response(&response, &encoding, account));
            return TextOutcome::Done(encoded);
        }
        let account = account.clone();
        self.elsewhere(move || encode_infer_response(&response, &encoding, &account))
    }

    fn elsewhere<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> TextOutcome<T> {
        let permits = self.permits.clone();
        TextOutcome::Elsewhere(Box::pin(async move {
            let permit = permits.acquire().await;
            let work = move || {
                let _permit = permit;
                guarded(work)
            };
            tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(exiting()))
        }))
    }
}

#[cfg(test)]
mod tests {
    use galatea_codec::http::OutputForm;
    use galatea_fakes::echo;
    use galatea_infer::NoRegions;

    use super::*;

    /// The text or its error, and whether it was there at once.
    fn end<T>(outcome: TextOutcome<T>) -> (T, bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        match outcome {
            TextOutcome::Done(done) => (done.unwrap(), true),
            TextOutcome::Elsewhere(text) => (runtime.block_on(text).unwrap(), false),
        }
    }

    fn decode(json: &str, binary: &[u8], account: &Arc<Account>) -> (InferenceRequest, bool) {
        let mut body = json.to_owned().into_bytes();
        body.extend_from_slice(binary);
        let target = TargetModel { model_name: "m".into(), model_version: None };
        let regions: Arc<dyn RegionControl> = Arc::new(NoRegions::default());
        let limits = Limits { input_bytes_max: u64::MAX };
        let bounds =
            TextBounds { limits: &limits, account, regions: &regions, pass: Pass::in_process() };
        let outcome = TextThreads::new().decode(body.into(), json.len(), target, &bounds);
        let ((request, _), at_once) = end(outcome);
        (request, at_once)
    }

    /// A request for one tensor in binary form.
    fn binary_request(length: usize, account: &Arc<Account>) -> (InferenceRequest, bool) {
        let json = format!(
            r#"{{"inputs":[{{"name":"INPUT0","datatype":"UINT8","shape":[{length}],
            "parameters":{{"binary_data_size":{length}}}}}]}}"#
        );
        decode(&json, &vec![7; length], account)
    }

    /// The same as a text.
    fn text_request(length: usize, account: &Arc<Account>) -> (InferenceRequest, bool) {
        let data = vec!["7"; length].join(",");
        let json = format!(
            r#"{{"inputs":[{{"name":"INPUT0","datatype":"UINT8","shape":[{length}],
            "data":[{data}]}}]}}"#
        );
        decode(&json, &[], account)
    }

    #[test]
    fn io_threads_read_short_texts_and_tensors_alone() {
        let account = Arc::new(Account::unlimited());
        assert!(text_request(1000, &account).1);
        assert!(binary_request(10 << 20, &account).1);
        assert!(!text_request(1 << 20, &account).1);
    }

    #[test]
    fn io_threads_write_short_texts_and_tensors_alone() {
        let account = Arc::new(Account::unlimited());
        let is_written_at_once = |length: usize, form| {
            let response = echo(binary_request(length, &account).0);
            let encoding = OutputEncoding::uniform(form);
            let (encoded, at_once) = end(TextThreads::new().encode(response, encoding, &account));
            let bytes: usize = encoded.chunks.iter().map(Bytes::len).sum();
            assert!(bytes > length);
            at_once
        };
        assert!(is_written_at_once(1000, OutputForm::Json));
        assert!(is_written_at_once(10 << 20, OutputForm::Binary));
        assert!(!is_written_at_once(10 << 20, OutputForm::Json));
    }
}
