//! Session settings, as a `ConfigProto`.

use std::collections::BTreeMap;

use galatea_runtime::OnOff;
use prost::Message as _;

use crate::parameters::ModelParameters;

/// The `ConfigProto` message, with the fields that the server sets.
#[derive(Clone, PartialEq, prost::Message)]
struct ConfigProto {
    #[prost(btree_map = "string, int32", tag = "1")]
    device_count: BTreeMap<String, i32>,
    #[prost(int32, tag = "2")]
    intra_op_parallelism_threads: i32,
    #[prost(int32, tag = "5")]
    inter_op_parallelism_threads: i32,
    #[prost(bool, tag = "7")]
    allow_soft_placement: bool,
    #[prost(bool, tag = "9")]
    use_per_session_threads: bool,
    #[prost(message, optional, tag = "10")]
    graph_options: Option<GraphOptions>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct GraphOptions {
    #[prost(message, optional, tag = "3")]
    optimizer_options: Option<OptimizerOptions>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct OptimizerOptions {
    #[prost(int32, tag = "5")]
    global_jit_level: i32,
}

/// The encoded settings for a model's sessions.
pub(crate) fn encode(
    parameters: &ModelParameters,
    soft_placement: OnOff,
    graph_level: i32,
) -> Vec<u8> {
    let optimizer_options = OptimizerOptions { global_jit_level: jit_level(graph_level) };
    let config = ConfigProto {
        // Without this setting, the library reserves the memory of all GPUs.
        device_count: [("GPU".to_owned(), 0)].into(),
        intra_op_parallelism_threads: parameters.intra_threads,
        inter_op_parallelism_threads: parameters.inter_threads,
        allow_soft_placement: soft_placement == OnOff::On,
        use_per_session_threads: parameters.per_session_threads,
        graph_options: Some(GraphOptions { optimizer_options: Some(optimizer_options) }),
    };
    config.encode_to_vec()
}

/// The level of just-in-time compilation for a configuration's `optimization.graph.level`, as in
/// Triton.
const fn jit_level(graph_level: i32) -> i32 {
    match graph_level {
        -1 => -1,
        1 => 1,
        2.. => 2,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choice::RuntimeParameter;

    #[test]
    fn the_message_has_the_fields_of_the_library() {
        let parameters = ModelParameters {
            session_share_count: 1,
            intra_threads: 3,
            inter_threads: -1,
            per_session_threads: true,
            graph_tag: String::new(),
            signature: String::new(),
            init_ops_file: String::new(),
            runtime: RuntimeParameter::Unstated,
        };
        let message = encode(&parameters, OnOff::On, 1);
        // Field 1: a map with the key `GPU` and the default value 0.
        let mut expected = vec![0x0a, 5, 0x0a, 3, b'G', b'P', b'U'];
        expected.extend([0x10, 3]);
        // A negative number takes ten bytes.
        expected.extend([0x28, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]);
        expected.extend([0x38, 1, 0x48, 1, 0x52, 4, 0x1a, 2, 0x28, 1]);
        assert_eq!(message, expected);
    }

    #[test]
    fn graph_levels_are_those_of_triton() {
        for (level, expected) in [(-2, 0), (-1, -1), (0, 0), (1, 1), (2, 2), (7, 2)] {
            assert_eq!(jit_level(level), expected);
        }
    }
}
