//! Tool calls in documents and events.

use crate::json::push_string;
use crate::tools::{ToolCall, ToolEvent};

/// Appends the delta of a chunk.
pub(crate) fn push_tool_event(json: &mut Vec<u8>, event: &ToolEvent) {
    let begin = |json: &mut Vec<u8>, index: usize| {
        json.extend_from_slice(b"{\"tool_calls\":[{\"index\":");
        json.extend_from_slice(itoa::Buffer::new().format(index).as_bytes());
    };
    match event {
        ToolEvent::Content(text) => {
            json.extend_from_slice(b"{\"content\":");
            push_string(json, text);
            json.push(b'}');
        }
        ToolEvent::Begin { index, id, name } => {
            begin(json, *index);
            json.extend_from_slice(b",\"id\":");
            push_string(json, id);
            json.extend_from_slice(b",\"type\":\"function\",\"function\":{\"name\":");
            push_string(json, name);
            json.extend_from_slice(b"}}]}");
        }
        ToolEvent::Arguments { index, text } => {
            begin(json, *index);
            json.extend_from_slice(b",\"function\":{\"arguments\":");
            push_string(json, text);
            json.extend_from_slice(b"}}]}");
        }
    }
}

/// Appends the calls of a message.
pub(crate) fn push_tool_calls(json: &mut Vec<u8>, calls: Option<&[ToolCall]>) {
    let Some(calls) = calls else {
        json.extend_from_slice(b"null");
        return;
    };
    json.push(b'[');
    for (index, ToolCall { id, name, arguments }) in calls.iter().enumerate() {
        if index > 0 {
            json.push(b',');
        }
        json.extend_from_slice(b"{\"id\":");
        push_string(json, id);
        json.extend_from_slice(b",\"type\":\"function\",\"function\":{\"name\":");
        push_string(json, name);
        json.extend_from_slice(b",\"arguments\":");
        push_string(json, arguments);
        json.extend_from_slice(b"}}");
    }
    json.push(b']');
}
