//! Tests of initial states and of state changes.

use std::sync::mpsc;

use galatea_infer::PendingRequest;
use galatea_tensor::{Buffer, DataType, Shape};

use crate::testing::sequences::{
    BLOCKING, DIRECT, ONE_INSTANCE, ScriptedBackend, config, int, reply_with, step, value,
    wait_until_empty,
};
use crate::testing::{FakeModelFiles, ServerSetup, send};

/// The model's only state, with other settings.
fn with_state(state: &str) -> String {
    let before = "data_type: TYPE_INT32\n             dims: [ 1 ] initial_state { name: \"zero\" \
                  data_type: TYPE_INT32 dims: [ 1 ]\n             zero_data: true }";
    let text = config(4, DIRECT, ONE_INSTANCE).replace(before, state);
    assert!(text.contains(state), "{text}");
    text
}

/// The state for a sequence's first request.
fn first_state(state: &str, files: FakeModelFiles) -> (DataType, Vec<i64>, Vec<u8>) {
    let (seen, sees) = mpsc::channel();
    let backend = ScriptedBackend::new(BLOCKING, move |batch| {
        for request in batch {
            let input = request.request().input("SUM_IN").unwrap();
            let data = input.data.host_bytes().unwrap().to_vec();
            seen.send((input.datatype, input.shape.dims().to_vec(), data)).unwrap();
            reply_with(request, 0);
        }
        Ok(())
    });
    let server = ServerSetup::new(with_state(state), backend).files(vec![files]).serve();
    value(&send(&server, step(1, "+.", 1)));
    sees.recv().unwrap()
}

#[test]
// row: IMP-03 IMP-04
fn a_sequence_begins_with_the_configured_state() {
    let files = || FakeModelFiles {
        version: 1,
        initial_states: vec![
            ("numbers", [5_i32.to_le_bytes(), 6_i32.to_le_bytes()].concat()),
            ("texts", b"\x01\0\0\0a\0\0\0\0".to_vec()),
        ],
        ..FakeModelFiles::default()
    };
    let check = |state: &str, datatype, dims: &[i64], data: &[u8]| {
        let expected = (datatype, dims.to_vec(), data.to_vec());
        assert_eq!(first_state(state, files()), expected, "{state}");
    };
    let (int, strings) = (DataType::Int32, DataType::Bytes);
    check("data_type: TYPE_INT32 dims: [ 2 ]", int, &[1, 2], &[0; 8]);
    check("data_type: TYPE_INT32 dims: [ -1, 3 ]", int, &[1, 1, 3], &[0; 12]);
    check("data_type: TYPE_STRING dims: [ 2 ]", strings, &[1, 2], &[0; 8]);
    check(
        "data_type: TYPE_INT32 dims: [ -1 ] initial_state { name: \"i\" data_type: TYPE_INT32 \
         dims: [ 3 ] zero_data: true }",
        int,
        &[1, 3],
        &[0; 12],
    );
    check(
        "data_type: TYPE_INT32 dims: [ 2 ] initial_state { name: \"i\" data_type: TYPE_INT32 \
         dims: [ 2 ] data_file: \"numbers\" }",
        int,
        &[1, 2],
        &[5, 0, 0, 0, 6, 0, 0, 0],
    );
    check(
        "data_type: TYPE_STRING dims: [ 2 ] initial_state { name: \"i\" data_type: TYPE_STRING \
         dims: [ 2 ] data_file: \"texts\" }",
        strings,
        &[1, 2],
        b"\x01\0\0\0a\0\0\0\0",
    );
}

/// Appends the request's input to its state.
fn append(mut request: PendingRequest) {
    let state = request.request().input("SUM_IN").unwrap();
    let mut data = state.data.host_bytes().unwrap().to_vec();
    let length = state.shape.dims()[1];
    data.extend(int(&request, "IN").to_le_bytes());
    let sum = data.chunks(4).map(|chunk| i32::from_le_bytes(chunk.try_into().unwrap())).sum();
    let shape = Shape::new(&[1, length + 1]).unwrap();
    request.update_state("SUM_OUT", shape, Buffer::from_vec(data)).unwrap();
    reply_with(request, sum);
}

#[test]
fn a_state_may_grow_and_padding_grows_with_it() {
    let (seen, sees) = mpsc::channel();
    let backend = ScriptedBackend::new(BLOCKING, move |batch| {
        let lengths = batch.iter().map(|request| {
            let length = request.request().input("SUM_IN").unwrap().shape.dims()[1];
            if request.is_padding() { format!("({length})") } else { length.to_string() }
        });
        seen.send(lengths.collect::<Vec<_>>()).unwrap();
        batch.into_iter().for_each(append);
        Ok(())
    });
    let text = with_state("data_type: TYPE_INT32 dims: [ -1 ]");
    let server = ServerSetup::new(text, backend).hold(2, 0).serve();
    let first = [(1, 1), (2, 2)].map(|(id, number)| send(&server, step(id, "+", number)));
    assert_eq!(first.iter().map(value).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(sees.recv().unwrap(), ["1", "1"]);
    for (flags, number, sum, row) in [("", 20, 22, "2"), ("", 30, 52, "3"), (".", 40, 92, "4")] {
        assert_eq!(value(&send(&server, step(2, flags, number))), sum);
        assert_eq!(sees.recv().unwrap(), [format!("({row})"), String::from(row)]);
    }
    assert_eq!(value(&send(&server, step(1, ".", 10))), 11);
    assert_eq!(sees.recv().unwrap(), ["2"]);
    wait_until_empty(&server);
}
