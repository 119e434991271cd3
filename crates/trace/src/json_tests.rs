use galatea_tensor::elements::push_bytes_element;

use super::*;
use crate::event::TraceActivity;

fn time(trace: u64, name: &'static str, ns: u64) -> Event {
    Event::Time { trace, activity: TraceActivity::Point(name), ns }
}

fn begin(trace: u64, parent: u64, request_id: &str) -> Event {
    let (model_name, request_id) = (String::from("m"), request_id.to_owned());
    Event::Begin {
        trace,
        subject: Subject {
            parent,
            model_name,
            model_version: 3,
            request_id,
            span: [0; 8],
            deadline: None,
        },
    }
}

#[test]
// row: OTEL-02
fn a_trace_is_written_as_triton_writes_it() {
    let events = [time(1, "HTTP_RECV_START", 10), begin(1, 0, "r"), time(1, "REQUEST_START", 20)];
    assert_eq!(
        render(&events),
        "{\"id\":1,\"timestamps\":[{\"name\":\"HTTP_RECV_START\",\"ns\":10}]},\
         {\"id\":1,\"model_name\":\"m\",\"model_version\":3,\"request_id\":\"r\"},\
         {\"id\":1,\"timestamps\":[{\"name\":\"REQUEST_START\",\"ns\":20}]}"
    );
}

#[test]
fn the_traces_of_a_request_stay_together_and_the_last_comes_first() {
    let events =
        [begin(1, 0, ""), begin(2, 1, ""), time(1, "A", 1), begin(3, 1, ""), time(2, "B", 2)];
    assert_eq!(
        render(&events),
        "{\"id\":3,\"model_name\":\"m\",\"model_version\":3,\"parent_id\":1},\
         {\"id\":2,\"model_name\":\"m\",\"model_version\":3,\"parent_id\":1},\
         {\"id\":2,\"timestamps\":[{\"name\":\"B\",\"ns\":2}]},\
         {\"id\":1,\"model_name\":\"m\",\"model_version\":3},\
         {\"id\":1,\"timestamps\":[{\"name\":\"A\",\"ns\":1}]}"
    );
}

#[test]
fn texts_of_clients_and_backends_cannot_leave_their_quotes() {
    let bad = "\"}],\\\n\u{1}";
    let custom = Event::Time { trace: 1, activity: TraceActivity::Custom(bad.into()), ns: 1 };
    assert_eq!(
        render(&[begin(1, 0, bad), custom]),
        "{\"id\":1,\"model_name\":\"m\",\"model_version\":3,\
         \"request_id\":\"\\\"}],\\\\\\n\\u0001\"},\
         {\"id\":1,\"timestamps\":[{\"name\":\"\\\"}],\\\\\\n\\u0001\",\"ns\":1}]}"
    );
}

#[track_caller]
fn check_elements(datatype: DataType, data: &[u8], expected: &str) {
    let tensor =
        RecordedTensor { name: String::from("T"), datatype, dims: vec![2, 1], data: data.to_vec() };
    let event = Event::Tensor { trace: 7, activity: "TENSOR_QUEUE_INPUT", tensor };
    assert_eq!(
        render(&[event]),
        format!(
            "{{\"id\":7,\"activity\":\"TENSOR_QUEUE_INPUT\",\"tensor\":{{\"name\":\"T\",\
             \"data\":\"{expected}\",\"shape\":\"2,1\",\"dtype\":\"{}\"}}}}",
            datatype.protocol_name()
        )
    );
}

#[test]
fn elements_of_each_type() {
    check_elements(DataType::Bool, &[0, 2], "0,1");
    check_elements(DataType::Uint8, &[0, 255], "0,255");
    check_elements(DataType::Int8, &[0, 255], "0,-1");
    check_elements(DataType::Uint16, &[1, 1, 255, 255], "257,65535");
    check_elements(DataType::Int16, &[1, 0, 255, 255], "1,-1");
    check_elements(DataType::Uint32, &[255; 4], "4294967295");
    check_elements(DataType::Int32, &[255; 8], "-1,-1");
    check_elements(DataType::Uint64, &[255; 8], "18446744073709551615");
    check_elements(DataType::Int64, &[255; 8], "-1");
    check_elements(DataType::Fp16, &[1, 2], "");
    check_elements(DataType::Bf16, &[1, 2], "");
    check_elements(
        DataType::Fp32,
        &[0.5_f32.to_le_bytes(), 1e6_f32.to_le_bytes()].concat(),
        "0.5,1e+06",
    );
    check_elements(DataType::Fp64, &[0.1_f64.to_le_bytes(), 3_f64.to_le_bytes()].concat(), "0.1,3");
    check_elements(DataType::Int32, &[], "");
}

#[test]
// row: OTEL-04
fn elements_of_bytes_are_quoted() {
    let mut data = Vec::new();
    for element in [&b"ab"[..], b"", b"c\"\xff"] {
        push_bytes_element(&mut data, element).unwrap();
    }
    let expected = "\\\"ab\\\",\\\"\\\",\\\"c\\\"\u{fffd}\\\"";
    check_elements(DataType::Bytes, &data, expected);
    // An incomplete element ends the list.
    data.extend_from_slice(&[9, 0, 0, 0]);
    check_elements(DataType::Bytes, &data, expected);
}

#[test]
fn numbers_have_six_digits_at_most() {
    for (value, expected) in [
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (100.0, "100"),
        (123_456.0, "123456"),
        (1_234_567.0, "1.23457e+06"),
        (999_999.5, "1e+06"),
        (0.0001, "0.0001"),
        (0.000_01, "1e-05"),
        (-1.5, "-1.5"),
        (1.0 / 3.0, "0.333333"),
        (1e100, "1e+100"),
        (f64::NAN, "nan"),
        (f64::INFINITY, "inf"),
        (f64::NEG_INFINITY, "-inf"),
    ] {
        assert_eq!(general(value), expected);
    }
}
