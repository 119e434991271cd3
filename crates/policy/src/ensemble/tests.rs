use super::*;

fn tensors(letters: &str) -> Vec<EnsembleTensorIndex> {
    letters.bytes().map(|letter| EnsembleTensorIndex(u32::from(letter - b'a'))).collect()
}

/// Parses `inputs > steps > outputs`. A step is `ab:c`, followed by `*` if it is decoupled.
fn spec(text: &str) -> EnsembleSpec {
    let parts: Vec<&str> = text.split('>').map(str::trim).collect();
    let step = |text: &str| {
        let decoupled = text.ends_with('*');
        let (inputs, outputs) = text.trim_end_matches('*').split_once(':').expect("in:out");
        EnsembleStepSpec { inputs: tensors(inputs), outputs: tensors(outputs), decoupled }
    };
    EnsembleSpec {
        tensors: 26,
        inputs: tensors(parts[0]),
        steps: parts[1].split_whitespace().map(step).collect(),
        outputs: tensors(parts[2]),
    }
}

fn letter(index: EnsembleTensorIndex) -> char {
    char::from(b'a' + u8::try_from(index.0).unwrap())
}

fn render(action: &EnsembleAction<String>) -> String {
    let value = |contents: &Option<String>| contents.clone().unwrap_or_else(|| "-".to_owned());
    match action {
        EnsembleAction::Start { call, step, inputs } => {
            let inputs: Vec<String> = inputs.iter().map(value).collect();
            format!("{}=step{}({})", call.0, step.0, inputs.join(","))
        }
        EnsembleAction::CancelCall(call) => format!("cancel {}", call.0),
        EnsembleAction::Respond { outputs } => {
            let outputs: Vec<String> = outputs
                .iter()
                .map(|(index, contents)| format!("{}:{}", letter(*index), value(contents)))
                .collect();
            format!("respond {}", outputs.join(","))
        }
        EnsembleAction::Fail(failure) => format!("fail {failure:?}"),
        EnsembleAction::Finished => "over".to_owned(),
    }
}

/// Runs one operation per line: `begin abc want d` (capitals are omitted), `0 c d` (call 0 responds
/// with these tensors), `end 0`, `fault 0` (an error before the end), `fail 0` or `cancel`.
#[track_caller]
fn check(ensemble: &str, script: &str) {
    let graph = EnsembleGraph::new(&spec(ensemble)).unwrap();
    let mut run: Option<EnsembleRun<String>> = None;
    let mut responses = 0;
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (input, expected) = line.split_once("->").expect("event -> actions");
        let input: Vec<&str> = input.split_whitespace().collect();
        let mut out = Vec::new();
        let call = |text: &str| StepCallKey(text.parse().expect("a call"));
        match input.as_slice() {
            ["begin", inputs, "want", wanted] => {
                let input = |letter: char| {
                    let index = tensors(&letter.to_lowercase().to_string())[0];
                    (index, letter.is_lowercase().then(|| letter.to_string()))
                };
                let inputs = inputs.chars().map(input).collect();
                run = Some(EnsembleRun::begin(&graph, inputs, tensors(wanted), &mut out));
            }
            ["end", text] => run.as_mut().unwrap().call_finished(&graph, call(text), &mut out),
            ["fault", text] => {
                run.as_mut().unwrap().call_responded_with_error(&graph, call(text), &mut out)
            }
            ["pending", count] => {
                assert_eq!(
                    run.as_ref().unwrap().pending_decoupled_responses().to_string(),
                    *count,
                    "{line}"
                );
            }
            ["fail", text] => run.as_mut().unwrap().call_failed(&graph, call(text), &mut out),
            ["cancel"] => run.as_mut().unwrap().cancel(&graph, &mut out),
            [text, outputs @ ..] => {
                responses += 1;
                let outputs = outputs
                    .iter()
                    .map(|letter| (tensors(letter)[0], format!("{letter}{responses}")))
                    .collect();
                run.as_mut().unwrap().call_responded(&graph, call(text), outputs, &mut out);
            }
            [] => panic!("an event"),
        }
        let done: Vec<String> = out.iter().map(render).collect();
        assert_eq!(done.join("; "), expected.trim(), "in line {line:?}");
    }
}

#[test]
fn a_chain_runs_one_after_another() {
    check(
        "a > b:c a:b > c",
        "begin a want c -> 0=step1(a)
         0 b -> 1=step0(b1)
         end 0 ->
         1 c -> respond c:c2
         end 1 -> over",
    );
}

#[test]
fn steps_fan_out_and_join() {
    check(
        "a > a:b a:c bca:d > d",
        "begin a want d -> 0=step0(a); 1=step1(a)
         1 c ->
         end 1 ->
         0 b -> 2=step2(b2,c1,a)
         end 0 ->
         2 d -> respond d:d3
         end 2 -> over",
    );
}

#[test]
fn a_step_without_requested_outputs_does_not_run() {
    check(
        "a > a:b b:c a:d > cd",
        "begin a want d -> 0=step2(a)
         0 d -> respond d:d1
         end 0 -> over",
    );
}

#[test]
fn an_omitted_tensor_is_passed_on_as_omitted() {
    check(
        "ab > ab:cd cd:e > e",
        "begin aB want e -> 0=step0(a,-)
         0 d -> 1=step1(-,d1)
         end 0 ->
         1 -> respond e:-
         end 1 -> over",
    );
}

#[test]
fn each_response_of_a_decoupled_step_is_a_wave() {
    check(
        "ax > a:b* bx:c x:d > cd",
        "begin ax want cd -> 0=step0(a); 1=step2(x)
         0 b -> 2=step1(b1,x)
         0 b -> 3=step1(b2,x)
         3 c ->
         1 d -> respond c:c3,d:d4
         end 3 ->
         end 1 ->
         end 0 ->
         2 c -> respond c:c5,d:d4
         end 2 -> over",
    );
}

#[test]
fn only_a_decoupled_step_may_have_no_response() {
    check(
        "a > a:b* b:c > c",
        "begin a want c -> 0=step0(a)
         end 0 -> over",
    );
    check(
        "a > a:b b:c > c",
        "begin a want c -> 0=step0(a)
         end 0 -> fail Deadlock; over",
    );
}

#[test]
fn a_failing_step_fails_the_request_at_once() {
    check(
        "a > a:b a:c bc:d > d",
        "begin a want d -> 0=step0(a); 1=step1(a)
         fail 1 -> fail Step(StepCallKey(1)); cancel 0
         0 b ->
         end 0 -> over",
    );
}

#[test]
fn an_error_before_the_end_fails_the_request_and_keeps_the_call() {
    check(
        "a > a:b* a:d bd:c > c",
        "begin a want c -> 0=step0(a); 1=step1(a)
         fault 0 -> fail Step(StepCallKey(0)); cancel 0; cancel 1
         0 b ->
         fault 0 ->
         end 0 ->
         end 1 -> over",
    );
}

#[test]
fn waves_are_pending_until_every_step_has_used_them() {
    check(
        "a > a:b* a:d bd:c b:e ec:f > f",
        "begin a want f -> 0=step0(a); 1=step1(a)
         pending 0 ->
         0 b -> 2=step3(b1)
         0 b -> 3=step3(b2)
         pending 2 ->
         1 d -> 4=step2(b1,d3); 5=step2(b2,d3)
         pending 0 ->
         2 e ->
         pending 1 ->
         fail 4 -> fail Step(StepCallKey(4)); cancel 0; cancel 1; cancel 2; cancel 3; cancel 5
         pending 0 ->",
    );
}

#[test]
fn cancelling_cancels_the_calls() {
    check(
        "a > a:b b:c > c",
        "begin a want c -> 0=step0(a)
         cancel -> fail Cancelled; cancel 0
         cancel ->
         fail 0 -> over",
    );
}

#[test]
fn invalid_ensembles_are_refused() {
    let error = |text| EnsembleGraph::new(&spec(text)).unwrap_err();
    let tensor = |letter: &str| tensors(letter)[0];
    assert_eq!(error("a > b:c > c"), EnsembleGraphError::NotProduced(tensor("b")));
    assert_eq!(error("a > a:b > c"), EnsembleGraphError::NotProduced(tensor("c")));
    assert_eq!(error("a > a:b a:b > b"), EnsembleGraphError::ProducedTwice(tensor("b")));
    assert_eq!(error("a > a:a > a"), EnsembleGraphError::ProducedTwice(tensor("a")));
    assert_eq!(error("a > ac:b b:c > b"), EnsembleGraphError::Cycle(StepIndex(0)));
    assert_eq!(error("a > a:b* a:c* bc:d > d"), EnsembleGraphError::MixedWaves(StepIndex(2)));
    assert_eq!(error("a > a:b* a:c* > bc"), EnsembleGraphError::MixedOutputWaves);
    assert_eq!(error("a > :b > b"), EnsembleGraphError::NoInputs(StepIndex(0)));
}

#[test]
fn a_decoupled_step_behind_another_numbers_its_own_waves() {
    check(
        "a > a:b* b:c* c:d > d",
        "begin a want d -> 0=step0(a)
         0 b -> 1=step1(b1)
         0 b -> 2=step1(b2)
         2 c -> 3=step2(c3)
         1 c -> 4=step2(c4)
         1 c -> 5=step2(c5)
         end 0 ->
         end 1 ->
         end 2 ->
         5 d -> respond d:d6
         end 5 ->
         4 d -> respond d:d7
         end 4 ->
         end 3 -> over",
    );
}

#[test]
fn gates_start_calls_up_to_the_limit_and_hold_back_a_congested_step() {
    let graph = EnsembleGraph::new(&spec("a > a:b b:c > c")).unwrap();
    let (fast, slow) = (StepIndex(0), StepIndex(1));
    let mut gates = StepConcurrencyLimiter::new(&graph, 2);
    let mut started = Vec::new();
    let mut enter = |gates: &mut StepConcurrencyLimiter<u32>, step, call| {
        started.clear();
        gates.enter(step, call, &mut started);
        started.clone()
    };
    assert_eq!(enter(&mut gates, fast, 1), [1]);
    assert_eq!(enter(&mut gates, fast, 2), [2]);
    assert_eq!(enter(&mut gates, fast, 3), []);
    // Two calls run in the slow step, and two wait for it.
    assert_eq!(enter(&mut gates, slow, 11), [11]);
    assert_eq!(enter(&mut gates, slow, 12), [12]);
    assert_eq!(enter(&mut gates, slow, 13), []);
    assert!(!gates.is_congested(fast));
    assert_eq!(enter(&mut gates, slow, 14), []);
    assert!(gates.is_congested(fast));
    let mut started = Vec::new();
    gates.leave(fast, &mut started);
    assert_eq!(started, [], "the fast step has room, the slow one has not");
    gates.leave(slow, &mut started);
    assert_eq!(started, [13, 3]);
    assert_eq!((gates.started_count(slow), gates.waiting_count(slow)), (2, 1));
    let mut withdrawn = Vec::new();
    gates.remove_waiting(slow, |call| *call == 14, &mut withdrawn, &mut started);
    assert_eq!((gates.waiting_count(slow), withdrawn), (0, vec![14]));
    assert_eq!(started, [13, 3]);
}
