//! Padding: requests of unequal lengths share a batch, with the shorter ones padded.
//!
//! The settings are parameters, so servers that don't know them also load the model:
//!
//! | parameter | example |
//! |---|---|
//! | `batch_padding` | `input_ids=0, attention_mask=0`: inputs, and what each is padded with |
//! | `batch_padding_mask` | `attention_mask`: made if a request leaves it out |
//! | `batch_padding_outputs` | `last_hidden_state=1, boxes=whole`: outputs, and their padded dimensions |
//! | `batch_padding_budget` | `1024`: the most rows × length of a batch |
//!
//! Outputs with a variable dimension must be named. The server can't tell whether such a dimension
//! equals the input length: a list of detections may have the same length by chance, and cutting it
//! would lose results.

mod element;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use galatea_gate::text;
use galatea_protocol::inference::model_config::SchedulingChoice;
use galatea_protocol::inference::{ModelConfig, ModelInput, ModelOutput};
use galatea_tensor::DataType;

use self::element::element;
use crate::BATCH_STRATEGY;
use galatea_config_message::nearest_name;
use galatea_config_message::{BoundedText, Diagnostic, Diagnostics, bounded};

pub(super) const INPUTS: &str = "batch_padding";
const MASK: &str = "batch_padding_mask";
const OUTPUTS: &str = "batch_padding_outputs";
const BUDGET: &str = "batch_padding_budget";
const KEYS: [&str; 4] = [INPUTS, MASK, OUTPUTS, BUDGET];

/// The value for an output that isn't cut.
const WHOLE: &str = "whole";

/// The maximum length of the part of a parameter's value that an error repeats, in bytes.
const SHOWN_BYTES_MAX: usize = 512;

/// A variable dimension.
const ANY: i64 = -1;

/// The settings with which requests of unequal lengths share a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchPaddingSettings {
    /// The padded inputs, including the mask if there is one.
    pub inputs: Vec<PaddedInput>,
    /// The mask input, which is generated if a request omits it.
    pub mask: Option<PaddingMaskInput>,
    /// The outputs that are cut back. No other output has a size that depends on the padding.
    pub outputs: Vec<UnpaddedOutput>,
    /// The maximum number of elements in a padded batch: rows times length.
    pub budget: Option<u64>,
}

/// An input that is padded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaddedInput {
    /// The tensor's name.
    pub name: String,
    /// The element type, which has a fixed size.
    pub datatype: DataType,
    /// The index of the variable dimension; the batch dimension is 0.
    pub axis: usize,
    /// The padding element, little-endian.
    pub element: Vec<u8>,
}

/// An input that marks a request's own elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaddingMaskInput {
    /// The tensor's name.
    pub name: String,
    /// The element type.
    pub datatype: DataType,
    /// The value 1 in this type, little-endian.
    pub one: Vec<u8>,
}

/// An output that is cut back to the request's length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnpaddedOutput {
    /// The tensor's name.
    pub name: String,
    /// The indices of the dimensions that are as long as the padded inputs; the batch dimension is
    /// 0.
    pub axes: Vec<usize>,
}

/// Parses the settings from a normalized configuration; `None` if it has no such parameter.
pub(super) fn parse(
    config: &ModelConfig,
    diagnostics: &mut Diagnostics,
) -> Option<BatchPaddingSettings> {
    let inputs = config.input.iter().map(|input| (input.name.as_str(), input));
    let outputs = config.output.iter().map(|output| (output.name.as_str(), output));
    // If two entries have the same name, the first wins.
    let (inputs, outputs) = (inputs.rev().collect(), outputs.rev().collect());
    PaddingReader { config, inputs, outputs, diagnostics }.read()
}

struct PaddingReader<'a> {
    config: &'a ModelConfig,
    inputs: BTreeMap<&'a str, &'a ModelInput>,
    outputs: BTreeMap<&'a str, &'a ModelOutput>,
    diagnostics: &'a mut Diagnostics,
}

impl<'a> PaddingReader<'a> {
    fn read(&mut self) -> Option<BatchPaddingSettings> {
        self.check_keys();
        if self.value(INPUTS).is_none() {
            for key in KEYS {
                if self.value(key).is_none() {
                    continue;
                }
                let reason =
                    format_args!("has no effect without '{INPUTS}', which names the inputs");
                self.refuse(key, reason);
            }
            return None;
        }
        self.check_model();
        let mask = self.value(MASK).and_then(|name| self.mask(name.trim()));
        let mut inputs = self.inputs();
        if let Some(mask) = &mask
            && inputs.iter().all(|input| input.name != mask.name)
        {
            let element = vec![0; mask.one.len()];
            let (name, datatype) = (mask.name.clone(), mask.datatype);
            inputs.push(PaddedInput { name, datatype, axis: 1, element });
        }
        let outputs = self.outputs();
        let budget = self.value(BUDGET).and_then(|text| self.budget(text.trim()));
        Some(BatchPaddingSettings { inputs, mask, outputs, budget })
    }

    fn value(&self, key: &str) -> Option<&'a str> {
        self.config.parameters.get(key).map(|parameter| parameter.string_value.as_str())
    }

    fn refuse(&mut self, key: &str, reason: fmt::Arguments<'_>) {
        self.refuse_with(key, reason, || None);
    }

    fn refuse_with(
        &mut self,
        key: &str,
        reason: fmt::Arguments<'_>,
        suggest: impl FnOnce() -> Option<BoundedText>,
    ) {
        let value = self.value(key).unwrap_or_default();
        self.diagnostics.push(|| {
            // The reason must stay readable after a value of any length.
            let shown = text::format_prefix(value.escape_debug(), SHOWN_BYTES_MAX, 64 << 10);
            let name = &self.config.name;
            let text = bounded!("parameter '{key}' of {name} is '{shown}': {reason}");
            let path = bounded!("parameters[\"{key}\"]");
            Diagnostic { suggestion: suggest(), ..Diagnostic::about(path, text) }
        });
    }

    /// Checks the parameter names, because a misspelled parameter would be ignored.
    fn check_keys(&mut self) {
        let prefix = format!("{INPUTS}_");
        let unknown = |key: &&String| key.starts_with(&prefix) && !KEYS.contains(&key.as_str());
        let known = KEYS.join(", ");
        for key in self.config.parameters.keys().filter(unknown) {
            let reason = format_args!("no such parameter; those of padding are {known}");
            self.refuse_with(key, reason, || nearest_name(key, KEYS.into_iter()));
        }
    }

    /// Checks that the model can be padded.
    fn check_model(&mut self) {
        let config = self.config;
        let reason = match &config.scheduling_choice {
            Some(SchedulingChoice::DynamicBatching(_)) => None,
            Some(SchedulingChoice::SequenceBatching(_)) => Some(
                "padding is not possible with sequence_batching, whose rows belong to sequences \
                 with states; it needs dynamic_batching",
            ),
            Some(SchedulingChoice::EnsembleScheduling(_)) => {
                Some("an ensemble forms no batches; the models of its steps can be padded")
            }
            None => Some("padding needs dynamic_batching: without it no requests share a batch"),
        };
        reason.into_iter().for_each(|reason| self.refuse(INPUTS, format_args!("{reason}")));
        if config.max_batch_size < 1 {
            self.refuse(
                INPUTS,
                format_args!("padding needs a max_batch_size of at least 1, not 0"),
            );
        }
        if let Some(SchedulingChoice::DynamicBatching(batching)) = &config.scheduling_choice
            && batching.preferred_batch_size.iter().any(|size| *size != config.max_batch_size)
        {
            self.refuse(
                INPUTS,
                format_args!(
                    "padding decides by what executions cost how large batches are; leave \
                 dynamic_batching.preferred_batch_size out"
                ),
            );
        }
        if config.model_transaction_policy.as_ref().is_some_and(|policy| policy.decoupled) {
            self.refuse(
                INPUTS,
                format_args!("a decoupled model can't be padded: it answers request by request"),
            );
        }
        if !config.batch_input.is_empty() || !config.batch_output.is_empty() {
            self.refuse(
                INPUTS,
                format_args!(
                    "padding is not possible with batch_input and batch_output, which describe \
                 requests that are not padded"
                ),
            );
        }
        if config.parameters.contains_key(BATCH_STRATEGY) {
            self.refuse(
                INPUTS,
                format_args!("padding is not possible with a custom batching strategy"),
            );
        }
    }

    /// Parses the pairs in a list such as `a=1, b=2`.
    fn pairs(&mut self, key: &str) -> Vec<(&'a str, &'a str)> {
        let text = self.value(key).unwrap_or_default();
        let mut pairs = Vec::new();
        for part in text.split(',') {
            match part.split_once('=') {
                Some((name, value)) if !name.trim().is_empty() && !value.trim().is_empty() => {
                    pairs.push((name.trim(), value.trim()));
                }
                Some(_) | None => {
                    let shown = part.trim().escape_debug();
                    let reason = format_args!("'{shown}' is not of the form NAME=VALUE");
                    self.refuse(key, reason);
                }
            }
        }
        pairs
    }

    fn inputs(&mut self) -> Vec<PaddedInput> {
        let mut inputs: Vec<PaddedInput> = Vec::new();
        let mut named = BTreeSet::new();
        for (name, value) in self.pairs(INPUTS) {
            if named.contains(name) {
                self.refuse(INPUTS, format_args!("input '{}' is named twice", name.escape_debug()));
                continue;
            }
            if let Some(input) = self.input(name, value) {
                named.insert(name);
                inputs.push(input);
            }
        }
        inputs
    }

    fn input(&mut self, name: &str, value: &str) -> Option<PaddedInput> {
        let (input, datatype) = self.find_input(INPUTS, name)?;
        let shown = name.escape_debug();
        let variable = input.dims.iter().filter(|dim| **dim == ANY).count();
        let Some(position) =
            input.dims.iter().position(|dim| *dim == ANY).filter(|_| variable == 1)
        else {
            let reason = format_args!(
                "input '{shown}' has {variable} variable dimensions beside the batch, and exactly \
                 one can be padded"
            );
            self.refuse(INPUTS, reason);
            return None;
        };
        let Some(element) = element(datatype, value) else {
            let reason = format_args!(
                "'{}' is not a value of input '{shown}', whose data_type is {}",
                value.escape_debug(),
                datatype.config_name()
            );
            self.refuse(INPUTS, reason);
            return None;
        };
        Some(PaddedInput { name: name.to_owned(), datatype, axis: position + 1, element })
    }

    /// Finds an input that can be padded.
    fn find_input(&mut self, key: &str, name: &str) -> Option<(&'a ModelInput, DataType)> {
        let shown = name.escape_debug();
        let Some(input) = self.inputs.get(name).copied() else {
            let known = self.config.input.iter().map(|input| input.name.as_str());
            let reason = format_args!("the model has no input '{shown}'");
            self.refuse_with(key, reason, || nearest_name(name, known));
            return None;
        };
        let problem = if input.allow_ragged_batch {
            Some("has allow_ragged_batch: its requests share a batch without padding")
        } else if input.is_shape_tensor {
            Some("is a shape tensor, whose contents are sizes")
        } else if input.reshape.is_some() {
            Some("has a reshape, which would have to be applied to the padding too")
        } else {
            None
        };
        if let Some(problem) = problem {
            self.refuse(key, format_args!("input '{shown}' {problem}"));
            return None;
        }
        let datatype = DataType::from_config_number(input.data_type)?;
        if datatype.byte_size().is_none() {
            let reason = format_args!(
                "input '{shown}' is of {}, and only numbers and booleans can be padded",
                datatype.config_name()
            );
            self.refuse(key, reason);
            return None;
        }
        Some((input, datatype))
    }

    fn mask(&mut self, name: &str) -> Option<PaddingMaskInput> {
        let (input, datatype) = self.find_input(MASK, name)?;
        if input.dims != [ANY] {
            let reason = format_args!(
                "input '{}' has dims {:?}, and a mask that can be made has dims [-1]",
                name.escape_debug(),
                input.dims
            );
            self.refuse(MASK, reason);
            return None;
        }
        let one = element(datatype, "1")?;
        Some(PaddingMaskInput { name: name.to_owned(), datatype, one })
    }

    fn outputs(&mut self) -> Vec<UnpaddedOutput> {
        let mut outputs: Vec<UnpaddedOutput> = Vec::new();
        // The named outputs, each with the index of its entry above if it is cut.
        let mut named: BTreeMap<&str, Option<usize>> = BTreeMap::new();
        let pairs = if self.value(OUTPUTS).is_some() { self.pairs(OUTPUTS) } else { Vec::new() };
        for (name, value) in pairs {
            let Some(output) = self.find_output(name) else { continue };
            let earlier = named.get(name).copied();
            let cut = earlier.flatten().and_then(|index| outputs.get_mut(index));
            if value == WHOLE {
                if earlier.is_some() {
                    self.refuse_twice(name);
                }
                named.entry(name).or_insert(None);
                continue;
            }
            let axis = self.axis(output, value);
            match (axis, cut, earlier) {
                (None, _, _) => drop(named.entry(name).or_insert(None)),
                (Some(axis), Some(cut), _) if !cut.axes.contains(&axis) => cut.axes.push(axis),
                (Some(axis), None, None) => {
                    named.insert(name, Some(outputs.len()));
                    outputs.push(UnpaddedOutput { name: name.to_owned(), axes: vec![axis] });
                }
                (Some(_), Some(_) | None, _) => self.refuse_twice(name),
            }
        }
        self.check_unnamed(&named);
        outputs
    }

    fn refuse_twice(&mut self, output: &str) {
        let shown = output.escape_debug();
        self.refuse(OUTPUTS, format_args!("output '{shown}' is named twice"));
    }

    fn find_output(&mut self, name: &str) -> Option<&'a ModelOutput> {
        let found = self.outputs.get(name).copied();
        if found.is_none() {
            let known = self.config.output.iter().map(|output| output.name.as_str());
            let shown = name.escape_debug();
            let reason = format_args!("the model has no output '{shown}'");
            self.refuse_with(OUTPUTS, reason, || nearest_name(name, known));
        }
        found
    }

    /// Parses the index of a dimension to cut.
    fn axis(&mut self, output: &ModelOutput, value: &str) -> Option<usize> {
        let shown = output.name.escape_debug();
        let dims = &output.dims;
        let axis = value.parse::<usize>().ok().filter(|axis| *axis > 0);
        let dim = axis.and_then(|axis| dims.get(axis - 1));
        let problem = match dim {
            None => bounded!(
                "'{}' is not a dimension of output '{shown}': it has 1 to {} beside that of the \
                 batch, which is 0; '{WHOLE}' cuts nothing",
                value.escape_debug(),
                dims.len()
            ),
            Some(&size) if size != ANY => {
                bounded!("dimension {value} of output '{shown}' has the fixed size {size}")
            }
            Some(_) if output.reshape.is_some() => {
                bounded!("output '{shown}' has a reshape, so that its dimensions can't be told")
            }
            Some(_)
                if DataType::from_config_number(output.data_type)
                    .is_none_or(|datatype| datatype.byte_size().is_none()) =>
            {
                bounded!("output '{shown}' holds strings, which can't be cut")
            }
            Some(_) => return axis,
        };
        self.refuse(OUTPUTS, format_args!("{problem}"));
        None
    }

    /// Refuses unnamed outputs with a variable dimension.
    fn check_unnamed(&mut self, named: &BTreeMap<&str, Option<usize>>) {
        let unclear = |output: &&ModelOutput| {
            let dims = output.reshape.as_ref().map_or(&output.dims, |reshape| &reshape.shape);
            dims.contains(&ANY) && !named.contains_key(output.name.as_str())
        };
        let key = if self.value(OUTPUTS).is_some() { OUTPUTS } else { INPUTS };
        for output in self.config.output.iter().filter(unclear) {
            let shown = output.name.escape_debug();
            let reason = format_args!(
                "output '{shown}' has a variable dimension; '{OUTPUTS}' must say which is as long \
                 as the padded inputs ('{shown}=1'), or that none is ('{shown}={WHOLE}')"
            );
            self.refuse(key, reason);
        }
    }

    fn budget(&mut self, text: &str) -> Option<u64> {
        let budget = text.parse::<u64>().ok().filter(|budget| *budget > 0);
        if budget.is_none() {
            self.refuse(
                BUDGET,
                format_args!(
                    "it must be a positive integer: the most rows times length of a batch, such as \
                 '1024'"
                ),
            );
        }
        budget
    }
}

#[cfg(test)]
mod tests;
