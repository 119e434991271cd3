//! Messages of calls other than inference.

use galatea_codec_grpc::MessageChunks;
use galatea_infer::Status;
use prost::Message;
use prost::bytes::Bytes;

/// The response to a call.
pub(crate) type ControlResponse = Result<MessageChunks, Status>;

/// Decodes the message of a call.
pub(crate) fn decode<M: Message + Default>(body: Bytes) -> Result<M, Status> {
    // gRPC's own servers use this text.
    M::decode(body).map_err(|_| Status::internal("Unable to parse request"))
}
