//! The bodies of requests to the repository over HTTP.

#![no_main]

use galatea_codec::limits::MessageLimits;
use galatea_codec_http::{IndexRequest, UnloadRequest, decode_load_request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    let limits = MessageLimits::default();
    let _ = IndexRequest::decode(body, &limits);
    let _ = UnloadRequest::decode(body, &limits);
    if let Ok(parameters) = decode_load_request(body, &limits) {
        let decoded: usize = parameters.files.iter().map(|(_, content)| content.len()).sum();
        assert!(decoded <= body.len(), "base64 never grows when it is decoded");
    }
});
