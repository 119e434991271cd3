//! Tests of the parsers, with what those of Triton's frontend made of the same texts.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::json::{JsonValue, Object, parse_text, push_string};
use crate::reply::calls::{push_tool_calls, push_tool_event};

fn parser(name: &str, chars_max: usize) -> ToolCallParser {
    let count = AtomicU64::new(0);
    let unique = move || format!("id-{}", count.fetch_add(1, Ordering::Relaxed));
    let format = ToolCallFormat::named(name).unwrap();
    ToolCallParser { format, chars_max, ids: CallIds::new(Arc::new(unique)) }
}

/// Shows an event in the form of a chunk's delta.
fn delta(event: &ToolEvent) -> String {
    let mut text = Vec::new();
    push_tool_event(&mut text, event);
    String::from_utf8(text).unwrap()
}

fn text<'o>(object: &'o Object, name: &str) -> &'o str {
    object.get(name).and_then(JsonValue::as_str).unwrap()
}

fn streamed(golden: &Object) -> Vec<String> {
    let limit = golden.get("limit").and_then(JsonValue::as_int).unwrap();
    let mut stream = parser(text(golden, "parser"), limit.try_into().unwrap()).stream();
    let pieces = golden.get("pieces").and_then(JsonValue::as_list).unwrap();
    let mut pieces: Vec<&str> = pieces.iter().map(|piece| piece.as_str().unwrap()).collect();
    if golden.get("apart").and_then(JsonValue::as_bool) == Some(true) {
        pieces.push("");
    }
    let mut deltas = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let is_last = index + 1 == pieces.len();
        let mut events = Vec::new();
        if stream.feed(piece, is_last, &mut events).unwrap() == PieceOutcome::TooLong {
            deltas.push(String::from("{\"content\":\"\"} length"));
            break;
        }
        if is_last && events.is_empty() {
            events.push(ToolEvent::Content(String::new()));
        }
        let reason = if stream.has_calls() { " tool_calls" } else { " stop" };
        let reason = if is_last { reason } else { "" };
        deltas.extend(events.iter().map(|event| delta(event) + reason));
    }
    deltas.into_iter().map(|delta| without_id(&delta)).collect()
}

fn without_id(delta: &str) -> String {
    let Some((before, rest)) = delta.split_once("\"id\":\"") else { return delta.to_owned() };
    let (_, behind) = rest.split_once('"').unwrap();
    format!("{before}\"id\":\"ID\"{behind}")
}

fn whole(golden: &Object) -> (String, String) {
    let is_vllm = text(golden, "backend") == "vllm";
    let parser = parser(text(golden, "parser"), usize::MAX);
    let ParsedText { content, calls } = parser.parse(text(golden, "text"), is_vllm);
    let calls = calls.map(|calls| {
        let anonymous = |call: ToolCall| ToolCall { id: String::from("ID"), ..call };
        calls.into_iter().map(anonymous).collect::<Vec<_>>()
    });
    let is_call = calls.as_ref().is_some_and(|calls| !calls.is_empty());
    let mut message = b"{\"content\":".to_vec();
    push_string(&mut message, &content);
    message.extend_from_slice(b",\"tool_calls\":");
    push_tool_calls(&mut message, calls.as_deref());
    message.extend_from_slice(b",\"role\":\"assistant\",\"function_call\":null}");
    let reason = if is_call { "tool_calls" } else { "stop" };
    (String::from_utf8(message).unwrap(), reason.to_owned())
}

/// Checks each line: a text or its pieces, and what Triton's parser made of them.
fn check_goldens(goldens: &str) {
    for line in goldens.lines() {
        let JsonValue::Object(golden) = parse_text(line).unwrap() else { panic!("{line}") };
        if golden.get("text").is_some() {
            let (message, reason) = whole(&golden);
            assert_eq!(message, text(&golden, "message"), "{line}");
            assert_eq!(reason, text(&golden, "reason"), "{line}");
            continue;
        }
        let expected = golden.get("deltas").and_then(JsonValue::as_list).unwrap();
        let expected: Vec<&str> = expected.iter().map(|delta| delta.as_str().unwrap()).collect();
        assert_eq!(streamed(&golden), expected, "{line}");
    }
}

/// The file was recorded with the frontend of Triton's repository at commit e1db8a60, Python 3.11,
/// pydantic 2.14.4 and `partial_json_parser` 0.2.1.1.post7.
#[test]
fn llama_and_mistral_are_those_of_triton() {
    check_goldens(include_str!("triton.jsonl"));
}

/// Shows a message: its text, and its calls.
fn shown(ParsedText { content, calls }: &ParsedText) -> String {
    let calls = calls.iter().flatten();
    let calls = calls.map(|ToolCall { name, arguments, .. }| format!("|{name}({arguments})"));
    content.clone() + &calls.collect::<String>()
}

fn message_of(parser: &ToolCallParser, pieces: &[&str]) -> ParsedText {
    let mut stream = parser.stream();
    let mut events = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let is_last = index + 1 == pieces.len();
        assert_eq!(stream.feed(piece, is_last, &mut events).unwrap(), PieceOutcome::Parsed);
    }
    let message = ParsedText::of(events);
    assert_eq!(stream.has_calls(), message.calls.is_some());
    message
}

/// Checks the message in a text: in the whole text, in its characters, and in two pieces of each
/// length.
fn check(format: &str, text: &str, expected: &str) {
    let parser = parser(format, usize::MAX);
    assert_eq!(shown(&parser.parse(text, false)), expected, "{text}");
    let starts: Vec<usize> = text.char_indices().map(|(start, _)| start).collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    let letters: Vec<&str> =
        starts.iter().zip(ends).map(|(start, end)| &text[*start..end]).collect();
    assert_eq!(shown(&message_of(&parser, &letters)), expected, "{text}");
    for start in starts {
        let pieces = [&text[..start], &text[start..], ""];
        assert_eq!(shown(&message_of(&parser, &pieces[..2])), expected, "{pieces:?}");
        assert_eq!(shown(&message_of(&parser, &pieces)), expected, "{pieces:?}");
    }
}

#[test]
fn hermes_calls_are_in_tags() {
    let check = |text: &str, expected: &str| check("hermes", text, expected);
    check("Hello <b>you</b>", "Hello <b>you</b>");
    check("  space  ", "  space  ");
    check(
        "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}</tool_call>\\\"é\"}}\n\
         </tool_call>\n<tool_call>{\"arguments\":[1,{}],\"x\":[\"]\"],\"name\":\"g\"}</tool_call>\n",
        "I look.\n|f({\"a\": \"}</tool_call>\\\"é\"})|g([1,{}])",
    );
    check("<tool_call>{\"name\":\"f\"}</tool_call> Done.", " Done.|f({})");
    check("<tool_call>{\"name\":\"f\",\"arguments\":null}", "|f(null)");
    check("<tool_call>{\"name\":\"f\",\"parameters\":{\"a\":1}", "|f({\"a\":1})");
    // A text that only looks like a call is for the user.
    check("<tool_call>{\"arguments\":1} x", "<tool_call>{\"arguments\":1} x");
    check("<tool_call>{\"name\":1}", "<tool_call>{\"name\":1}");
    check("<tool_call>no</tool_call>", "<tool_call>no</tool_call>");
    check("<tool_call> {\"name\"", "<tool_call> {\"name\"");
    // The rest of a malformed call is dropped.
    check("<tool_call>{\"name\":\"f\"]x</tool_call>y", "y|f()");
}

#[test]
fn deepseek_calls_are_between_markers() {
    let check = |text: &str, expected: &str| check("deepseek_v3", text, expected);
    check("Hello <｜you｜>", "Hello <｜you｜>");
    check(
        "Yes.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n\
         {\"a\": \"```\", \"b\": {}}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function\
         <｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Yes.|f({\"a\": \"```\", \"b\": {}})|g({})",
    );
    check(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": [1, 2]}<｜tool▁call▁end｜>\
         <｜tool▁call▁begin｜>g<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "|f({\"a\": [1, 2]})|g({})",
    );
    check("<｜tool▁call▁begin｜>function<｜tool▁sep｜>f", "|f()");
    check("<｜tool▁call▁begin｜>function<｜tool▁sep｜>\nx<｜tool▁call▁end｜>y", "y");
    check("<｜tool▁call▁begin｜>f", "<｜tool▁call▁begin｜>f");
    let long = format!("<｜tool▁call▁begin｜>{}", "f".repeat(5000));
    let parser = parser("deepseek_v3", usize::MAX);
    assert_eq!(
        shown(&parser.parse(&format!("{long}<｜tool▁sep｜>"), false)),
        long + "<｜tool▁sep｜>"
    );
}

#[test]
fn harmony_calls_are_messages() {
    let check = |text: &str, expected: &str| check("openai", text, expected);
    check("assist me < |", "assist me < |");
    check("assistant", "assistant");
    check(
        "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant<|channel|>commentary\
         <|message|>I look. <|end|><|start|>assistant<|channel|>commentary to=functions.f \
         <|constrain|>json<|message|>{\"a\": \"<|x|>\"}<|call|>",
        "I look. |f({\"a\": \"<|x|>\"})",
    );
    check(
        "<|start|>assistant to=functions.g<|channel|>commentary json<|message|><|call|>\
         <|channel|>final<|message|>Done.<|return|>",
        "Done.|g({})",
    );
    check("<|channel|>commentary to=browser.open<|message|>{}<|call|>x", "x");
    check("<|channel|>final<|message|>no end", "no end");
    check("<|channel|>final<|message|>a<|channel|>final<|message|>b", "ab");
    check("<|channel|>final", "");
}

#[test]
fn pythonic_calls_are_a_list() {
    let check = |text: &str, expected: &str| check("pythonic", text, expected);
    check("Hello [f()]", "Hello [f()]");
    check(
        "[get_weather(city='San (Francisco)', days=3), a.b(x={'y': [True, None]}), c()]\n",
        "|get_weather({\"city\": \"San (Francisco)\", \"days\": 3})\
         |a.b({\"x\": {\"y\": [true, null]}})|c({})",
    );
    for text in ["[1, 2]", "[]", "[f(1)]", "[f(a=b)]", "[f(a=1", "[", " [f(", ""] {
        check(text, text);
    }
    check("[f()] and text", "and text|f({})");
    check(" [f()x]", "x]|f({})");
    check("[f(), 5]", " 5]|f({})");
}

#[test]
fn a_long_text_is_cut_off() {
    for (format, _) in ToolCallFormat::ALL {
        let mut stream = parser(format, 3).stream();
        let mut events = Vec::new();
        assert_eq!(stream.feed("éé", false, &mut events).unwrap(), PieceOutcome::Parsed);
        assert_eq!(stream.feed("éé", false, &mut events).unwrap(), PieceOutcome::TooLong);
    }
}

/// Returns the events of each piece. `is_read_again` reads the whole text for each piece.
fn events_of(format: &str, pieces: &[&str], is_read_again: bool) -> Vec<String> {
    let mut stream = parser(format, usize::MAX).stream();
    let mut found = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let is_last = index + 1 == pieces.len();
        let mut events = Vec::new();
        if !is_read_again {
            let fed = stream.feed(piece, is_last, &mut events).map(drop);
            found.push(format!("{fed:?} {events:?}"));
            continue;
        }
        let ToolCallStream { ids, text, calls, .. } = &mut stream;
        text.push_str(piece);
        let (event, calls) = match calls {
            StreamedCalls::Llama(stream) => (stream.read(text, piece, ids), stream.calls()),
            StreamedCalls::Mistral(stream) => (stream.read(text, piece, ids), stream.calls()),
            StreamedCalls::Marked(_) | StreamedCalls::AtEnd { .. } => unreachable!(),
        };
        let event = if is_last { calls.last_event(event) } else { Ok(event) };
        let fed = event.map(|event| events.extend(event));
        found.push(format!("{fed:?} {events:?}"));
    }
    found
}

#[test]
fn an_exact_stream_has_each_argument_once() {
    let text = r#"[TOOL_CALLS][{"name": "f", "arguments": {"a": "b", "c": [1, 2]}}]"#;
    let parser = parser("mistral", usize::MAX);
    let mut stream = parser.exact_stream(true);
    let mut events = Vec::new();
    for piece in text.split_inclusive(' ') {
        assert_eq!(stream.feed(piece, false, &mut events).unwrap(), PieceOutcome::Parsed);
        assert!(events.is_empty() && !stream.has_calls() && stream.held_bytes() > 0);
    }
    stream.feed("", true, &mut events).unwrap();
    let [ToolEvent::Begin { name, .. }, ToolEvent::Arguments { text, .. }] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!((&**name, &**text), ("f", r#"{"a": "b", "c": [1, 2]}"#));
    assert!(stream.has_calls());

    // A text that is cut off is a text for the user.
    let mut stream = ToolCallParser { chars_max: 5, ..parser }.exact_stream(true);
    let mut events = Vec::new();
    assert_eq!(stream.feed("four", false, &mut events).unwrap(), PieceOutcome::Parsed);
    assert_eq!(stream.feed("more", false, &mut events).unwrap(), PieceOutcome::TooLong);
    assert_eq!(events, [ToolEvent::Content(String::from("four"))]);
}

#[test]
fn an_open_string_is_extended_as_if_the_text_were_read_again() {
    const STARTS: [(&str, &str); 4] = [
        ("llama3", r#"{"name": "f", "parameters": {"a": "#),
        ("llama3", r#"<|python_tag|>{"name": "f", "arguments": {}}; {"name": "g", "arguments": "#),
        ("mistral", r#"[TOOL_CALLS][{"name": "f", "arguments": {"a": "#),
        ("mistral", r#"[{"name": "f", "arguments": {"b": 1}}, {"name": "g", "arguments": "#),
    ];
    const PARTS: [&str; 24] = [
        "word",
        " word",
        "x",
        "é",
        "…",
        "!!",
        ".",
        " ",
        "\\n",
        "\\",
        "\\u",
        "00e9",
        "\\\\u",
        "\"",
        "\"",
        "\"}",
        "\", \"k\": \"",
        "[",
        "]",
        "{",
        "}",
        "12",
        ",",
        "[TOOL_CALLS]",
    ];
    let mut state = 7_u64;
    let mut random = move |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % below
    };
    for round in 0..4000 {
        let (format, start) = STARTS[round % STARTS.len()];
        let mut pieces: Vec<&str> = start.split_inclusive(' ').collect();
        pieces.extend(["\"", "a"]);
        // Most strings are long.
        let most = if round % 3 == 0 { PARTS.len() } else { 8 };
        pieces.extend((0..random(30)).map(|_| PARTS[random(most)]));
        pieces.extend([r#""}}"#, "]"].iter().take(random(3)));
        assert_eq!(
            events_of(format, &pieces, false),
            events_of(format, &pieces, true),
            "{pieces:?}"
        );
    }
}

#[test]
fn a_difference_may_begin_long_before_the_piece() {
    let run = "?!".repeat(100);
    for run in [&run[..], &run[1..]] {
        let start = r#"[TOOL_CALLS][{"name": "f", "arguments": {"a": "a"#;
        let mut pieces: Vec<&str> = start.split_inclusive(' ').collect();
        pieces.extend(["b", run, "?!", "?!", "c", "\"}}]"]);
        assert_eq!(events_of("mistral", &pieces, false), events_of("mistral", &pieces, true));
    }
}

#[test]
fn long_strings_are_extended() {
    for (format, start) in [
        ("llama3", r#"{"name": "f", "parameters": {"a": "b"#),
        ("mistral", r#"[TOOL_CALLS][{"name": "f", "arguments": {"a": "b"#),
    ] {
        let mut stream = parser(format, usize::MAX).stream();
        let mut events = Vec::new();
        for letter in start.split_inclusive(' ').chain(["c", "d"]) {
            stream.feed(letter, false, &mut events).unwrap();
        }
        for _ in 0..10 {
            // If the text were read again, the event would be missing.
            stream.text.clear();
            stream.feed(" word", false, &mut events).unwrap();
        }
        let words = events.iter().filter(|event| match event {
            ToolEvent::Arguments { text, .. } => text == " word",
            ToolEvent::Content(_) | ToolEvent::Begin { .. } => false,
        });
        assert!(words.count() >= 9, "{format}: {events:?}");
    }
}

#[test]
fn all_text_that_is_not_sent_yet_is_counted() {
    let long = "x".repeat(10_000);
    let space = " ".repeat(10_000);
    for (format, start, held) in [
        // The arguments, and the text in case that it is no call.
        ("hermes", format!("<tool_call>{{\"arguments\": \"{long}"), 20_000),
        ("hermes", format!("<tool_call>{{\"name\": \"{long}"), 20_000),
        ("hermes", format!("<tool_call>{space}"), 10_000),
        ("hermes", space.clone(), 10_000),
        ("deepseek_v3", space.clone(), 10_000),
        ("pythonic", format!("[f(a='{long}"), 10_000),
        ("openai", format!("<|channel|>{}", &long[..4000]), 4000),
    ] {
        let mut stream = parser(format, usize::MAX).stream();
        let mut events = Vec::new();
        for piece in start.as_bytes().chunks(100) {
            let piece = std::str::from_utf8(piece).unwrap();
            stream.feed(piece, false, &mut events).unwrap();
        }
        assert!(events.is_empty(), "{format}: {events:?}");
        assert!(stream.held_bytes() >= held, "{format}: {}", stream.held_bytes());
    }
}

#[test]
fn identifiers_differ() {
    let parser = parser("mistral", 100);
    let calls =
        parser.parse("[{\"name\":\"f\",\"arguments\":{}},{\"name\":\"f\",\"arguments\":{}}]", true);
    let ids: Vec<String> = calls.calls.unwrap().into_iter().map(|call| call.id).collect();
    assert_ne!(ids[0], ids[1]);
    for id in ids {
        assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
    }
}
