//! The body of an inference request over HTTP: JSON, then binary tensors. The first two
//! bytes of the input are the length of the JSON.

#![no_main]

use std::sync::Arc;

use bytes::Bytes;
use galatea_codec::limits::MessageLimits;
use galatea_codec_http::{DecodeContext, TargetModel, decode_infer};
use galatea_control::RequestShmRegions;
use galatea_gate::ledger::MemoryAccount;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((length, body)) = data.split_first_chunk::<2>() else { return };
    let header_length = usize::from(u16::from_be_bytes(*length)).min(body.len());
    let body = Bytes::copy_from_slice(body);
    let target = TargetModel { model_name: "model".into(), model_version: None };
    let account = Arc::new(MemoryAccount::unlimited());
    let regions = RequestShmRegions::none();
    let bounds = DecodeContext { limits: &MessageLimits::default(), account: &account, regions };
    let Ok((request, encoding)) = decode_infer(&body, header_length, target, &bounds) else {
        return;
    };
    for name in &request.outputs {
        let _ = encoding.format_of(name);
    }
    for input in &request.inputs {
        let Some(size) = input.datatype.byte_size() else { continue };
        let Some(data) = input.data.host_bytes() else { continue };
        // AccessGrant compares shape and bytes, except for JSON, where the decoder does.
        assert!(data.len() <= body.len().saturating_mul(size.max(1)), "{}", input.name);
    }
});
