//! gRPC calls: good, partial and hostile ones.

use bytes::Bytes;
use galatea_load::{GrpcConnection, frame_grpc_message};
use galatea_protocol::inference::{ModelInferRequest, ModelInferResponse, model_infer_request};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::hostile;
use crate::options::Options;
use crate::report::GoodRequestOutcome;
use crate::serial;

/// The status code RESOURCE_EXHAUSTED.
const RESOURCE_EXHAUSTED: &str = "8";

/// The method used by good and hostile calls.
const METHOD: &str = "ModelInfer";

/// A connection, established by its first call.
pub(crate) struct Client(GrpcConnection);

impl serial::Client for Client {
    async fn connect(options: &Options) -> Result<Self, String> {
        GrpcConnection::connect(options.address).await.map(Self)
    }

    async fn infer(
        &mut self,
        options: &Options,
        tensor: Vec<u8>,
    ) -> Result<GoodRequestOutcome, String> {
        let reply = self.0.call(METHOD, message(options, &tensor)).await?;
        match reply.code.as_str() {
            "0" => {}
            RESOURCE_EXHAUSTED if options.expects_refusals => {
                return Ok(GoodRequestOutcome::Refused);
            }
            code => return Err(format!("code {code}")),
        }
        let response =
            ModelInferResponse::decode(reply.message).map_err(|error| error.to_string())?;
        match response.raw_output_contents.as_slice() {
            [output] if output[..] == tensor[..] => Ok(GoodRequestOutcome::Well),
            _ => Err(String::from("another request's response")),
        }
    }

    async fn infer_partly(
        &mut self,
        options: &Options,
        tensor: Vec<u8>,
        thousandths: u64,
    ) -> Result<(), String> {
        let message = message(options, &tensor);
        let length = message.len() as u64 * thousandths / 1000;
        let part = message.slice(..usize::try_from(length).unwrap_or(message.len()));
        self.0.begin_call(METHOD, part, false).await.map(drop)
    }

    async fn attack(&mut self, _: &Options, number: u64) -> (&'static str, String) {
        // Half of the attacks use connections without a handshake.
        if self.0.is_unused() && number.is_multiple_of(2) {
            let attack = hostile::http2(number / 2);
            return (attack.kind, self.attack_connection(&attack.bytes).await);
        }
        let attack = hostile::message(number / 2);
        let result = self.0.call(METHOD, Bytes::from(attack.bytes)).await;
        (attack.kind, result.map_or_else(|reason| reason, |reply| format!("code {}", reply.code)))
    }
}

impl Client {
    async fn attack_connection(&mut self, bytes: &[u8]) -> String {
        let Some(mut stream) = self.0.take_tcp_stream() else { return String::from("closed") };
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer).await {
            Ok(_) => String::from("closed"),
            Err(error) => error.kind().to_string(),
        }
    }
}

fn message(options: &Options, tensor: &[u8]) -> Bytes {
    let input = model_infer_request::InferInputTensor {
        name: options.input.clone(),
        datatype: String::from("INT32"),
        shape: options.shape().into_iter().map(|size| size as i64).collect(),
        ..Default::default()
    };
    let request = ModelInferRequest {
        model_name: options.model.clone(),
        inputs: vec![input],
        raw_input_contents: vec![Bytes::copy_from_slice(tensor)],
        ..Default::default()
    };
    frame_grpc_message(&request.encode_to_vec())
}
