//! OpenAI's API as Triton's frontend implements it: requests, chat templates, the inputs of models,
//! and the responses that are created from their outputs.
//!
//! The crate turns a body into a validated request ([`ChatRequest`], [`CompletionRequest`],
//! [`EmbeddingRequest`]). A [`ChatTemplate`] turns a conversation into a prompt. A
//! [`ModelDescription`] specifies the inputs for the prompt and the parameters, and the outputs
//! that contain the text. A [`CompletionReply`] formats the model's responses as documents or
//! events. A [`ToolCallParser`] finds the calls in a model's text.
//!
//! Out of scope: the crate opens no files or sockets, reads no clock, and knows no backends. The
//! inputs that the backends for vLLM and TensorRT-LLM expect are described in the same way as any
//! other model's.
//!
//! ```
//! use galatea_openai::{ChatRequest, ChatTemplate, ContentType, read_body};
//!
//! let body = br#"{"model": "m", "messages": [{"role": "user", "content": "Hello"}]}"#;
//! let request = ChatRequest::check(&read_body(body, ContentType::Json)?)?;
//! let template = "{% for message in messages %}{{ message.role }}: {{ message.content }}{% endfor %}";
//! let template = ChatTemplate::new(None, Some(template)).unwrap();
//! assert_eq!(template.render(&request, 0)?, "user: Hello");
//! # Ok::<(), galatea_openai::Failure>(())
//! ```

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::arithmetic_side_effects, clippy::cast_possible_truncation)
)]

mod adapters;
mod calendar;
mod failure;
mod json;
mod model;
mod models;
mod npy;
mod reply;
mod request;
mod schema;
mod template;
mod tools;

pub use adapters::{Adapter, AdapterList, AdapterTask, split_adapter};
pub use failure::{Failure, detail_document, error_document};
pub use json::{JsonValue, Object};
pub use model::{ModelDescription, RequestFormat};
pub use models::{ModelEntry, model_document, model_list_document, unloaded_document};
pub use npy::tensor_of_npy;
pub use reply::{CompletionKind, CompletionReply, Embedding, Rerank, Usage};
pub use request::{
    AdapterChoice, Capabilities, ChatRequest, CompletionRequest, ContentType, EmbeddingRequest,
    Generation, NamedTool, RerankRequest, ResponsesRequest, parsed_size, read_body,
};
pub use schema::ErrorList;
pub use template::{ChatTemplate, TemplateError};
pub use tools::{
    CallIds, ParsedText, PieceOutcome, ToolCall, ToolCallFormat, ToolCallParser, ToolCallStream,
    ToolEvent,
};
