//! Embeddings.

use std::sync::Arc;

use galatea_infer::InferenceResponse;
use galatea_tensor::DataType;

use super::outputs::{Usage, output, text};
use crate::json::{Bounds, JsonValue, parse, push_compact, push_string, values_max};
use crate::model::{ModelDescription, Names};
use crate::{EmbeddingRequest, Failure};

/// An embedding whose response is still arriving.
pub struct Embedding {
    model: String,
    names: Arc<Names>,
    is_base64: bool,
    /// The number of embeddings.
    count: usize,
}

impl Embedding {
    /// Begins an embedding by a model.
    #[must_use]
    pub fn new(description: &ModelDescription, request: &EmbeddingRequest) -> Self {
        Self {
            model: request.model().to_owned(),
            names: description.names().clone(),
            is_base64: request.is_base64(),
            count: request.count(),
        }
    }

    /// Returns the document for a model's response.
    ///
    /// # Errors
    ///
    /// Code 500 if the output is not an embedding.
    pub fn document(&self, response: &InferenceResponse) -> Result<Vec<u8>, Failure> {
        let numbers = self.numbers(response)?;
        let width = numbers.len().checked_div(self.count).unwrap_or(0);
        if width.checked_mul(self.count) != Some(numbers.len()) {
            let (found, count) = (numbers.len(), self.count);
            let text = format!("the model has {found} numbers for {count} embeddings");
            return Err(Failure::server(text));
        }
        let mut json = b"{\"object\":\"list\",\"data\":[".to_vec();
        for index in 0..self.count {
            let start = index.saturating_mul(width);
            let numbers = numbers.get(start..start.saturating_add(width)).unwrap_or_default();
            if index > 0 {
                json.push(b',');
            }
            json.extend_from_slice(b"{\"object\":\"embedding\",\"embedding\":");
            self.push_numbers(numbers, &mut json);
            json.extend_from_slice(format!(",\"index\":{index}}}").as_bytes());
        }
        json.extend_from_slice(b"],\"model\":");
        push_string(&mut json, &self.model);
        json.extend_from_slice(b",\"usage\":");
        match Usage::prompt_tokens_of(response, &self.names) {
            Some(prompt_tokens) => json.extend_from_slice(
                format!("{{\"prompt_tokens\":{prompt_tokens},\"total_tokens\":{prompt_tokens}}}")
                    .as_bytes(),
            ),
            None => json.extend_from_slice(b"null"),
        }
        json.push(b'}');
        Ok(json)
    }

    /// Returns the number of prompt tokens, if the response states it.
    #[must_use]
    pub fn prompt_tokens(&self, response: &InferenceResponse) -> Option<u64> {
        u64::try_from(Usage::prompt_tokens_of(response, &self.names)?).ok()
    }

    fn push_numbers(&self, numbers: &[f64], json: &mut Vec<u8>) {
        if self.is_base64 {
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| single(*number)).collect();
            push_string(json, &base64(&bytes));
        } else {
            let numbers = numbers.iter().copied().map(JsonValue::Float).collect();
            push_compact(json, &JsonValue::List(numbers));
        }
    }

    fn numbers(&self, response: &InferenceResponse) -> Result<Vec<f64>, Failure> {
        let Some(name) = &self.names.embedding_output else {
            return from_json(&text(response, &self.names.text)?);
        };
        let found = output(response, name).and_then(|output| {
            let data = output.data.host_bytes()?;
            match output.datatype {
                DataType::Fp32 => Some(
                    data.as_chunks()
                        .0
                        .iter()
                        .map(|bytes| f64::from(f32::from_le_bytes(*bytes)))
                        .collect(),
                ),
                DataType::Fp64 => Some(
                    data.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect(),
                ),
                _ => None,
            }
        });
        found.ok_or_else(|| Failure::server(format!("the model has no output '{name}' of floats")))
    }
}

fn from_json(text: &str) -> Result<Vec<f64>, Failure> {
    let bounds = Bounds { values_max: values_max(text.as_bytes()) };
    let value =
        parse(text.as_bytes(), bounds).map_err(|error| Failure::server(error.to_string()))?;
    let number = |value: &JsonValue| match value {
        JsonValue::Float(number) => Some(*number),
        JsonValue::Int(number) => {
            #[expect(clippy::cast_precision_loss, reason = "as Python does")]
            let number = *number as f64;
            Some(number)
        }
        _ => None,
    };
    let numbers = value.as_list().and_then(|list| list.iter().map(number).collect());
    numbers.ok_or_else(|| Failure::server("the model's embedding is no list of numbers"))
}

#[expect(clippy::cast_possible_truncation, reason = "the client asks for 32 bits")]
const fn single(number: f64) -> [u8; 4] {
    (number as f32).to_le_bytes()
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3).saturating_mul(4));
    for group in bytes.chunks(3) {
        let at = |index| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for index in 0..4_u32 {
            let shift = 18_u32.saturating_sub(index.saturating_mul(6));
            let place = usize::try_from(bits >> shift & 0x3f).unwrap_or_default();
            let is_used = usize::try_from(index).is_ok_and(|index| index <= group.len());
            let letter = ALPHABET.get(place).copied().map_or('=', char::from);
            text.push(if is_used { letter } else { '=' });
        }
    }
    text
}
