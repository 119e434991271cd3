use std::time::Duration;

use super::*;

/// The spans as lines: depth, name, times, parent's name, events.
fn shown(events: Vec<Event>, remote: Option<SpanContext>) -> Vec<String> {
    let client = ClientSpan {
        remote,
        trace: [7; 16],
        span: [1; 8],
        start_ns: 1,
        end_ns: 100,
        epoch_ns: 1000,
    };
    let spans = spans_of(&client, 1, events, &NumberSource::default());
    let line = |span: &Span| {
        let parent = spans.iter().find(|other| Some(other.span) == span.parent);
        let parent = match (parent, span.parent) {
            (Some(parent), _) => parent.name.clone(),
            (None, Some(number)) => format!("{number:?}"),
            (None, None) => String::from("-"),
        };
        let events: Vec<&str> = span.events.iter().map(|(name, _)| name.as_str()).collect();
        let (start, end) = (span.start_ns - 1000, span.end_ns - 1000);
        format!("{} {start}-{end} in {parent}: {}", span.name, events.join(" "))
    };
    spans.iter().map(line).collect()
}

fn begin(trace: u64, parent: u64, model: &str, id: &str) -> Event {
    let span = [10 + u8::try_from(trace).unwrap(); 8];
    let (model_name, request_id) = (model.to_owned(), id.to_owned());
    Event::Begin {
        trace,
        subject: Subject { parent, model_name, model_version: 2, request_id, span, deadline: None },
    }
}

fn point(trace: u64, name: &'static str, ns: u64) -> Event {
    Event::Time { trace, activity: TraceActivity::Point(name), ns }
}

fn custom(trace: u64, name: &str, ns: u64) -> Event {
    Event::Time { trace, activity: TraceActivity::Custom(name.into()), ns }
}

fn door(name: &'static str, ns: u64) -> Event {
    Event::Time { trace: 1, activity: TraceActivity::Door(name), ns }
}

#[test]
fn a_request_is_a_span_in_that_of_its_client() {
    let events = vec![
        door("HTTP_RECV_START", 2),
        begin(1, 0, "m", "r"),
        point(1, "REQUEST_START", 5),
        point(1, "QUEUE_START", 6),
        point(1, "COMPUTE_START", 10),
        point(1, "COMPUTE_INPUT_END", 11),
        door("INFER_RESPONSE_COMPLETE", 12),
        point(1, "COMPUTE_END", 20),
        point(1, "REQUEST_END", 30),
        door("HTTP_SEND_END", 40),
    ];
    let expected = [
        "InferRequest 1-100 in -: HTTP_RECV_START INFER_RESPONSE_COMPLETE HTTP_SEND_END",
        "m 5-30 in InferRequest: REQUEST_START QUEUE_START REQUEST_END",
        "compute 10-20 in m: COMPUTE_START COMPUTE_INPUT_END COMPUTE_END",
    ];
    assert_eq!(shown(events, None), expected);
}

#[test]
// row: OTEL-07
fn the_span_of_a_request_has_triton_s_attributes() {
    let client = ClientSpan {
        remote: None,
        trace: [7; 16],
        span: [1; 8],
        start_ns: 1,
        end_ns: 2,
        epoch_ns: 0,
    };
    let numbers = NumberSource::default();
    let attributes = |events| spans_of(&client, 1, events, &numbers)[1].attributes.clone();
    let number = AttributeValue::Number;
    let text = |text: &str| AttributeValue::Text(text.to_owned());
    let mut expected = vec![
        ("triton.model_name", text("m")),
        ("triton.model_version", number(2)),
        ("triton.trace_id", number(3)),
        ("triton.trace_parent_id", number(1)),
    ];
    let events = |id| vec![begin(3, 1, "m", id), point(3, "REQUEST_START", 5)];
    assert_eq!(attributes(events("")), expected);
    expected.push(("triton.request_id", text("r")));
    assert_eq!(attributes(events("r")), expected);
    let mut with_deadline = events("r");
    if let Event::Begin { subject, .. } = &mut with_deadline[0] {
        subject.deadline = Some(Duration::from_millis(20));
    }
    expected.push(("galatea.deadline_us", number(20_000)));
    assert_eq!(attributes(with_deadline), expected);
}

#[test]
fn steps_are_spans_in_their_ensemble() {
    let events = vec![
        begin(1, 0, "both", ""),
        point(1, "REQUEST_START", 5),
        begin(2, 1, "first", ""),
        point(2, "REQUEST_START", 6),
        point(2, "COMPUTE_START", 7),
        begin(3, 1, "second", ""),
        point(3, "REQUEST_START", 8),
        point(2, "COMPUTE_END", 9),
        point(2, "REQUEST_END", 10),
        point(3, "REQUEST_END", 11),
        point(1, "REQUEST_END", 12),
    ];
    let expected = [
        "InferRequest 1-100 in -: ",
        "both 5-12 in InferRequest: REQUEST_START REQUEST_END",
        "first 6-10 in both: REQUEST_START REQUEST_END",
        "compute 7-9 in first: COMPUTE_START COMPUTE_END",
        "second 8-11 in both: REQUEST_START REQUEST_END",
    ];
    assert_eq!(shown(events, None), expected);
}

#[test]
fn activities_of_backends_are_spans_or_events() {
    let events = vec![
        begin(1, 0, "m", ""),
        point(1, "REQUEST_START", 5),
        point(1, "COMPUTE_START", 6),
        custom(1, "OUTER_START", 7),
        custom(1, "INNER_START", 8),
        custom(1, "note", 9),
        custom(1, "INNER_END", 10),
        custom(1, "OUTER_END", 11),
        custom(1, "_START", 12),
        custom(1, "_END", 13),
        point(1, "COMPUTE_END", 14),
        point(1, "REQUEST_END", 15),
    ];
    let expected = [
        "InferRequest 1-100 in -: ",
        "m 5-15 in InferRequest: REQUEST_START REQUEST_END",
        "compute 6-14 in m: COMPUTE_START _START _END COMPUTE_END",
        "OUTER 7-11 in compute: OUTER_START OUTER_END",
        "INNER 8-10 in OUTER: INNER_START note INNER_END",
    ];
    assert_eq!(shown(events, None), expected);
}

#[test]
fn the_client_s_own_span_is_above_all() {
    let remote = SpanContext { trace: [7; 16], span: [9; 8], state: Arc::from("a=b") };
    let lines = shown(Vec::new(), Some(remote));
    assert_eq!(lines, ["InferRequest 1-100 in [9, 9, 9, 9, 9, 9, 9, 9]: "]);
}

#[test]
fn what_is_not_ended_ends_with_the_trace() {
    let events = vec![begin(1, 0, "m", ""), point(1, "REQUEST_START", 5), custom(1, "X_START", 7)];
    let lines = shown(events, None);
    assert_eq!(lines[1..], ["m 5-100 in InferRequest: REQUEST_START", "X 7-100 in m: X_START"]);
    // Surplus ends close the spans below, and then have no effect.
    let ends = (0..5).map(|ns| custom(1, "X_END", 10 + ns)).collect();
    assert_eq!(shown(ends, None), ["InferRequest 1-10 in -: X_END"]);
}
