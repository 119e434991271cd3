//! The wire vocabulary: messages of the KServe v2 inference protocol with its
//! management extensions, of model configuration, and of gRPC health checks.
//!
//! The .proto files in `proto/` are this project's own text, with the names,
//! numbers and types that existing clients were generated from. They compile
//! to plain `prost` messages; `bytes` fields are slices of the receive buffer
//! and maps are ordered.
//!
//! What this is not: there is no transport, no validation and no conversion
//! here. Services exist as descriptors only. Generated messages stop at the
//! crates that translate them (configuration, codec, gRPC door); nothing deeper
//! speaks them.
//!
//! ```
//! use galatea_protocol::inference::ModelInferRequest;
//! use prost::Message as _;
//!
//! let request = ModelInferRequest { model_name: "simple".into(), ..Default::default() };
//! let wire = request.encode_to_vec();
//! assert_eq!(ModelInferRequest::decode(wire.as_slice()).unwrap(), request);
//! ```

#![forbid(unsafe_code)]

pub mod schema;

/// Messages of the package `inference`: the inference service and model
/// configuration.
#[allow(
    missing_docs,
    clippy::all,
    unused_qualifications,
    unreachable_pub,
    reason = "what prost generates isn't ours to phrase"
)]
pub mod inference {
    include!(concat!(env!("OUT_DIR"), "/inference.rs"));
}

/// Messages of the package `grpc.health.v1`.
#[allow(
    missing_docs,
    clippy::all,
    unused_qualifications,
    unreachable_pub,
    reason = "what prost generates isn't ours to phrase"
)]
pub mod health {
    include!(concat!(env!("OUT_DIR"), "/grpc.health.v1.rs"));
}

/// The encoded `FileDescriptorSet` of every .proto file of this crate, imports
/// before importers. For tools and tests: the server has [`schema`].
pub const DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use prost::Message as _;
    use prost_reflect::DescriptorPool;

    use super::DESCRIPTOR_SET;
    use super::inference::{InferParameter, ModelInferRequest, infer_parameter};

    const INFERENCE_SERVICE: &str = "inference.GRPCInferenceService";

    fn descriptor_pool() -> DescriptorPool {
        DescriptorPool::decode(DESCRIPTOR_SET).unwrap()
    }

    #[test]
    fn pool_knows_the_services_and_the_configuration() {
        let pool = descriptor_pool();
        let service = pool.get_service_by_name(INFERENCE_SERVICE).unwrap();
        assert_eq!(service.methods().len(), 20);
        assert_eq!(pool.get_service_by_name("grpc.health.v1.Health").unwrap().methods().len(), 1);
        assert!(pool.get_message_by_name("inference.ModelConfig").is_some());
    }

    #[test]
    fn only_the_stream_method_streams() {
        let service = descriptor_pool().get_service_by_name(INFERENCE_SERVICE).unwrap();
        for method in service.methods() {
            let streams = method.name() == "ModelStreamInfer";
            assert_eq!(method.is_client_streaming(), streams, "{}", method.name());
            assert_eq!(method.is_server_streaming(), streams, "{}", method.name());
        }
    }

    #[test]
    fn raw_contents_are_slices_of_the_receive_buffer() {
        let request = ModelInferRequest {
            raw_input_contents: vec![Bytes::from(vec![7_u8; 4096])],
            ..ModelInferRequest::default()
        };
        let wire = Bytes::from(request.encode_to_vec());
        let decoded = ModelInferRequest::decode(wire.clone()).unwrap();
        let contents = &decoded.raw_input_contents[0];
        assert!(wire.as_ptr_range().contains(&contents.as_ptr()), "the contents were copied");
    }

    #[test]
    fn equal_messages_encode_to_equal_bytes() {
        let parameter = |value| InferParameter {
            parameter_choice: Some(infer_parameter::ParameterChoice::Int64Param(value)),
        };
        let names = ["d", "a", "c", "b"];
        let forward = ModelInferRequest {
            parameters: names.iter().map(|n| ((*n).to_owned(), parameter(1))).collect(),
            ..ModelInferRequest::default()
        };
        let backward = ModelInferRequest {
            parameters: names.iter().rev().map(|n| ((*n).to_owned(), parameter(1))).collect(),
            ..ModelInferRequest::default()
        };
        assert_eq!(forward.encode_to_vec(), backward.encode_to_vec());
    }
}
