//! Tests of requests for responses.

use super::*;
use crate::{Capabilities, ChatTemplate, ContentType, read_body};

/// The request with a model and these members.
fn check(members: &str) -> Result<ResponsesRequest, Failure> {
    let body = format!("{{\"model\":\"m\"{members}}}");
    ResponsesRequest::check(&read_body(body.as_bytes(), ContentType::Json)?)
}

fn prompt(members: &str) -> String {
    let template = "{% for m in messages %}[{{ m.role }}:{{ m.content }}{{ m.tool_calls | \
                    default([]) | map(attribute='function') | map(attribute='name') | join(',') \
                    }}{{ m.tool_call_id }}]{% endfor %}{{ tools | tojson if tools }}";
    let template = ChatTemplate::new(None, Some(template)).unwrap();
    template.render(&check(members).unwrap().into_parts().0, 0).unwrap()
}

/// The name of the refused field, and the text.
fn refusal(members: &str) -> (String, String) {
    let (status, document) = check(members).unwrap_err().into_error_document();
    assert_eq!(status, 400);
    let document = read_body(&document, ContentType::Json).unwrap();
    let error = document.as_object().unwrap().get("error").unwrap().as_object().unwrap().clone();
    let text = |name| error.get(name).and_then(JsonValue::as_str).unwrap_or_default().to_owned();
    assert_eq!(text("type"), "invalid_request_error");
    (text("param"), text("message"))
}

#[test]
fn input_becomes_messages() {
    assert_eq!(prompt(r#","input":"hi""#), "[user:hi]");
    assert_eq!(prompt(r#","input":"hi","instructions":"be""#), "[system:be][user:hi]");
    let parts = r#","input":[{"role":"developer","content":"a"},
        {"type":"message","role":"user","content":[{"type":"input_text","text":"b"},
        {"type":"input_text","text":"c"}]}]"#;
    assert_eq!(prompt(parts), "[system:a][user:b\nc]");
    let calls = r#","input":[{"role":"assistant","content":[{"type":"output_text","text":"a"}]},
        {"type":"function_call","call_id":"1","name":"f","arguments":"{}"},
        {"type":"function_call","call_id":"2","name":"g","arguments":"{}"},
        {"type":"function_call_output","call_id":"1","output":"b"},
        {"type":"function_call","call_id":"3","name":"h","arguments":"{}"}]"#;
    assert_eq!(prompt(calls), "[assistant:af,g][tool:b1][assistant:Noneh]");
}

#[test]
fn tools_become_those_of_chats() {
    let tools = r#","input":"a","tools":[{"type":"function","name":"f","description":"d",
        "parameters":{"a":1},"strict":true},{"type":"function","name":"g","parameters":null}]"#;
    let found = r#"[user:a][{"type": "function", "function": {"description": "d", "name": "f", "parameters": {"a": 1}}}, {"type": "function", "function": {"description": null, "name": "g", "parameters": {"type": "object", "properties": {}}}}]"#;
    assert_eq!(prompt(tools), found);
    let chosen = |choice: &str| {
        let request = check(&format!("{tools},\"tool_choice\":{choice}")).unwrap();
        request.into_parts().0.named_tool().map(|tool| tool.0)
    };
    assert_eq!(chosen(r#"{"type":"function","name":"g"}"#).as_deref(), Some("g"));
    assert_eq!(chosen(r#""required""#).as_deref(), Some("f"));
    assert_eq!(chosen(r#""none""#), None);
}

#[test]
fn parameters_have_the_defaults_of_the_api() {
    let generation = |members: &str| {
        let capabilities = Capabilities { is_vllm: true, has_tool_parser: false };
        check(members).unwrap().into_parts().0.generation(capabilities).unwrap()
    };
    let plain = generation(r#","input":"a""#);
    assert_eq!((plain.is_stream, plain.tokens_max), (false, None));
    assert_eq!(plain.sampling.get("temperature"), Some(&JsonValue::Float(1.0)));
    let set = generation(r#","input":"a","stream":true,"max_output_tokens":5,"temperature":0.5"#);
    assert_eq!((set.is_stream, set.tokens_max), (true, Some(5)));
    assert_eq!(set.sampling.get("temperature"), Some(&JsonValue::Float(0.5)));
    let form =
        r#","input":"a","text":{"format":{"type":"json_schema","name":"n","schema":{"a":1}}}"#;
    let expected = super::super::Guide::JsonSchema(String::from("{\"a\":1}"));
    assert_eq!(generation(form).guide, Some(expected));
}

#[test]
fn the_response_repeats_the_request() {
    let echo = |members: &str| {
        let (_, echo) = check(members).unwrap().into_parts();
        String::from_utf8(echo).unwrap()
    };
    let text = echo(r#","input":"a","instructions":"i","metadata":{"k":"v"},"store":false"#);
    for part in [
        r#""instructions":"i","#,
        r#""metadata":{"k":"v"}"#,
        r#""store":false"#,
        r#""text":{"format":{"type":"text"}}"#,
        r#""tool_choice":"auto","tools":[]"#,
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn refusals_name_the_field() {
    let check = |members: &str, param: &str, text: &str| {
        assert_eq!(refusal(members), (param.to_owned(), text.to_owned()));
    };
    check("", "input", "Missing required parameter: 'input'.");
    check(r#","input":"a","foo":1"#, "foo", "Unknown parameter: 'foo'.");
    check(
        r#","input":"a","temperature":3"#,
        "temperature",
        "Invalid value for 'temperature': Input should be less than or equal to 2.",
    );
    check(
        r#","input":"a","store":true"#,
        "store",
        "Unsupported value: 'store' can only be false: responses are not stored.",
    );
    check(
        r#","input":"a","previous_response_id":"r""#,
        "previous_response_id",
        "Unsupported parameter: 'previous_response_id': responses are not stored.",
    );
    check(
        r#","input":"a","service_tier":"flex""#,
        "service_tier",
        "Unsupported value: 'service_tier' can only be 'auto' or 'default': there is one service \
         tier.",
    );
    let params = [
        (r#","input":[]"#, "input"),
        (r#","input":[1]"#, "input[0]"),
        (r#","input":[{"role":"user"}]"#, "input[0].content"),
        (r#","input":[{"role":"tool","content":"a"}]"#, "input[0].role"),
        (r#","input":[{"type":"reasoning"}]"#, "input[0].type"),
        (
            r#","input":[{"role":"user","content":[{"type":"input_image"}]}]"#,
            "input[0].content[0].type",
        ),
        (r#","input":[{"type":"function_call","call_id":"1","name":"f"}]"#, "input[0].arguments"),
        (r#","input":"a","tools":[{"type":"mcp"}]"#, "tools[0].type"),
        (r#","input":"a","tools":[{"type":"function"}]"#, "tools[0].name"),
        (
            r#","input":"a","tools":[{"type":"function","name":"f","defer_loading":true}]"#,
            "tools[0].defer_loading",
        ),
        (r#","input":"a","tool_choice":{"type":"function","name":"f"}"#, "tool_choice"),
        (r#","input":"a","tool_choice":{"type":"allowed_tools"}"#, "tool_choice"),
        (r#","input":"a","text":{"verbosity":"low"}"#, "text.verbosity"),
        (r#","input":"a","text":{"format":{"type":"grammar"}}"#, "text.format.type"),
        (r#","input":"a","text":{"format":{"type":"json_schema"}}"#, "text.format.name"),
        (r#","input":"a","reasoning":{"effort":"low"}"#, "reasoning.effort"),
        (
            r#","input":"a","stream_options":{"include_obfuscation":true}"#,
            "stream_options.include_obfuscation",
        ),
        (r#","input":"a","include":["x"]"#, "include[0]"),
        (r#","input":"a","metadata":{"k":1}"#, "metadata.k"),
    ];
    for (members, param) in params {
        assert_eq!(refusal(members).0, param, "{members}");
    }
}
