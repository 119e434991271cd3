//! Padding: requests of unequal lengths share a batch, because the shorter ones are padded.
//!
//! The settings are parameters, so that servers that know nothing of them load the model
//! too:
//!
//! | parameter | example |
//! |---|---|
//! | `batch_padding` | `input_ids=0, attention_mask=0`: inputs, and what each is padded with |
//! | `batch_padding_mask` | `attention_mask`: made if a request leaves it out |
//! | `batch_padding_outputs` | `last_hidden_state=1, boxes=whole`: outputs, and their padded dimensions |
//! | `batch_padding_budget` | `1024`: the most rows × length of a batch |
//!
//! An output with a variable dimension must be named. Whether its size is the length of the
//! inputs can't be seen: a list of what was found may be as long by chance, and cutting it
//! would lose results.

mod element;

use std::collections::BTreeSet;

use galatea_protocol::inference::model_config::SchedulingChoice;
use galatea_protocol::inference::{ModelConfig, ModelInput, ModelOutput};
use galatea_tensor::DataType;

use self::element::element;
use crate::diagnostic::Diagnostic;
use crate::suggest::nearest;

const INPUTS: &str = "batch_padding";
const MASK: &str = "batch_padding_mask";
const OUTPUTS: &str = "batch_padding_outputs";
const BUDGET: &str = "batch_padding_budget";
const KEYS: [&str; 4] = [INPUTS, MASK, OUTPUTS, BUDGET];

/// The value of an output that is not cut.
const WHOLE: &str = "whole";

/// A variable dimension.
const ANY: i64 = -1;

/// How requests of unequal lengths share a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Padding {
    /// The inputs that are padded, with the mask if there is one.
    pub inputs: Vec<PaddedInput>,
    /// The input that is made if a request leaves it out.
    pub mask: Option<PaddingMask>,
    /// The outputs that are cut back. No other has a size that depends on the padding.
    pub outputs: Vec<CutOutput>,
    /// The most elements of a padded batch: rows times length.
    pub budget: Option<u64>,
}

/// An input that is padded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaddedInput {
    /// Its name.
    pub name: String,
    /// The type of its elements, which have a fixed size.
    pub datatype: DataType,
    /// The number of its variable dimension; that of the batch is 0.
    pub axis: usize,
    /// The element that it is padded with, little-endian.
    pub element: Vec<u8>,
}

/// An input that says where a request's own elements are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaddingMask {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub datatype: DataType,
    /// 1 in this type, little-endian.
    pub one: Vec<u8>,
}

/// An output that is cut back to the length of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutOutput {
    /// Its name.
    pub name: String,
    /// The numbers of the dimensions that are as long as the padded inputs; that of the batch
    /// is 0.
    pub axes: Vec<usize>,
}

/// The settings of a normalized configuration; none if it has no such parameter.
pub(crate) fn parse(config: &ModelConfig) -> Result<Option<Padding>, Vec<Diagnostic>> {
    let mut reader = Reader { config, errors: Vec::new() };
    let padding = reader.read();
    if reader.errors.is_empty() { Ok(padding) } else { Err(reader.errors) }
}

struct Reader<'a> {
    config: &'a ModelConfig,
    errors: Vec<Diagnostic>,
}

impl<'a> Reader<'a> {
    fn read(&mut self) -> Option<Padding> {
        self.check_keys();
        if self.value(INPUTS).is_none() {
            for key in KEYS {
                if self.value(key).is_none() {
                    continue;
                }
                let reason = format!("has no effect without '{INPUTS}', which names the inputs");
                self.refuse(key, &reason);
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
        Some(Padding { inputs, mask, outputs, budget })
    }

    fn value(&self, key: &str) -> Option<&'a str> {
        self.config.parameters.get(key).map(|parameter| parameter.string_value.as_str())
    }

    fn refuse(&mut self, key: &str, reason: &str) {
        self.refuse_with(key, reason, None);
    }

    fn refuse_with(&mut self, key: &str, reason: &str, suggestion: Option<String>) {
        let value = self.value(key).unwrap_or_default().escape_debug();
        let text = format!("parameter '{key}' of {} is '{value}': {reason}", self.config.name);
        let path = format!("parameters[\"{key}\"]");
        self.errors.push(Diagnostic { suggestion, ..Diagnostic::about(path, text) });
    }

    /// A misspelled parameter would be ignored.
    fn check_keys(&mut self) {
        let prefix = format!("{INPUTS}_");
        let unknown = |key: &&String| key.starts_with(&prefix) && !KEYS.contains(&key.as_str());
        let unknown: Vec<String> = self.config.parameters.keys().filter(unknown).cloned().collect();
        for key in unknown {
            let reason = format!("no such parameter; those of padding are {}", KEYS.join(", "));
            self.refuse_with(&key, &reason, nearest(&key, KEYS.into_iter()));
        }
    }

    /// What a model must be like to be padded.
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
        reason.into_iter().for_each(|reason| self.refuse(INPUTS, reason));
        if config.max_batch_size < 1 {
            self.refuse(INPUTS, "padding needs a max_batch_size of at least 1, not 0");
        }
        if let Some(SchedulingChoice::DynamicBatching(batching)) = &config.scheduling_choice
            && batching.preferred_batch_size.iter().any(|size| *size != config.max_batch_size)
        {
            self.refuse(
                INPUTS,
                "padding decides by what executions cost how large batches are; leave \
                 dynamic_batching.preferred_batch_size out",
            );
        }
        if config.model_transaction_policy.as_ref().is_some_and(|policy| policy.decoupled) {
            self.refuse(INPUTS, "a decoupled model can't be padded: it answers request by request");
        }
        if !config.batch_input.is_empty() || !config.batch_output.is_empty() {
            self.refuse(
                INPUTS,
                "padding is not possible with batch_input and batch_output, which describe \
                 requests that are not padded",
            );
        }
        if config.parameters.contains_key("TRITON_BATCH_STRATEGY_PATH") {
            self.refuse(INPUTS, "padding is not possible with a custom batching strategy");
        }
    }

    /// The pairs of a list such as `a=1, b=2`.
    fn pairs(&mut self, key: &str) -> Vec<(String, String)> {
        let text = self.value(key).unwrap_or_default().to_owned();
        let mut pairs = Vec::new();
        for part in text.split(',') {
            match part.split_once('=') {
                Some((name, value)) if !name.trim().is_empty() && !value.trim().is_empty() => {
                    pairs.push((name.trim().to_owned(), value.trim().to_owned()));
                }
                Some(_) | None => {
                    let shown = part.trim().escape_debug();
                    let reason = format!("'{shown}' is not of the form NAME=VALUE");
                    self.refuse(key, &reason);
                }
            }
        }
        pairs
    }

    fn inputs(&mut self) -> Vec<PaddedInput> {
        let mut inputs: Vec<PaddedInput> = Vec::new();
        for (name, value) in self.pairs(INPUTS) {
            if inputs.iter().any(|input| input.name == name) {
                self.refuse(INPUTS, &format!("input '{}' is named twice", name.escape_debug()));
                continue;
            }
            inputs.extend(self.input(&name, &value));
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
            let reason = format!(
                "input '{shown}' has {variable} variable dimensions beside the batch, and exactly \
                 one can be padded"
            );
            self.refuse(INPUTS, &reason);
            return None;
        };
        let Some(element) = element(datatype, value) else {
            let reason = format!(
                "'{}' is not a value of input '{shown}', whose data_type is {}",
                value.escape_debug(),
                datatype.config_name()
            );
            self.refuse(INPUTS, &reason);
            return None;
        };
        Some(PaddedInput { name: name.to_owned(), datatype, axis: position + 1, element })
    }

    /// An input that can be padded at all.
    fn find_input(&mut self, key: &str, name: &str) -> Option<(ModelInput, DataType)> {
        let shown = name.escape_debug();
        let Some(input) = self.config.input.iter().find(|input| input.name == name).cloned() else {
            let known: Vec<&str> =
                self.config.input.iter().map(|input| input.name.as_str()).collect();
            let reason = format!("the model has no input '{shown}'");
            let suggestion = nearest(name, known.into_iter());
            self.refuse_with(key, &reason, suggestion);
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
            self.refuse(key, &format!("input '{shown}' {problem}"));
            return None;
        }
        let datatype = DataType::from_config_number(input.data_type)?;
        if datatype.byte_size().is_none() {
            let reason = format!(
                "input '{shown}' is of {}, and only numbers and booleans can be padded",
                datatype.config_name()
            );
            self.refuse(key, &reason);
            return None;
        }
        Some((input, datatype))
    }

    fn mask(&mut self, name: &str) -> Option<PaddingMask> {
        let (input, datatype) = self.find_input(MASK, name)?;
        if input.dims != [ANY] {
            let reason = format!(
                "input '{}' has dims {:?}, and a mask that can be made has dims [-1]",
                name.escape_debug(),
                input.dims
            );
            self.refuse(MASK, &reason);
            return None;
        }
        let one = element(datatype, "1")?;
        Some(PaddingMask { name: name.to_owned(), datatype, one })
    }

    fn outputs(&mut self) -> Vec<CutOutput> {
        let mut outputs: Vec<CutOutput> = Vec::new();
        let mut named = BTreeSet::new();
        let pairs = if self.value(OUTPUTS).is_some() { self.pairs(OUTPUTS) } else { Vec::new() };
        for (name, value) in pairs {
            let Some(output) = self.find_output(&name) else { continue };
            let is_new = named.insert(name.clone());
            if value == WHOLE {
                if !is_new {
                    let reason = format!("output '{}' is named twice", name.escape_debug());
                    self.refuse(OUTPUTS, &reason);
                }
                continue;
            }
            let Some(axis) = self.axis(&output, &value) else { continue };
            match outputs.iter_mut().find(|cut| cut.name == name) {
                Some(cut) if !cut.axes.contains(&axis) => cut.axes.push(axis),
                None if is_new => outputs.push(CutOutput { name, axes: vec![axis] }),
                Some(_) | None => {
                    let reason = format!("output '{}' is named twice", name.escape_debug());
                    self.refuse(OUTPUTS, &reason);
                }
            }
        }
        self.check_unnamed(&named);
        outputs
    }

    fn find_output(&mut self, name: &str) -> Option<ModelOutput> {
        let found = self.config.output.iter().find(|output| output.name == name).cloned();
        if found.is_none() {
            let known: Vec<&str> =
                self.config.output.iter().map(|output| output.name.as_str()).collect();
            let suggestion = nearest(name, known.into_iter());
            let reason = format!("the model has no output '{}'", name.escape_debug());
            self.refuse_with(OUTPUTS, &reason, suggestion);
        }
        found
    }

    /// The number of a dimension that is cut.
    fn axis(&mut self, output: &ModelOutput, value: &str) -> Option<usize> {
        let shown = output.name.escape_debug();
        let dims = &output.dims;
        let axis = value.parse::<usize>().ok().filter(|axis| *axis > 0);
        let dim = axis.and_then(|axis| dims.get(axis - 1));
        let problem = match dim {
            None => format!(
                "'{}' is not a dimension of output '{shown}': it has 1 to {} beside that of the \
                 batch, which is 0; '{WHOLE}' cuts nothing",
                value.escape_debug(),
                dims.len()
            ),
            Some(&size) if size != ANY => {
                format!("dimension {value} of output '{shown}' has the fixed size {size}")
            }
            Some(_) if output.reshape.is_some() => {
                format!("output '{shown}' has a reshape, so that its dimensions can't be told")
            }
            Some(_)
                if DataType::from_config_number(output.data_type)
                    .is_none_or(|datatype| datatype.byte_size().is_none()) =>
            {
                format!("output '{shown}' holds strings, which can't be cut")
            }
            Some(_) => return axis,
        };
        self.refuse(OUTPUTS, &problem);
        None
    }

    /// Refuses outputs with a variable dimension of which nothing is said.
    fn check_unnamed(&mut self, named: &BTreeSet<String>) {
        let unclear = |output: &&ModelOutput| {
            let dims = output.reshape.as_ref().map_or(&output.dims, |reshape| &reshape.shape);
            dims.contains(&ANY) && !named.contains(&output.name)
        };
        let unclear: Vec<String> =
            self.config.output.iter().filter(unclear).map(|one| one.name.clone()).collect();
        for name in unclear {
            let key = if self.value(OUTPUTS).is_some() { OUTPUTS } else { INPUTS };
            let shown = name.escape_debug();
            let reason = format!(
                "output '{shown}' has a variable dimension; '{OUTPUTS}' must say which is as long \
                 as the padded inputs ('{shown}=1'), or that none is ('{shown}={WHOLE}')"
            );
            self.refuse(key, &reason);
        }
    }

    fn budget(&mut self, text: &str) -> Option<u64> {
        let budget = text.parse::<u64>().ok().filter(|budget| *budget > 0);
        if budget.is_none() {
            self.refuse(
                BUDGET,
                "it must be a positive integer: the most rows times length of a batch, such as \
                 '1024'",
            );
        }
        budget
    }
}

#[cfg(test)]
mod tests;
