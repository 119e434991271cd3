//! Decodes the requested outputs and the forms in which they are sent.

use galatea_codec::limits::MessageLimits;
use galatea_infer::{InferenceResponse, Status};
use galatea_tensor::ForeignRegion;

use super::fields;
use super::json::{JsonReader, JsonType};
use super::region::RegionParameters;
use galatea_codec::classification::Classification;
use galatea_codec::limits::check_name_length;
use galatea_codec::regions::{OutputPostprocessing, SharedMemoryAccess, SharedMemoryRange};

/// The form in which the elements of an output are sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// The elements are a JSON array.
    Json,
    /// The elements are bytes after the JSON.
    Binary,
    /// The elements are not sent, because they are in a region of the client's memory.
    Region,
}

impl OutputFormat {
    pub(super) const fn of_binary_flag(binary: bool) -> Self {
        if binary { Self::Binary } else { Self::Json }
    }
}

/// The form of each output of a response.
#[derive(Clone, Debug)]
pub struct OutputFormatMap {
    default: OutputFormat,
    /// The outputs that don't have the default form, sorted.
    exceptions: Vec<String>,
    replaced: OutputPostprocessing,
}

impl OutputFormatMap {
    /// Creates an encoding in which all outputs have the same form.
    #[must_use]
    pub fn uniform(form: OutputFormat) -> Self {
        Self { default: form, exceptions: Vec::new(), replaced: OutputPostprocessing::default() }
    }

    /// Creates an encoding in which the listed outputs have these forms and all others have the
    /// `default`: a model may return outputs that were not requested.
    pub(super) fn new(default: OutputFormat, names: &[String], forms: &[OutputFormat]) -> Self {
        let listed = names.iter().zip(forms);
        let others = listed.filter(|(_, form)| **form != default);
        let mut exceptions: Vec<String> = others.map(|(name, _)| name.clone()).collect();
        exceptions.sort_unstable();
        Self { default, exceptions, replaced: OutputPostprocessing::default() }
    }

    pub(super) fn replacing(self, replaced: OutputPostprocessing) -> Self {
        Self { replaced, ..self }
    }

    /// The outputs that are sent as classes.
    pub(super) const fn classification(&self) -> Option<&Classification> {
        self.replaced.classification()
    }

    /// Writes outputs to their regions.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`OutputPostprocessing::write_to_regions`].
    pub fn write_shared_memory_outputs(
        &self,
        response: InferenceResponse,
    ) -> Result<InferenceResponse, Status> {
        self.replaced.write_to_regions(response)
    }

    /// Returns the form of the output with this name.
    #[must_use]
    pub fn format_of(&self, name: &str) -> OutputFormat {
        if self.replaced.output_region(name).is_some() {
            return OutputFormat::Region;
        }
        if self.exceptions.binary_search_by(|exception| exception.as_str().cmp(name)).is_err() {
            return self.default;
        }
        match self.default {
            OutputFormat::Json => OutputFormat::Binary,
            OutputFormat::Binary | OutputFormat::Region => OutputFormat::Json,
        }
    }
}

/// The outputs that a request lists.
#[derive(Default)]
pub(super) struct RequestedOutputs {
    pub(super) names: Vec<String>,
    pub(super) forms: Vec<OutputFormat>,
    /// The number of requested classes for each output; `None` requests the output's elements.
    /// Trailing `None` entries may be missing, so the list is nearly always empty.
    pub(super) classes: Vec<Option<u32>>,
    /// The outputs in regions.
    pub(super) regions: Vec<(String, ForeignRegion)>,
}

pub(super) fn read_outputs(
    reader: &mut JsonReader<'_>,
    access: &SharedMemoryAccess<'_>,
) -> Result<RequestedOutputs, Status> {
    fields::array(reader, "outputs")?;
    let mut outputs = RequestedOutputs::default();
    let mut progress = reader.open();
    while reader.next_element(&mut progress)? {
        if outputs.names.len() >= MessageLimits::TENSORS_MAX {
            return Err(super::errors::too_many_tensors("outputs"));
        }
        let RequestedOutput { name, form, classes, part } = read_output(reader)?;
        if let Some(part) = part {
            let region = access.output_region(&part)?;
            outputs.regions.push((name.clone(), region));
        }
        if classes.is_some() {
            outputs.classes.resize(outputs.names.len(), None);
            outputs.classes.push(classes);
        }
        outputs.names.push(name);
        outputs.forms.push(form);
    }
    Ok(outputs)
}

/// An output listed in the request.
struct RequestedOutput {
    name: String,
    form: OutputFormat,
    classes: Option<u32>,
    part: Option<SharedMemoryRange>,
}

/// The parameters of a listed output.
#[derive(Default)]
struct OutputParameters {
    /// The value of `binary_data`. The inner value is `None` if it has another type.
    binary: Option<Option<bool>>,
    classes: Option<u64>,
    region: RegionParameters,
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
                check_name_length("output", text.len())?;
                fields::keep_first(&mut name, text);
            }
            b"parameters" if reader.value_type()? == JsonType::Object => {
                fields::keep_first(&mut parameters, read_output_parameters(reader)?);
            }
            _ => reader.skip_value()?,
        }
    }
    let parameters = parameters.unwrap_or_default();
    if parameters.region.is_named() {
        let other = match (parameters.classes, parameters.binary) {
            (Some(_), _) => Some("classification"),
            (None, Some(Some(true))) => Some("binary_data"),
            (None, Some(None)) => {
                return Err(Status::internal(
                    "Unable to set 'binary_data': attempt to access JSON non-boolean as boolean",
                ));
            }
            (None, Some(Some(false)) | None) => None,
        };
        if let Some(other) = other {
            return Err(Status::invalid_argument(format!(
                "Output can't set both 'shared_memory_region' and '{other}'"
            )));
        }
    }
    let name = name.ok_or_else(|| fields::missing("name"))?.into_owned();
    let part = parameters.region.part()?;
    let binary = parameters.binary.unwrap_or(Some(false));
    let wrong = || fields::wrong_type("binary_data", "non-boolean as boolean");
    let form = OutputFormat::of_binary_flag(binary.ok_or_else(wrong)?);
    // As in Triton, the number is truncated to 32 bits, which clients can observe.
    let classes =
        parameters.classes.and_then(|count| u32::try_from(count & u64::from(u32::MAX)).ok());
    let classes = classes.filter(|&count| count > 0);
    Ok(RequestedOutput { name, form, classes, part })
}

fn read_output_parameters(reader: &mut JsonReader<'_>) -> Result<OutputParameters, Status> {
    let mut parameters = OutputParameters::default();
    let mut progress = reader.open();
    while let Some(name) = reader.next_member(&mut progress)? {
        match name.as_ref() {
            b"binary_data" => {
                let binary = fields::optional_boolean(reader)?;
                fields::keep_first(&mut parameters.binary, binary);
            }
            b"classification" => {
                let classes = fields::class_count(reader)?;
                fields::keep_first(&mut parameters.classes, classes);
            }
            other => {
                if !parameters.region.read(other, reader)? {
                    reader.skip_value()?;
                }
            }
        }
    }
    Ok(parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlisted_outputs_have_the_default_form() {
        use OutputFormat::{Binary, Json};
        let check = |default, listed: &[(&str, OutputFormat)], expected: [OutputFormat; 3]| {
            let names: Vec<String> = listed.iter().map(|(name, _)| String::from(*name)).collect();
            let forms: Vec<OutputFormat> = listed.iter().map(|(_, form)| *form).collect();
            let encoding = OutputFormatMap::new(default, &names, &forms);
            assert_eq!(["a", "b", "c"].map(|name| encoding.format_of(name)), expected);
        };
        check(Json, &[], [Json, Json, Json]);
        check(Binary, &[], [Binary, Binary, Binary]);
        check(Json, &[("b", Binary)], [Json, Binary, Json]);
        check(Json, &[("c", Binary), ("a", Binary)], [Binary, Json, Binary]);
        check(Binary, &[("b", Json), ("a", Binary)], [Binary, Json, Binary]);
    }

    fn read(json: &str) -> Result<RequestedOutputs, Status> {
        let account = std::sync::Arc::new(galatea_gate::ledger::MemoryAccount::unlimited());
        let access = SharedMemoryAccess {
            regions: galatea_control::RequestShmRegions::none(),
            account: &account,
        };
        read_outputs(&mut JsonReader::new(json.as_bytes()), &access)
    }

    #[test]
    fn class_counts_take_no_memory_unless_requested() {
        let counts = |json: &str| read(json).unwrap().classes;
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
            read(&json).unwrap().classes
        };
        assert_eq!(counts((1 << 32) - 1), [Some(u32::MAX)]);
        assert_eq!(counts(1 << 32), []);
        assert_eq!(counts((1 << 32) + 2), [Some(2)]);
    }
}
