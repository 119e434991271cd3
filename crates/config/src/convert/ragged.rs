//! Converts batch inputs and batch outputs.

use galatea_protocol::inference::{BatchInput, BatchOutput, batch_input, batch_output};

use super::datatype;
use crate::spec::{BatchInputKind, BatchInputSpec, BatchOutputSpec};

pub(super) fn batch_input(message: &BatchInput) -> Result<BatchInputSpec, &'static str> {
    use batch_input::Kind;
    let kind = match Kind::try_from(message.kind).map_err(|_| "kind")? {
        Kind::BatchElementCount => BatchInputKind::ElementCount,
        Kind::BatchAccumulatedElementCount => BatchInputKind::AccumulatedElementCount,
        Kind::BatchAccumulatedElementCountWithZero => {
            BatchInputKind::AccumulatedElementCountWithZero
        }
        Kind::BatchMaxElementCountAsShape => BatchInputKind::MaxElementCountAsShape,
        Kind::BatchItemShape => BatchInputKind::ItemShape,
        Kind::BatchItemShapeFlatten => BatchInputKind::ItemShapeFlatten,
    };
    Ok(BatchInputSpec {
        kind,
        target_names: message.target_name.clone(),
        datatype: datatype(message.data_type)?,
        source_input: only(&message.source_input)?,
    })
}

pub(super) fn batch_output(message: &BatchOutput) -> Result<BatchOutputSpec, &'static str> {
    match batch_output::Kind::try_from(message.kind).map_err(|_| "kind")? {
        batch_output::Kind::BatchScatterWithInputShape => {}
    }
    Ok(BatchOutputSpec {
        target_names: message.target_name.clone(),
        source_input: only(&message.source_input)?,
    })
}

/// Returns the only source: every kind has exactly one.
fn only(sources: &[String]) -> Result<String, &'static str> {
    match sources {
        [one] => Ok(one.clone()),
        _ => Err("source_input"),
    }
}
