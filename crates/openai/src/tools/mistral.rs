//! Calls in the form of Mistral: a JSON array after `[TOOL_CALLS]`.

use super::open_string::{OpenEnds, OpenString, PROBE};
use super::partial::{PartialStrings, value_so_far};
use super::python::{Charset, common_suffix, difference, dumps, strip, without_last_chars};
use super::triton::{NoSuchCall, SentCalls, StreamStep, arguments, object};
use super::{CallIds, ToolCall, ToolEvent};
use crate::json::{JsonError, JsonValue, parse_text};

const TAG: &str = "[TOOL_CALLS]";

/// Returns the calls of a whole text; `None` if it is a plain text.
pub(super) fn parse(text: &str, ids: &CallIds) -> Option<Vec<ToolCall>> {
    if !(text.starts_with(TAG) || text.starts_with('[')) {
        return None;
    }
    let content = text.replace(TAG, "");
    let content = strip(&content);
    let calls = match parse_text(content) {
        Ok(calls) => calls,
        Err(JsonError::Syntax { .. }) => {
            let start = content.find("[{")?;
            let end = content.rfind("}]")?.checked_add(2)?;
            parse_text(content.get(start..end)?).ok()?
        }
        Err(_) => return None,
    };
    let calls: &[JsonValue] = match &calls {
        JsonValue::List(calls) => calls,
        // Python iterates over these, too.
        JsonValue::Object(object) if object.iter().next().is_none() => &[],
        JsonValue::Text(text) if text.is_empty() => &[],
        _ => return None,
    };
    let call = |value: &JsonValue| {
        let call = value.as_object()?;
        let name = call.get("name")?.as_str()?.to_owned();
        let arguments = dumps(call.get("arguments")?, Charset::Unicode);
        Some(ToolCall { id: ids.short(), name, arguments })
    };
    calls.iter().map(call).collect()
}

/// The calls of a stream.
#[derive(Debug, Default)]
pub(super) struct MistralStream {
    calls: SentCalls,
    open: Option<OpenString>,
}

/// The bytes of the arguments before a piece that are compared with it, in addition to its length.
const COMPARED_BYTES: usize = 64;

/// Returns the part of a text behind the last tag.
fn calls_text(text: &str) -> &str {
    text.rsplit(TAG).next().unwrap_or(text)
}

impl MistralStream {
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
            && let Some(before) = text.strip_suffix(piece)
            && let Some(JsonValue::List(calls)) =
                value_so_far(calls_text(before), PartialStrings::Keep)
        {
            self.calls.see(calls);
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
        let escaped = open.escaped(piece);
        let compared = escaped.len().saturating_add(COMPARED_BYTES);
        let OpenEnds { now, earlier, is_whole } = open.ends(&escaped, compared);
        // The difference may extend beyond the ends.
        if !is_whole && common_suffix(&now, &earlier).len() == earlier.len() {
            return None;
        }
        let event = self.calls.send(index, difference(&now, &earlier)).ok()?;
        open.push(&escaped);
        Some(event)
    }

    /// Returns the string at the end of a text, if the last call's arguments end inside one.
    fn open_string(&self, text: &str) -> Option<OpenString> {
        let now = self.calls.last_arguments()?;
        let probed = format!("{text}{PROBE}");
        let found = value_so_far(calls_text(&probed), PartialStrings::Keep)?;
        let last = found.as_list()?.get(self.calls.current()?)?;
        let probed = dumps(arguments(last.as_object()?)?, Charset::Unicode);
        OpenString::new(&dumps(now, Charset::Unicode), &probed, Charset::Unicode)
    }

    /// Returns the event for the piece at the end of a text, which is read from the start.
    pub(super) fn read(&mut self, text: &str, piece: &str, ids: &CallIds) -> Option<ToolEvent> {
        if !text.contains('[') {
            return Some(ToolEvent::Content(piece.to_owned()));
        }
        if strip(piece) == TAG {
            return None;
        }
        let strings =
            if self.calls.is_name_sent() { PartialStrings::Keep } else { PartialStrings::Omit };
        let value = value_so_far(calls_text(text), strings)?;
        let calls = match value {
            JsonValue::List(calls) => calls,
            JsonValue::Text(letters) => {
                // Triton's parser indexes the characters.
                if self.calls.current().is_none() && !letters.is_empty() {
                    self.calls.begin_last_of(letters.chars().count());
                }
                return None;
            }
            _ => return None,
        };
        match self.step(&calls, piece, ids) {
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
        piece: &str,
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
                let text = without(&dumps(arguments, Charset::Unicode), sent.sent(index)?);
                event = Some(sent.send(index, &text)?);
            }
            sent.begin_last_of(calls.len());
            return Ok(StreamStep::Event(event));
        }
        let call = object(call)?;
        if !sent.is_name_sent() {
            return sent.send_name(index, call, || ids.short()).map(StreamStep::Seen);
        }
        let earlier = sent.earlier_arguments(index)?;
        let Some(now) = arguments(call) else { return Ok(StreamStep::Seen(None)) };
        let now = dumps(now, Charset::Unicode);
        let text = match earlier {
            Some(earlier) => difference(&now, &dumps(earlier, Charset::Unicode)).to_owned(),
            None => match first_part(&now, piece) {
                Some(text) => text,
                None => return Ok(StreamStep::Event(None)),
            },
        };
        sent.send(index, &text).map(|event| StreamStep::Seen(Some(event)))
    }
}

/// Returns the text without all occurrences of a part.
fn without(text: &str, part: &str) -> String {
    if part.is_empty() { text.to_owned() } else { text.replace(part, "") }
}

/// Returns the first arguments, up to the end of the piece that completed them.
fn first_part(arguments: &str, piece: &str) -> Option<String> {
    let quoted = piece.replace('\'', "\"");
    let new = quoted.rfind("\"}").and_then(|end| quoted.get(..end)).unwrap_or(&quoted);
    let shown = without_last_chars(arguments, 2);
    let end = shown.rfind(new)?.saturating_add(new.len());
    shown.get(..end).map(str::to_owned)
}
