//! Documents and stream events, which are created from a model's responses.

pub(crate) mod calls;
mod collected;
mod completion;
mod embedding;
mod logprobs;
mod outputs;
mod rerank;
mod response_writer;

pub use completion::{CompletionKind, CompletionReply};
pub use embedding::Embedding;
pub use outputs::Usage;
pub use rerank::Rerank;

#[cfg(test)]
mod tests;
