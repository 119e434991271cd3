//! A `ModelInferRequest`, read from its wire form.
//!
//! The generated message would own a copy of every name, a vector for every
//! shape and a map for every tensor's parameters, all to be taken apart again
//! a moment later. This one borrows from the body, and it refuses a body
//! that names more tensors than [`Limits::TENSORS_MAX`] before memory is
//! spent on them: a tensor takes two bytes on the wire and a hundred here.

use std::collections::BTreeMap;

use bytes::Bytes;
use galatea_infer::Status;
use smallvec::SmallVec;

use super::contents::Contents;
use super::parameters::EMPTY_FINAL_RESPONSE;
use super::wire::{Malformed, Reader, Value};
use crate::limits::Limits;

/// A `ModelInferRequest` whose strings and tensors are slices of its body.
#[derive(Debug)]
pub struct InferMessage<'a> {
    pub(super) body: &'a Bytes,
    pub(super) model_name: &'a str,
    pub(super) model_version: &'a str,
    pub(super) id: &'a str,
    pub(super) parameters: Parameters<'a>,
    pub(super) inputs: Vec<Input<'a>>,
    pub(super) outputs: Vec<Output<'a>>,
    pub(super) raw: SmallVec<[&'a [u8]; 4]>,
}

/// Parameters by name; of two with the same name the later one counts.
pub(super) type Parameters<'a> = BTreeMap<&'a str, Choice<'a>>;

/// The value of an `InferParameter`.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub(super) enum Choice<'a> {
    #[default]
    Unset,
    Bool(bool),
    Int64(i64),
    Text(&'a str),
    Double(f64),
    Uint64(u64),
}

#[derive(Debug, Default)]
pub(super) struct Input<'a> {
    pub(super) name: &'a str,
    pub(super) datatype: &'a str,
    pub(super) shape: SmallVec<[i64; 4]>,
    pub(super) parameters: Parameters<'a>,
    pub(super) contents: Option<Box<Contents>>,
}

#[derive(Debug, Default)]
pub(super) struct Output<'a> {
    pub(super) name: &'a str,
    pub(super) parameters: Parameters<'a>,
}

/// Why a body was not read.
enum Refusal {
    Malformed,
    TooMany(&'static str),
}

impl From<Malformed> for Refusal {
    fn from(Malformed: Malformed) -> Self {
        Self::Malformed
    }
}

impl<'a> InferMessage<'a> {
    /// Reads a message.
    ///
    /// # Errors
    ///
    /// `Internal` with gRPC's own words if the body is not such a message,
    /// `InvalidArgument` if it names too many tensors.
    pub fn parse(body: &'a Bytes) -> Result<Self, Status> {
        Self::read(body).map_err(|refusal| match refusal {
            Refusal::Malformed => Status::internal("Unable to parse request"),
            Refusal::TooMany(what) => Status::invalid_argument(format!(
                "request has more than {} {what}",
                Limits::TENSORS_MAX
            )),
        })
    }

    /// The model's name.
    #[must_use]
    pub const fn model_name(&self) -> &'a str {
        self.model_name
    }

    /// The model's version as the client wrote it.
    #[must_use]
    pub const fn model_version(&self) -> &'a str {
        self.model_version
    }

    /// The client's identifier for the request; empty if it gave none.
    #[must_use]
    pub const fn id(&self) -> &'a str {
        self.id
    }

    /// Whether the client of a stream wants to be told of an end that brings no
    /// response of its own. A value of a wrong type asks for nothing here; it
    /// is refused when the message becomes a request.
    #[must_use]
    pub fn enables_empty_final_response(&self) -> bool {
        self.parameters.get(EMPTY_FINAL_RESPONSE) == Some(&Choice::Bool(true))
    }

    fn read(body: &'a Bytes) -> Result<Self, Refusal> {
        let mut message = Self {
            body,
            model_name: "",
            model_version: "",
            id: "",
            parameters: Parameters::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            raw: SmallVec::new(),
        };
        let mut reader = Reader::new(body);
        while let Some((number, value)) = reader.field()? {
            message.field(number, value)?;
        }
        Ok(message)
    }

    fn field(&mut self, number: u32, value: Value<'a>) -> Result<(), Refusal> {
        match number {
            1 => self.model_name = value.text()?,
            2 => self.model_version = value.text()?,
            3 => self.id = value.text()?,
            4 => insert_parameter(&mut self.parameters, value)?,
            5 => {
                check_count(self.inputs.len(), "inputs")?;
                self.inputs.push(read_input(value)?);
            }
            6 => {
                check_count(self.outputs.len(), "outputs")?;
                self.outputs.push(read_output(value)?);
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

const fn check_count(count: usize, what: &'static str) -> Result<(), Refusal> {
    if count < Limits::TENSORS_MAX { Ok(()) } else { Err(Refusal::TooMany(what)) }
}

fn read_input(value: Value<'_>) -> Result<Input<'_>, Malformed> {
    let mut input = Input::default();
    let mut reader = Reader::new(value.bytes()?);
    while let Some((number, value)) = reader.field()? {
        match number {
            1 => input.name = value.text()?,
            2 => input.datatype = value.text()?,
            3 => value.varints(|dim| input.shape.push(dim.cast_signed()))?,
            4 => insert_parameter_inner(&mut input.parameters, value)?,
            5 => input.contents.get_or_insert_default().merge(value.bytes()?)?,
            _ => {}
        }
    }
    Ok(input)
}

fn read_output(value: Value<'_>) -> Result<Output<'_>, Malformed> {
    let mut output = Output::default();
    let mut reader = Reader::new(value.bytes()?);
    while let Some((number, value)) = reader.field()? {
        match number {
            1 => output.name = value.text()?,
            2 => insert_parameter_inner(&mut output.parameters, value)?,
            _ => {}
        }
    }
    Ok(output)
}

fn insert_parameter<'a>(into: &mut Parameters<'a>, value: Value<'a>) -> Result<(), Refusal> {
    check_count(into.len(), "parameters")?;
    Ok(insert_parameter_inner(into, value)?)
}

fn insert_parameter_inner<'a>(
    into: &mut Parameters<'a>,
    value: Value<'a>,
) -> Result<(), Malformed> {
    let (mut name, mut choice) = ("", Choice::Unset);
    let mut reader = Reader::new(value.bytes()?);
    while let Some((number, value)) = reader.field()? {
        match number {
            1 => name = value.text()?,
            2 => read_choice(&mut choice, value.bytes()?)?,
            _ => {}
        }
    }
    into.insert(name, choice);
    Ok(())
}

fn read_choice<'a>(choice: &mut Choice<'a>, message: &'a [u8]) -> Result<(), Malformed> {
    let mut reader = Reader::new(message);
    while let Some((number, value)) = reader.field()? {
        match number {
            1 => *choice = Choice::Bool(value.varint()? != 0),
            2 => *choice = Choice::Int64(value.varint()?.cast_signed()),
            3 => *choice = Choice::Text(value.text()?),
            4 => *choice = Choice::Double(f64::from_le_bytes(value.fixed64()?)),
            5 => *choice = Choice::Uint64(value.varint()?),
            _ => {}
        }
    }
    Ok(())
}
