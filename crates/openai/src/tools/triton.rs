//! The state that Triton's streaming parsers share.
//!
//! These parsers complete the whole text so far after each piece, compare the calls in it with those
//! that they saw before, and send the difference. Clients see the details, so they are the same
//! here: for each piece at most one event, and a last event that repeats arguments which were sent
//! in another form.

use super::ToolEvent;
use super::python::{Charset, after_chars, dumps, is_truthy, without_last_chars};
use crate::Failure;
use crate::json::{JsonValue, Object};

/// The calls of a stream so far.
#[derive(Debug, Default)]
pub(super) struct SentCalls {
    /// The calls in the text when the last event was chosen.
    seen: Vec<JsonValue>,
    /// The position of the current call; `None` before the first.
    current: Option<usize>,
    is_name_sent: bool,
    /// The arguments that were sent, by call.
    sent: Vec<String>,
}

/// The event that a text leads to.
pub(super) enum StreamStep {
    /// The last seen calls stay.
    Event(Option<ToolEvent>),
    /// The calls in the text become the last seen ones.
    Seen(Option<ToolEvent>),
}

impl SentCalls {
    /// True if the stream contains a call.
    pub(super) fn has_calls(&self) -> bool {
        !self.seen.is_empty()
    }

    pub(super) const fn is_name_sent(&self) -> bool {
        self.is_name_sent
    }

    pub(super) const fn current(&self) -> Option<usize> {
        self.current
    }

    /// The memory for the arguments that were sent.
    pub(super) fn held_bytes(&self) -> usize {
        self.sent.iter().map(String::capacity).fold(0, usize::saturating_add)
    }

    /// The arguments of the current call when the last event was chosen, if the call was the last.
    pub(super) fn last_arguments(&self) -> Option<&JsonValue> {
        let index = self.current.filter(|index| index.checked_add(1) == Some(self.seen.len()))?;
        arguments(self.seen.get(index)?.as_object()?).filter(|_| self.is_name_sent)
    }

    pub(super) fn see(&mut self, calls: Vec<JsonValue>) {
        self.seen = calls;
    }

    /// The arguments of a call when the last event was chosen. `Err` if there was no such call.
    pub(super) fn earlier_arguments(&self, index: usize) -> Result<Option<&JsonValue>, NoSuchCall> {
        let call = self.seen.get(index).and_then(JsonValue::as_object).ok_or(NoSuchCall)?;
        Ok(arguments(call))
    }

    /// The arguments of a call that were sent.
    pub(super) fn sent(&self, index: usize) -> Result<&str, NoSuchCall> {
        self.sent.get(index).map(String::as_str).ok_or(NoSuchCall)
    }

    /// Sends arguments.
    pub(super) fn send(&mut self, index: usize, text: &str) -> Result<ToolEvent, NoSuchCall> {
        self.sent.get_mut(index).ok_or(NoSuchCall)?.push_str(text);
        Ok(ToolEvent::Arguments { index, text: text.to_owned() })
    }

    /// Makes the last of these calls the current one.
    pub(super) fn begin_last_of(&mut self, count: usize) {
        self.current = count.checked_sub(1);
        self.is_name_sent = false;
        self.sent.push(String::new());
    }

    /// Sends the name of a call, once it is known.
    pub(super) fn send_name(
        &mut self,
        index: usize,
        call: &Object,
        id: impl FnOnce() -> String,
    ) -> Result<Option<ToolEvent>, NoSuchCall> {
        match call.get("name") {
            Some(JsonValue::Text(name)) if !name.is_empty() => {
                self.is_name_sent = true;
                Ok(Some(ToolEvent::Begin { index, id: id(), name: name.to_string() }))
            }
            // Triton's schema refuses a name that is no string.
            Some(name) if is_truthy(name) => Err(NoSuchCall),
            _ => Ok(None),
        }
    }

    /// Replaces the last event of a stream by the arguments that were not sent yet.
    pub(super) fn last_event(
        &self,
        event: Option<ToolEvent>,
    ) -> Result<Option<ToolEvent>, Failure> {
        let Some(ToolEvent::Arguments { text: latest, .. }) = &event else { return Ok(event) };
        let Some(index) = self.seen.len().checked_sub(1) else { return Ok(event) };
        let call = self.seen.last().and_then(JsonValue::as_object);
        let call = call.ok_or_else(|| Failure::server("a tool call in the text is no object"))?;
        let expected = match call.get("arguments") {
            Some(arguments) => dumps(arguments, Charset::Unicode),
            None => String::from("{}"),
        };
        let sent = self.sent(index).map_err(|_| Failure::server("list index out of range"))?;
        let earlier = without_last_chars(sent, latest.chars().count());
        let text = expected.replacen(earlier, "", 1);
        Ok(Some(ToolEvent::Arguments { index, text }))
    }
}

/// A call that the text has no more, or not in this form. Triton's parsers catch the exceptions that
/// this causes, and send nothing.
pub(super) struct NoSuchCall;

/// Returns a call's arguments, if Python regards them as true.
pub(super) fn arguments(call: &Object) -> Option<&JsonValue> {
    call.get("arguments").filter(|arguments| is_truthy(arguments))
}

/// Returns the part of the arguments that was not sent.
pub(super) fn unsent<'t>(arguments: &'t str, sent: &str) -> &'t str {
    after_chars(arguments, sent.chars().count())
}

/// Returns a call that must be an object. Python's parser fails for other values.
pub(super) fn object(call: &JsonValue) -> Result<&Object, NoSuchCall> {
    call.as_object().ok_or(NoSuchCall)
}
