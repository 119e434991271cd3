//! Converts the settings of the sequence batcher.

use galatea_protocol::inference::ModelSequenceBatching;
use galatea_protocol::inference::model_sequence_batching::control::Kind;
use galatea_protocol::inference::model_sequence_batching::initial_state::StateData;
use galatea_protocol::inference::model_sequence_batching::{
    Control, ControlInput, InitialState as InitialStateMessage, State, StrategyChoice,
    StrategyOldest,
};
use galatea_tensor::DataType;

use super::{datatype, indexed, unsigned};
use crate::spec::{
    ControlInputSpec, ControlKind, ControlValues, InitialState, SequenceBatching, SequenceStrategy,
    StateSpec,
};

pub(super) fn sequence_batching(
    message: &ModelSequenceBatching,
    max_batch_size: i32,
) -> Result<SequenceBatching, String> {
    const CONTROLS: &str = "sequence_batching.control_input";
    Ok(SequenceBatching {
        max_sequence_idle_microseconds: message.max_sequence_idle_microseconds,
        strategy: strategy(message.strategy_choice.as_ref(), max_batch_size)?,
        controls: indexed(&message.control_input, CONTROLS, control)?,
        states: indexed(&message.state, "sequence_batching.state", state)?,
        iterative: message.iterative_sequence,
    })
}

/// Converts the strategy, which defaults to direct with default settings.
fn strategy(
    choice: Option<&StrategyChoice>,
    max_batch_size: i32,
) -> Result<SequenceStrategy, String> {
    match choice {
        None => Ok(SequenceStrategy::Direct {
            max_queue_delay_microseconds: 0,
            minimum_slot_utilization: 0.0,
        }),
        Some(StrategyChoice::Direct(direct)) => Ok(SequenceStrategy::Direct {
            max_queue_delay_microseconds: direct.max_queue_delay_microseconds,
            minimum_slot_utilization: direct.minimum_slot_utilization,
        }),
        Some(StrategyChoice::Oldest(oldest)) => oldest_strategy(oldest, max_batch_size),
    }
}

fn oldest_strategy(
    message: &StrategyOldest,
    max_batch_size: i32,
) -> Result<SequenceStrategy, String> {
    const CANDIDATES: &str = "sequence_batching.oldest.max_candidate_sequences";
    const PREFERRED: &str = "sequence_batching.oldest.preferred_batch_size";
    // As in Triton, zero or a negative number selects the maximum batch size.
    let candidates = match message.max_candidate_sequences {
        positive @ 1.. => positive,
        _ => max_batch_size.max(1),
    };
    let sizes = message.preferred_batch_size.iter();
    Ok(SequenceStrategy::Oldest {
        max_candidate_sequences: unsigned(candidates, CANDIDATES)?,
        preferred_batch_sizes: sizes
            .map(|&size| unsigned(size, PREFERRED))
            .collect::<Result<_, _>>()?,
        max_queue_delay_microseconds: message.max_queue_delay_microseconds,
        preserve_ordering: message.preserve_ordering,
    })
}

fn control(message: &ControlInput) -> Result<ControlInputSpec, &'static str> {
    // A control input has one element per request, and therefore one kind.
    let [control] = message.control.as_slice() else { return Err("control") };
    let kind = Kind::try_from(control.kind).map_err(|_| "control[0].kind")?;
    let boolean = |of: fn(ControlValues) -> ControlKind| {
        let (datatype, values) = false_true(control).ok_or("control[0]")?;
        Ok((datatype, of(values)))
    };
    let (datatype, kind) = match kind {
        Kind::ControlSequenceStart => boolean(ControlKind::Start)?,
        Kind::ControlSequenceReady => boolean(ControlKind::Ready)?,
        Kind::ControlSequenceEnd => boolean(ControlKind::End)?,
        Kind::ControlSequenceCorrid => {
            let datatype = datatype(control.data_type).map_err(|_| "control[0].data_type")?;
            (datatype, ControlKind::CorrelationId)
        }
    };
    Ok(ControlInputSpec { name: message.name.clone(), datatype, kind })
}

/// The two values and their type, if exactly one pair is set.
fn false_true(control: &Control) -> Option<(DataType, ControlValues)> {
    let pair = |when_false: &[u8], when_true: &[u8]| ControlValues {
        when_false: when_false.to_vec(),
        when_true: when_true.to_vec(),
    };
    let Control { int32_false_true, fp32_false_true, bool_false_true, .. } = control;
    match (int32_false_true.as_slice(), fp32_false_true.as_slice(), bool_false_true.as_slice()) {
        ([no, yes], [], []) => Some((DataType::Int32, pair(&no.to_le_bytes(), &yes.to_le_bytes()))),
        ([], [no, yes], []) => Some((DataType::Fp32, pair(&no.to_le_bytes(), &yes.to_le_bytes()))),
        ([], [], [no, yes]) => Some((DataType::Bool, pair(&[u8::from(*no)], &[u8::from(*yes)]))),
        _ => None,
    }
}

fn state(message: &State) -> Result<StateSpec, &'static str> {
    Ok(StateSpec {
        input_name: message.input_name.clone(),
        output_name: message.output_name.clone(),
        datatype: datatype(message.data_type)?,
        dims: message.dims.clone(),
        initial: initial_state(&message.initial_state)?,
        use_same_buffer_for_input_output: message.use_same_buffer_for_input_output,
        // Only a persistent buffer can grow.
        is_growable: message.use_growable_memory && message.use_same_buffer_for_input_output,
    })
}

fn initial_state(messages: &[InitialStateMessage]) -> Result<InitialState, &'static str> {
    let message = match messages {
        [] => return Ok(InitialState::Unspecified),
        [one] => one,
        [_, _, ..] => return Err("initial_state"),
    };
    let dims = message.dims.clone();
    match &message.state_data {
        // As in Triton, only the presence of the field matters, not its value.
        Some(StateData::ZeroData(_)) => Ok(InitialState::Zero { dims }),
        Some(StateData::DataFile(file_name)) => {
            Ok(InitialState::File { dims, file_name: file_name.clone() })
        }
        None => Err("initial_state[0]"),
    }
}
