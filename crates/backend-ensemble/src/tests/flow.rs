//! The order, times and inputs of steps.

use std::time::{Duration, Instant};

use galatea_infer::{
    CorrelationId, ExecutionReadings, ExecutionTimes, InferenceRequest, Parameter, ParameterValue,
    SequenceFlags,
};
use galatea_tensor::Buffer;

use super::{TestEnsemble, contents, request};

const CHAIN: [&str; 2] = ["net 4 X > Y", "head 4 X > Y"];
const CHAIN_STEPS: [&str; 2] = ["head X=mid > Y=OUT", "net X=IN > Y=mid"];

fn chain() -> TestEnsemble {
    TestEnsemble::new("4 IN > OUT", &CHAIN, &CHAIN_STEPS, 0)
}

#[test]
fn a_chain_runs_one_after_another() {
    let ensemble = chain();
    let client = ensemble.send("IN=1");
    assert_eq!(ensemble.pending_requests(), ["net(X=1)"]);
    ensemble.complete("net", "Y=2");
    assert_eq!(ensemble.pending_requests(), ["head(X=2)"]);
    assert!(client.replies().is_empty());
    ensemble.complete("head", "Y=3");
    assert_eq!(client.replies(), ["OUT=3 end"]);
    assert_eq!(ensemble.successes(), 1);
}

#[test]
fn tensors_are_passed_on_without_a_copy() {
    let ensemble = chain();
    let request = request("IN=1", true);
    let given = request.inputs[0].data.host_bytes().unwrap().as_ptr();
    let client = ensemble.send_request(request);
    let net = ensemble.take("net");
    assert_eq!(net.request.inputs[0].data.host_bytes().unwrap().as_ptr(), given);
    let produced = contents(2);
    let address = produced.host_bytes().unwrap().as_ptr();
    let mut response = super::response(&net.request, "Y=0");
    response.outputs[0].data = produced;
    net.sender.send_final(Ok(response));
    let head = ensemble.take("head");
    assert_eq!(head.request.inputs[0].data.host_bytes().unwrap().as_ptr(), address);
    let mut response = super::response(&head.request, "Y=0");
    response.outputs[0].data = head.request.inputs[0].data.clone();
    head.sender.send_final(Ok(response));
    let response = client.response();
    assert_eq!(response.outputs[0].data.host_bytes().unwrap().as_ptr(), address);
    assert_eq!((&*response.model_name, response.model_version, &*response.id), ("E", 7, "r"));
}

/// A tensor that no later step needs is freed while the request continues.
#[test]
fn a_tensor_is_freed_when_the_last_step_has_read_it() {
    struct DropNotifier(std::sync::mpsc::Sender<()>, [u8; 4]);
    impl AsRef<[u8]> for DropNotifier {
        fn as_ref(&self) -> &[u8] {
            &self.1
        }
    }
    impl Drop for DropNotifier {
        fn drop(&mut self) {
            self.0.send(()).unwrap();
        }
    }
    let (dropped, notice) = std::sync::mpsc::channel();
    let ensemble = chain();
    let mut request = request("IN=1", true);
    let owner = DropNotifier(dropped, [0; 4]);
    request.inputs[0].data = Buffer::from_bytes(bytes::Bytes::from_owner(owner));
    let _client = ensemble.send_request(request);
    assert!(notice.try_recv().is_err());
    ensemble.complete("net", "Y=2");
    notice.try_recv().unwrap();
    assert_eq!(ensemble.pending_requests(), ["head(X=2)"]);
}

#[test]
fn steps_start_as_soon_as_all_their_inputs_are_there() {
    let ensemble = TestEnsemble::new(
        "4 IN > OUT IN2",
        &["a 4 X > Y", "b 4 X > Y", "c 4 A B C > Y"],
        &["c A=p B=q C=IN > Y=OUT", "a X=IN > Y=p", "b X=IN > Y=q", "a X=q > Y=IN2"],
        0,
    );
    let client = ensemble.send("IN=1");
    assert_eq!(ensemble.pending_requests(), ["a(X=1)", "b(X=1)"]);
    ensemble.complete("b", "Y=3");
    assert_eq!(ensemble.pending_requests(), ["a(X=1)", "a(X=3)"]);
    ensemble.complete("a", "Y=2");
    assert_eq!(ensemble.pending_requests(), ["a(X=3)", "c(A=2,B=3,C=1)"]);
    ensemble.complete("c", "Y=4");
    assert!(client.replies().is_empty());
    ensemble.complete("a", "Y=5");
    assert_eq!(client.replies(), ["OUT=4,IN2=5 end"]);
}

#[test]
fn one_tensor_may_be_several_inputs_and_an_output_too() {
    let ensemble = TestEnsemble::new(
        "4 IN > OUT mid",
        &["net 4 X > Y", "pair 4 A B > Y"],
        &["net X=IN > Y=mid", "pair A=mid B=mid > Y=OUT"],
        0,
    );
    let client = ensemble.send("IN=1");
    ensemble.complete("net", "Y=2");
    assert_eq!(ensemble.pending_requests(), ["pair(A=2,B=2)"]);
    ensemble.complete("pair", "Y=3");
    assert_eq!(client.replies(), ["OUT=3,mid=2 end"]);
}

#[test]
fn steps_that_no_wanted_output_needs_do_not_run() {
    let ensemble = TestEnsemble::new(
        "4 IN > A B",
        &["a 4 X > Y Z", "b 4 X > Y"],
        &["a X=IN > Y=A Z=more", "b X=more > Y=B"],
        0,
    );
    let only = |output: &str| InferenceRequest {
        outputs: vec![output.to_owned()],
        ..request("IN=1", true)
    };
    let client = ensemble.send_request(only("A"));
    assert_eq!(
        ensemble.take("a").request.outputs,
        ["Y", "Z"],
        "the call asks for all mapped outputs"
    );
    drop(client);
    let client = ensemble.send_request(only("A"));
    ensemble.complete("a", "Y=2 Z=3");
    assert_eq!(client.replies(), ["A=2 end"]);
    assert!(ensemble.pending_requests().is_empty());
    let client = ensemble.send_request(only("B"));
    ensemble.complete("a", "Y=2 Z=3");
    ensemble.complete("b", "Y=4");
    assert_eq!(client.replies(), ["B=4 end"]);
}

#[test]
fn omitted_tensors_are_not_passed_on() {
    let ensemble = TestEnsemble::new(
        "4 IN MORE? > OUT REST",
        &["net 4 X W? > Y Z", "head 4 X W? > Y"],
        &["net X=IN W=MORE > Y=mid Z=REST", "head X=mid W=REST > Y=OUT"],
        0,
    );
    let client = ensemble.send("IN=1");
    assert_eq!(ensemble.pending_requests(), ["net(X=1)"]);
    ensemble.complete("net", "Y=2");
    assert_eq!(ensemble.pending_requests(), ["head(X=2)"]);
    ensemble.complete("head", "Y=3");
    assert_eq!(client.replies(), ["OUT=3 end"]);
    let client = ensemble.send("IN=1 MORE=5");
    assert_eq!(ensemble.pending_requests(), ["net(W=5,X=1)"]);
    ensemble.complete("net", "Y=2 Z=6");
    assert_eq!(ensemble.pending_requests(), ["head(W=6,X=2)"]);
    ensemble.complete("head", "Y=3");
    assert_eq!(client.replies(), ["OUT=3,REST=6 end"]);
}

#[test]
// row: ENS-06
fn requests_do_not_wait_for_each_other() {
    let ensemble = chain();
    let first = ensemble.send("IN=1");
    let second = ensemble.send("IN=10");
    let (slow, quick) = (ensemble.take("net"), ensemble.take("net"));
    quick.complete("Y=20");
    ensemble.complete("head", "Y=30");
    assert_eq!((first.replies(), second.replies()), (vec![], vec!["OUT=30 end".to_owned()]));
    slow.complete("Y=2");
    ensemble.complete("head", "Y=3");
    assert_eq!(first.replies(), ["OUT=3 end"]);
}

fn sequence_request(id: CorrelationId, start: bool, end: bool) -> InferenceRequest {
    let sequence_flags = SequenceFlags { start, end };
    InferenceRequest { correlation_id: id, sequence_flags, ..request("IN=1", true) }
}

fn parameter(name: &str, value: ParameterValue) -> Parameter {
    Parameter { name: name.to_owned(), value }
}

fn sequence(id: ParameterValue, start: bool, end: bool) -> Vec<Parameter> {
    vec![
        parameter("sequence_id", id),
        parameter("sequence_start", ParameterValue::Bool(start)),
        parameter("sequence_end", ParameterValue::Bool(end)),
    ]
}

#[test]
// row: ENS-09
fn every_step_gets_the_properties_of_the_request() {
    let ensemble = chain();
    let with_all = InferenceRequest {
        parameters: vec![parameter("mode", ParameterValue::Int64(3))],
        priority: 2,
        timeout_microseconds: 5_000,
        ..sequence_request(CorrelationId::Number(9), true, false)
    };
    let client = ensemble.send_request(with_all);
    for model in ["net", "head"] {
        let call = ensemble.take(model);
        let request = &call.request;
        assert_eq!((request.id.as_str(), request.model_version), ("r", None));
        assert_eq!((request.priority, request.timeout_microseconds), (2, 5_000));
        assert_eq!(request.parameters, [parameter("mode", ParameterValue::Int64(3))]);
        assert_eq!(request.correlation_id, CorrelationId::Number(9));
        assert_eq!(request.sequence_flags, SequenceFlags { start: true, end: false });
        assert_eq!(request.outputs, ["Y"]);
        call.complete("Y=2");
    }
    let expected = sequence(ParameterValue::Int64(9), true, false);
    assert_eq!(*client.response().parameters, expected);
}

#[test]
fn a_step_may_change_the_sequence_of_the_next_steps() {
    let positions = |parameters: Vec<Parameter>| {
        let ensemble = chain();
        let client = ensemble.send_request(sequence_request(CorrelationId::Number(9), true, false));
        ensemble.take("net").complete_with("Y=2", parameters);
        let head = ensemble.take("head");
        let InferenceRequest { correlation_id, sequence_flags, .. } = head.request.clone();
        head.complete("Y=3");
        let SequenceFlags { start, end } = sequence_flags;
        (correlation_id, start, end, client.response().parameters.to_vec())
    };
    let own = CorrelationId::Number(9);
    let nine = ParameterValue::Int64(9);
    assert_eq!(
        positions(vec![parameter("other", ParameterValue::Bool(true))]),
        (own.clone(), true, false, sequence(nine.clone(), true, false))
    );
    // Flags that the response omits are cleared.
    assert_eq!(
        positions(vec![parameter("sequence_end", ParameterValue::Bool(true))]),
        (own.clone(), false, true, sequence(nine, false, true))
    );
    let text = ParameterValue::String(String::from("abc"));
    assert_eq!(
        positions(sequence(text.clone(), true, true)),
        (CorrelationId::Text(String::from("abc")), true, true, sequence(text, true, true))
    );
    assert_eq!(
        positions(sequence(ParameterValue::Int64(-1), true, false)).0,
        CorrelationId::Number(u64::MAX)
    );
    assert_eq!(positions(sequence(ParameterValue::Int64(0), false, false)).0, CorrelationId::None);
}

#[test]
fn an_output_that_no_step_made_is_left_out_and_logged() {
    let ensemble =
        TestEnsemble::new("4 IN > OUT MORE", &["net 4 X > Y Z"], &["net X=IN > Y=OUT Z=MORE"], 0);
    let client = ensemble.send("IN=1");
    ensemble.complete("net", "Y=2");
    assert_eq!(client.replies(), ["OUT=2 end"]);
    let log = ensemble.host.log.lock().unwrap();
    assert_eq!(*log, ["Composing models did not output tensor MORE"]);
}

#[test]
fn inputs_of_different_sequences_are_logged_and_the_first_one_counts() {
    let ensemble = TestEnsemble::new(
        "4 IN > OUT",
        &["a 4 X > Y", "b 4 X > Y", "c 4 A B > Y"],
        &["a X=IN > Y=p", "b X=IN > Y=q", "c A=p B=q > Y=OUT"],
        0,
    );
    let _client = ensemble.send("IN=1");
    let five = sequence(ParameterValue::Int64(5), false, false);
    ensemble.take("b").complete_with("Y=1", five);
    ensemble.take("a").complete_with("Y=1", sequence(ParameterValue::Int64(6), false, false));
    assert_eq!(ensemble.take("c").request.correlation_id, CorrelationId::Number(6));
    let log = ensemble.host.log.lock().unwrap();
    assert!(log[0].contains("step 2 (model 'c') of ensemble 'E'"), "{log:?}");
}

#[test]
fn durations_are_the_sums_of_the_steps() {
    let ensemble = chain();
    let client = ensemble.send("IN=1");
    let start = Instant::now();
    let times = |ms: u64| {
        let at = |n| start + Duration::from_millis(ms * n);
        ExecutionTimes::from(ExecutionReadings {
            start: at(0),
            compute_start: at(1),
            compute_end: at(3),
            end: at(6),
        })
    };
    for (model, ms) in [("net", 10), ("head", 100)] {
        let call = ensemble.take(model);
        call.request.execution_observer.as_ref().unwrap().executed(&(&times(ms)).into());
        call.complete("Y=1");
    }
    assert_eq!(client.replies().len(), 1);
    let ms = Duration::from_millis;
    let sums = [ms(110), ms(220), ms(330)];
    assert_eq!(*ensemble.host.batches.lock().unwrap(), [(1, sums)]);
    let execution = ensemble.host.successes.lock().unwrap()[0];
    assert_eq!([execution.input, execution.infer, execution.output], sums);
    assert!(execution.start <= start && execution.end >= start, "its own begin and end");
}
