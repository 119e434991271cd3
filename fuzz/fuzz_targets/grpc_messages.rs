//! Messages of gRPC calls. The parser of inference requests must accept what `prost` does.

#![no_main]

use std::sync::Arc;

use bytes::Bytes;
use galatea_codec::parse_version;
use galatea_codec::regions::SharedMemoryAccess;
use galatea_codec_grpc::InferRequestMessage;
use galatea_codec_grpc::control::{parse_load_parameters, parse_unload_dependents};
use galatea_control::RequestShmRegions;
use galatea_gate::ledger::MemoryAccount;
use galatea_protocol::inference::{
    ModelInferRequest, RepositoryModelLoadRequest, RepositoryModelUnloadRequest,
};
use libfuzzer_sys::fuzz_target;
use prost::Message;

fuzz_target!(|data: &[u8]| {
    let body = Bytes::copy_from_slice(data);
    infer(&body);
    if let Ok(request) = RepositoryModelLoadRequest::decode(data) {
        let _ = parse_load_parameters(request);
    }
    if let Ok(request) = RepositoryModelUnloadRequest::decode(data) {
        let _ = parse_unload_dependents(&request);
    }
});

fn infer(body: &Bytes) {
    let reference = ModelInferRequest::decode(body.clone());
    match InferRequestMessage::parse(body) {
        Ok(message) => {
            let reference = reference.expect("prost accepts it too");
            assert_eq!(message.id(), reference.id);
            let Ok(version) = parse_version(message.model_version()) else { return };
            let account = Arc::new(MemoryAccount::unlimited());
            let access =
                SharedMemoryAccess { regions: RequestShmRegions::none(), account: &account };
            let Ok((request, _)) = message.into_request(version, &access) else { return };
            assert_eq!(request.model_name, reference.model_name);
            assert_eq!(request.inputs.len(), reference.inputs.len());
        }
        // A message may be well-formed and exceed a limit.
        Err(status) if status.message() == "Unable to parse request" => {
            assert!(reference.is_err(), "prost accepts what is refused");
        }
        Err(_) => {}
    }
}
