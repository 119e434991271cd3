//! Which outputs a client wants, and in which form.

use galatea_infer::Status;

use crate::limits::Limits;

use super::fields;
use super::json::{Kind, Reader};

/// How an output's elements are sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum OutputForm {
    /// As a JSON array.
    Json,
    /// As bytes behind the JSON.
    Binary,
}

impl OutputForm {
    pub(super) const fn of_binary_flag(binary: bool) -> Self {
        if binary { Self::Binary } else { Self::Json }
    }
}

/// In which form each output of a response is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputEncoding {
    default: OutputForm,
    /// The outputs with another form than the default.
    exceptions: Vec<String>,
}

impl OutputEncoding {
    /// Every output in one form.
    #[must_use]
    pub const fn uniform(form: OutputForm) -> Self {
        Self { default: form, exceptions: Vec::new() }
    }

    /// The form of each listed output; `default` only counts if none is
    /// listed, since others aren't returned then.
    pub(super) fn new(default: OutputForm, names: &[String], forms: &[OutputForm]) -> Self {
        let Some(&first) = forms.first() else { return Self::uniform(default) };
        let listed = names.iter().zip(forms);
        let others = listed.filter(|(_, form)| **form != first);
        Self { default: first, exceptions: others.map(|(name, _)| name.clone()).collect() }
    }

    /// The form of the output with this name.
    #[must_use]
    pub fn form(&self, name: &str) -> OutputForm {
        if !self.exceptions.iter().any(|exception| exception == name) {
            return self.default;
        }
        match self.default {
            OutputForm::Json => OutputForm::Binary,
            OutputForm::Binary => OutputForm::Json,
        }
    }
}

/// The outputs that a request lists.
#[derive(Default)]
pub(super) struct RequestedOutputs {
    pub(super) names: Vec<String>,
    pub(super) forms: Vec<OutputForm>,
}

pub(super) fn read_outputs(reader: &mut Reader<'_>) -> Result<RequestedOutputs, Status> {
    fields::array(reader, "outputs")?;
    let mut outputs = RequestedOutputs::default();
    let mut progress = reader.open();
    while reader.next_element(&mut progress)? {
        if outputs.names.len() >= Limits::TENSORS_MAX {
            return Err(super::errors::too_many("outputs"));
        }
        let (name, form) = read_output(reader)?;
        outputs.names.push(name);
        outputs.forms.push(form);
    }
    Ok(outputs)
}

/// What the parameters of one listed output ask for.
#[derive(Default)]
struct OutputParameters {
    binary: Option<bool>,
    classes: Option<u64>,
    shared_memory: bool,
}

fn read_output(reader: &mut Reader<'_>) -> Result<(String, OutputForm), Status> {
    if reader.kind()? != Kind::Object {
        return Err(fields::missing("name"));
    }
    let mut name = None;
    let mut parameters = None;
    let mut progress = reader.open();
    while let Some(member) = reader.next_member(&mut progress)? {
        match member.as_ref() {
            b"name" => fields::keep_first(&mut name, fields::string(reader, "name")?),
            b"parameters" if reader.kind()? == Kind::Object => {
                fields::keep_first(&mut parameters, read_output_parameters(reader)?);
            }
            _ => reader.skip_value()?,
        }
    }
    let name = name.ok_or_else(|| fields::missing("name"))?.into_owned();
    let parameters = parameters.unwrap_or_default();
    if parameters.shared_memory {
        return Err(super::errors::no_shared_memory(&name));
    }
    if parameters.classes.is_some_and(|classes| classes > 0) {
        return Err(Status::unsupported(format!(
            "output '{name}' asks for 'classification', which this server does not support"
        )));
    }
    Ok((name, OutputForm::of_binary_flag(parameters.binary.unwrap_or(false))))
}

fn read_output_parameters(reader: &mut Reader<'_>) -> Result<OutputParameters, Status> {
    let mut parameters = OutputParameters::default();
    let mut progress = reader.open();
    while let Some(name) = reader.next_member(&mut progress)? {
        match name.as_ref() {
            b"binary_data" => {
                let binary = fields::boolean(reader, "binary_data")?;
                fields::keep_first(&mut parameters.binary, binary);
            }
            b"classification" => {
                let classes = fields::unsigned(reader, "classification")?;
                fields::keep_first(&mut parameters.classes, classes);
            }
            b"shared_memory_region" => {
                parameters.shared_memory = true;
                reader.skip_value()?;
            }
            _ => reader.skip_value()?,
        }
    }
    Ok(parameters)
}
