//! Checks sequence states and their initial values.

use galatea_protocol::inference::model_sequence_batching::initial_state::StateData;
use galatea_protocol::inference::model_sequence_batching::{InitialState, State};
use galatea_protocol::inference::{ModelConfig, ModelSequenceBatching};
use galatea_tensor::DataType;

use super::identity::is_path_beneath;
use super::tensors::{ANY, fixed_runs};
use galatea_config_message::{BoundedText, Diagnostic, Diagnostics, TritonDetectionStage, bounded};

pub(super) fn check(
    config: &ModelConfig,
    batching: &ModelSequenceBatching,
    diagnostics: &mut Diagnostics,
) {
    for (index, state) in batching.state.iter().enumerate() {
        let path = bounded!("sequence_batching.state[{index}]");
        let mut check = StateCheck { config, state, path, diagnostics };
        check.check_tensor();
        check.check_dims();
        if let [_, _, ..] = state.initial_state.as_slice() {
            let text = bounded!(
                "must contain exactly one or zero element of 'initial_state', found {}",
                state.initial_state.len()
            );
            check.report("initial_state[1]", &text);
        }
        if let Some(initial) = state.initial_state.first() {
            check.check_initial(initial);
        }
    }
}

/// One state and its path.
struct StateCheck<'a> {
    config: &'a ModelConfig,
    state: &'a State,
    path: BoundedText,
    diagnostics: &'a mut Diagnostics,
}

impl StateCheck<'_> {
    fn report(&mut self, field: &str, text: &str) {
        let diagnostic = self.about(field, text);
        self.diagnostics.push(|| diagnostic);
    }

    fn report_text(&mut self, field: &str, text: BoundedText) {
        let path = bounded!("{}.{field}", self.path);
        self.diagnostics.push(|| Diagnostic::about(path, text));
    }

    /// Reports a mistake that makes the state useless. Triton detects no such mistake.
    fn report_useless(&mut self, field: &str, text: &str) {
        let diagnostic =
            Diagnostic { stage: TritonDetectionStage::Never, ..self.about(field, text) };
        self.diagnostics.push(|| diagnostic);
    }

    fn about(&self, field: &str, text: &str) -> Diagnostic {
        let name = self.state.input_name.escape_debug();
        let subject = if self.state.input_name.is_empty() {
            "state input".into()
        } else {
            bounded!("state input '{name}'")
        };
        let text = bounded!("{subject} {text} for {}", self.config.name);
        Diagnostic::about(bounded!("{}.{field}", self.path), text)
    }

    fn check_tensor(&mut self) {
        if self.state.input_name.is_empty() {
            self.report_useless("input_name", "must specify 'input_name'");
        }
        if self.state.output_name.is_empty() {
            self.report_useless("output_name", "must specify 'output_name'");
        }
        if DataType::from_config_number(self.state.data_type).is_none() {
            self.report_useless("data_type", "must specify 'data_type'");
        }
        let mut outputs = self.config.output.iter();
        let output = outputs.find(|output| output.name == self.state.output_name);
        let other = output.filter(|output| output.data_type != self.state.data_type);
        let types = [Some(self.state.data_type), other.map(|output| output.data_type)];
        let types = types.map(|number| number.and_then(DataType::from_config_number));
        if let [Some(state), Some(output)] = types {
            let text = bounded!(
                "has data type {}, but the output '{}' has {}",
                state.config_name(),
                self.state.output_name.escape_debug(),
                output.config_name()
            );
            self.report_useless("data_type", &text);
        }
    }

    fn check_dims(&mut self) {
        // With batching, a state may be a scalar: one element per request.
        if self.state.dims.is_empty() && self.config.max_batch_size == 0 {
            self.report_useless("dims", "must specify 'dims'");
        }
        for (index, dim) in self.state.dims.iter().enumerate() {
            if *dim < 1 && *dim != ANY {
                let text =
                    "dimension must be integer >= 1, or -1 to indicate a variable-size dimension";
                self.report_useless(&bounded!("dims[{index}]"), text);
            }
        }
        if !fits(self.state.data_type, &self.state.dims) {
            self.report_useless("dims", "has more elements than any tensor can have");
        }
    }

    fn check_initial(&mut self, initial: &InitialState) {
        if initial.data_type != self.state.data_type {
            let text = "has an 'initial_state' whose data type does not match the state's";
            self.report("initial_state[0].data_type", text);
        }
        if initial.name.is_empty() {
            let text = bounded!(
                "Field 'name' must be set when using initial_state for state input '{}'.",
                self.state.input_name.escape_debug()
            );
            self.report_text("initial_state[0].name", text);
        }
        self.check_initial_dims(initial);
        match &initial.state_data {
            None => {
                let diagnostic = Diagnostic {
                    expected: Some("'zero_data' or 'data_file'".into()),
                    ..self.about("initial_state[0]", "has an 'initial_state' without data")
                };
                self.diagnostics.push(|| diagnostic);
            }
            Some(StateData::DataFile(file)) => self.check_file(file),
            Some(StateData::ZeroData(_)) => {}
        }
    }

    fn check_initial_dims(&mut self, initial: &InitialState) {
        let (given, expected) = (initial.dims.len(), self.state.dims.len());
        if given != expected {
            let text = bounded!("has an 'initial_state' of {given} dimensions, not {expected},");
            return self.report("initial_state[0].dims", &text);
        }
        for (index, (dim, of_state)) in initial.dims.iter().zip(&self.state.dims).enumerate() {
            if *dim == ANY {
                let text = bounded!(
                    "'initial_state' field for state input name '{}' contains variable dimensions.",
                    self.state.input_name.escape_debug()
                );
                self.report_text(&bounded!("initial_state[0].dims[{index}]"), text);
                continue;
            }
            let text = if *of_state != ANY && dim != of_state {
                bounded!("has an 'initial_state' dimension {dim} that doesn't match {of_state}")
            } else if *dim < 0 {
                // A variable-size state may initially have no elements.
                "has an 'initial_state' dimension that is not >= 0".into()
            } else {
                continue;
            };
            self.report(&bounded!("initial_state[0].dims[{index}]"), &text);
        }
        if !fits(self.state.data_type, &initial.dims) {
            let text = "has an 'initial_state' of more elements than any tensor can have";
            self.report("initial_state[0].dims", text);
        }
    }

    fn check_file(&mut self, file: &str) {
        if !file.is_empty() && is_path_beneath(file) {
            return;
        }
        let shown = file.escape_debug();
        let text = bounded!("has an 'initial_state' whose file '{shown}' can not be used");
        let last = file.rsplit('/').next().filter(|last| is_path_beneath(last));
        let diagnostic = Diagnostic {
            expected: Some("a file in the model's directory 'initial_state'".into()),
            suggestion: last.filter(|last| !last.is_empty()).map(BoundedText::truncated),
            ..self.about("initial_state[0].data_file", &text)
        };
        self.diagnostics.push(|| diagnostic);
    }
}

/// Returns true if a tensor's size does not overflow. Invalid dimensions are reported elsewhere and
/// count as 1.
fn fits(data_type: i32, dims: &[i64]) -> bool {
    // A string takes at least four bytes, for its length.
    const LENGTH: usize = 4;
    let datatype = DataType::from_config_number(data_type);
    let element = datatype.map_or(1, |datatype| datatype.byte_size().unwrap_or(LENGTH));
    let positive: Vec<i64> = dims.iter().map(|dim| if *dim < 1 { 1 } else { *dim }).collect();
    let elements = fixed_runs(&positive).and_then(|fixed_runs| fixed_runs.first().copied());
    let bytes = elements.zip(i64::try_from(element).ok()).map(|(n, size)| n.checked_mul(size));
    bytes.flatten().is_some()
}
