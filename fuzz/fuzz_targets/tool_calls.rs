//! A model's text with tool calls: the first byte selects the format, and the second the length of
//! the pieces. Formats that are read as they arrive find the same message in the whole text.

#![no_main]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use galatea_openai::{
    CallIds, ParsedText, PieceOutcome, ToolCall, ToolCallFormat, ToolCallParser, ToolEvent,
};
use libfuzzer_sys::fuzz_target;

const CHARS_MAX: usize = 4096;

fn parser(format: ToolCallFormat) -> ToolCallParser {
    let count = AtomicU64::new(0);
    let ids = CallIds::new(Arc::new(move || count.fetch_add(1, Ordering::Relaxed).to_string()));
    ToolCallParser { format, chars_max: CHARS_MAX, ids }
}

/// The message in the events, without identifiers.
fn message(events: Vec<ToolEvent>) -> (String, Vec<(String, String)>) {
    let (mut content, mut calls) = (String::new(), Vec::new());
    for event in events {
        match event {
            ToolEvent::Content(text) => content.push_str(&text),
            ToolEvent::Begin { index, name, .. } => {
                assert_eq!(index, calls.len(), "calls are numbered");
                calls.push((name, String::new()));
            }
            ToolEvent::Arguments { index, text } => {
                assert_eq!(index + 1, calls.len(), "arguments belong to the last call");
                calls[index].1.push_str(&text);
            }
        }
    }
    (content, calls)
}

fuzz_target!(|data: &[u8]| {
    let [format, length, text @ ..] = data else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let formats = ToolCallFormat::ALL;
    let (_, format) = formats[usize::from(*format) % formats.len()];
    let parser = parser(format);
    let ParsedText { content, calls } = parser.parse(text, length % 2 == 0);
    let letters: Vec<char> = text.chars().collect();
    let pieces: Vec<String> = letters
        .chunks(usize::from(*length).max(1))
        .map(|letters| letters.iter().collect())
        .chain([String::new()])
        .collect();
    let mut stream = parser.stream();
    let mut events = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        match stream.feed(piece, index + 1 == pieces.len(), &mut events) {
            Ok(PieceOutcome::Parsed) => {}
            Ok(PieceOutcome::TooLong) => {
                assert!(letters.len() > CHARS_MAX);
                return;
            }
            Err(_) => return,
        }
    }
    if matches!(format, ToolCallFormat::Llama3 | ToolCallFormat::Mistral) {
        return;
    }
    let calls = calls.unwrap_or_default().into_iter();
    let calls = calls.map(|ToolCall { name, arguments, .. }| (name, arguments)).collect();
    assert_eq!(message(events), (content, calls));
});
