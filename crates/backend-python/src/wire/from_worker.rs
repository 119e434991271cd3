//! Frames from a worker, decoded and checked.

use galatea_infer::{Code, CorrelationId, Parameter, ParameterValue, SequenceFlags, Status};
use galatea_tensor::{DataType, Shape};

use super::numbers::{from_a, from_b, place, response as kind};
use super::{FrameReader, MalformedFrame};

/// The location of a tensor's contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WirePlace {
    /// The contents came with the frame.
    Inline(Vec<u8>),
    /// In the arena of inputs.
    Input { offset: u64, length: u64 },
    /// In the arena of outputs.
    Output { offset: u64, length: u64 },
    /// An unchanged input in GPU memory. Its description is in the arena of inputs.
    DeviceInput { offset: u64, length: u64 },
}

impl WirePlace {
    /// The number of bytes.
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Inline(content) => galatea_stdx::len64(content.len()),
            Self::Input { length, .. }
            | Self::Output { length, .. }
            | Self::DeviceInput { length, .. } => *length,
        }
    }

    /// The tensor's block in the arena of outputs.
    pub(crate) const fn output_block(&self) -> Option<u64> {
        match self {
            Self::Output { offset, .. } => Some(*offset),
            Self::Inline(_) | Self::Input { .. } | Self::DeviceInput { .. } => None,
        }
    }
}

impl WireResponse {
    /// The response's blocks in the arena of outputs.
    pub(crate) fn output_blocks(&self) -> impl Iterator<Item = u64> {
        let outputs = match self {
            Self::Tensors { outputs, .. } => &outputs[..],
            Self::Nothing | Self::Error(_) => &[],
        };
        outputs.iter().filter_map(|output| output.place.output_block())
    }
}

/// A tensor whose contents have not been read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WireTensor {
    pub(crate) name: String,
    pub(crate) datatype: DataType,
    pub(crate) shape: Shape,
    pub(crate) place: WirePlace,
}

/// A response of a model.
#[derive(Debug)]
pub(crate) enum WireResponse {
    /// No response: the request gets another response later, or none at all.
    Nothing,
    /// Tensors and parameters.
    Tensors { parameters: Vec<Parameter>, outputs: Vec<WireTensor> },
    /// An error in place of a response.
    Error(Status),
}

/// The result for one request of a batch.
#[derive(Debug)]
pub(crate) struct WireResult {
    pub(crate) key: u64,
    /// True if the model wants to execute the request again.
    pub(crate) is_rescheduled: bool,
    pub(crate) response: WireResponse,
}

/// The result for a batch.
#[derive(Debug)]
pub(crate) enum BatchResult {
    /// Results for the requests that the worker reports.
    Results(Vec<WireResult>),
    /// The model failed as a whole.
    Failed(Status),
}

/// A model's request to another model.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) id: u64,
    /// True if the call may receive any number of responses.
    pub(crate) wants_stream: bool,
    /// The request whose execution makes the call.
    pub(crate) parent: Option<u64>,
    pub(crate) model: String,
    pub(crate) version: Option<i64>,
    pub(crate) request_id: String,
    pub(crate) correlation: CorrelationId,
    pub(crate) flags: SequenceFlags,
    pub(crate) timeout_microseconds: u64,
    pub(crate) priority: u64,
    /// The memory for the call's responses.
    pub(crate) preferred: PreferredMemory,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) outputs: Vec<String>,
    pub(crate) inputs: Vec<WireTensor>,
}

/// The memory in which a model wants a call's responses.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum PreferredMemory {
    /// Any memory. The responses stay where they are.
    Any,
    /// Host memory.
    Host,
    /// The memory of the GPU with this number.
    Gpu(i64),
}

/// A frame on the socket for executions.
#[derive(Debug)]
pub(crate) enum ExecutionFrame {
    /// The end of an execution, and the blocks in the arena of inputs that are no longer used.
    Result {
        batch_result: BatchResult,
        released: Vec<u64>,
        sent: u64,
    },
    Call(Call),
    Done(String),
    Failed(Status),
}

/// A frame on the second socket.
#[derive(Debug)]
pub(crate) enum SecondSocketFrame {
    Log {
        level: u8,
        file: String,
        line: u32,
        message: String,
    },
    Response {
        key: u64,
        is_final: bool,
        response: WireResponse,
    },
    Call(Call),
    CancelCall(u64),
    Release(Vec<u64>),
    Control {
        id: u64,
        document: String,
    },
    Metric {
        id: u64,
        document: String,
    },
    /// The model's answer to a readiness check.
    Ready {
        question: u64,
        answer: Result<bool, Status>,
    },
}

impl ExecutionFrame {
    pub(crate) fn decode(body: &[u8]) -> Result<Self, MalformedFrame> {
        let mut fields = FrameReader::new(body);
        let frame = match fields.u8()? {
            from_a::RESULT => result(&mut fields)?,
            from_a::CALL => Self::Call(call(&mut fields)?),
            from_a::OK_JSON | from_a::HELLO => Self::Done(fields.owned_text()?),
            from_a::FAILED => Self::Failed(status(&mut fields)?),
            from_a::DONE => Self::Done(String::new()),
            _ => return Err(MalformedFrame("an unknown kind")),
        };
        fields.end()?;
        Ok(frame)
    }
}

impl SecondSocketFrame {
    pub(crate) fn decode(body: &[u8]) -> Result<Self, MalformedFrame> {
        let mut fields = FrameReader::new(body);
        let frame = match fields.u8()? {
            from_b::LOG => Self::Log {
                level: fields.u8()?,
                file: fields.owned_text()?,
                line: fields.u32()?,
                message: fields.owned_text()?,
            },
            from_b::RESPONSE => Self::Response {
                key: fields.u64()?,
                is_final: fields.u32()? & 1 != 0,
                response: response(&mut fields)?,
            },
            from_b::CALL => Self::Call(call(&mut fields)?),
            from_b::CANCEL_CALL => Self::CancelCall(fields.u64()?),
            from_b::RELEASE => Self::Release(fields.list(8, FrameReader::u64)?),
            from_b::CONTROL => Self::Control { id: fields.u64()?, document: fields.owned_text()? },
            from_b::METRIC => Self::Metric { id: fields.u64()?, document: fields.owned_text()? },
            from_b::READY => {
                Self::Ready { question: fields.u64()?, answer: readiness(&mut fields)? }
            }
            _ => return Err(MalformedFrame("an unknown kind")),
        };
        fields.end()?;
        Ok(frame)
    }
}

fn result(fields: &mut FrameReader<'_>) -> Result<ExecutionFrame, MalformedFrame> {
    const ENTRY_BYTES_MIN: usize = 13;
    let batch_result = match fields.u8()? {
        0 | 1 => BatchResult::Results(fields.list(ENTRY_BYTES_MIN, |fields| {
            Ok(WireResult {
                key: fields.u64()?,
                is_rescheduled: fields.u32()? & 2 != 0,
                response: response(fields)?,
            })
        })?),
        2 => BatchResult::Failed(status(fields)?),
        _ => return Err(MalformedFrame("an unknown kind of result")),
    };
    let released = fields.list(8, FrameReader::u64)?;
    Ok(ExecutionFrame::Result { batch_result, released, sent: fields.u64()? })
}

fn readiness(fields: &mut FrameReader<'_>) -> Result<Result<bool, Status>, MalformedFrame> {
    Ok(match fields.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        2 => Err(status(fields)?),
        _ => return Err(MalformedFrame("an unknown kind of answer")),
    })
}

fn response(fields: &mut FrameReader<'_>) -> Result<WireResponse, MalformedFrame> {
    Ok(match fields.u8()? {
        kind::NO_RESPONSE => WireResponse::Nothing,
        kind::TENSORS => {
            let parameters = parameters(fields)?;
            WireResponse::Tensors { parameters, outputs: tensors(fields)? }
        }
        kind::ERROR => WireResponse::Error(status(fields)?),
        _ => return Err(MalformedFrame("an unknown kind of response")),
    })
}

fn status(fields: &mut FrameReader<'_>) -> Result<Status, MalformedFrame> {
    let code = match fields.u8()? {
        0 => Code::Unknown,
        2 => Code::NotFound,
        3 => Code::InvalidArgument,
        4 => Code::Unavailable,
        5 => Code::Unsupported,
        6 => Code::AlreadyExists,
        7 => Code::Cancelled,
        // Triton's number for internal errors, and any unknown number that a model uses.
        _ => Code::Internal,
    };
    Ok(Status::new(code, fields.owned_text()?))
}

/// Triton's number for an error code.
pub(super) const fn code_number(code: Code) -> u8 {
    match code {
        Code::Unknown => 0,
        Code::Internal => 1,
        Code::NotFound => 2,
        Code::InvalidArgument => 3,
        Code::Unavailable | Code::Exhausted | Code::DeadlineExceeded => 4,
        Code::Unsupported => 5,
        Code::AlreadyExists => 6,
        Code::Cancelled => 7,
    }
}

fn tensors(fields: &mut FrameReader<'_>) -> Result<Vec<WireTensor>, MalformedFrame> {
    const TENSOR_BYTES_MIN: usize = 14;
    fields.list(TENSOR_BYTES_MIN, tensor)
}

fn tensor(fields: &mut FrameReader<'_>) -> Result<WireTensor, MalformedFrame> {
    let name = fields.owned_text()?;
    let datatype = DataType::from_config_number(fields.u8()?.into());
    let datatype = datatype.ok_or(MalformedFrame("an unknown datatype"))?;
    let dims = fields.list(8, FrameReader::i64)?;
    let shape = Shape::new(&dims).map_err(|_| MalformedFrame("a shape that is none"))?;
    let place = match fields.u8()? {
        place::INLINE => WirePlace::Inline(fields.bytes()?.to_vec()),
        place::IN_INPUTS => WirePlace::Input { offset: fields.u64()?, length: fields.u64()? },
        place::IN_OUTPUTS => WirePlace::Output { offset: fields.u64()?, length: fields.u64()? },
        place::ON_DEVICE => WirePlace::DeviceInput { offset: fields.u64()?, length: fields.u64()? },
        _ => return Err(MalformedFrame("an unknown place")),
    };
    Ok(WireTensor { name, datatype, shape, place })
}

fn parameters(fields: &mut FrameReader<'_>) -> Result<Vec<Parameter>, MalformedFrame> {
    let text = fields.text()?;
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let wrong = MalformedFrame("parameters that are no JSON object");
    let object: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(text).map_err(|_| wrong)?;
    let parameter = |(name, value): (String, serde_json::Value)| {
        let value = match value {
            serde_json::Value::Bool(value) => ParameterValue::Bool(value),
            serde_json::Value::String(value) => ParameterValue::String(value),
            serde_json::Value::Number(number) => match number.as_i64() {
                Some(value) => ParameterValue::Int64(value),
                // The worker rejects numbers that are too large, as Triton does.
                None if !number.is_f64() => return Err(wrong),
                None => ParameterValue::Double(number.as_f64().ok_or(wrong)?),
            },
            _ => return Err(wrong),
        };
        Ok(Parameter { name, value })
    };
    object.into_iter().map(parameter).collect()
}

fn call(fields: &mut FrameReader<'_>) -> Result<Call, MalformedFrame> {
    const TEXT_BYTES_MIN: usize = 4;
    Ok(Call {
        id: fields.u64()?,
        wants_stream: fields.u8()? != 0,
        parent: Some(fields.u64()?).filter(|key| *key != 0),
        model: fields.owned_text()?,
        version: Some(fields.i64()?).filter(|version| *version >= 0),
        request_id: fields.owned_text()?,
        correlation: correlation(fields)?,
        flags: flags(fields.u32()?),
        timeout_microseconds: fields.u64()?,
        priority: fields.u64()?,
        preferred: preferred_memory(fields)?,
        parameters: parameters(fields)?,
        outputs: fields.list(TEXT_BYTES_MIN, FrameReader::owned_text)?,
        inputs: tensors(fields)?,
    })
}

fn preferred_memory(fields: &mut FrameReader<'_>) -> Result<PreferredMemory, MalformedFrame> {
    Ok(match fields.u8()? {
        0 => PreferredMemory::Any,
        1 => PreferredMemory::Host,
        2 => PreferredMemory::Gpu(fields.i64()?),
        _ => return Err(MalformedFrame("an unknown kind of memory")),
    })
}

fn correlation(fields: &mut FrameReader<'_>) -> Result<CorrelationId, MalformedFrame> {
    Ok(match fields.u8()? {
        0 => CorrelationId::None,
        1 => match fields.u64()? {
            0 => CorrelationId::None,
            number => CorrelationId::Number(number),
        },
        2 => match fields.owned_text()? {
            text if text.is_empty() => CorrelationId::None,
            text => CorrelationId::Text(text),
        },
        _ => return Err(MalformedFrame("an unknown kind of correlation ID")),
    })
}

const fn flags(bits: u32) -> SequenceFlags {
    SequenceFlags { start: bits & 1 != 0, end: bits & 2 != 0 }
}
