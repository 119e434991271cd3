//! Tests of the parsers.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

fn parser(name: &str, chars_max: usize) -> ToolCallParser {
    let count = AtomicU64::new(0);
    let unique = move || format!("id-{}", count.fetch_add(1, Ordering::Relaxed));
    let format = ToolCallFormat::named(name).unwrap();
    ToolCallParser { format, chars_max, ids: CallIds::new(Arc::new(unique)) }
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
