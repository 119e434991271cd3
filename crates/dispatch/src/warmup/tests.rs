//! The samples that instances execute before their model serves.

use std::sync::{Arc, Mutex};

use galatea_backend::{ExecutionPolicy, LogLevel};
use galatea_infer::{PendingRequest, Status};
use galatea_tensor::DataType;

use crate::LogSink;
use crate::testing::sequences::{BLOCKING, OLDEST, ScriptedBackend, add, config, reply_with, row};
use crate::testing::{ECHO, FakeBackend, FakeModelFiles, ServerSetup, echo_request, send};

const INLINE: ExecutionPolicy = ExecutionPolicy::Inline;

type Seen = Arc<Mutex<Vec<String>>>;

/// A backend that records the type, shape and bytes of each batch's inputs.
fn recording() -> (FakeBackend, Seen) {
    let seen = Seen::default();
    let notes = seen.clone();
    let backend = FakeBackend::with_action(INLINE, move |batch| {
        let batch: Vec<String> = batch.iter().map(inputs).collect();
        notes.lock().unwrap().push(batch.join(" | "));
        Ok(())
    });
    (backend, seen)
}

fn inputs(request: &PendingRequest) -> String {
    let inputs = request.request().inputs.iter().map(|input| {
        let bytes = input.data.host_bytes().unwrap().to_vec();
        format!("{} {} {} {bytes:?}", input.name, input.datatype, input.shape)
    });
    inputs.collect::<Vec<String>>().join(", ")
}

fn files(warmup: &[(&'static str, &[u8])]) -> Vec<FakeModelFiles> {
    let warmup = warmup.iter().map(|(name, bytes)| (*name, bytes.to_vec())).collect();
    vec![FakeModelFiles { version: 1, warmup, ..FakeModelFiles::default() }]
}

/// The batches that a model with these samples executes during loading.
#[track_caller]
fn executed(text: &str, warmup: &[(&'static str, &[u8])]) -> Vec<String> {
    let (backend, seen) = recording();
    let _server = ServerSetup::new(text, backend).files(files(warmup)).serve();
    let seen = seen.lock().unwrap();
    seen.clone()
}

fn input(name: &str, rest: &str) -> String {
    format!("inputs {{ key: '{name}' value {{ {rest} }} }}")
}

#[test]
// row: WARM-02
fn samples_are_executed_in_order_and_repeated() {
    let fp32 = input("IN", "data_type: TYPE_FP32 dims: 1 zero_data: true");
    let sample = |settings: &str| format!("model_warmup {{ {settings} {fp32} }}");
    let one = "IN FP32 [1,1] [0, 0, 0, 0]";
    let two = format!("{one} | {one}");
    let text = format!(
        "{ECHO} {} {} {} {}",
        sample("name: 'twice' batch_size: 1 count: 2"),
        sample("name: 'skipped' count: 7"),
        sample("name: 'pair' batch_size: 2"),
        sample("name: 'last' batch_size: 1 count: 0"),
    );
    assert_eq!(executed(&text, &[]), [one, one, two.as_str(), one]);
    let instances = format!("{text} instance_group {{ count: 3 }}");
    assert_eq!(executed(&instances, &[]).len(), 12, "each instance executes each sample");
    let passive = format!("{instances} instance_group {{ count: 2 passive: true }}");
    assert_eq!(executed(&passive, &[]).len(), 12, "but for those that never serve");
}

#[test]
// row: WARM-01 WARM-02
fn tensors_are_zero_random_or_from_files() {
    let model = |max_batch_size: u32, datatype: &str| {
        format!(
            "name: 'echo' backend: 'fake' max_batch_size: {max_batch_size}
             input {{ name: 'IN' data_type: {datatype} dims: [ -1 ] }}
             output {{ name: 'OUT' data_type: {datatype} dims: [ -1 ] }}"
        )
    };
    let check = |max_batch_size, datatype: &str, content: &str, expected: &str| {
        let tensor = input("IN", &format!("data_type: {datatype} dims: 2 {content}"));
        let text = format!(
            "{} model_warmup {{ name: 's' batch_size: 1 {tensor} }}",
            model(max_batch_size, datatype)
        );
        let warmup: [(&str, &[u8]); 2] =
            [("numbers", &[1, 0, 2, 0, 9, 9]), ("texts", b"\x01\0\0\0a\0\0\0\0")];
        assert_eq!(executed(&text, &warmup), [expected], "{content}");
    };
    check(1, "TYPE_INT16", "zero_data: false", "IN INT16 [1,2] [0, 0, 0, 0]");
    check(0, "TYPE_INT16", "zero_data: true", "IN INT16 [2] [0, 0, 0, 0]");
    check(0, "TYPE_STRING", "zero_data: true", "IN BYTES [2] [0, 0, 0, 0, 0, 0, 0, 0]");
    check(0, "TYPE_STRING", "random_data: true", "IN BYTES [2] [0, 0, 0, 0, 0, 0, 0, 0]");
    // The file is longer than the tensor.
    check(0, "TYPE_INT16", "input_data_file: 'numbers'", "IN INT16 [2] [1, 0, 2, 0]");
    check(
        0,
        "TYPE_STRING",
        "input_data_file: 'texts'",
        "IN BYTES [2] [1, 0, 0, 0, 97, 0, 0, 0, 0]",
    );
    let random = |datatype: &str| {
        let tensor = input("IN", &format!("data_type: {datatype} dims: 64 random_data: true"));
        let text =
            format!("{} model_warmup {{ name: 's' batch_size: 1 {tensor} }}", model(0, datatype));
        executed(&text, &[]).remove(0)
    };
    assert_eq!(random("TYPE_UINT8"), random("TYPE_UINT8"), "chance is the same with each load");
    let bytes = random("TYPE_UINT8");
    let bytes = bytes.rsplit('[').next().unwrap().trim_end_matches(']');
    let different: std::collections::BTreeSet<&str> = bytes.split(", ").collect();
    assert!(different.len() > 32, "{bytes}");
    let booleans = random("TYPE_BOOL");
    let booleans = booleans.rsplit('[').next().unwrap().trim_end_matches(']');
    assert!(booleans.split(", ").all(|one| one == "0" || one == "1"), "{booleans}");
    assert!(booleans.contains('0') && booleans.contains('1'), "{booleans}");
}

#[test]
fn a_reshaped_input_is_reshaped_as_for_clients() {
    let text = "name: 'echo' backend: 'fake' max_batch_size: 2
         input { name: 'IN' data_type: TYPE_INT8 dims: [ 4 ] reshape { shape: [ 2, 2 ] } }
         output { name: 'OUT' data_type: TYPE_INT8 dims: [ 4 ] }
         model_warmup { name: 's' batch_size: 1
           inputs { key: 'IN' value { data_type: TYPE_INT8 dims: 4 zero_data: true } } }";
    assert_eq!(executed(text, &[]), ["IN INT8 [1,2,2] [0, 0, 0, 0]"]);
}

/// The error from loading a model with this sample.
#[track_caller]
fn refused(text: &str, backend: FakeBackend, warmup: &[(&'static str, &[u8])]) -> String {
    let (server, failures) = ServerSetup::new(text, backend).files(files(warmup)).load();
    assert!(server.find("echo", Some(1)).is_err());
    let [failure] = &failures[..] else { panic!("{failures:?}") };
    String::from(failure.status.message())
}

#[test]
fn an_invalid_sample_fails_the_load() {
    let check = |tensor: &str, place: &str, expected: &str| {
        let text = format!("{ECHO} model_warmup {{ name: 's' batch_size: 1 {tensor} }}");
        let (backend, seen) = recording();
        let reason = refused(&text, backend, &[("short", &[0; 7]), ("text", b"a")]);
        assert!(reason.starts_with(place), "{reason}");
        assert!(reason.contains(expected), "{reason}");
        assert!(seen.lock().unwrap().is_empty(), "nothing was executed");
    };
    // As in Triton, an error with one of Triton's own messages doesn't name the sample; other
    // errors do.
    let (sample, request) = ("failed to run warmup sample 's': ", "[request id: <id_unknown>] ");
    check("", request, "missing required input(s) ['IN']");
    check(
        &input("IN", "data_type: TYPE_FP64 dims: 1 zero_data: true"),
        request,
        "inference input 'IN' data-type is 'FP64', but model 'echo' expects 'FP32'",
    );
    check(
        &input("IN", "data_type: TYPE_FP32 dims: [ 1, 1 ] zero_data: true"),
        request,
        "unexpected shape for input 'IN'",
    );
    let file = |name: &str| {
        input("IN", &format!("data_type: TYPE_FP32 dims: 2 input_data_file: '{name}'"))
    };
    check(&file("absent"), "no file 'absent'", "");
    let short = "warmup setting expects 8 bytes, but the data provided from shortonly has 7 bytes";
    check(&file("short"), request, short);
    check(
        &input("IN", "data_type: TYPE_FP32 dims: [ 9000000000000000 ] random_data: true"),
        sample,
        "is larger than memory",
    );
}

const SAMPLE: &str = "model_warmup { name: 's' batch_size: 2 count: 3
    inputs { key: 'IN' value { data_type: TYPE_FP32 dims: 1 zero_data: true } } }";

#[test]
fn an_error_of_the_backend_fails_the_load() {
    let text = format!("{ECHO} {SAMPLE}");
    let calls = Arc::new(Mutex::new(0));
    let counted = calls.clone();
    let backend = FakeBackend::with_action(INLINE, move |_| {
        *counted.lock().unwrap() += 1;
        Err(Status::internal("no luck"))
    });
    let reason = refused(&text, backend, &[]);
    assert_eq!(reason, "failed to run warmup sample 's': no luck; no luck");
    assert_eq!(*calls.lock().unwrap(), 1, "the first failure is the last");
    let backend = FakeBackend::with_action(INLINE, |_| panic!("a planted panic"));
    let reason = refused(&text, backend, &[]);
    assert_eq!(reason, "the instance panicked while it was warmed up");
}

#[test]
fn warmup_is_counted_and_logged() {
    let lines = Seen::default();
    let written = lines.clone();
    let log = LogSink::new(move |level, _, line| {
        if level == LogLevel::Verbose(1) {
            written.lock().unwrap().push(line.to_string());
        }
    });
    let text = format!("{ECHO} {SAMPLE} model_warmup {{ name: 'none' }}");
    let server = ServerSetup::new(text, FakeBackend::new(INLINE)).log(log).serve();
    let statistics = || server.statistics(Some("echo"), None).unwrap().remove(0);
    assert_eq!((statistics().inference_count, statistics().execution_count), (6, 3));
    assert_eq!(statistics().inference.success.count, 6);
    send(&server, echo_request(&[1, 1])).recv().unwrap().unwrap();
    assert_eq!((statistics().inference_count, statistics().execution_count), (7, 4));
    let lines = lines.lock().unwrap();
    let of = |part: &str| lines.iter().filter(|line| line.contains(part)).count();
    assert_eq!(of("skipping batch 0 warmup sample 'none'"), 1);
    for iteration in 1..=3 {
        let line = format!(
            "model 'echo' instance echo_0 is running warmup sample 's' for iteration {iteration}"
        );
        assert_eq!(of(&line), 1, "{lines:?}");
    }
}

/// The rows that a sequence model receives from these samples.
fn rows(batching: &str, samples: &str) -> Vec<String> {
    let seen = Seen::default();
    let notes = seen.clone();
    let backend = ScriptedBackend::new(BLOCKING, move |batch| {
        let rows: Vec<String> = batch.iter().map(row).collect();
        notes.lock().unwrap().push(rows.join(" | "));
        batch.into_iter().for_each(add);
        Ok(())
    });
    let text = format!("{} {samples}", config(2, batching, "instance_group { count: 1 }"));
    let _server = ServerSetup::new(text, backend).serve();
    let seen = seen.lock().unwrap();
    seen.clone()
}

fn int32(name: &str) -> String {
    input(name, "data_type: TYPE_INT32 dims: 1 input_data_file: 'seven'")
}

#[test]
// row: WARM-04
fn controls_and_states_are_those_of_a_new_sequence_unless_the_sample_replaces_them() {
    let zero = input("IN", "data_type: TYPE_INT32 dims: 1 zero_data: true");
    let sample = |inputs: &str| {
        format!("model_warmup {{ name: 's' batch_size: 2 count: 2 {zero} {inputs} }}")
    };
    let own = "1 1 1 0 0 0 | 1 1 1 0 0 0";
    assert_eq!(rows(OLDEST, &sample("")), [own, own]);
    let given = |name: &str, datatype: &str| {
        input(name, &format!("data_type: {datatype} dims: 1 zero_data: true"))
    };
    let controls = [
        given("START", "TYPE_INT32"),
        given("END", "TYPE_INT32"),
        given("CORRID", "TYPE_UINT64"),
        given("SUM_IN", "TYPE_INT32"),
    ];
    let given = "0 1 0 0 0 0 | 0 1 0 0 0 0";
    assert_eq!(rows(OLDEST, &sample(&controls.concat())), [given, given]);
}

#[test]
fn a_sample_may_replace_a_state() {
    let seen = Seen::default();
    let notes = seen.clone();
    let backend = ScriptedBackend::new(BLOCKING, move |batch| {
        notes.lock().unwrap().extend(batch.iter().map(row));
        batch.into_iter().for_each(add);
        Ok(())
    });
    let samples =
        format!("model_warmup {{ name: 's' batch_size: 1 {} {} }}", int32("IN"), int32("SUM_IN"));
    let text = format!("{} {samples}", config(2, OLDEST, "instance_group { count: 1 }"));
    let files = files(&[("seven", &[7, 0, 0, 0])]);
    let _server = ServerSetup::new(text, backend).files(files).serve();
    assert_eq!(*seen.lock().unwrap(), ["1 1 1 0 7 7"]);
}

#[test]
fn a_control_of_another_type_or_shape_fails_the_load() {
    let zero = input("IN", "data_type: TYPE_INT32 dims: 1 zero_data: true");
    for (wrong, expected) in [
        ("data_type: TYPE_FP32 dims: 1", "input 'START' is FP32 with dims [1], but"),
        ("data_type: TYPE_INT32 dims: 2", "input 'START' is INT32 with dims [2], but"),
    ] {
        let start = input("START", &format!("{wrong} zero_data: true"));
        let text = format!(
            "{} model_warmup {{ name: 's' batch_size: 1 {zero} {start} }}",
            config(2, OLDEST, "")
        );
        let (_, failures) = ServerSetup::new(text, ScriptedBackend::summing(BLOCKING)).load();
        let reason = failures[0].status.message();
        assert!(reason.contains(expected), "{reason}");
    }
}

#[test]
fn rescheduled_requests_are_executed_again() {
    let seen = Seen::default();
    let notes = seen.clone();
    let backend = ScriptedBackend::new(BLOCKING, move |batch| {
        let rows: Vec<String> = batch.iter().map(row).collect();
        notes.lock().unwrap().push(rows.join(" | "));
        let alone = batch.len() == 1;
        for (index, mut request) in batch.into_iter().enumerate() {
            if index == 0 && alone {
                reply_with(request, 0);
                continue;
            }
            let next = i32::try_from(index).unwrap() + 5;
            let input = request.request().input("SUM_IN").unwrap();
            let (shape, datatype) = (input.shape.clone(), input.datatype);
            assert_eq!(datatype, DataType::Int32);
            let data = crate::testing::sequences::bytes(next);
            request.update_state("SUM_OUT", shape, data).unwrap();
            if index == 0 {
                reply_with(request, 0);
            } else {
                request.reschedule().unwrap();
            }
        }
        Ok(())
    });
    let iterative = "iterative_sequence: true oldest { }";
    let sample = format!(
        "model_warmup {{ name: 's' batch_size: 2 {} }}",
        input("IN", "data_type: TYPE_INT32 dims: 1 zero_data: true")
    );
    let text = format!("{} {sample}", config(2, iterative, "instance_group { count: 1 }"));
    let _server = ServerSetup::new(text, backend).serve();
    assert_eq!(*seen.lock().unwrap(), ["1 1 0 1 0 0 | 1 1 0 1 0 0", "0 1 0 1 0 6"]);
}
