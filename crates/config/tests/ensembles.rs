//! Tests of ensembles: their specifications and the checks of their composing models.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which the lint does not know as such")]

use std::collections::BTreeMap;
use std::sync::Arc;

use galatea_config::{
    ComposingModel, ConfigErrors, EnsembleScheduling, EnsembleStep, ModelSpec, SupportedFeatures,
    validate_ensemble,
};
use galatea_pbtxt::parse_config_draft;

fn parse(name: &str, text: &str) -> ModelSpec {
    let mut draft = parse_config_draft("config.pbtxt", text).unwrap();
    draft.resolve_name_and_backend(name, &[]).unwrap();
    draft
        .into_validated_spec(&SupportedFeatures::default())
        .unwrap_or_else(|errors| panic!("{text}\n{errors:#}"))
}

/// Parses tensors such as `NAME TYPE DIMS, …`, each of which may end with `?` for optional or
/// `=> DIMS` for a reshape.
fn tensors(side: &str, text: &str) -> String {
    let tensor = |text: &str| {
        let (text, optional) = match text.strip_suffix('?') {
            Some(text) => (text, "optional: true"),
            None => (text, ""),
        };
        let (text, reshape) = match text.split_once("=>") {
            Some((text, dims)) => (text, format!("reshape {{ shape: [{dims}] }}")),
            None => (text, String::new()),
        };
        let mut words = text.splitn(3, ' ');
        let mut word = || words.next().unwrap();
        let (name, datatype, dims) = (word(), word(), word());
        format!(
            "{side} {{ name: '{name}' data_type: TYPE_{datatype} dims: [{dims}] {reshape} \
             {optional} }}\n"
        )
    };
    text.split("; ").map(tensor).collect()
}

/// Creates a composing model from `batch | inputs | outputs | rest`.
fn model(name: &str, text: &str) -> Arc<ModelSpec> {
    let mut parts = text.splitn(4, " | ");
    let mut part = || parts.next().unwrap_or_default();
    let (batch, inputs, outputs, rest) = (part(), part(), part(), part());
    let text = format!(
        "backend: 'identity' max_batch_size: {batch} {} {} {rest}",
        tensors("input", inputs),
        tensors("output", outputs)
    );
    Arc::new(parse(name, &text))
}

/// Creates an ensemble with steps such as `MODEL IN=tensor … > OUT=tensor …`.
fn ensemble(head: &str, steps: &[&str]) -> ModelSpec {
    let mut parts = head.splitn(4, " | ");
    let mut part = || parts.next().unwrap_or_default();
    let (batch, inputs, outputs, rest) = (part(), part(), part(), part());
    let map = |field: &str, text: &str| -> String {
        let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
        pairs.map(|(key, value)| format!("{field} {{ key: '{key}' value: '{value}' }} ")).collect()
    };
    let step = |text: &&str| {
        let (inputs, outputs) = text.split_once(" > ").unwrap();
        let (model, inputs) = inputs.split_once(' ').unwrap();
        format!(
            "step {{ model_name: '{model}' model_version: -1 {} {} }}\n",
            map("input_map", inputs),
            map("output_map", outputs)
        )
    };
    let text = format!(
        "platform: 'ensemble' max_batch_size: {batch} {} {} {rest} ensemble_scheduling {{ {} }}",
        tensors("input", inputs),
        tensors("output", outputs),
        steps.iter().map(step).collect::<String>()
    );
    parse("E", &text)
}

/// The composing models used in the tests.
fn models() -> BTreeMap<&'static str, Arc<ModelSpec>> {
    let texts = [
        ("net", "4 | X FP32 3 | Y FP32 5"),
        ("head", "8 | X FP32 -1 | Y INT32 1"),
        ("whole", "0 | X FP32 -1, 5 | Y INT32 -1, 1"),
        ("plain", "0 | X FP32 3 | Y FP32 5"),
        ("choosy", "4 | X FP32 3; W FP32 3? | Y FP32 5"),
        ("pair", "4 | A FP32 5; B FP32 5 | Y FP32 5"),
        ("flat", "4 | X FP32 6=>2, 3 | Y FP32 6=>2, 3"),
        ("stream", "4 | X FP32 3 | Y FP32 5 | model_transaction_policy { decoupled: true }"),
        ("stream_on", "4 | X FP32 5 | Y FP32 5 | model_transaction_policy { decoupled: true }"),
    ];
    texts.into_iter().map(|(name, text)| (name, model(name, text))).collect()
}

fn composing(spec: &Arc<ModelSpec>) -> ComposingModel {
    ComposingModel { id: spec.name.clone(), spec: spec.clone() }
}

fn validate(ensemble: &mut ModelSpec) -> Result<(), ConfigErrors> {
    let models = models();
    validate_ensemble("E", ensemble, |name| models.get(name).map(composing))
}

#[track_caller]
fn check_fits(head: &str, steps: &[&str], decoupled: bool) {
    let mut ensemble = ensemble(head, steps);
    validate(&mut ensemble).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(ensemble.decoupled, decoupled);
    let shown = format!("\"model_transaction_policy\":{{\"decoupled\":{decoupled}}}");
    assert!(ensemble.to_json().contains(&shown), "{}", ensemble.to_json());
}

#[track_caller]
fn check_refused(head: &str, steps: &[&str], expected: &[&str]) {
    let mut ensemble = ensemble(head, steps);
    let errors = validate(&mut ensemble).unwrap_err();
    let found: Vec<String> = errors.diagnostics.iter().map(ToString::to_string).collect();
    assert_eq!(found, expected);
}

const CHAIN: &str = "4 | IN FP32 3 | OUT INT32 1";

#[test]
// row: ENS-02
fn an_ensemble_has_steps_and_no_instances() {
    let text = "platform: 'ensemble'
        input { name: 'IN' data_type: TYPE_FP32 dims: [ 1 ] }
        output { name: 'OUT' data_type: TYPE_FP32 dims: [ 1 ] }
        ensemble_scheduling {
          max_inflight_requests: 7
          step [
            { model_name: 'a' model_version: -1 model_namespace: 'n'
              input_map { key: 'X' value: 'IN' } output_map { key: 'Y' value: 'mid' } },
            { model_name: 'b' model_version: 3
              input_map { key: 'X' value: 'mid' } output_map { key: 'Y' value: 'OUT' } } ] }";
    let spec = parse("E", text);
    let map = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    let step = |model: &str, model_version, input: &str, output: &str| EnsembleStep {
        model_name: model.to_owned(),
        model_version,
        input_map: map("X", input),
        output_map: map("Y", output),
    };
    let steps = vec![step("a", None, "IN", "mid"), step("b", Some(3), "mid", "OUT")];
    assert_eq!(spec.ensemble(), Some(&EnsembleScheduling { steps, max_inflight_requests: 7 }));
    assert!(spec.instance_groups.is_empty() && spec.backend.is_empty());
    assert!(spec.to_json().contains("\"model_namespace\":\"\""));
}

/// The expected text was recorded from a Triton version that did not have `max_inflight_requests`
/// yet.
#[test]
// row: ENS-01
fn an_ensemble_is_printed_as_in_triton() {
    let mut spec = ensemble(
        "4 | IN FP32 -1 | OUT FP32 -1",
        &["id8 INPUT0=IN > OUTPUT0=mid", "id8 INPUT0=mid > OUTPUT0=OUT"],
    );
    let id8 = model("id8", "8 | INPUT0 FP32 -1 | OUTPUT0 FP32 -1");
    validate_ensemble("E", &mut spec, |_| Some(composing(&id8))).unwrap();
    let shown = spec.to_json().replace(",\"max_inflight_requests\":0", "");
    assert_eq!(
        shown,
        r#"{"name":"E","platform":"ensemble","backend":"","runtime":"","version_policy":{"latest":{"num_versions":1}},"max_batch_size":4,"input":[{"name":"IN","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[-1],"is_shape_tensor":false,"allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false}],"output":[{"name":"OUT","data_type":"TYPE_FP32","dims":[-1],"label_filename":"","is_shape_tensor":false,"is_non_linear_format_io":false}],"batch_input":[],"batch_output":[],"ensemble_scheduling":{"step":[{"model_name":"id8","model_version":-1,"input_map":{"INPUT0":"IN"},"output_map":{"OUTPUT0":"mid"},"model_namespace":""},{"model_name":"id8","model_version":-1,"input_map":{"INPUT0":"mid"},"output_map":{"OUTPUT0":"OUT"},"model_namespace":""}]},"instance_group":[],"default_model_filename":"","cc_model_filenames":{},"metric_tags":{},"parameters":{},"model_warmup":[],"model_transaction_policy":{"decoupled":false}}"#
    );
}

#[test]
fn fitting_models_are_accepted() {
    check_fits(CHAIN, &["net X=IN > Y=mid", "head X=mid > Y=OUT"], false);
    // The order of the steps is irrelevant.
    check_fits(CHAIN, &["head X=mid > Y=OUT", "net X=IN > Y=mid"], false);
    // A batch may be one tensor of a model without batching.
    check_fits(CHAIN, &["net X=IN > Y=mid", "whole X=mid > Y=OUT"], false);
    check_fits("0 | IN FP32 3 | OUT INT32 1", &["net X=IN > Y=mid", "head X=mid > Y=OUT"], false);
    check_fits("0 | IN FP32 3 | OUT FP32 5", &["plain X=IN > Y=OUT"], false);
    // An optional input may be unmapped.
    check_fits("4 | IN FP32 3 | OUT FP32 5", &["choosy X=IN > Y=OUT"], false);
    check_fits("4 | IN FP32 3; W FP32 3? | OUT FP32 5", &["choosy X=IN W=W > Y=OUT"], false);
    // One tensor may feed several inputs and also be an output.
    check_fits(
        "4 | IN FP32 3 | OUT FP32 5; mid FP32 5",
        &["net X=IN > Y=mid", "pair A=mid B=mid > Y=OUT"],
        false,
    );
    // Composing models see the ensemble's reshape.
    check_fits("4 | IN FP32 2, 3=>6 | OUT FP32 2, 3=>6", &["flat X=IN > Y=OUT"], false);
}

#[test]
fn the_decoupled_setting_of_an_ensemble_is_ignored() {
    let said = "model_transaction_policy { decoupled: true }";
    let head = format!("{CHAIN} | {said}");
    check_fits(&head, &["net X=IN > Y=mid", "head X=mid > Y=OUT"], false);
    check_fits(CHAIN, &["stream X=IN > Y=mid", "head X=mid > Y=OUT"], true);
}

/// Triton refuses the first three, because it pairs only the first of several responses with a
/// single response.
#[test]
fn responses_of_a_decoupled_model_may_be_combined_with_single_responses() {
    check_fits(
        "4 | IN FP32 3 | OUT FP32 5",
        &["stream X=IN > Y=a", "net X=IN > Y=b", "pair A=a B=b > Y=OUT"],
        true,
    );
    check_fits(
        "4 | IN FP32 3 | A FP32 5; B FP32 5",
        &["stream X=IN > Y=A", "net X=IN > Y=B"],
        true,
    );
    check_fits(
        "4 | IN FP32 3; S FP32 5 | OUT FP32 5",
        &["stream X=IN > Y=a", "pair A=a B=S > Y=OUT"],
        true,
    );
    check_fits("4 | IN FP32 3 | OUT FP32 5", &["stream X=IN > Y=a", "stream_on X=a > Y=OUT"], true);
}

#[test]
fn responses_of_different_decoupled_models_can_not_be_combined() {
    let text = "ensemble_scheduling.step[2].input_map: in ensemble E, step of model 'E' receives \
                inputs originated from different decoupled models";
    // The error names the first step with the tensor in question.
    check_refused(
        "4 | IN FP32 3 | OUT FP32 5",
        &["stream X=IN > Y=a", "stream X=IN > Y=b", "pair A=a B=b > Y=c", "stream_on X=c > Y=OUT"],
        &[&text.replace("'E'", "'pair'")],
    );
    check_refused(
        "4 | IN FP32 3 | OUT FP32 5",
        &["stream X=IN > Y=a", "stream X=IN > Y=b", "pair A=a B=b > Y=OUT"],
        &[text],
    );
    check_refused(
        "4 | IN FP32 3 | OUT FP32 5",
        &["stream X=IN > Y=a", "stream_on X=a > Y=b", "pair A=a B=b > Y=OUT"],
        &[text],
    );
    check_refused(
        "4 | IN FP32 3 | A FP32 5; B FP32 5",
        &["stream X=IN > Y=A", "stream X=IN > Y=B"],
        &[
            "output: in ensemble E, step of model 'E' receives inputs originated from different decoupled \
           models",
        ],
    );
}

#[test]
fn a_decoupled_ensemble_does_not_use_the_cache() {
    let head = format!("{CHAIN} | response_cache {{ enable: true }}");
    let caches = |first: &str| {
        let mut ensemble = ensemble(&head, &[first, "head X=mid > Y=OUT"]);
        validate(&mut ensemble).unwrap();
        let shown = ensemble.to_json().contains("\"response_cache\":{\"enable\":true}");
        assert!(shown, "{}", ensemble.to_json());
        ensemble.response_cache
    };
    assert!(caches("net X=IN > Y=mid"));
    assert!(!caches("stream X=IN > Y=mid"));
}

#[test]
fn missing_models_are_reported() {
    check_refused(
        CHAIN,
        &["net X=IN > Y=mid", "tail X=mid > Y=OUT"],
        &["ensemble_scheduling.step[1].model_name: ensemble E contains models that are not \
           available or ambiguous: tail"],
    );
}

#[test]
fn missing_tensors_are_reported() {
    check_refused(
        CHAIN,
        &["net Z=IN > Y=mid", "head X=mid > Z=OUT"],
        &[
            "ensemble_scheduling.step[0].input_map[\"Z\"]: in ensemble E, ensemble tensor IN is \
             mapping to non-existing input Z in model net",
            "ensemble_scheduling.step[0].input_map: in ensemble E, input X in model net is not \
             mapped to any ensemble tensors",
            "ensemble_scheduling.step[1].output_map[\"Z\"]: in ensemble E, ensemble tensor OUT is \
             mapped from non-existing output Z in model head",
        ],
    );
}

/// Clients see the first mismatch: input mappings come before their tensors, and inputs before
/// outputs.
#[test]
// row: ENS-07
fn mismatches_are_reported_in_the_order_of_triton() {
    let mut ensemble = ensemble(
        "4 | IN INT32 3 | OUT INT32 5; OUT2 FP32 5",
        &["pair A=IN Z=IN > W=w Y=OUT", "net X=w > Y=OUT2"],
    );
    let errors = validate(&mut ensemble).unwrap_err();
    let found: Vec<&str> = errors.diagnostics.iter().map(|found| &*found.path).collect();
    let step = "ensemble_scheduling.step[0]";
    let expected = ["input_map[\"Z\"]", "input_map[\"A\"]", "input_map", "output_map[\"W\"]"];
    assert_eq!(found[..4], expected.map(|field| format!("{step}.{field}")));
    assert_eq!(found[4], format!("{step}.output_map[\"Y\"]"));
}

#[test]
fn models_are_named_with_their_namespaces() {
    let mut ensemble = ensemble("4 | IN INT32 3 | OUT FP32 5", &["net X=IN > Y=OUT"]);
    let models = models();
    let errors = validate_ensemble("b::E", &mut ensemble, |name| {
        Some(ComposingModel { id: format!("a::{name}"), spec: models.get(name)?.clone() })
    });
    let expected = "in ensemble b::E, ensemble tensor IN: inconsistent data type: TYPE_INT32 is \
                    inferred from model b::E while TYPE_FP32 is inferred from model a::net";
    assert_eq!(errors.unwrap_err().first_message(), expected);
}

#[test]
fn too_large_batches_are_reported() {
    check_refused(
        "8 | IN FP32 3 | OUT INT32 1",
        &["net X=IN > Y=mid", "head X=mid > Y=OUT"],
        &[
            "ensemble_scheduling.step[0].model_name: ensemble E allows maximum batch size 8, but it \
           contains model net which only allows maximum batch size to be 4",
        ],
    );
}

#[test]
fn different_types_and_shapes_are_reported() {
    check_refused(
        "4 | IN FP32 7 | OUT FP32 1",
        &["net X=IN > Y=mid", "head X=mid > Y=OUT"],
        &[
            "ensemble_scheduling.step[0].input_map[\"X\"]: in ensemble E, ensemble tensor IN: \
             inconsistent shape: [-1,7] is inferred from model E while [-1,3] is inferred from \
             model net",
            "ensemble_scheduling.step[1].output_map[\"Y\"]: in ensemble E, ensemble tensor OUT: \
             inconsistent data type: TYPE_FP32 is inferred from model E while TYPE_INT32 is \
             inferred from model head",
        ],
    );
    check_refused(
        "4 | IN FP32 3 | OUT FP32 5",
        &["net X=IN > Y=mid", "net X=mid > Y=OUT"],
        &["ensemble_scheduling.step[1].input_map[\"X\"]: in ensemble E, ensemble tensor mid: \
           inconsistent shape: [-1,5] is inferred from model net while [-1,3] is inferred from \
           model net"],
    );
    // A shape without its batch dimension is different.
    check_refused(
        "0 | IN FP32 2, 3 | OUT FP32 2, 5",
        &["plain X=IN > Y=OUT"],
        &[
            "ensemble_scheduling.step[0].input_map[\"X\"]: in ensemble E, ensemble tensor IN: \
             inconsistent shape: [2,3] is inferred from model E while [3] is inferred from model \
             plain",
            "ensemble_scheduling.step[0].output_map[\"Y\"]: in ensemble E, ensemble tensor OUT: \
             inconsistent shape: [2,5] is inferred from model E while [5] is inferred from model \
             plain",
        ],
    );
}

/// Triton loads such an ensemble and runs the step over and over.
#[test]
fn an_input_that_a_step_makes_is_remarked() {
    let spec = ensemble("4 | IN FP32 3 | OUT FP32 5", &["net X=IN > Y=OUT", "net X=OUT > Y=IN"]);
    let inputs = |name: &str| spec.input(name).is_some();
    assert_eq!(spec.ensemble().unwrap().input_produced_by_step(inputs), Some(("IN", 1)));
    let remarks = spec.ignored_setting_warnings();
    let [remark] = remarks.as_slice() else { panic!("{remarks:?}") };
    assert!(remark.starts_with("model 'E': config.pbtxt:"), "{remark}");
    let expected = "ensemble tensor 'IN' is an input of ensemble 'E' and is made by step 1 as \
                    well, so that requests fail";
    assert!(remark.ends_with(expected), "{remark}");
}

/// Errors about composing models also have a position in the file.
#[test]
fn mismatches_have_a_position() {
    let text = "platform: 'ensemble'
        input { name: 'IN' data_type: TYPE_FP32 dims: [ 3 ] }
        output { name: 'OUT' data_type: TYPE_FP32 dims: [ 5 ] }
        ensemble_scheduling { step { model_name: 'plain'
          input_map { key: 'Z' value: 'IN' }
          output_map { key: 'Y' value: 'OUT' } } }";
    let mut draft = parse_config_draft("config.pbtxt", text).unwrap();
    draft.resolve_name_and_backend("E", &[]).unwrap();
    let mut ensemble = draft.clone().into_validated_spec(&SupportedFeatures::default()).unwrap();
    let errors = draft.add_error_positions(validate(&mut ensemble).unwrap_err());
    let lines: Vec<_> =
        errors.diagnostics.iter().map(|found| found.position.unwrap().line).collect();
    assert_eq!(lines, [5, 5]);
}

#[test]
fn other_models_are_not_checked() {
    let mut plain = ModelSpec::clone(&models()["stream"]);
    validate_ensemble("stream", &mut plain, |_| panic!("it needs no other model")).unwrap();
    assert!(plain.decoupled);
}

/// Returns the errors of an ensemble whose step N produces tensor N and consumes tensor `takes(N)`.
fn check_steps(count: usize, takes: impl Fn(usize) -> usize) -> Vec<String> {
    let mut text = String::from(
        "platform: 'ensemble' input { name: 'IN' data_type: TYPE_FP32 dims: 1 }
         output { name: 't0' data_type: TYPE_FP32 dims: 1 } ensemble_scheduling {",
    );
    for index in 0..count {
        text += &format!(
            "step {{ model_name: 'm' input_map {{ key: 'X' value: 't{}' }} \
             input_map {{ key: 'W' value: 'IN' }} output_map {{ key: 'Y' value: 't{index}' }} }}\n",
            takes(index)
        );
    }
    let mut draft = parse_config_draft("f", &(text + "}")).unwrap();
    draft.resolve_name_and_backend("E", &[]).unwrap();
    let errors = draft.into_validated_spec(&SupportedFeatures::default()).err();
    let found = errors.into_iter().flat_map(|errors| errors.diagnostics);
    found.map(|diagnostic| diagnostic.message.to_string()).collect()
}

/// Stack use and time grow linearly with the size of the ensemble.
#[test]
fn many_steps_are_checked() {
    let count = 10_000;
    let found = check_steps(count, |index| (index + 1) % count);
    let first = ["m"; 11].join(" -> ");
    let expected = format!(
        "step 0 of ensemble 'E', model 'm', waits for itself: {first} -> (9979 more steps) -> \
         {first}"
    );
    assert_eq!(found, [String::from("output 't0' for ensemble 'E' is not written"), expected]);
    // Each step waits for the next; the last waits for a tensor that has no producer.
    let found = check_steps(count, |index| index + 1);
    assert_eq!(
        found,
        [
            "output 't0' for ensemble 'E' is not written: at least one of its depending tensors, \
             't10000', is not connected",
            "ensemble tensor 't10000' is unused in ensemble 'E': no step makes it and it is no \
             input of the ensemble"
        ]
    );
}
