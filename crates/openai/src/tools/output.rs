//! The events that a piece of text leads to.

use super::{CallIds, ToolEvent};

/// Collects the events of a piece. Adjacent texts and arguments become one event.
pub(super) struct EventOutput<'e> {
    pub(super) ids: &'e CallIds,
    pub(super) events: &'e mut Vec<ToolEvent>,
    /// The number of calls in the message so far.
    pub(super) count: &'e mut usize,
}

impl EventOutput<'_> {
    /// Adds text for the user.
    pub(super) fn content(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match self.events.last_mut() {
            Some(ToolEvent::Content(last)) => last.push_str(text),
            _ => self.events.push(ToolEvent::Content(text.to_owned())),
        }
    }

    /// Begins a call.
    pub(super) fn begin(&mut self, name: &str) {
        let index = *self.count;
        *self.count = index.saturating_add(1);
        let (id, name) = (self.ids.unique(), name.to_owned());
        self.events.push(ToolEvent::Begin { index, id, name });
    }

    /// Adds arguments to the last call.
    pub(super) fn arguments(&mut self, part: &str) {
        if part.is_empty() {
            return;
        }
        match self.events.last_mut() {
            Some(ToolEvent::Arguments { text, .. }) => text.push_str(part),
            _ => {
                let (index, text) = (self.count.saturating_sub(1), part.to_owned());
                self.events.push(ToolEvent::Arguments { index, text });
            }
        }
    }
}

/// The text around calls. Space between two calls isn't text for the user.
#[derive(Debug, Default)]
pub(super) struct TextAround {
    /// The space at the start of the text.
    blank: String,
    has_begun: bool,
}

impl TextAround {
    /// The memory for the space.
    pub(super) const fn held_bytes(&self) -> usize {
        self.blank.capacity()
    }

    pub(super) fn push(&mut self, text: &str, out: &mut EventOutput<'_>) {
        if !self.has_begun && text.trim_start().is_empty() {
            self.blank.push_str(text);
            return;
        }
        self.has_begun = true;
        out.content(&std::mem::take(&mut self.blank));
        out.content(text);
    }

    /// Ends the text before a call.
    pub(super) fn end_at_call(&mut self) {
        *self = Self::default();
    }

    /// Ends the text at the end of the message.
    pub(super) fn end(&mut self, out: &mut EventOutput<'_>) {
        if *out.count == 0 {
            out.content(&std::mem::take(&mut self.blank));
        }
    }
}
