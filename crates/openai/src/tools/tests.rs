//! Tests of the parsers.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

fn parser(name: &str, chars_max: usize) -> ToolCallParser {
    let count = AtomicU64::new(0);
    let unique = move || format!("id-{}", count.fetch_add(1, Ordering::Relaxed));
    let format = ToolCallFormat::named(name).unwrap();
    ToolCallParser { format, chars_max, ids: CallIds::new(Arc::new(unique)) }
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
