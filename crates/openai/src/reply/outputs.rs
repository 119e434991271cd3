//! Reads the outputs of a response.

use std::borrow::Cow;

use galatea_infer::{InferenceResponse, OutputTensor};
use galatea_tensor::DataType;
use galatea_tensor::elements::BytesElements;

use crate::Failure;
use crate::model::Names;

/// The token counts of a response.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The number of tokens in the prompt.
    pub prompt_tokens: i64,
    /// The number of generated tokens.
    pub completion_tokens: i64,
}

impl Usage {
    /// Reads the counts, if the response has both.
    pub(crate) fn of(response: &InferenceResponse, names: &Names) -> Option<Self> {
        let prompt_tokens = count(output(response, &names.prompt_tokens)?);
        let completion_tokens = count(output(response, &names.completion_tokens)?);
        Some(Self { prompt_tokens: prompt_tokens?, completion_tokens: completion_tokens? })
    }

    /// Reads the number of prompt tokens, if the response has it. For a list of texts, it is the
    /// sum of their numbers.
    pub(super) fn prompt_tokens_of(response: &InferenceResponse, names: &Names) -> Option<i64> {
        let counts = output(response, &names.prompt_tokens)?;
        match counts.datatype {
            DataType::Int32 => {
                let data = counts.data.host_bytes()?.as_chunks().0.iter();
                let counts = data.map(|bytes| i64::from(i32::from_le_bytes(*bytes)));
                Some(counts.fold(0_i64, i64::saturating_add))
            }
            _ => count(counts),
        }
    }

    /// Appends the token counts of a generation.
    pub(crate) fn push(self, text: &mut Vec<u8>) {
        let total = self.prompt_tokens.saturating_add(self.completion_tokens);
        let shown = format!(
            "{{\"prompt_tokens\":{},\"total_tokens\":{total},\"completion_tokens\":{}}}",
            self.prompt_tokens, self.completion_tokens
        );
        text.extend_from_slice(shown.as_bytes());
    }
}

impl Usage {
    /// Appends the token counts of a response. Models don't count cached tokens and those of
    /// reasoning.
    pub(super) fn push_of_response(self, text: &mut Vec<u8>) {
        let Self { prompt_tokens, completion_tokens } = self;
        let total = prompt_tokens.saturating_add(completion_tokens);
        let shown = format!(
            "{{\"input_tokens\":{prompt_tokens},\"input_tokens_details\":{{\"cached_tokens\":0,\
             \"cache_write_tokens\":0}},\"output_tokens\":{completion_tokens},\
             \"output_tokens_details\":{{\"reasoning_tokens\":0}},\"total_tokens\":{total}}}"
        );
        text.extend_from_slice(shown.as_bytes());
    }
}

pub(super) fn output<'r>(response: &'r InferenceResponse, name: &str) -> Option<&'r OutputTensor> {
    response.outputs.iter().find(|output| &*output.name == name)
}

/// Reads a token count, which is the first element of an integer tensor.
fn count(output: &OutputTensor) -> Option<i64> {
    let data = output.data.host_bytes()?;
    match output.datatype {
        DataType::Uint32 => data.first_chunk().map(|bytes| u32::from_le_bytes(*bytes).into()),
        DataType::Int32 => data.first_chunk().map(|bytes| i32::from_le_bytes(*bytes).into()),
        DataType::Int64 => data.first_chunk().map(|bytes| i64::from_le_bytes(*bytes)),
        _ => None,
    }
}

/// Reads the text of a response. As in Triton, a response without this output has no text.
pub(super) fn text<'r>(
    response: &'r InferenceResponse,
    name: &str,
) -> Result<Cow<'r, str>, Failure> {
    let Some(output) = output(response, name) else { return Ok(Cow::Borrowed("")) };
    let count = output.shape.element_count();
    if count != 1 {
        return Err(Failure::server(format!(
            "Expected to find 1 string in the output, found {count} instead."
        )));
    }
    let data = output.data.host_bytes().filter(|_| output.datatype == DataType::Bytes);
    let element = data.and_then(|data| BytesElements::new(data).next()?.ok());
    let element =
        element.ok_or_else(|| Failure::server(format!("output '{}' is no text", output.name)))?;
    Ok(String::from_utf8_lossy(element))
}
