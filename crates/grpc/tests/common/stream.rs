//! A client for streams of inference requests.

use bytes::{Bytes, BytesMut};
use galatea_protocol::inference::{ModelInferRequest, ModelStreamInferResponse};
use prost::Message as _;

use super::{Client, framed, infer_request, inference, request};

impl Client {
    pub(crate) async fn stream(&self) -> StreamCall {
        self.stream_with(request(&inference("ModelStreamInfer"))).await
    }

    pub(crate) async fn stream_with(&self, head: http::request::Builder) -> StreamCall {
        let mut send = self.send.clone().ready().await.unwrap();
        let (response, send) = send.send_request(head.body(()).unwrap(), false).unwrap();
        let (head, body) = response.await.unwrap().into_parts();
        assert_eq!(head.headers["content-type"], "application/grpc");
        StreamCall { send, body, read: BytesMut::new() }
    }
}

/// A stream of inference requests.
pub(crate) struct StreamCall {
    pub(crate) send: h2::SendStream<Bytes>,
    pub(crate) body: h2::RecvStream,
    read: BytesMut,
}

impl StreamCall {
    pub(crate) fn request(&mut self, request: &ModelInferRequest) {
        self.send.send_data(framed(request), false).unwrap();
    }

    /// Sends a request with an ID and some bytes.
    pub(crate) fn infer(&mut self, model: &str, id: &str) {
        assert!(self.try_infer(model, id), "the stream is over");
    }

    /// Like [`Self::infer`], for a stream that may have ended. Returns false if the stream has
    /// ended.
    pub(crate) fn try_infer(&mut self, model: &str, id: &str) -> bool {
        let mut request = infer_request(model, Bytes::from_static(b"x"));
        request.id = id.into();
        self.send.send_data(framed(&request), false).is_ok()
    }

    pub(crate) fn end(&mut self) {
        self.send.send_data(Bytes::new(), true).unwrap();
    }

    /// Returns the next response, or the status at the end.
    pub(crate) async fn next(&mut self) -> Result<ModelStreamInferResponse, (u32, String)> {
        loop {
            if let Some(prefix) = self.read.first_chunk::<5>() {
                let length = u32::from_be_bytes(prefix[1..].try_into().unwrap()) as usize;
                if self.read.len() >= 5 + length {
                    let message = self.read.split_to(5 + length).freeze();
                    return Ok(ModelStreamInferResponse::decode(&message[5..]).unwrap());
                }
            }
            match self.body.data().await {
                Some(Ok(piece)) => {
                    self.body.flow_control().release_capacity(piece.len()).unwrap();
                    self.read.extend_from_slice(&piece);
                }
                Some(Err(error)) => return Err((999, format!("{:?}", error.reason()))),
                None => return Err(self.status().await),
            }
        }
    }

    async fn status(&mut self) -> (u32, String) {
        assert!(self.read.is_empty(), "the stream ends inside a message");
        let trailers = self.body.trailers().await.unwrap().unwrap();
        let text = |name| trailers.get(name).map_or("", |value| value.to_str().unwrap());
        (text("grpc-status").parse().unwrap(), text("grpc-message").to_owned())
    }

    /// Returns the next response as text: ID, model and version, error, and whether it is final.
    pub(crate) async fn next_as_text(&mut self) -> String {
        match self.next().await {
            Err((code, message)) => format!("end {code} {message}"),
            Ok(response) => text_of(&response),
        }
    }

    pub(crate) async fn check(&mut self, expected: &str) {
        assert_eq!(self.next_as_text().await, expected);
    }
}

fn text_of(response: &ModelStreamInferResponse) -> String {
    use galatea_protocol::inference::infer_parameter::ParameterChoice;
    let infer = response.infer_response.as_ref().unwrap();
    let parameter = infer.parameters.get("triton_final_response");
    let end = match parameter.map(|parameter| &parameter.parameter_choice) {
        // No model received the request.
        None => "-",
        Some(Some(ParameterChoice::BoolParam(true))) => ".",
        Some(Some(ParameterChoice::BoolParam(false))) => "+",
        Some(_) => panic!("{parameter:?}"),
    };
    let name = format!("{} {}:{}", infer.id, infer.model_name, infer.model_version);
    let outputs = infer.raw_output_contents.len();
    let content = match (response.error_message.as_str(), outputs) {
        ("", 0) => String::from("empty"),
        ("", count) => format!("{count} output"),
        (error, 0) => error.to_owned(),
        (error, count) => panic!("{error} with {count} outputs"),
    };
    format!("{name} {content} {end}")
}
