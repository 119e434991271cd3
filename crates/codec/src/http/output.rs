//! Decodes the requested outputs and their forms.

use galatea_infer::Status;

use crate::classification::Classification;
use galatea_gate::limits::Limits;

use super::fields;
use super::json::{JsonReader, JsonType};
use crate::limits::check_name;

/// How the elements of an output are sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum OutputForm {
    /// As a JSON array.
    Json,
    /// As bytes after the JSON.
    Binary,
}

impl OutputForm {
    pub(super) const fn of_binary_flag(binary: bool) -> Self {
        if binary { Self::Binary } else { Self::Json }
    }
}

/// The form of each output of a response.
#[derive(Clone, Debug)]
pub struct OutputEncoding {
    default: OutputForm,
    /// The outputs that do not have the default form, sorted.
    exceptions: Vec<String>,
    classification: Option<Classification>,
}

impl OutputEncoding {
    /// All outputs have the same form.
    #[must_use]
    pub const fn uniform(form: OutputForm) -> Self {
        Self { default: form, exceptions: Vec::new(), classification: None }
    }

    /// The listed outputs have these forms, all others the `default`: a model may
    /// return outputs that were not requested.
    pub(super) fn new(default: OutputForm, names: &[String], forms: &[OutputForm]) -> Self {
        let listed = names.iter().zip(forms);
        let others = listed.filter(|(_, form)| **form != default);
        let mut exceptions: Vec<String> = others.map(|(name, _)| name.clone()).collect();
        exceptions.sort_unstable();
        Self { default, exceptions, classification: None }
    }

    pub(super) fn with_classification(self, classification: Option<Classification>) -> Self {
        Self { classification, ..self }
    }

    /// The outputs that are sent as classes.
    pub(super) const fn classification(&self) -> Option<&Classification> {
        self.classification.as_ref()
    }

    /// The form of the output with this name.
    #[must_use]
    pub fn form(&self, name: &str) -> OutputForm {
        if self.exceptions.binary_search_by(|exception| exception.as_str().cmp(name)).is_err() {
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
    /// The number of requested classes of each output; `None` requests its elements.
    /// Trailing ones of these may be missing, so that it is nearly always empty.
    pub(super) classes: Vec<Option<u32>>,
}

pub(super) fn read_outputs(reader: &mut JsonReader<'_>) -> Result<RequestedOutputs, Status> {
    fields::array(reader, "outputs")?;
    let mut outputs = RequestedOutputs::default();
    let mut progress = reader.open();
    while reader.next_element(&mut progress)? {
        if outputs.names.len() >= Limits::TENSORS_MAX {
            return Err(super::errors::too_many_tensors("outputs"));
        }
        let RequestedOutput { name, form, classes } = read_output(reader)?;
        if classes.is_some() {
            outputs.classes.resize(outputs.names.len(), None);
            outputs.classes.push(classes);
        }
        outputs.names.push(name);
        outputs.forms.push(form);
    }
    Ok(outputs)
}

/// One listed output.
struct RequestedOutput {
    name: String,
    form: OutputForm,
    classes: Option<u32>,
}

/// The parameters of one listed output.
#[derive(Default)]
struct OutputParameters {
    binary: Option<bool>,
    classes: Option<u64>,
    shared_memory: bool,
}

fn read_output(reader: &mut JsonReader<'_>) -> Result<RequestedOutput, Status> {
    if reader.value_type()? != JsonType::Object {
        return Err(fields::missing("name"));
    }
    let mut name = None;
    let mut parameters = None;
    let mut progress = reader.open();
    while let Some(member) = reader.next_member(&mut progress)? {
        match member.as_ref() {
            b"name" => {
                let text = fields::string(reader, "name")?;
                check_name("output", text.len())?;
                fields::keep_first(&mut name, text);
            }
            b"parameters" if reader.value_type()? == JsonType::Object => {
                fields::keep_first(&mut parameters, read_output_parameters(reader)?);
            }
            _ => reader.skip_value()?,
        }
    }
    let parameters = parameters.unwrap_or_default();
    if parameters.shared_memory && parameters.classes.is_some() {
        return Err(Status::invalid_argument(
            "Output can't set both 'shared_memory_region' and 'classification'",
        ));
    }
    let name = name.ok_or_else(|| fields::missing("name"))?.into_owned();
    if parameters.shared_memory {
        return Err(super::errors::no_shared_memory(&name));
    }
    let form = OutputForm::of_binary_flag(parameters.binary.unwrap_or(false));
    // As in Triton, of which clients see that it cuts the number to 32 bits.
    let classes =
        parameters.classes.and_then(|count| u32::try_from(count & u64::from(u32::MAX)).ok());
    Ok(RequestedOutput { name, form, classes: classes.filter(|&count| count > 0) })
}

fn read_output_parameters(reader: &mut JsonReader<'_>) -> Result<OutputParameters, Status> {
    let mut parameters = OutputParameters::default();
    let mut progress = reader.open();
    while let Some(name) = reader.next_member(&mut progress)? {
        match name.as_ref() {
            b"binary_data" => {
                let binary = fields::boolean(reader, "binary_data")?;
                fields::keep_first(&mut parameters.binary, binary);
            }
            b"classification" => {
                let classes = fields::class_count(reader)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlisted_outputs_have_the_default_form() {
        use OutputForm::{Binary, Json};
        let check = |default, listed: &[(&str, OutputForm)], expected: [OutputForm; 3]| {
            let names: Vec<String> = listed.iter().map(|(name, _)| String::from(*name)).collect();
            let forms: Vec<OutputForm> = listed.iter().map(|(_, form)| *form).collect();
            let encoding = OutputEncoding::new(default, &names, &forms);
            assert_eq!(["a", "b", "c"].map(|name| encoding.form(name)), expected);
        };
        check(Json, &[], [Json, Json, Json]);
        check(Binary, &[], [Binary, Binary, Binary]);
        check(Json, &[("b", Binary)], [Json, Binary, Json]);
        check(Json, &[("c", Binary), ("a", Binary)], [Binary, Json, Binary]);
        check(Binary, &[("b", Json), ("a", Binary)], [Binary, Json, Binary]);
    }

    #[test]
    fn class_counts_take_no_memory_unless_requested() {
        let counts =
            |json: &str| read_outputs(&mut JsonReader::new(json.as_bytes())).unwrap().classes;
        let plain = r#"{"name":"a"},{"name":"b","parameters":{"classification":0}}"#;
        assert_eq!(counts(&format!("[{plain}]")).capacity(), 0);
        let two = r#"{"name":"c","parameters":{"classification":2}}"#;
        assert_eq!(
            counts(&format!("[{plain},{two},{plain},{two},{plain}]")),
            [None, None, Some(2), None, None, Some(2)]
        );
    }

    #[test]
    fn class_counts_are_cut_to_32_bits() {
        let counts = |count: u64| {
            let json = format!(r#"[{{"name":"a","parameters":{{"classification":{count}}}}}]"#);
            read_outputs(&mut JsonReader::new(json.as_bytes())).unwrap().classes
        };
        assert_eq!(counts((1 << 32) - 1), [Some(u32::MAX)]);
        assert_eq!(counts(1 << 32), []);
        assert_eq!(counts((1 << 32) + 2), [Some(2)]);
    }
}
