//! Raw inputs, which have only bytes.

use super::*;

/// A model's configuration in protobuf's binary format, for batches of up to 4, with one
/// input: of type INT32 and any length, or of type STRING and length 1 for version 2.
pub(super) fn config(version: Option<i64>) -> Vec<u8> {
    const ANY: [u8; 12] = [0x22, 10, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1];
    let (datatype, dims) = if version == Some(2) { (13, &[0x22, 1, 1][..]) } else { (8, &ANY[..]) };
    let input = [&[0x0a, 2, b'I', b'N', 0x10, datatype], dims].concat();
    let length = u8::try_from(input.len()).unwrap();
    [&[0x20, 4, 0x2a, length], input.as_slice()].concat()
}

/// Checks the input that the server gets for these segments.
#[track_caller]
fn check_sent(version: i64, pieces: &[&'static [u8]], dims: &[i64], bytes: &[u8]) {
    let service = Arc::new(Echo { pending: Mutex::new(Some(Vec::new())) });
    let caller = Caller::new(service.clone());
    let request = caller.request_of(version);
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
    let (infer, sender) = service.pending.lock().unwrap().as_mut().unwrap().pop().unwrap();
    let [input] = infer.inputs.as_slice() else { panic!("{infer:?}") };
    assert_eq!((input.name.as_str(), input.shape.dims()), ("IN", dims));
    let data = input.data.host().unwrap();
    assert_eq!(data[..], *bytes);
    let in_place = data.as_ptr() == bytes.as_ptr();
    assert!(in_place || pieces.len() != 1 || version == 2);
    sender.finish();
}

#[test]
fn the_configuration_defines_a_raw_input() {
    static BYTES: [u8; 12] = [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0];
    check_sent(-1, &[&BYTES], &[1, 3], &BYTES);
    check_sent(-1, &[&BYTES[..3], &BYTES[3..]], &[1, 3], &BYTES);
    check_sent(-1, &[], &[1, 0], &[]);
    check_sent(2, &[b"abc"], &[1, 1], b"\x03\0\0\0abc");
}

#[test]
fn a_raw_input_is_the_only_input() {
    let caller = Caller::new(Arc::default());
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
