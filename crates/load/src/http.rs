//! HTTP requests: good, partial and hostile ones.

use galatea_load::HttpConnection;

use crate::hostile;
use crate::options::Options;
use crate::report::GoodRequestOutcome;
use crate::serial;

/// A connection.
pub(crate) struct Client(HttpConnection);

impl serial::Client for Client {
    async fn connect(options: &Options) -> Result<Self, String> {
        HttpConnection::connect(options.address).await.map(Self)
    }

    async fn infer(
        &mut self,
        options: &Options,
        tensor: Vec<u8>,
    ) -> Result<GoodRequestOutcome, String> {
        let reply = self.0.exchange(&request(options, &tensor)).await?;
        match reply.status {
            200 if reply.body.ends_with(&tensor) => Ok(GoodRequestOutcome::Well),
            200 => Err(String::from("another request's response")),
            503 if options.expects_refusals => Ok(GoodRequestOutcome::Refused),
            status => Err(format!("{status} {}", String::from_utf8_lossy(&reply.body))),
        }
    }

    async fn infer_partly(
        &mut self,
        options: &Options,
        tensor: Vec<u8>,
        thousandths: u64,
    ) -> Result<(), String> {
        let request = request(options, &tensor);
        let length = request.len() as u64 * thousandths / 1000;
        let part = &request[..usize::try_from(length).unwrap_or(request.len())];
        self.0.send(part).await
    }

    async fn attack(&mut self, options: &Options, number: u64) -> (&'static str, String) {
        let attack = hostile::http(&options.model, number);
        let _ = self.0.send(&attack.bytes).await;
        let result = match self.0.read_reply().await {
            Ok(reply) => reply.status.to_string(),
            Err(reason) => reason,
        };
        (attack.kind, result)
    }
}

fn request(options: &Options, tensor: &[u8]) -> Vec<u8> {
    let json = format!(
        "{{\"inputs\":[{{\"name\":\"{}\",\"datatype\":\"INT32\",\"shape\":{:?},\
         \"parameters\":{{\"binary_data_size\":{}}}}}],\
         \"parameters\":{{\"binary_data_output\":true}}}}",
        options.input,
        options.shape(),
        tensor.len()
    );
    let mut request = format!(
        "POST /v2/models/{}/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\
         Inference-Header-Content-Length: {}\r\n\r\n{json}",
        options.model,
        json.len() + tensor.len(),
        json.len(),
    )
    .into_bytes();
    request.extend_from_slice(tensor);
    request
}
