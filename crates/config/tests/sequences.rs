//! Tests of sequence batching and ragged batches: specifications and defaults.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which the lint does not know as such")]

use std::collections::BTreeSet;

use galatea_config::{
    BatchInputKind, BatchInputSpec, BatchOutputSpec, ControlInputSpec, ControlKind, ControlValues,
    InitialState, ModelSpec, SchedulingChoice, SequenceBatching, SequenceStrategy, StateSpec,
    SupportedFeatures,
};
use galatea_pbtxt::parse_config_draft;
use galatea_tensor::DataType;

fn spec(text: &str) -> ModelSpec {
    let text = format!("backend: 'identity' {text}");
    let mut draft = parse_config_draft("config.pbtxt", &text).unwrap();
    draft.resolve_name_and_backend("example", &[]).unwrap();
    draft
        .into_validated_spec(&SupportedFeatures::default())
        .unwrap_or_else(|errors| panic!("{text}\n{errors:#}"))
}

fn sequences(text: &str) -> SequenceBatching {
    match spec(text).scheduling {
        SchedulingChoice::Sequence(batching) => batching,
        other => panic!("{text} is {other:?}"),
    }
}

fn strategy(max_batch_size: i32, text: &str) -> SequenceStrategy {
    sequences(&format!("max_batch_size: {max_batch_size} sequence_batching {{ {text} }}")).strategy
}

#[test]
// row: SEQ-01
fn the_default_strategy_is_direct() {
    assert_eq!(
        sequences("sequence_batching { }"),
        SequenceBatching {
            max_sequence_idle_microseconds: 1_000_000,
            strategy: SequenceStrategy::Direct {
                max_queue_delay_microseconds: 0,
                minimum_slot_utilization: 0.0,
            },
            controls: Vec::new(),
            states: Vec::new(),
            iterative: false,
        }
    );
    let said = "sequence_batching { max_sequence_idle_microseconds: 7 iterative_sequence: true }";
    let said = sequences(said);
    assert_eq!((said.max_sequence_idle_microseconds, said.iterative), (7, true));
}

#[test]
// row: SEQ-18
fn direct_accepts_utilizations_from_0_to_1() {
    for utilization in [0.0_f32, 0.5, 1.0] {
        let text = format!(
            "direct {{ max_queue_delay_microseconds: 9 minimum_slot_utilization: {utilization} }}"
        );
        let expected = SequenceStrategy::Direct {
            max_queue_delay_microseconds: 9,
            minimum_slot_utilization: utilization,
        };
        assert_eq!(strategy(4, &text), expected);
    }
}

#[test]
// row: SEQ-19
fn the_default_number_of_candidates_is_the_batch_size() {
    let oldest = |candidates: u32, sizes: &[u32]| SequenceStrategy::Oldest {
        max_candidate_sequences: candidates,
        preferred_batch_sizes: sizes.to_vec(),
        max_queue_delay_microseconds: 0,
        preserve_ordering: false,
    };
    assert_eq!(strategy(8, "oldest { }"), oldest(8, &[8]));
    assert_eq!(strategy(0, "oldest { }"), oldest(1, &[]));
    // As in Triton, only positive numbers count.
    assert_eq!(strategy(8, "oldest { max_candidate_sequences: -3 }"), oldest(8, &[8]));
    assert_eq!(
        strategy(
            8,
            "oldest { max_candidate_sequences: 20 preferred_batch_size: [ 8, 2 ] \
             max_queue_delay_microseconds: 5 preserve_ordering: true }"
        ),
        SequenceStrategy::Oldest {
            max_candidate_sequences: 20,
            preferred_batch_sizes: vec![8, 2],
            max_queue_delay_microseconds: 5,
            preserve_ordering: true,
        }
    );
}

#[test]
fn controls_have_the_bytes_of_their_values() {
    let spec = spec(
        "sequence_batching { control_input [ \
         { name: 'S' control { int32_false_true: [ -1, 258 ] } }, \
         { name: 'R' control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] } }, \
         { name: 'E' control { kind: CONTROL_SEQUENCE_END bool_false_true: [ true, false ] \
           data_type: TYPE_BOOL } }, \
         { name: 'C' control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } } ] }",
    );
    let values = |when_false: &[u8], when_true: &[u8]| ControlValues {
        when_false: when_false.to_vec(),
        when_true: when_true.to_vec(),
    };
    let control =
        |name: &str, datatype, kind| ControlInputSpec { name: name.to_owned(), datatype, kind };
    assert_eq!(
        spec.sequence_controls(),
        [
            control(
                "S",
                DataType::Int32,
                ControlKind::Start(values(&[0xff, 0xff, 0xff, 0xff], &[2, 1, 0, 0]))
            ),
            control(
                "R",
                DataType::Fp32,
                ControlKind::Ready(values(&[0, 0, 0, 0], &[0, 0, 0x80, 0x3f]))
            ),
            control("E", DataType::Bool, ControlKind::End(values(&[1], &[0]))),
            control("C", DataType::Bytes, ControlKind::CorrelationId),
        ]
    );
}

#[test]
fn correlation_ids_may_have_several_types() {
    for datatype in ["UINT64", "INT64", "UINT32", "INT32", "STRING"] {
        let spec = spec(&format!(
            "sequence_batching {{ control_input {{ name: 'C' control {{ \
             kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_{datatype} }} }} }}"
        ));
        assert_eq!(spec.sequence_controls()[0].datatype.config_name(), format!("TYPE_{datatype}"));
    }
}

#[test]
// row: IMP-04
fn states_have_initial_values() {
    let spec = spec(
        "max_batch_size: 2 output { name: 'B' data_type: TYPE_FP32 dims: [ 5 ] } \
         sequence_batching { state [ \
         { input_name: 'A' output_name: 'B' data_type: TYPE_FP32 dims: [ 2, -1 ] \
           use_same_buffer_for_input_output: true }, \
         { input_name: 'C' output_name: 'D' data_type: TYPE_STRING dims: [ -1 ] \
           initial_state { name: 'n' data_type: TYPE_STRING dims: 0 zero_data: false } }, \
         { input_name: 'E' output_name: 'F' data_type: TYPE_INT8 \
           initial_state { name: 'n' data_type: TYPE_INT8 data_file: 'sub/..data' } } ] }",
    );
    let state = |input: &str, output: &str, datatype, dims: &[i64], initial| StateSpec {
        input_name: input.to_owned(),
        output_name: output.to_owned(),
        datatype,
        dims: dims.to_vec(),
        initial,
        use_same_buffer_for_input_output: input == "A",
        is_growable: false,
    };
    let file = InitialState::File { dims: Vec::new(), file_name: "sub/..data".to_owned() };
    let expected = [
        state("A", "B", DataType::Fp32, &[2, -1], InitialState::Unspecified),
        state("C", "D", DataType::Bytes, &[-1], InitialState::Zero { dims: vec![0] }),
        state("E", "F", DataType::Int8, &[], file),
    ];
    assert_eq!(spec.sequence_states(), expected);
    assert_eq!(spec.state_for_output("D"), Some(&expected[1]));
    assert_eq!(spec.state_for_output("A"), None);
}

#[test]
fn other_schedulers_have_no_controls_and_states() {
    for text in ["", "max_batch_size: 2 dynamic_batching { }"] {
        let spec = spec(text);
        assert!(spec.sequence_controls().is_empty() && spec.sequence_states().is_empty());
        assert_eq!(spec.state_for_output("B"), None);
    }
}

#[test]
fn batch_inputs_of_every_kind_are_converted() {
    let kinds = [
        ("ELEMENT_COUNT", BatchInputKind::ElementCount),
        ("ACCUMULATED_ELEMENT_COUNT", BatchInputKind::AccumulatedElementCount),
        ("ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", BatchInputKind::AccumulatedElementCountWithZero),
        ("MAX_ELEMENT_COUNT_AS_SHAPE", BatchInputKind::MaxElementCountAsShape),
        ("ITEM_SHAPE", BatchInputKind::ItemShape),
        ("ITEM_SHAPE_FLATTEN", BatchInputKind::ItemShapeFlatten),
    ];
    for (name, kind) in kinds {
        let spec = spec(&format!(
            "max_batch_size: 2 \
             input {{ name: 'IN' data_type: TYPE_INT8 dims: -1 allow_ragged_batch: true }} \
             batch_input {{ kind: BATCH_{name} target_name: [ 'A', 'B' ] data_type: TYPE_FP32 \
             source_input: 'IN' }}"
        ));
        let expected = BatchInputSpec {
            kind,
            target_names: vec!["A".to_owned(), "B".to_owned()],
            datatype: DataType::Fp32,
            source_input: "IN".to_owned(),
        };
        assert_eq!(spec.batch_inputs, [expected]);
        assert!(spec.inputs[0].allow_ragged_batch);
    }
}

#[test]
fn batch_outputs_are_converted() {
    let spec = spec(
        "max_batch_size: 2 input { name: 'IN' data_type: TYPE_INT8 dims: [ -1, 2 ] \
         reshape { shape: [ -1, 1, 2 ] } } \
         output { name: 'X' data_type: TYPE_FP32 dims: [ -1 ] } \
         output { name: 'Y' data_type: TYPE_FP32 dims: [ 4, -1 ] reshape { shape: [ 4, 1, -1 ] } } \
         batch_output { target_name: [ 'X', 'Y' ] source_input: 'IN' }",
    );
    let expected = BatchOutputSpec {
        target_names: vec!["X".to_owned(), "Y".to_owned()],
        source_input: "IN".to_owned(),
    };
    assert_eq!(spec.batch_outputs, [expected]);
}

#[test]
fn decoupled_models_and_ordered_responses_are_accepted() {
    let spec = spec(
        "max_batch_size: 2 model_transaction_policy { decoupled: true } \
         dynamic_batching { preserve_ordering: true priority_levels: 1 default_priority_level: 1 \
           default_queue_policy { timeout_action: DELAY } }",
    );
    assert!(spec.decoupled);
    let SchedulingChoice::Dynamic(dynamic) = spec.scheduling else { panic!("not dynamic") };
    assert!(dynamic.preserve_ordering);
}

/// Tensors that a backend must not add for clients.
#[test]
fn names_of_controls_states_and_batch_inputs_are_reserved() {
    let names = |names: &[&str]| names.iter().map(|&n| n.to_owned()).collect::<BTreeSet<_>>();
    let text = "batch_input { target_name: [ 'T', 'U' ] } sequence_batching { \
                control_input { name: 'START' } control_input { name: 'END' } \
                state { input_name: 'A' output_name: 'B' } \
                state { input_name: 'C' output_name: 'D' } }";
    let draft = parse_config_draft("f", text).unwrap();
    assert_eq!(draft.hidden_input_names(), names(&["A", "C", "END", "START", "T", "U"]));
    assert_eq!(draft.hidden_output_names(), names(&["B", "D"]));
    let text = "batch_input { target_name: 'T' } dynamic_batching { }";
    let draft = parse_config_draft("f", text).unwrap();
    assert_eq!(draft.hidden_input_names(), names(&["T"]));
    assert!(draft.hidden_output_names().is_empty());
}
