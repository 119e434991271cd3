//! Round-trip tests: written lines can be read back.

use serde_json::json;

use crate::{RecordedExecution, RecordedRequest, RequestExecution, TrafficHeader, TrafficLine};

#[track_caller]
fn check(line: TrafficLine, text: &str) {
    assert_eq!(line.to_string(), text);
    assert_eq!(TrafficLine::parse(text), Ok(line));
}

#[test]
fn each_line_is_one_object() {
    let header = TrafficHeader {
        model: String::from("m"),
        version: 3,
        began_ms: 7,
        processors: 2,
        instances: vec![String::from("m_0_0")],
        variable: vec![String::from("ids:0")],
        config: Some(json!({ "max_batch_size": 4 })),
    };
    check(
        TrafficLine::Header(header),
        r#"{"galatea_traffic":1,"model":"m","version":3,"began_ms":7,"processors":2,"instances":["m_0_0"],"variable":["ids:0"],"config":{"max_batch_size":4}}"#,
    );
    check(TrafficLine::Lost(4), r#"{"lost":4}"#);
    check(TrafficLine::End(String::from("unloaded")), r#"{"end":"unloaded"}"#);
}

#[test]
fn a_request_leaves_out_what_is_usual() {
    let refused = RecordedRequest {
        at_ns: 1,
        rows: 1,
        status: "queue_full".into(),
        queue_ns: 0,
        ..RecordedRequest::default()
    };
    check(
        TrafficLine::Request(refused),
        r#"{"at_ns":1,"rows":1,"status":"queue_full","queue_ns":0}"#,
    );
    let executed = RecordedRequest {
        at_ns: 1,
        rows: 2,
        dims: vec![17],
        length: 17,
        priority: 3,
        timeout_ns: 4,
        deadline_ns: Some(5),
        sequence: Some(json!("a")),
        status: "ok".into(),
        queue_ns: 6,
        executed: Some(RequestExecution {
            execution: 9,
            compute_ns: 7,
            batch: 4,
            close: "max_size".into(),
            instance: "m_0_0".into(),
        }),
    };
    check(
        TrafficLine::Request(executed),
        r#"{"at_ns":1,"rows":2,"dims":[17],"length":17,"priority":3,"timeout_ns":4,"deadline_ns":5,"sequence":"a","status":"ok","queue_ns":6,"compute_ns":7,"batch":4,"close":"max_size","instance":"m_0_0","execution":9}"#,
    );
}

#[test]
fn an_execution_has_its_duration() {
    let execution = RecordedExecution {
        number: 9,
        at_ns: 7,
        duration_ns: 8,
        rows: 4,
        requests: 2,
        length: 17,
        busy: 1,
        close: "delay".into(),
        instance: "m_0_0".into(),
    };
    check(
        TrafficLine::Execution(execution),
        r#"{"execution":9,"at_ns":7,"duration_ns":8,"rows":4,"requests":2,"length":17,"busy":1,"close":"delay","instance":"m_0_0"}"#,
    );
}

/// Covers escapes and large numbers in a line.
#[test]
fn lines_are_those_of_any_writer_of_json() {
    let name = "a \"quoted\" \\ name\n\u{1} and \u{20ac}\u{2028}";
    let header = TrafficHeader {
        model: name.into(),
        version: -1,
        instances: vec![name.into(), String::new()],
        ..TrafficHeader::default()
    };
    let expected = json!({
        "galatea_traffic": 1, "model": name, "version": -1, "began_ms": 0, "processors": 0,
        "instances": [name, ""], "variable": [],
    });
    check(TrafficLine::Header(header), &expected.to_string());
    for sequence in [json!(u64::MAX), json!(name), json!("")] {
        let request = RecordedRequest {
            at_ns: u64::MAX,
            rows: u32::MAX,
            dims: vec![0, u32::MAX],
            sequence: Some(sequence.clone()),
            status: name.into(),
            ..RecordedRequest::default()
        };
        let expected = json!({
            "at_ns": u64::MAX, "rows": u32::MAX, "dims": [0, u32::MAX], "length": 0,
            "sequence": sequence, "status": name, "queue_ns": 0,
        });
        check(TrafficLine::Request(request), &expected.to_string());
    }
    let execution = RecordedExecution {
        busy: 1,
        close: name.into(),
        instance: name.into(),
        ..RecordedExecution::default()
    };
    let expected = json!({
        "execution": 0, "at_ns": 0, "duration_ns": 0, "rows": 0, "requests": 0, "length": 0,
        "busy": 1, "close": name, "instance": name,
    });
    check(TrafficLine::Execution(execution), &expected.to_string());
    check(TrafficLine::End(name.into()), &json!({ "end": name }).to_string());
}

#[test]
fn lines_share_a_buffer() {
    let mut buffer = b"before".to_vec();
    TrafficLine::Lost(1).write(&mut buffer);
    RecordedRequest { status: "ok".into(), ..RecordedRequest::default() }.write(&mut buffer);
    let expected = br#"before{"lost":1}{"at_ns":0,"rows":0,"status":"ok","queue_ns":0}"#;
    assert_eq!(buffer, expected);
}

#[test]
fn what_is_wrong_is_named() {
    for (text, part) in [
        ("[]", "a JSON object"),
        ("{", "EOF"),
        ("{}", "'at_ns' is missing"),
        (r#"{"at_ns":-1}"#, "'at_ns' is not a number from 0 on"),
        (r#"{"at_ns":1,"rows":5000000000}"#, "'rows' is too large"),
        (r#"{"at_ns":1,"rows":1,"dims":["a"]}"#, "'dims'"),
        (r#"{"galatea_traffic":2}"#, "version 2 of the format, not 1"),
        (r#"{"galatea_traffic":1,"model":"m"}"#, "'version'"),
    ] {
        let error = TrafficLine::parse(text).unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    }
}
