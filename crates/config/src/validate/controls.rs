//! Checks the sequence batcher's control inputs.

use std::collections::BTreeSet;

use galatea_protocol::inference::ModelSequenceBatching;
use galatea_protocol::inference::model_sequence_batching::control::Kind;
use galatea_protocol::inference::model_sequence_batching::{Control, ControlInput};
use galatea_tensor::DataType;

use galatea_config_message::{Diagnostic, Diagnostics, bounded};

/// The valid types of a correlation ID.
const CORRELATION_TYPES: [DataType; 5] =
    [DataType::Uint64, DataType::Int64, DataType::Uint32, DataType::Int32, DataType::Bytes];

/// The fields that may contain a control's two values.
const VALUES: &str = "'int32_false_true', 'fp32_false_true' or 'bool_false_true'";

pub(super) fn check(model: &str, batching: &ModelSequenceBatching, diagnostics: &mut Diagnostics) {
    let mut kinds = BTreeSet::new();
    for (index, input) in batching.control_input.iter().enumerate() {
        let path = bounded!("sequence_batching.control_input[{index}]");
        check_input(model, input, &path, diagnostics);
        for (index, control) in input.control.iter().enumerate() {
            let path = bounded!("{path}.control[{index}]");
            // The parsers accept no other number; the conversion reports any that occur.
            let Ok(kind) = Kind::try_from(control.kind) else { continue };
            if !kinds.insert(kind) {
                let text = bounded!(
                    "sequence batching specifies multiple {} tensors for {model}",
                    kind.as_str_name()
                );
                diagnostics.push(|| Diagnostic::at_poll(bounded!("{path}.kind"), text));
            }
            let control = ControlCheck { model, control, kind: kind.as_str_name(), path: &path };
            match kind {
                Kind::ControlSequenceStart
                | Kind::ControlSequenceReady
                | Kind::ControlSequenceEnd => control.check_boolean(diagnostics),
                Kind::ControlSequenceCorrid => control.check_correlation(diagnostics),
            }
        }
    }
}

/// Checks a control input, which has one element per request and therefore one control.
fn check_input(model: &str, input: &ControlInput, path: &str, diagnostics: &mut Diagnostics) {
    let name = input.name.escape_debug();
    if input.name.is_empty() {
        let text = bounded!("sequence batching control tensor must have a name for {model}");
        diagnostics.push(|| Diagnostic::at_poll(bounded!("{path}.name"), text));
    }
    if input.control.is_empty() {
        let text = bounded!(
            "sequence batching control tensor '{name}' must specify a 'control' for {model}"
        );
        diagnostics.push(|| Diagnostic::new_tolerated(bounded!("{path}.control"), text));
    }
    if input.control.len() > 1 {
        let text = bounded!(
            "sequence batching control tensor '{name}' has more than one 'control' for {model}"
        );
        diagnostics.push(|| Diagnostic {
            expected: Some("a control input for each".into()),
            ..Diagnostic::new_tolerated(bounded!("{path}.control[1]"), text)
        });
    }
}

/// One control and its names in diagnostics.
struct ControlCheck<'a> {
    model: &'a str,
    control: &'a Control,
    kind: &'static str,
    path: &'a str,
}

impl ControlCheck<'_> {
    /// The value fields, with their number of values and the type that each implies.
    fn values(&self) -> Vec<(&'static str, usize, DataType)> {
        let Control { int32_false_true, fp32_false_true, bool_false_true, .. } = self.control;
        let all = [
            ("int32_false_true", int32_false_true.len(), DataType::Int32),
            ("fp32_false_true", fp32_false_true.len(), DataType::Fp32),
            ("bool_false_true", bool_false_true.len(), DataType::Bool),
        ];
        all.into_iter().filter(|(_, count, _)| *count > 0).collect()
    }

    fn report(&self, field: &str, text: &str, diagnostics: &mut Diagnostics) {
        let separator = if field.is_empty() { "" } else { "." };
        let path = bounded!("{}{separator}{field}", self.path);
        let text = bounded!("{text} for {} for {}", self.kind, self.model);
        diagnostics.push(|| Diagnostic::at_poll(path, text));
    }

    fn check_boolean(&self, diagnostics: &mut Diagnostics) {
        let values = self.values();
        let (field, count, datatype) = match values.as_slice() {
            [] => {
                let text = bounded!("sequence batching must specify either {VALUES}");
                return self.report("", &text, diagnostics);
            }
            [one] => *one,
            [_, (field, ..), ..] => {
                let text = "sequence batching specifies more than one from 'int32_false_true', \
                            'fp32_false_true' and 'bool_false_true'";
                return self.report(field, text, diagnostics);
            }
        };
        if count != 2 {
            let text = bounded!("sequence batching control '{field}' must have exactly 2 entries");
            self.report(field, &text, diagnostics);
        }
        let given = self.control.data_type;
        if given != 0 && given != datatype.config_number() {
            let shown = DataType::from_config_number(given).map_or("", DataType::config_name);
            let text = bounded!(
                "data type {shown} contradicts '{field}' for {} for {}",
                self.kind,
                self.model
            );
            let path = bounded!("{}.data_type", self.path);
            diagnostics.push(|| Diagnostic::new_tolerated(path, text));
        }
    }

    fn check_correlation(&self, diagnostics: &mut Diagnostics) {
        for (field, ..) in self.values() {
            let text = bounded!("sequence batching must not specify either {VALUES}");
            self.report(field, &text, diagnostics);
        }
        let datatype = DataType::from_config_number(self.control.data_type);
        if datatype.is_none_or(|datatype| !CORRELATION_TYPES.contains(&datatype)) {
            let [most @ .., last] = CORRELATION_TYPES.map(DataType::config_name);
            let text = bounded!(
                "unexpected data type for control {} for {}. Allowed data types are {} and {last}",
                self.kind,
                self.model,
                most.join(", ")
            );
            diagnostics.push(|| Diagnostic::at_poll(bounded!("{}.data_type", self.path), text));
        }
    }
}
