//! Converts token probabilities from vLLM's form to OpenAI's.

use galatea_infer::InferenceResponse;

use super::outputs::text;
use crate::json::{Bounds, JsonValue, parse, push_string, python_float, values_max};

/// The output that contains the probabilities.
const OUTPUT: &str = "logprobs";

/// A candidate for a position in the text.
struct LikelyToken {
    token: String,
    logprob: f64,
}

/// The candidates for each position of a text, starting with the chosen one.
#[derive(Default)]
pub(super) struct Logprobs(Vec<Vec<LikelyToken>>);

impl Logprobs {
    /// Reads a response's probabilities, if it has any.
    pub(super) fn of(response: &InferenceResponse) -> Option<Self> {
        let text = text(response, OUTPUT).ok().filter(|text| !text.is_empty())?;
        let bounds = Bounds { values_max: values_max(text.as_bytes()) };
        let places = parse(text.as_bytes(), bounds).ok()?;
        let places = places.as_list().filter(|places| !places.is_empty())?;
        Some(Self(places.iter().map(candidates).filter(|place| !place.is_empty()).collect()))
    }

    pub(super) fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// Appends the form for chats, or `null`.
    pub(super) fn push_chat(&self, json: &mut Vec<u8>, number: fn(f64) -> String) {
        if self.0.is_empty() {
            json.extend_from_slice(b"null");
            return;
        }
        json.extend_from_slice(b"{\"content\":[");
        for (index, place) in self.0.iter().enumerate() {
            let Some(chosen) = place.first() else { continue };
            if index > 0 {
                json.push(b',');
            }
            push_token(json, chosen, number);
            json.extend_from_slice(b",\"top_logprobs\":[");
            for (index, candidate) in place.iter().enumerate() {
                if index > 0 {
                    json.push(b',');
                }
                push_token(json, candidate, number);
                json.push(b'}');
            }
            json.extend_from_slice(b"]}");
        }
        json.extend_from_slice(b"]}");
    }

    /// Appends the form for text completions. `offset` is the number of characters that precede
    /// this text in the stream.
    pub(super) fn push_text(&self, json: &mut Vec<u8>, offset: usize, number: fn(f64) -> String) {
        let mut at = offset;
        let (mut offsets, mut logprobs) = (Vec::new(), Vec::new());
        let (mut tokens, mut top) = (Vec::new(), Vec::new());
        for place in &self.0 {
            let Some(chosen) = place.first() else { continue };
            offsets.push(at.to_string());
            logprobs.push(number(chosen.logprob));
            tokens.push(quoted(&chosen.token));
            top.push(by_token(place, number));
            at = at.saturating_add(chosen.token.chars().count());
        }
        let list = |items: &[String]| items.join(",");
        let shown = format!(
            "{{\"text_offset\":[{}],\"token_logprobs\":[{}],\"tokens\":[{}],\"top_logprobs\":[{}]}}",
            list(&offsets),
            list(&logprobs),
            list(&tokens),
            list(&top)
        );
        json.extend_from_slice(shown.as_bytes());
    }
}

/// Returns the candidates for a position, by rank.
fn candidates(place: &JsonValue) -> Vec<LikelyToken> {
    let Some(place) = place.as_object() else { return Vec::new() };
    let mut ranked: Vec<(i64, LikelyToken)> = Vec::new();
    for candidate in place.iter().filter_map(|(_, candidate)| candidate.as_object()) {
        let logprob = match candidate.get("logprob") {
            Some(JsonValue::Float(number)) => *number,
            Some(JsonValue::Int(number)) => {
                #[expect(clippy::cast_precision_loss, reason = "as Python does")]
                let number = *number as f64;
                number
            }
            _ => continue,
        };
        let rank = candidate.get("rank").and_then(JsonValue::as_int).unwrap_or(i64::MAX);
        let token = candidate.get("decoded_token").and_then(JsonValue::as_str).unwrap_or_default();
        ranked.push((rank, LikelyToken { token: token.to_owned(), logprob }));
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, candidate)| candidate).collect()
}

/// Appends a token without its closing brace.
fn push_token(json: &mut Vec<u8>, candidate: &LikelyToken, number: fn(f64) -> String) {
    json.extend_from_slice(b"{\"token\":");
    push_string(json, &candidate.token);
    json.extend_from_slice(b",\"logprob\":");
    json.extend_from_slice(number(candidate.logprob).as_bytes());
    json.extend_from_slice(b",\"bytes\":[");
    let bytes: Vec<String> = candidate.token.bytes().map(|byte| byte.to_string()).collect();
    json.extend_from_slice(bytes.join(",").as_bytes());
    json.push(b']');
}

fn quoted(text: &str) -> String {
    let mut json = Vec::new();
    push_string(&mut json, text);
    String::from_utf8_lossy(&json).into_owned()
}

/// Returns an object that contains the candidates. A repeated token keeps its position and gets the
/// last probability.
fn by_token(place: &[LikelyToken], number: fn(f64) -> String) -> String {
    let mut members: Vec<(&str, f64)> = Vec::new();
    for candidate in place {
        match members.iter_mut().find(|(token, _)| *token == candidate.token) {
            Some((_, logprob)) => *logprob = candidate.logprob,
            None => members.push((&candidate.token, candidate.logprob)),
        }
    }
    let members: Vec<String> = members
        .into_iter()
        .map(|(token, logprob)| format!("{}:{}", quoted(token), number(logprob)))
        .collect();
    format!("{{{}}}", members.join(","))
}

/// Formats a number as in documents.
pub(super) fn document_number(number: f64) -> String {
    python_float(number)
}

/// Formats a number as in the chunks of streams, which Triton's frontend doesn't format with
/// Python's own writer.
pub(super) fn chunk_number(number: f64) -> String {
    if !number.is_finite() {
        return String::from("null");
    }
    let scientific = format!("{number:e}");
    let exponent: i32 =
        scientific.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    if !(-5..16).contains(&exponent) {
        return scientific;
    }
    let plain = format!("{number}");
    if plain.contains('.') { plain } else { plain + ".0" }
}
