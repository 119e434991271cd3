//! The responses for a client that doesn't stream.

use galatea_infer::InferenceResponse;

use super::logprobs::Logprobs;
use super::outputs::{Usage, text};
use crate::Failure;
use crate::model::Names;

/// The text of the responses so far.
#[derive(Default)]
pub(super) struct CollectedText {
    /// The number of responses; an end without a response also counts as one.
    responses: u64,
    pub(super) text: String,
    pub(super) usage: Option<Usage>,
    pub(super) logprobs: Option<Logprobs>,
}

impl CollectedText {
    /// Adds a response, or an end without a response. Returns the number of added bytes.
    pub(super) fn add(
        &mut self,
        response: Option<&InferenceResponse>,
        names: &Names,
        concatenates: bool,
        wants_logprobs: bool,
    ) -> Result<usize, Failure> {
        self.responses = self.responses.saturating_add(1);
        let is_first = self.responses == 1;
        let Some(response) = response.filter(|_| is_first || concatenates) else { return Ok(0) };
        let added = text(response, &names.text)?;
        self.text.push_str(&added);
        if let Some(Usage { prompt_tokens, completion_tokens }) = Usage::of(response, names) {
            let sum = self.usage.get_or_insert(Usage { prompt_tokens, completion_tokens: 0 });
            sum.completion_tokens = sum.completion_tokens.saturating_add(completion_tokens);
        }
        if let Some(logprobs) = Logprobs::of(response).filter(|_| wants_logprobs) {
            self.logprobs.get_or_insert_default().append(logprobs);
        }
        Ok(added.len())
    }

    /// Checks the number of responses, as Triton's frontend does.
    pub(super) fn check(&self, concatenates: bool) -> Result<(), Failure> {
        if concatenates || (1..=2).contains(&self.responses) {
            return Ok(());
        }
        Err(Failure::server(format!(
            "Unexpected number of responses: {}, expected 1 or 2.",
            self.responses
        )))
    }
}
