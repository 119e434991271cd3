//! The JSON of inference requests and responses, and of generate requests.
//!
//! Short JSON is read and written on the I/O thread. Long JSON goes to dedicated threads, at most
//! one per processor, because an I/O thread serves many other connections.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use galatea_codec::limits::MessageLimits;
use galatea_codec_http::{
    DecodeContext, EncodedResponse, OutputFormatMap, TargetModel, decode_generate, decode_infer,
    encode_infer_response, json_bytes_estimate,
};
use galatea_control::{ModelConfigDocument, RequestShmRegions, ShmControl};
use galatea_door::BlockingPermits;
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::{AccessPass, InferenceRequest, InferenceResponse, Status, api};

use crate::guard::{exiting, guarded};

/// The approximate maximum length of JSON that an I/O thread reads or writes itself, which takes
/// less than a millisecond.
const INLINE_JSON_BYTES: usize = 128 << 10;

/// A request, along with the requested form of each output.
pub(crate) type DecodedRequest = (Box<InferenceRequest>, OutputFormatMap);

/// JSON that is read or written on another thread. It is boxed so that the futures of short
/// requests reserve no room for it.
pub(crate) type Elsewhere<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;

/// The limits on a request's JSON, and the regions that may contain its tensors.
pub(crate) struct TextBounds<'a> {
    pub(crate) limits: &'a MessageLimits,
    pub(crate) account: &'a Arc<MemoryAccount>,
    pub(crate) regions: &'a Arc<dyn ShmControl>,
    pub(crate) pass: AccessPass<api::Inference>,
}

/// Returns true if the JSON of a request would occupy an I/O thread for too long.
pub(crate) const fn is_long_request(header_length: usize) -> bool {
    header_length > INLINE_JSON_BYTES
}

/// Returns true if the JSON of a response would occupy an I/O thread for too long.
pub(crate) fn is_long_response(response: &InferenceResponse, encoding: &OutputFormatMap) -> bool {
    let sizes = response.outputs.iter().map(|output| output.data.len());
    // Most responses are short in any form.
    sizes.fold(0, usize::saturating_add) > INLINE_JSON_BYTES / 4
        && json_bytes_estimate(response, encoding) > INLINE_JSON_BYTES
}

/// The threads that read and write long JSON.
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
    ) -> Elsewhere<DecodedRequest> {
        let TextBounds { limits, account, regions, pass } = *bounds;
        let (limits, account, regions) = (*limits, account.clone(), regions.clone());
        self.elsewhere(move || {
            let regions = RequestShmRegions::new(&*regions, pass);
            let bounds = DecodeContext { limits: &limits, account: &account, regions };
            decode_infer(&body, header_length, target, &bounds)
        })
    }

    /// Reads a generate request.
    pub(crate) fn decode_generate(
        &self,
        body: Bytes,
        target: TargetModel,
        config: Arc<ModelConfigDocument>,
        bounds: &TextBounds<'_>,
    ) -> Elsewhere<InferenceRequest> {
        let TextBounds { limits, account, regions, pass } = *bounds;
        let (limits, account, regions) = (*limits, account.clone(), regions.clone());
        self.elsewhere(move || {
            let regions = RequestShmRegions::new(&*regions, pass);
            let bounds = DecodeContext { limits: &limits, account: &account, regions };
            decode_generate(&body, target, &config, &bounds)
        })
    }

    /// Writes the body of a response in the forms that its request selected.
    pub(crate) fn encode(
        &self,
        response: InferenceResponse,
        encoding: OutputFormatMap,
        account: &Arc<MemoryAccount>,
    ) -> Elsewhere<EncodedResponse> {
        let account = account.clone();
        self.elsewhere(move || encode_infer_response(&response, &encoding, &account))
    }

    /// Does work that takes as long as processing long JSON.
    pub(crate) fn elsewhere<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Elsewhere<T> {
        let permits = self.permits.clone();
        Box::pin(async move {
            let permit = permits.acquire().await;
            let work = move || {
                let _permit = permit;
                guarded(work)
            };
            tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(exiting()))
        })
    }
}

#[cfg(test)]
mod tests {
    use galatea_codec_http::OutputFormat;
    use galatea_control::ShmDisabled;
    use galatea_fakes::echo;

    use super::*;

    /// Returns a request with one tensor of this length, read on another thread.
    fn request(length: usize, account: &Arc<MemoryAccount>) -> InferenceRequest {
        let json = format!(
            r#"{{"inputs":[{{"name":"INPUT0","datatype":"UINT8","shape":[{length}],
            "parameters":{{"binary_data_size":{length}}}}}]}}"#
        );
        let header_length = json.len();
        let mut body = json.into_bytes();
        body.extend(std::iter::repeat_n(7, length));
        let target = TargetModel { model_name: "m".into(), model_version: None };
        let regions: Arc<dyn ShmControl> = Arc::new(ShmDisabled);
        let limits = MessageLimits { input_bytes_max: u64::MAX };
        let bounds = TextBounds {
            limits: &limits,
            account,
            regions: &regions,
            pass: AccessPass::in_process(),
        };
        let decoding = TextThreads::new().decode(body.into(), header_length, target, &bounds);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        *runtime.block_on(decoding).unwrap().0
    }

    #[test]
    fn io_threads_write_short_texts_and_tensors_alone() {
        let account = Arc::new(MemoryAccount::unlimited());
        let is_long = |length: usize, form| {
            let response = echo(request(length, &account));
            is_long_response(&response, &OutputFormatMap::uniform(form))
        };
        assert!(!is_long(1000, OutputFormat::Json));
        assert!(!is_long(10 << 20, OutputFormat::Binary));
        assert!(is_long(10 << 20, OutputFormat::Json));
    }

    #[test]
    fn other_threads_write_the_same() {
        let account = Arc::new(MemoryAccount::unlimited());
        let response = echo(request(1 << 20, &account));
        let encoding = OutputFormatMap::uniform(OutputFormat::Json);
        let expected = encode_infer_response(&response, &encoding, &account).unwrap();
        let encoding = TextThreads::new().encode(response, encoding, &account);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert_eq!(runtime.block_on(encoding), Ok(expected));
    }
}
