//! A chat template, rendered with a conversation: it ends, whatever it does.

#![no_main]

use std::sync::LazyLock;

use galatea_openai::{ChatRequest, ChatTemplate, ContentType, read_body};
use libfuzzer_sys::fuzz_target;

const CHAT: &str = r#"{"model":"m","messages":[{"role":"system","content":"s"},
    {"role":"user","content":[{"type":"text","text":"u"}]},
    {"role":"assistant","tool_calls":[{"id":"1","type":"function",
    "function":{"name":"f","arguments":"{\"a\":[1,2.5,null]}"}}]},
    {"role":"tool","tool_call_id":"1","content":"t"}],
    "tools":[{"type":"function","function":{"name":"f","parameters":{"a":{}}}}]}"#;

static REQUEST: LazyLock<ChatRequest> = LazyLock::new(|| {
    let body = read_body(CHAT.as_bytes(), ContentType::Json).expect("JSON");
    ChatRequest::check(&body).expect("a chat")
});

fuzz_target!(|template: &str| {
    if let Ok(template) = ChatTemplate::new(None, Some(template)) {
        let _ = template.render(&REQUEST, 1_700_000_000);
    }
});
