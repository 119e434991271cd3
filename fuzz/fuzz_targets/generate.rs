//! The body of a generate request, mapped to a model with inputs of several types and shapes;
//! what was mapped is sent back as an event.

#![no_main]

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use galatea_codec::limits::MessageLimits;
use galatea_codec_http::{
    DecodeContext, GenerateBodyFormat, TargetModel, decode_generate, encode_generate_response,
};
use galatea_control::{ModelConfigDocument, RequestShmRegions};
use galatea_fakes::echo;
use galatea_gate::ledger::MemoryAccount;
use galatea_protocol::inference::{ModelConfig, ModelInput};
use libfuzzer_sys::fuzz_target;
use prost::Message;

/// The inputs: name, number of the type, and dimensions.
const INPUTS: [(&str, i32, &[i64]); 6] = [
    ("a", 1, &[-1]),
    ("b", 8, &[2, -1]),
    ("c", 11, &[-1, 3]),
    ("d", 13, &[-1]),
    ("id", 13, &[1]),
    ("h", 10, &[-1]),
];

static CONFIG: LazyLock<ModelConfigDocument> = LazyLock::new(|| {
    let input = |(name, data_type, dims): (&str, i32, &[i64])| ModelInput {
        name: name.into(),
        data_type,
        dims: dims.to_vec(),
        ..ModelInput::default()
    };
    let config = ModelConfig {
        max_batch_size: 4,
        input: INPUTS.into_iter().map(input).collect(),
        ..ModelConfig::default()
    };
    ModelConfigDocument { json: String::new(), protobuf: config.encode_to_vec() }
});

fuzz_target!(|data: &[u8]| {
    let body = Bytes::copy_from_slice(data);
    let target = TargetModel { model_name: "model".into(), model_version: None };
    let account = Arc::new(MemoryAccount::unlimited());
    let (limits, regions) = (MessageLimits::default(), RequestShmRegions::none());
    let bounds = DecodeContext { limits: &limits, account: &account, regions };
    let Ok(request) = decode_generate(&body, target, &CONFIG, &bounds) else { return };
    for input in &request.inputs {
        let Some(data) = input.data.host_bytes() else { continue };
        // A character and a comma are an element of at most eight bytes.
        assert!(data.len() <= body.len().saturating_mul(8), "{}", input.name);
        if let Some(bytes) = input.shape.byte_size(input.datatype) {
            let is_empty = data.is_empty() && input.shape.rank() == 0;
            assert!(is_empty || bytes == data.len() as u64, "{}", input.name);
        }
    }
    let response = echo(request);
    let Ok(event) = encode_generate_response(&response, GenerateBodyFormat::Event, &account) else {
        return;
    };
    assert!(event.starts_with(b"data: {") && event.ends_with(b"}\n\n"));
    // An event has one line.
    let text = event.get(..event.len() - 2).unwrap_or_default();
    assert!(!text.contains(&b'\n'));
});
