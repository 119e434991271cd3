//! Tests of a batch's rows: slots, controls and padding.

use galatea_backend::ExecutionPolicy;
use galatea_infer::CorrelationId;
use galatea_tensor::{Buffer, Shape};

use crate::testing::sequences::{
    BLOCKING, DIRECT, Gate, OLDEST, ONE_INSTANCE, ScriptedBackend, TWO_INSTANCES, add, config,
    reply_with, step, value, wait_until_empty,
};
use crate::testing::{ServerSetup, send};

#[test]
// row: SEQ-15
fn slots_keep_their_rows_and_idle_ones_are_padding() {
    let (gate, backend) = Gate::with_backend(add);
    let server = ServerSetup::new(config(4, DIRECT, ONE_INSTANCE), backend).hold(3, 0).serve();
    let first: Vec<_> = [(7, 1), (8, 2), (9, 3)]
        .map(|(id, value)| send(&server, step(id, "+", value)))
        .into_iter()
        .collect();
    gate.check_and_open(&["1 1 0 7 1 0", "1 1 0 8 2 0", "1 1 0 9 3 0"]);
    assert_eq!(first.iter().map(value).collect::<Vec<_>>(), [1, 2, 3]);

    let last = send(&server, step(9, "", 30));
    gate.check_and_open(&["padding", "padding", "0 1 0 9 30 3"]);
    assert_eq!(value(&last), 33);

    // The next sequence gets the free slot, with its own state.
    let ends = send(&server, step(8, ".", 20));
    gate.check_and_open(&["padding", "0 1 1 8 20 2"]);
    assert_eq!(value(&ends), 22);
    let begins = send(&server, step(10, "+.", 5));
    gate.check_and_open(&["padding", "1 1 1 10 5 0"]);
    assert_eq!(value(&begins), 5);
    let goes_on = send(&server, step(7, ".", 10));
    gate.check_and_open(&["0 1 1 7 10 1"]);
    assert_eq!(value(&goes_on), 11);
}

#[test]
fn oldest_needs_no_padding() {
    let (gate, backend) = Gate::with_backend(add);
    let server = ServerSetup::new(config(4, OLDEST, ONE_INSTANCE), backend).hold(2, 0).serve();
    let first = [(7, 1), (8, 2)].map(|(id, value)| send(&server, step(id, "+", value)));
    gate.check_and_open(&["1 1 0 7 1 0", "1 1 0 8 2 0"]);
    assert_eq!(first.iter().map(value).collect::<Vec<_>>(), [1, 2]);
    let ends = send(&server, step(8, ".", 20));
    gate.check_and_open(&["0 1 1 8 20 2"]);
    assert_eq!(value(&ends), 22);
}

#[test]
// row: SEQ-03 SEQ-28
fn a_sequence_stays_with_its_instance() {
    let (gate, backend) = Gate::with_backend(add);
    let server = ServerSetup::new(config(1, DIRECT, TWO_INSTANCES), backend).serve();
    let first = send(&server, step(1, "+", 1));
    assert_eq!(gate.batch(), ["1 1 0 1 1 0"]);
    let second = send(&server, step(2, "+", 2));
    assert_eq!(gate.batch(), ["1 1 0 2 2 0"]);
    gate.open();
    gate.open();
    assert_eq!((value(&first), value(&second)), (1, 2));
    // Instance 0 is busy with its sequence, so the other sequence is executed immediately and a
    // third waits in the backlog.
    let third = send(&server, step(3, "+.", 3));
    let busy = send(&server, step(1, ".", 10));
    assert_eq!(gate.batch(), ["0 1 1 1 10 1"]);
    let other = send(&server, step(2, ".", 20));
    assert_eq!(gate.batch(), ["0 1 1 2 20 2"]);
    for _ in 0..3 {
        gate.open();
    }
    assert_eq!(gate.batch(), ["1 1 1 3 3 0"]);
    assert_eq!((value(&busy), value(&other), value(&third)), (11, 22, 3));
    wait_until_empty(&server);
}

#[test]
fn a_model_without_batches_gets_controls_without_a_batch_dimension() {
    let backend = ScriptedBackend::new(ExecutionPolicy::Blocking, |batch| {
        for request in batch {
            let content = request.request();
            for name in ["START", "READY", "END", "CORRID", "SUM_IN"] {
                assert_eq!(content.input(name).unwrap().shape.dims(), [1], "{name}");
            }
            reply_with(request, 1);
        }
        Ok(())
    });
    let server = ServerSetup::new(config(0, DIRECT, ONE_INSTANCE), backend).serve();
    let mut request = step(1, "+.", 1);
    request.inputs[0].shape = Shape::new(&[1]).unwrap();
    assert_eq!(value(&send(&server, request)), 1);
}

/// The correlation ID's bytes, for a model with a control of this type.
fn correlation_id(datatype: &'static str, id: CorrelationId) -> Vec<u8> {
    let text = config(4, DIRECT, ONE_INSTANCE).replace("TYPE_UINT64", datatype);
    let (seen, sees) = std::sync::mpsc::channel();
    let backend = ScriptedBackend::new(ExecutionPolicy::Inline, move |batch| {
        for request in batch {
            let input = request.request().input("CORRID").unwrap();
            assert_eq!(input.datatype.config_name(), datatype);
            assert_eq!(input.shape.dims(), [1, 1]);
            seen.send(input.data.host_bytes().unwrap().to_vec()).unwrap();
            reply_with(request, 1);
        }
        Ok(())
    });
    let server = ServerSetup::new(text, backend).serve();
    let mut request = step(1, "+.", 1);
    request.correlation_id = id;
    value(&send(&server, request));
    sees.recv().unwrap()
}

#[test]
fn correlation_ids_have_the_type_of_the_control() {
    let number = || CorrelationId::Number(0x0102_0304_0506_0708);
    let low = [8, 7, 6, 5, 4, 3, 2, 1];
    for datatype in ["TYPE_UINT64", "TYPE_INT64"] {
        assert_eq!(correlation_id(datatype, number()), low, "{datatype}");
    }
    for datatype in ["TYPE_UINT32", "TYPE_INT32"] {
        assert_eq!(correlation_id(datatype, number()), low[..4], "{datatype}");
    }
    let text = CorrelationId::Text(String::from("grün"));
    assert_eq!(correlation_id("TYPE_STRING", text), b"\x05\0\0\0gr\xc3\xbcn");
}

#[test]
fn padding_has_an_empty_string_as_correlation_id() {
    let (seen, sees) = std::sync::mpsc::channel();
    let backend = ScriptedBackend::new(ExecutionPolicy::Blocking, move |batch| {
        let ids = batch.iter().map(|request| {
            request.request().input("CORRID").unwrap().data.host_bytes().unwrap().to_vec()
        });
        seen.send(ids.collect::<Vec<_>>()).unwrap();
        batch.into_iter().for_each(add);
        Ok(())
    });
    let text = config(4, DIRECT, ONE_INSTANCE).replace("TYPE_UINT64", "TYPE_STRING");
    let server = ServerSetup::new(text, backend).hold(2, 0).serve();
    let named = |id: &str, flags, value| {
        let mut request = step(1, flags, value);
        request.correlation_id = CorrelationId::Text(String::from(id));
        send(&server, request)
    };
    let first = [named("a", "+", 1), named("b", "+", 2)];
    assert_eq!(sees.recv().unwrap(), [b"\x01\0\0\0a", b"\x01\0\0\0b"]);
    assert_eq!(first.iter().map(value).collect::<Vec<_>>(), [1, 2]);
    let second = named("b", ".", 3);
    assert_eq!(sees.recv().unwrap(), [b"\0\0\0\0".to_vec(), b"\x01\0\0\0b".to_vec()]);
    assert_eq!(value(&second), 5);
}

#[test]
fn a_slot_whose_request_has_another_shape_is_padding() {
    let text = config(4, DIRECT, ONE_INSTANCE).replace(
        "name: \"IN\" data_type: TYPE_INT32 dims: [ 1 ]",
        "name: \"IN\" data_type: TYPE_INT32 dims: [ -1 ]",
    );
    let (gate, backend) = Gate::with_backend(add);
    let server = ServerSetup::new(text.clone(), backend).hold(3, 0).serve();
    let wide = |id, value: i32| {
        let mut request = step(id, "+.", value);
        request.inputs[0].shape = Shape::new(&[1, 2]).unwrap();
        request.inputs[0].data = Buffer::from_vec([value.to_le_bytes(), [0; 4]].concat());
        request
    };
    let all =
        [step(1, "+.", 1), wide(2, 2), step(3, "+.", 3)].map(|request| send(&server, request));
    gate.check_and_open(&["1 1 1 1 1 0", "padding", "1 1 1 3 3 0"]);
    gate.check_and_open(&["padding", "1 1 1 2 2 0"]);
    assert_eq!(all.iter().map(value).collect::<Vec<_>>(), [1, 2, 3]);

    // The exception is a model that accepts different shapes in one batch.
    let ragged = text.replace("dims: [ -1 ]", "dims: [ -1 ] allow_ragged_batch: true");
    let (gate, backend) = Gate::with_backend(add);
    let server = ServerSetup::new(ragged, backend).hold(2, 0).serve();
    let all = [step(1, "+.", 1), wide(2, 2)].map(|request| send(&server, request));
    gate.check_and_open(&["1 1 1 1 1 0", "1 1 1 2 2 0"]);
    assert_eq!(all.iter().map(value).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn padding_is_not_counted_as_a_request() {
    let text = config(4, DIRECT, ONE_INSTANCE);
    let server = ServerSetup::new(text, ScriptedBackend::summing(BLOCKING)).hold(2, 0).serve();
    let first = [send(&server, step(1, "+", 1)), send(&server, step(2, "+", 2))];
    assert_eq!(first.iter().map(value).collect::<Vec<_>>(), [1, 2]);
    value(&send(&server, step(2, ".", 3)));
    let statistics = &server.statistics(None, None).unwrap()[0];
    assert_eq!((statistics.inference_count, statistics.inference.success.count), (3, 3));
    assert_eq!((statistics.pending, statistics.failures), (0, [0; 4]));
}
