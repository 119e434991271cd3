//! Requests: the valid form of a body, and the requests that Triton's frontend refuses.

mod body;
mod chat;
mod chat_schema;
mod completion;
mod embedding;
mod fields;
mod rerank;
mod responses;

pub(crate) use body::values_size;
pub use body::{ContentType, parsed_size, read_body};
pub use chat::ChatRequest;
pub use completion::CompletionRequest;
pub use embedding::EmbeddingRequest;
pub use fields::{AdapterChoice, Generation, NamedTool};
pub(crate) use fields::{Fields, Guide};
pub(crate) use rerank::RerankForm;
pub use rerank::RerankRequest;
pub use responses::ResponsesRequest;

/// The facts about the server and a model that determine which requests are refused.
#[derive(Copy, Clone, Debug)]
pub struct Capabilities {
    /// True if the model's backend is the vLLM backend.
    pub is_vllm: bool,
    /// True if the server parses tool calls.
    pub has_tool_parser: bool,
}
