//! Parses a `ModelInferRequest` from its wire form.
//!
//! The generated message would allocate a copy of every name, a vector for every shape and a map
//! for every tensor's parameters, only to be taken apart again. [`InferRequestMessage`] borrows
//! from the body. It refuses a body that has more tensors, dimensions, parameters or strings than
//! [`MessageLimits`] allow before it allocates memory for them: a tensor takes two bytes on the
//! wire and a hundred in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use galatea_gate::ledger::MemoryAccount;
use galatea_infer::Status;
use smallvec::SmallVec;

use super::contents::TypedContents;
use super::parse_error::ParseError;
use super::wire::{MalformedMessage, WireReader, WireValue};
use galatea_codec::limits::MessageLimits;
use galatea_codec::limits::{check_name_length, too_many_dims_error, too_many_parameters_error};

/// The only parameter with the reserved prefix that clients may set. It concerns streams, so only
/// its type is checked here.
pub(super) const EMPTY_FINAL_RESPONSE: &str = "triton_enable_empty_final_response";

/// A `ModelInferRequest` whose strings and tensors are slices of its body.
#[derive(Debug)]
pub struct InferRequestMessage<'a> {
    pub(super) body: &'a Bytes,
    pub(super) model_name: &'a str,
    pub(super) model_version: &'a str,
    pub(super) id: &'a str,
    pub(super) parameters: Parameters<'a>,
    /// The number of parameters read so far, including tensor parameters and duplicates.
    parameter_count: usize,
    pub(super) inputs: Vec<WireInput<'a>>,
    pub(super) outputs: Vec<WireOutput<'a>>,
    pub(super) raw: SmallVec<[&'a [u8]; 4]>,
}

/// Parameters by name. If a name is repeated, the last parameter counts.
pub(super) type Parameters<'a> = BTreeMap<&'a str, WireParameter<'a>>;

/// The value of an `InferParameter`.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub(super) enum WireParameter<'a> {
    #[default]
    Unset,
    Bool(bool),
    Int64(i64),
    Text(&'a str),
    Double(f64),
    Uint64(u64),
}

#[derive(Debug, Default)]
pub(super) struct WireInput<'a> {
    pub(super) name: &'a str,
    pub(super) datatype: &'a str,
    pub(super) shape: SmallVec<[i64; 4]>,
    pub(super) parameters: Parameters<'a>,
    pub(super) contents: Option<Box<TypedContents>>,
}

#[derive(Debug, Default)]
pub(super) struct WireOutput<'a> {
    pub(super) name: &'a str,
    pub(super) parameters: Parameters<'a>,
}

impl<'a> InferRequestMessage<'a> {
    /// Parses a message.
    ///
    /// # Errors
    ///
    /// `Internal` with gRPC's message if the body is not a `ModelInferRequest`; `InvalidArgument`
    /// if it exceeds one of the [`MessageLimits`].
    pub fn parse(body: &'a Bytes) -> Result<Self, Status> {
        Self::parse_charged(body, None)
    }

    /// Parses a message. Tensors that must be decoded because they are not raw are charged to
    /// `account` first.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`InferRequestMessage::parse`], or `Exhausted` if the memory
    /// limit leaves no room for the tensors.
    pub fn parse_charged(
        body: &'a Bytes,
        account: Option<&Arc<MemoryAccount>>,
    ) -> Result<Self, Status> {
        Self::read(body, account).map_err(|error| match error {
            ParseError::Malformed => Status::internal("Unable to parse request"),
            ParseError::Refused(status) => status,
        })
    }

    /// The model name.
    #[must_use]
    pub const fn model_name(&self) -> &'a str {
        self.model_name
    }

    /// The model version as the client wrote it.
    #[must_use]
    pub const fn model_version(&self) -> &'a str {
        self.model_version
    }

    /// The client's identifier for the request; may be empty.
    #[must_use]
    pub const fn id(&self) -> &'a str {
        self.id
    }

    /// Returns true if the client of a stream wants an empty final response when a request ends
    /// without a response. A value of the wrong type counts as `false`, and is refused when the
    /// message is converted to a request.
    #[must_use]
    pub fn enables_empty_final_response(&self) -> bool {
        self.parameters.get(EMPTY_FINAL_RESPONSE) == Some(&WireParameter::Bool(true))
    }

    fn read(body: &'a Bytes, account: Option<&Arc<MemoryAccount>>) -> Result<Self, ParseError> {
        let mut message = Self {
            body,
            model_name: "",
            model_version: "",
            id: "",
            parameters: Parameters::new(),
            parameter_count: 0,
            inputs: Vec::new(),
            outputs: Vec::new(),
            raw: SmallVec::new(),
        };
        let mut reader = WireReader::new(body);
        while let Some((number, value)) = reader.field()? {
            message.field(number, value, account)?;
        }
        Ok(message)
    }

    fn field(
        &mut self,
        number: u32,
        value: WireValue<'a>,
        account: Option<&Arc<MemoryAccount>>,
    ) -> Result<(), ParseError> {
        match number {
            1 => self.model_name = name("model", value)?,
            2 => self.model_version = value.text()?,
            3 => self.id = value.text()?,
            4 => insert_parameter(&mut self.parameters, value, &mut self.parameter_count)?,
            5 => {
                check_count(self.inputs.len(), "inputs")?;
                self.inputs.push(read_input(value, &mut self.parameter_count, account)?);
            }
            6 => {
                check_count(self.outputs.len(), "outputs")?;
                self.outputs.push(read_output(value, &mut self.parameter_count)?);
            }
            7 => {
                check_count(self.raw.len(), "raw_input_contents")?;
                self.raw.push(value.bytes()?);
            }
            _ => {}
        }
        Ok(())
    }
}

fn check_count(count: usize, what: &'static str) -> Result<(), ParseError> {
    if count < MessageLimits::TENSORS_MAX {
        return Ok(());
    }
    let text = format!("request has more than {} {what}", MessageLimits::TENSORS_MAX);
    Err(ParseError::Refused(Status::invalid_argument(text)))
}

/// Reads a name of limited length.
fn name<'a>(what: &str, value: WireValue<'a>) -> Result<&'a str, ParseError> {
    let name = value.text()?;
    check_name_length(what, name.len()).map_err(ParseError::Refused)?;
    Ok(name)
}

fn read_input<'a>(
    value: WireValue<'a>,
    parameter_count: &mut usize,
    account: Option<&Arc<MemoryAccount>>,
) -> Result<WireInput<'a>, ParseError> {
    let mut input = WireInput::default();
    let mut reader = WireReader::new(value.bytes()?);
    while let Some((number, value)) = reader.field()? {
        match number {
            1 => input.name = name("input", value)?,
            2 => input.datatype = value.text()?,
            3 => value.varints(|dim| {
                if input.shape.len() >= MessageLimits::DIMS_MAX {
                    return Err(ParseError::Refused(too_many_dims_error()));
                }
                input.shape.push(dim.cast_signed());
                Ok(())
            })?,
            4 => insert_parameter(&mut input.parameters, value, parameter_count)?,
            5 => input.contents.get_or_insert_default().merge(value.bytes()?, account)?,
            _ => {}
        }
    }
    Ok(input)
}

fn read_output<'a>(
    value: WireValue<'a>,
    parameter_count: &mut usize,
) -> Result<WireOutput<'a>, ParseError> {
    let mut output = WireOutput::default();
    let mut reader = WireReader::new(value.bytes()?);
    while let Some((number, value)) = reader.field()? {
        match number {
            1 => output.name = name("output", value)?,
            2 => insert_parameter(&mut output.parameters, value, parameter_count)?,
            _ => {}
        }
    }
    Ok(output)
}

fn insert_parameter<'a>(
    into: &mut Parameters<'a>,
    value: WireValue<'a>,
    count: &mut usize,
) -> Result<(), ParseError> {
    if *count >= MessageLimits::PARAMETERS_MAX {
        return Err(ParseError::Refused(too_many_parameters_error()));
    }
    *count = count.saturating_add(1);
    let (mut key, mut choice) = ("", WireParameter::Unset);
    let mut reader = WireReader::new(value.bytes()?);
    while let Some((number, value)) = reader.field()? {
        match number {
            1 => key = name("parameter", value)?,
            2 => read_choice(&mut choice, value.bytes()?)?,
            _ => {}
        }
    }
    into.insert(key, choice);
    Ok(())
}

fn read_choice<'a>(
    choice: &mut WireParameter<'a>,
    message: &'a [u8],
) -> Result<(), MalformedMessage> {
    let mut reader = WireReader::new(message);
    while let Some((number, value)) = reader.field()? {
        match number {
            1 => *choice = WireParameter::Bool(value.varint()? != 0),
            2 => *choice = WireParameter::Int64(value.varint()?.cast_signed()),
            3 => *choice = WireParameter::Text(value.text()?),
            4 => *choice = WireParameter::Double(f64::from_le_bytes(value.fixed64()?)),
            5 => *choice = WireParameter::Uint64(value.varint()?),
            _ => {}
        }
    }
    Ok(())
}
