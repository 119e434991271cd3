//! Frames from the server to the worker.

use galatea_infer::{
    CorrelationId, InferenceRequest, Parameter, ParameterValue, SequenceFlags, Status,
};
use galatea_tensor::{DataType, Shape};

use super::from_worker::code_number;
use super::numbers::{place, response};

/// A frame under construction.
pub(crate) struct Frame(Vec<u8>);

/// The location of a tensor's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentPlace<'a> {
    /// In the frame.
    Inline(&'a [u8]),
    /// At this offset in the arena of inputs, with this length.
    Input(u64, u64),
    /// In GPU memory. The tensor's description is at this offset in the arena of inputs, with this
    /// length.
    Device(u64, u64),
}

/// An input whose contents have been placed.
pub(crate) struct EncodedInput<'a> {
    pub(crate) name: &'a str,
    pub(crate) datatype: DataType,
    pub(crate) shape: &'a Shape,
    pub(crate) place: ContentPlace<'a>,
}

/// Parameters and outputs, or an error.
pub(crate) type EncodedResponse<'a> = Result<(&'a [Parameter], &'a [EncodedInput<'a>]), &'a Status>;

/// A reply to a model's call.
pub(crate) struct CallReply<'a> {
    pub(crate) call: u64,
    pub(crate) is_last: bool,
    pub(crate) response: Option<EncodedResponse<'a>>,
}

impl Frame {
    pub(crate) fn new(kind: u8) -> Self {
        Self(vec![0, 0, 0, 0, kind])
    }

    /// Creates a frame that contains a JSON document.
    pub(crate) fn json(kind: u8, document: &str) -> Self {
        let mut frame = Self::new(kind);
        frame.text(document);
        frame
    }

    /// Finishes the frame and returns its bytes.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        let length = self.0.len().saturating_sub(4);
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        if let Some(head) = self.0.first_chunk_mut() {
            *head = length.to_le_bytes();
        }
        self.0
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn write_count(&mut self, count: usize) {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.write_count(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn tensor(&mut self, tensor: &EncodedInput<'_>) {
        self.text(tensor.name);
        self.u8(u8::try_from(tensor.datatype.config_number()).unwrap_or_default());
        self.write_count(tensor.shape.rank());
        for dim in tensor.shape.dims() {
            self.0.extend_from_slice(&dim.to_le_bytes());
        }
        match tensor.place {
            ContentPlace::Inline(content) => {
                self.u8(place::INLINE);
                self.bytes(content);
            }
            ContentPlace::Input(offset, length) => {
                self.u8(place::IN_INPUTS);
                self.u64(offset);
                self.u64(length);
            }
            ContentPlace::Device(offset, length) => {
                self.u8(place::ON_DEVICE);
                self.u64(offset);
                self.u64(length);
            }
        }
    }

    fn tensors(&mut self, tensors: &[EncodedInput<'_>]) {
        self.write_count(tensors.len());
        tensors.iter().for_each(|tensor| self.tensor(tensor));
    }

    fn correlation(&mut self, id: &CorrelationId) {
        match id {
            CorrelationId::None => self.u8(0),
            CorrelationId::Number(number) => {
                self.u8(1);
                self.u64(*number);
            }
            CorrelationId::Text(text) => {
                self.u8(2);
                self.text(text);
            }
        }
    }

    /// Appends a request of a batch.
    pub(crate) fn request(
        &mut self,
        key: u64,
        request: &InferenceRequest,
        context: (&CorrelationId, SequenceFlags, Option<&str>),
        inputs: &[EncodedInput<'_>],
    ) {
        let (correlation, flags, trace) = context;
        self.u64(key);
        self.text(&request.id);
        self.correlation(correlation);
        self.u32(u32::from(flags.start) | u32::from(flags.end) << 1);
        self.u64(request.timeout_microseconds);
        self.parameters(&request.parameters);
        self.u8(trace.is_some().into());
        if let Some(context) = trace {
            self.text(context);
        }
        self.write_count(request.outputs.len());
        request.outputs.iter().for_each(|output| self.text(output));
        self.tensors(inputs);
    }

    fn parameters(&mut self, parameters: &[Parameter]) {
        match parameters {
            [] => self.text(""),
            some => self.text(&json_of(some)),
        }
    }

    /// Appends an error.
    pub(crate) fn status(&mut self, status: &Status) {
        self.u8(code_number(status.code()));
        self.text(status.message());
    }

    /// Creates a frame that contains the reply to a call.
    pub(crate) fn call_reply(kind: u8, reply: &CallReply<'_>) -> Self {
        let mut frame = Self::new(kind);
        frame.u64(reply.call);
        let has_response = reply.response.is_some();
        frame.u8(u8::from(reply.is_last) | u8::from(has_response) << 1);
        match &reply.response {
            None => {}
            Some(Ok((parameters, outputs))) => {
                frame.u8(response::TENSORS);
                frame.parameters(parameters);
                frame.tensors(outputs);
            }
            Some(Err(status)) => {
                frame.u8(response::ERROR);
                frame.status(status);
            }
        }
        frame
    }
}

/// The parameters as a JSON object, as models see them.
fn json_of(parameters: &[Parameter]) -> String {
    let value = |value: &ParameterValue| match value {
        ParameterValue::Bool(value) => serde_json::Value::from(*value),
        ParameterValue::Int64(value) => serde_json::Value::from(*value),
        ParameterValue::Double(value) => serde_json::Value::from(*value),
        ParameterValue::String(value) => serde_json::Value::from(value.as_str()),
    };
    let members = parameters.iter().map(|one| (one.name.clone(), value(&one.value)));
    serde_json::Value::Object(members.collect()).to_string()
}

#[cfg(test)]
mod tests {
    use super::super::numbers::to_a;
    use super::*;

    #[test]
    fn parameters_are_a_json_object() {
        let parameter = |name: &str, value| Parameter { name: name.to_owned(), value };
        let parameters = [
            parameter("b", ParameterValue::Bool(true)),
            parameter("a", ParameterValue::Int64(-3)),
            parameter("d", ParameterValue::Double(1.5)),
            parameter("s", ParameterValue::String("x\"".to_owned())),
        ];
        assert_eq!(json_of(&parameters), r#"{"b":true,"a":-3,"d":1.5,"s":"x\""}"#);
    }

    #[test]
    fn a_frame_begins_with_its_length() {
        let mut frame = Frame::new(to_a::EXECUTE);
        frame.u32(7);
        assert_eq!(frame.finish(), [5, 0, 0, 0, 1, 7, 0, 0, 0]);
    }
}
