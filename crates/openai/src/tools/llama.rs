//! Calls in the form of Llama 3: JSON objects with semicolons between them, as the whole text.

use super::open_string::{OpenString, PROBE};
use super::partial::{PartialStrings, first_value_so_far};
use super::python::{Charset, after_chars, common_prefix, dumps};
use super::triton::{NoSuchCall, SentCalls, StreamStep, arguments, object, unsent};
use super::{CallIds, ToolCall, ToolEvent};
use crate::json::{JsonValue, parse_first, parse_text};

const TAG: &str = "<|python_tag|>";
/// The number of characters between two calls, `; `.
const SEPARATOR_CHARS: usize = 2;
/// The text that TensorRT-LLM may generate after a call.
const NEXT_TURN: &str = "assistant\n\n";

/// Returns the text of the calls; `None` if the text contains none.
fn calls_text(text: &str) -> Option<&str> {
    match text.strip_prefix(TAG) {
        Some(calls) => Some(calls),
        None => text.starts_with('{').then_some(text),
    }
}

/// Returns the calls of a whole text; `None` if it is a plain text.
pub(super) fn parse(text: &str, is_vllm: bool, ids: &CallIds) -> Option<Vec<ToolCall>> {
    calls_text(text)?;
    let end = text.find(NEXT_TURN).filter(|end| *end > 0 && !is_vllm);
    let text = text.get(..end.unwrap_or(text.len()))?;
    // The start that was recognized may be cut off.
    let mut rest = text.strip_prefix(TAG).unwrap_or(text);
    let mut calls = Vec::new();
    while !rest.is_empty() {
        let (value, end) = parse_first(rest).ok()?;
        calls.push(value);
        rest = after_chars(rest.get(end..)?, SEPARATOR_CHARS);
    }
    let call = |value: &JsonValue| {
        let call = value.as_object()?;
        let name = call.get("name")?.as_str()?.to_owned();
        let arguments = call.get("arguments").or_else(|| call.get("parameters"))?;
        Some(ToolCall { id: ids.unique(), name, arguments: dumps(arguments, Charset::Ascii) })
    };
    calls.iter().map(call).collect()
}

/// The calls of a stream.
#[derive(Debug, Default)]
pub(super) struct LlamaStream {
    calls: SentCalls,
    open: Option<OpenString>,
}

impl LlamaStream {
    /// The memory for the arguments so far.
    pub(super) fn held_bytes(&self) -> usize {
        let open = self.open.as_ref().map_or(0, OpenString::held_bytes);
        self.calls.held_bytes().saturating_add(open)
    }

    pub(super) const fn calls(&self) -> &SentCalls {
        &self.calls
    }

    /// Returns the event for the piece at the end of a text.
    pub(super) fn feed(
        &mut self,
        text: &str,
        piece: &str,
        is_last: bool,
        ids: &CallIds,
    ) -> Option<ToolEvent> {
        let is_plain = !is_last && OpenString::is_extended_by(piece);
        if is_plain && let Some(event) = self.extend(piece) {
            return Some(event);
        }
        if self.open.take().is_some()
            && let Some(before) = text.strip_suffix(piece).and_then(calls_text)
            && let Some(found) = FoundCalls::of(before, PartialStrings::Keep)
        {
            self.calls.see(found.calls);
        }
        let event = self.read(text, piece, ids);
        if is_plain && matches!(event, Some(ToolEvent::Arguments { .. })) {
            self.open = self.open_string(text);
        }
        event
    }

    /// Extends the string at the end of the last call's arguments.
    fn extend(&mut self, piece: &str) -> Option<ToolEvent> {
        let (open, index) = (self.open.as_mut()?, self.calls.current()?);
        // The arguments are in ASCII. Those up to the piece are the same as before, so they are
        // sent.
        let sent = self.calls.sent(index).ok()?.len();
        let text = open.arguments().get(sent..).unwrap_or_default().to_owned();
        let event = self.calls.send(index, &text).ok()?;
        let escaped = open.escaped(piece);
        open.push(&escaped);
        Some(event)
    }

    /// Returns the string at the end of a text, if the last call's arguments end inside one.
    fn open_string(&self, text: &str) -> Option<OpenString> {
        let now = self.calls.last_arguments()?;
        let probed = format!("{text}{PROBE}");
        let found = FoundCalls::of(calls_text(&probed)?, PartialStrings::Keep)?;
        let last = found.calls.get(self.calls.current()?)?;
        let probed = dumps(arguments(last.as_object()?)?, Charset::Ascii);
        OpenString::new(&dumps(now, Charset::Ascii), &probed, Charset::Ascii)
    }

    /// Returns the event for the piece at the end of a text, which is read from the start.
    pub(super) fn read(&mut self, text: &str, piece: &str, ids: &CallIds) -> Option<ToolEvent> {
        let Some(calls) = calls_text(text) else {
            return Some(ToolEvent::Content(piece.to_owned()));
        };
        let strings =
            if self.calls.is_name_sent() { PartialStrings::Keep } else { PartialStrings::Omit };
        let FoundCalls { calls, are_complete } = FoundCalls::of(calls, strings)?;
        match self.step(&calls, &are_complete, ids) {
            Ok(StreamStep::Seen(event)) => {
                self.calls.see(calls);
                event
            }
            Ok(StreamStep::Event(event)) => event,
            Err(NoSuchCall) => None,
        }
    }

    fn step(
        &mut self,
        calls: &[JsonValue],
        are_complete: &[bool],
        ids: &CallIds,
    ) -> Result<StreamStep, NoSuchCall> {
        let sent = &mut self.calls;
        let Some(last) = calls.len().checked_sub(1) else { return Ok(StreamStep::Event(None)) };
        let index = sent.current().unwrap_or(last);
        let call = calls.get(index).ok_or(NoSuchCall)?;
        if sent.current().is_none_or(|current| current < last) {
            let mut event = None;
            if sent.current().is_some()
                && let Some(arguments) = arguments(object(call)?)
            {
                let arguments = dumps(arguments, Charset::Ascii);
                let text = unsent(&arguments, sent.sent(index)?).to_owned();
                event = Some(sent.send(index, &text)?);
            }
            sent.begin_last_of(calls.len());
            return Ok(StreamStep::Event(event));
        }
        let call = object(call)?;
        if !sent.is_name_sent() {
            return sent.send_name(index, call, || ids.unique()).map(StreamStep::Seen);
        }
        let Some(now) = arguments(call) else { return Ok(StreamStep::Seen(None)) };
        let now = dumps(now, Charset::Ascii);
        let already = sent.sent(index)?;
        let earlier = sent.earlier_arguments(index)?;
        let text = if are_complete.get(index) == Some(&true) {
            Some(unsent(&now, already))
        } else {
            let earlier = earlier.map(|earlier| dumps(earlier, Charset::Ascii));
            let earlier = earlier.filter(|earlier| *earlier != now);
            earlier.map(|earlier| unsent(common_prefix(&now, &earlier), already))
        };
        let text = text.map(str::to_owned);
        text.map(|text| sent.send(index, &text)).transpose().map(StreamStep::Seen)
    }
}

/// The calls in a text that may end anywhere.
struct FoundCalls {
    calls: Vec<JsonValue>,
    are_complete: Vec<bool>,
}

impl FoundCalls {
    fn of(text: &str, strings: PartialStrings) -> Option<Self> {
        let mut found = Self { calls: Vec::new(), are_complete: Vec::new() };
        let mut rest = text;
        while !rest.is_empty() {
            let (value, end) = first_value_so_far(rest, strings)?;
            found.are_complete.push(parse_text(rest.get(..end)?).is_ok());
            found.calls.push(with_arguments(value)?);
            rest = after_chars(rest.get(end..)?, SEPARATOR_CHARS);
        }
        Some(found)
    }
}

/// Returns a call whose arguments have this name and not `parameters`. `None` for both names, and
/// for values in which Python can't look for a name.
fn with_arguments(value: JsonValue) -> Option<JsonValue> {
    match value {
        JsonValue::Object(mut call) => {
            if let Some(parameters) = call.get("parameters").cloned() {
                if call.get("arguments").is_some() {
                    return None;
                }
                call.push("arguments", parameters);
            }
            Some(JsonValue::Object(call))
        }
        JsonValue::Text(text) => (!text.contains("parameters")).then_some(JsonValue::Text(text)),
        JsonValue::List(elements) => {
            let has_name = elements.iter().any(|one| one.as_str() == Some("parameters"));
            (!has_name).then_some(JsonValue::List(elements))
        }
        JsonValue::Null
        | JsonValue::Bool(_)
        | JsonValue::Int(_)
        | JsonValue::BigInt(_)
        | JsonValue::Float(_) => None,
    }
}
