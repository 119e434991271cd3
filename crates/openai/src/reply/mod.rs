//! What becomes of a model's responses: documents, or events of a stream.

mod collected;
mod completion;
mod embedding;
mod logprobs;
mod outputs;

pub use completion::{Completion, CompletionKind};
pub use embedding::Embedding;
pub use outputs::Usage;

#[cfg(test)]
mod tests;
