//! Requests: what a body must look like, and what Triton's frontend refuses.

mod body;
mod chat;
mod chat_schema;
mod completion;
mod embedding;
mod fields;

pub use body::{ContentType, parsed_size, read_body};
pub use chat::ChatRequest;
pub use completion::CompletionRequest;
pub use embedding::EmbeddingRequest;
pub(crate) use fields::Fields;
pub use fields::{Generation, NamedTool};

/// The facts about the server and a model that decide which requests are refused.
#[derive(Copy, Clone, Debug)]
pub struct Capabilities {
    /// True if the model's backend is vLLM's.
    pub is_vllm: bool,
    /// True if the server parses tool calls.
    pub has_tool_parser: bool,
}
