//! Encodes metadata, the repository index and errors as JSON.

use galatea_control::{ModelMetadata, RepositoryEntry, ServerMetadata, TensorMetadata};

use crate::json::{push_json_array, push_json_i64, push_json_string};
pub use crate::statistics::encode_statistics_json;

/// Encodes an error as an object with its message.
#[must_use]
pub fn encode_error_json(message: &str) -> Vec<u8> {
    let mut json = Vec::with_capacity(message.len().saturating_add(16));
    json.extend_from_slice(b"{\"error\":");
    push_json_string(&mut json, message.as_bytes());
    json.push(b'}');
    json
}

/// Encodes the server's name, version and extensions.
#[must_use]
pub fn encode_server_metadata_json(metadata: &ServerMetadata) -> Vec<u8> {
    let mut json = Vec::with_capacity(512);
    json.extend_from_slice(b"{\"name\":");
    push_json_string(&mut json, metadata.name.as_bytes());
    json.extend_from_slice(b",\"version\":");
    push_json_string(&mut json, metadata.version.as_bytes());
    json.extend_from_slice(b",\"extensions\":");
    push_json_array(&mut json, &metadata.extensions, |json, name| {
        push_json_string(json, name.as_bytes())
    });
    json.push(b'}');
    json
}

/// Encodes a model's interface.
#[must_use]
pub fn encode_model_metadata_json(metadata: &ModelMetadata) -> Vec<u8> {
    let mut json = Vec::with_capacity(512);
    json.extend_from_slice(b"{\"name\":");
    push_json_string(&mut json, metadata.name.as_bytes());
    json.extend_from_slice(b",\"versions\":");
    push_json_array(&mut json, &metadata.versions, |json, version| {
        push_json_string(json, itoa::Buffer::new().format(*version).as_bytes());
    });
    json.extend_from_slice(b",\"platform\":");
    push_json_string(&mut json, metadata.platform.as_bytes());
    json.extend_from_slice(b",\"inputs\":");
    push_json_array(&mut json, &metadata.inputs, push_tensor);
    json.extend_from_slice(b",\"outputs\":");
    push_json_array(&mut json, &metadata.outputs, push_tensor);
    json.push(b'}');
    json
}

fn push_tensor(json: &mut Vec<u8>, tensor: &TensorMetadata) {
    json.extend_from_slice(b"{\"name\":");
    push_json_string(json, tensor.name.as_bytes());
    json.extend_from_slice(b",\"datatype\":\"");
    json.extend_from_slice(tensor.datatype.protocol_name().as_bytes());
    json.extend_from_slice(b"\",\"shape\":");
    push_json_array(json, &tensor.shape, |json, dim| push_json_i64(json, *dim));
    json.push(b'}');
}

/// Encodes the models in the repositories with their states. A model that was never loaded has only
/// a name.
#[must_use]
pub fn encode_repository_index_json(entries: &[RepositoryEntry]) -> Vec<u8> {
    let mut json = Vec::with_capacity(512);
    push_json_array(&mut json, entries, |json, entry| {
        json.extend_from_slice(b"{\"name\":");
        push_json_string(json, entry.name.as_bytes());
        if let Some(version) = entry.version {
            json.extend_from_slice(b",\"version\":\"");
            push_json_i64(json, version);
            json.push(b'"');
        }
        if let Some(state) = entry.state {
            json.extend_from_slice(b",\"state\":");
            push_json_string(json, state.name().as_bytes());
        }
        if !entry.reason.is_empty() {
            json.extend_from_slice(b",\"reason\":");
            push_json_string(json, entry.reason.as_bytes());
        }
        json.push(b'}');
    });
    json
}
