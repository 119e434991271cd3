//! The W3C trace context: the trace and span in which a request was sent.

use std::fmt::Write;
use std::sync::Arc;

use galatea_control::TraceHeaders;

use super::ids::{SpanNumber, TraceNumber};
use crate::json::push_escaped;

/// The maximum number of members in a trace state.
const STATE_MEMBERS_MAX: usize = 32;

/// The maximum length of a trace-state member's key, and of its value.
const STATE_PART_BYTES_MAX: usize = 256;

/// The identity of a span and its trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpanContext {
    pub(crate) trace: TraceNumber,
    pub(crate) span: SpanNumber,
    /// The opaque trace state that is propagated to collectors; may be empty. All spans of a trace
    /// share it.
    pub(crate) state: Arc<str>,
}

impl SpanContext {
    /// The context in a request's headers, or `None` if they contain no valid one.
    pub(crate) fn of(headers: TraceHeaders<'_>) -> Option<Self> {
        let state = headers.state.map(String::from_utf8_lossy);
        Self::parse(&String::from_utf8_lossy(headers.parent?), state.as_deref())
    }

    fn parse(parent: &str, state: Option<&str>) -> Option<Self> {
        let parts: Vec<&str> = parent.trim().split('-').collect();
        let (version, trace, span, flags) = match parts[..] {
            [version, trace, span, flags] => (version, trace, span, flags),
            // Later versions of the standard may add parts.
            [version, trace, span, flags, ..] if version != "00" => (version, trace, span, flags),
            _ => return None,
        };
        let [version] = bytes(version)?;
        bytes::<1>(flags)?;
        let (trace, span) = (bytes(trace)?, bytes(span)?);
        if version == u8::MAX || trace == [0; 16] || span == [0; 8] {
            return None;
        }
        let state = state.and_then(state_of).unwrap_or_default().into();
        Some(Self { trace, span, state })
    }

    /// A JSON object with both headers, in the format in which Triton passes it to models.
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
        // Writing to a string can't fail.
        let _ = write!(text, "{byte:02x}");
    }
}

/// Parses hexadecimal digits into bytes. As in Triton, either case is accepted.
fn bytes<const N: usize>(digits: &str) -> Option<[u8; N]> {
    if digits.len() != N.checked_mul(2)? || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// The members of a trace state, trimmed and without empty ones; `None` if any member is not a
/// key-value pair.
fn state_of(header: &str) -> Option<String> {
    if header.trim_end_matches(',').split(',').count() > STATE_MEMBERS_MAX {
        return None;
    }
    let members = header.split(',').map(str::trim_ascii).filter(|member| !member.is_empty());
    let members: Vec<&str> = members.collect();
    members.iter().all(|member| is_member(member)).then(|| members.join(","))
}

fn is_member(member: &str) -> bool {
    let is_key_byte =
        |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'*' | b'_' | b'-' | b'/' | b'@');
    let is_value_byte = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'=';
    let Some((key, value)) = member.split_once('=') else { return false };
    let starts_well = key.starts_with(|first: char| first.is_ascii_alphanumeric());
    let fits = |part: &str| (1..=STATE_PART_BYTES_MAX).contains(&part.len());
    fits(key)
        && starts_well
        && key.bytes().all(is_key_byte)
        && fits(value)
        && value.bytes().all(is_value_byte)
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
        // The client's sampling flag has no effect: this request is traced.
        let unsampled = PARENT.replace("-01", "-00");
        assert_eq!(SpanContext::parse(&unsampled, None), Some(alone.clone()));
        assert_eq!(SpanContext::parse(&PARENT.to_uppercase(), None), Some(alone.clone()));
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
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
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
        let state = |state: &str| SpanContext::parse(PARENT, Some(state)).unwrap().state;
        let (many, most) = (["a=b"; 33].join(","), ["a=b"; 32].join(","));
        let long = |length| "x".repeat(length);
        let (key, value) = (format!("{}=a", long(257)), format!("a={}", long(257)));
        for wrong in
            ["a", "=b", "a=", "a=\u{e9}", "a=b\nc", "A=b", "-a=b", "a=b=c", &many, &key, &value]
        {
            assert_eq!(&*state(wrong), "", "{wrong}");
            assert_eq!(&*state(&format!("a=b,{wrong}")), "", "{wrong}");
        }
        for right in ["a=b c", "0@*_-/=!", &most, &format!("{}={}", long(256), long(256))] {
            assert_eq!(&*state(right), right);
        }
        assert_eq!(&*state(" a=b ,\t, c=d,"), "a=b,c=d");
    }
}
