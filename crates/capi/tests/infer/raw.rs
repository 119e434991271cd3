//! Tests of raw inputs, which consist only of bytes.

use super::*;

/// A model whose only input is a single string.
pub(super) fn texts() -> ModelConfig {
    let mut model = model(DataType::Bytes);
    model.input[0].dims = vec![1];
    model
}

/// Checks the input that the server receives for these segments.
#[track_caller]
fn check_sent(model: ModelConfig, pieces: &[&'static [u8]], dims: &[i64], bytes: &[u8]) {
    let is_text = model.input[0].data_type == DataType::Bytes.config_number();
    let caller = Caller::with(model);
    caller.fake.holds_all.store(true, Ordering::Relaxed);
    let request = caller.request();
    unsafe {
        ok(server::TRITONSERVER_InferenceRequestAddRawInput(request, c"raw".as_ptr()));
        for piece in pieces {
            ok(server::TRITONSERVER_InferenceRequestAppendInputData(
                request,
                c"raw".as_ptr(),
                piece.as_ptr().cast(),
                piece.len(),
                TRITONSERVER_MEMORY_CPU,
                0,
            ));
        }
    }
    ok(caller.infer(request));
    let (infer, sender) = caller.held.recv().unwrap();
    let [input] = infer.inputs.as_slice() else { panic!("{infer:?}") };
    assert_eq!((input.name.as_str(), input.shape.dims()), ("IN", dims));
    let data = input.data.host_bytes().unwrap();
    assert_eq!(data[..], *bytes);
    let in_place = data.as_ptr() == bytes.as_ptr();
    assert!(in_place || pieces.len() != 1 || is_text);
    sender.finish_without_response();
}

#[test]
fn the_configuration_defines_a_raw_input() {
    let numbers = || model(DataType::Int32);
    static BYTES: [u8; 12] = [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0];
    check_sent(numbers(), &[&BYTES], &[1, 3], &BYTES);
    check_sent(numbers(), &[&BYTES[..3], &BYTES[3..]], &[1, 3], &BYTES);
    check_sent(numbers(), &[], &[1, 0], &[]);
    check_sent(texts(), &[b"abc"], &[1, 1], b"\x03\0\0\0abc");
}

#[test]
fn a_raw_input_is_the_only_input() {
    let caller = Caller::new();
    let request = caller.request();
    unsafe {
        let add = server::TRITONSERVER_InferenceRequestAddRawInput;
        ok(add(request, c"raw".as_ptr()));
        assert!(refused(add(request, c"more".as_ptr())).contains("other inputs"));
        caller.add_input(request, c"IN", &[]);
        let text = refused(caller.infer(request));
        assert!(text.starts_with("[request id: me] Raw request must only have 1 input (found 2)"));
        ok(server::TRITONSERVER_InferenceRequestRemoveInput(request, c"IN".as_ptr()));
        ok(caller.infer(request));
    }
    assert!(caller.events().contains(&Event::Released));
}

#[test]
fn an_error_about_the_bytes_has_the_callers_name_of_a_raw_input() {
    let caller = Caller::new();
    let request = caller.request();
    unsafe {
        ok(server::TRITONSERVER_InferenceRequestAddRawInput(request, c"raw".as_ptr()));
        ok(server::TRITONSERVER_InferenceRequestAppendInputData(
            request,
            c"raw".as_ptr(),
            c"abc".as_ptr().cast(),
            3,
            TRITONSERVER_MEMORY_CPU,
            0,
        ));
        let text = refused(caller.infer(request));
        let expected = "[request id: me] input byte size mismatch for input 'raw' for model";
        assert!(text.starts_with(expected), "{text}");
    }
}
