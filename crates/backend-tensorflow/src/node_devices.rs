//! The devices that a graph specifies for its nodes.
//!
//! The graph's message is edited in its encoded form, because the server knows only some of its
//! fields.

use prost::DecodeError;
use prost::encoding::{
    DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field,
};

use crate::messages::{GraphDef, NodeDef};

/// The graph field that contains its nodes.
const NODE: u32 = 1;
/// The node field that contains its device.
const DEVICE: u32 = 4;

/// An encoded graph whose nodes specify only CPUs, which Triton uses for instances with a device of
/// their own. `None` if the graph needs no change.
///
/// # Errors
///
/// The message is malformed.
pub(crate) fn without_other_devices(
    encoded: &[u8],
    graph: &GraphDef,
) -> Result<Option<Vec<u8>>, DecodeError> {
    if graph.nodes.iter().all(has_default_device_or_cpu) {
        return Ok(None);
    }
    let mut nodes = graph.nodes.iter();
    let mut result = Vec::with_capacity(encoded.len());
    for_each_field(encoded, |tag, field, content| {
        let node = if tag == NODE { nodes.next() } else { None };
        if node.is_none_or(has_default_device_or_cpu) {
            result.extend(field);
            return Ok(());
        }
        let mut kept: Vec<u8> = Vec::with_capacity(content.len());
        for_each_field(content, |tag, field, _| {
            if tag != DEVICE {
                kept.extend(field);
            }
            Ok(())
        })?;
        encode_key(NODE, WireType::LengthDelimited, &mut result);
        encode_varint(u64::try_from(kept.len()).unwrap_or(u64::MAX), &mut result);
        result.extend(kept);
        Ok(())
    })?;
    Ok(Some(result))
}

fn has_default_device_or_cpu(node: &NodeDef) -> bool {
    let last = node.device.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    let kind = last.strip_prefix("device:").unwrap_or(&last);
    node.device.is_empty() || kind == "cpu" || kind.starts_with("cpu:")
}

/// Calls a function with each field's number, bytes and content. Only length-delimited fields have
/// content.
fn for_each_field(
    message: &[u8],
    mut visit: impl FnMut(u32, &[u8], &[u8]) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    let mut rest = message;
    while !rest.is_empty() {
        let start = rest;
        let (tag, wire_type) = decode_key(&mut rest)?;
        let after_key = rest;
        skip_field(wire_type, tag, &mut rest, DecodeContext::default())?;
        let field = start.get(..start.len().saturating_sub(rest.len())).unwrap_or_default();
        let mut content = after_key
            .get(..after_key.len().saturating_sub(rest.len()))
            .filter(|_| wire_type == WireType::LengthDelimited)
            .unwrap_or_default();
        if !content.is_empty() {
            decode_varint(&mut content)?;
        }
        visit(tag, field, content)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    /// A graph with fields that the server doesn't know.
    #[derive(Clone, PartialEq, prost::Message)]
    struct WholeGraph {
        #[prost(message, repeated, tag = "1")]
        nodes: Vec<WholeNode>,
        #[prost(uint64, tag = "3")]
        version: u64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct WholeNode {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(string, repeated, tag = "3")]
        inputs: Vec<String>,
        #[prost(string, tag = "4")]
        device: String,
        #[prost(bytes = "vec", tag = "6")]
        debug_info: Vec<u8>,
    }

    fn graph(devices: &[&str]) -> WholeGraph {
        let node = |device: &&str| WholeNode {
            name: "n".repeat(200),
            inputs: vec!["a".to_owned(), String::new()],
            device: (*device).to_owned(),
            debug_info: vec![1; 300],
        };
        WholeGraph { nodes: devices.iter().map(node).collect(), version: 7 }
    }

    fn cleared(encoded: &[u8]) -> Result<Option<Vec<u8>>, DecodeError> {
        without_other_devices(encoded, &GraphDef::decode(encoded)?)
    }

    #[test]
    fn only_the_devices_of_other_nodes_are_removed() {
        let devices = ["/device:GPU:1", "", "/job:localhost/task:0/device:CPU:0", "/gpu:0", "TPU"];
        let encoded = cleared(&graph(&devices).encode_to_vec()).unwrap().unwrap();
        let expected = graph(&["", "", devices[2], "", ""]);
        assert_eq!(WholeGraph::decode(encoded.as_slice()), Ok(expected));
        let on_cpu = graph(&["", "/cpu:0", "/device:CPU:*"]).encode_to_vec();
        assert_eq!(cleared(&on_cpu), Ok(None));
    }

    #[test]
    fn damaged_graphs_are_refused() {
        let encoded = graph(&["/gpu:0", "/gpu:0"]).encode_to_vec();
        let whole = GraphDef::decode(encoded.as_slice()).unwrap();
        for length in 1..encoded.len() {
            let found = without_other_devices(&encoded[..length], &whole);
            // The message may end after a field.
            assert_eq!(found.is_ok(), GraphDef::decode(&encoded[..length]).is_ok(), "{length}");
        }
    }
}
