//! The W3C's trace context: the trace and the span in which a request was sent.

use std::fmt::Write;

use super::ids::{SpanNumber, TraceNumber};
use crate::json::push_escaped;

/// The longest state that is passed on, in bytes; the W3C asks for 512 at least.
const STATE_BYTES_MAX: usize = 512;

/// The greatest number of members of a state.
const STATE_MEMBERS_MAX: usize = 32;

/// Where a span belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpanContext {
    pub(crate) trace: TraceNumber,
    pub(crate) span: SpanNumber,
    /// What collectors pass on unread; may be empty.
    pub(crate) state: String,
}

impl SpanContext {
    /// The context in the headers `traceparent` and `tracestate`; `None` without a valid one.
    pub(crate) fn parse(parent: &str, state: Option<&str>) -> Option<Self> {
        let parts: Vec<&str> = parent.trim().split('-').collect();
        let (version, trace, span, flags) = match parts[..] {
            [version, trace, span, flags] => (version, trace, span, flags),
            // Later versions may add parts.
            [version, trace, span, flags, ..] if version != "00" => (version, trace, span, flags),
            _ => return None,
        };
        let [version] = bytes(version)?;
        bytes::<1>(flags)?;
        let (trace, span) = (bytes(trace)?, bytes(span)?);
        if version == u8::MAX || trace == [0; 16] || span == [0; 8] {
            return None;
        }
        let state = state.filter(|state| is_state(state)).unwrap_or_default().trim().to_owned();
        Some(Self { trace, span, state })
    }

    /// A JSON object with both headers, as models get it from Triton.
    pub(crate) fn to_json(&self) -> String {
        let mut json = String::from("{\"traceparent\":\"00-");
        push_hex(&mut json, &self.trace);
        json.push('-');
        push_hex(&mut json, &self.span);
        json.push_str("-01\"");
        if !self.state.is_empty() {
            json.push_str(",\"tracestate\":\"");
            push_escaped(&mut json, &self.state);
            json.push('"');
        }
        json.push('}');
        json
    }
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // A string takes everything.
        let _ = write!(text, "{byte:02x}");
    }
}

/// Bytes in lower-case hexadecimal digits.
fn bytes<const N: usize>(digits: &str) -> Option<[u8; N]> {
    let is_digit = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    if digits.len() != N.checked_mul(2)? || !digits.bytes().all(is_digit) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// Whether a state is one: members with a key and a value, in printable characters.
fn is_state(state: &str) -> bool {
    let is_member = |member: &str| {
        let member = member.trim_matches([' ', '\t']);
        member.is_empty() || member.split_once('=').is_some_and(|(key, _)| !key.is_empty())
    };
    state.len() <= STATE_BYTES_MAX
        && state.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'))
        && state.split(',').count() <= STATE_MEMBERS_MAX
        && state.split(',').all(is_member)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_context_is_passed_on() {
        let context = SpanContext::parse(PARENT, Some("a=b,c=d")).unwrap();
        let expected = format!("{{\"traceparent\":\"{PARENT}\",\"tracestate\":\"a=b,c=d\"}}");
        assert_eq!(context.to_json(), expected);
        let alone = SpanContext::parse(PARENT, None).unwrap();
        assert_eq!(alone.to_json(), format!("{{\"traceparent\":\"{PARENT}\"}}"));
        // Whether the client samples changes nothing: this request is traced.
        let unsampled = PARENT.replace("-01", "-00");
        assert_eq!(SpanContext::parse(&unsampled, None), Some(alone.clone()));
        let later = PARENT.replacen("00", "01", 1) + "-more";
        assert_eq!(SpanContext::parse(&later, None), Some(alone));
    }

    #[test]
    fn what_is_no_context_is_none() {
        for parent in [
            "",
            "00",
            "x",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "0-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319-b7ad6b71692033311-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333g-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0\u{e9}",
        ] {
            assert_eq!(SpanContext::parse(parent, None), None, "{parent}");
        }
    }

    #[test]
    fn a_state_that_is_none_is_dropped_alone() {
        let many = ["a=b"; 33].join(",");
        let long = format!("a={}", "x".repeat(600));
        for state in ["a", "=b", "a=\u{e9}", "a=\n", &many, &long] {
            assert_eq!(SpanContext::parse(PARENT, Some(state)).unwrap().state, "", "{state}");
        }
    }
}
