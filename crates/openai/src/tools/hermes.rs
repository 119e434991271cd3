//! Calls in the form of Hermes and Qwen: a JSON object between `<tool_call>` and `</tool_call>`.

use super::json_scan::CallScanner;
use super::markers::{MarkerSearch, search, skip_past};
use super::output::{EventOutput, TextAround};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

#[derive(Debug)]
enum HermesState {
    Text,
    /// A call, and its text as long as none of it was sent.
    Call(Box<CallScanner>, String),
    /// The end of a call.
    Close,
    /// The rest of a malformed call.
    Skip,
}

/// The calls of a stream.
#[derive(Debug)]
pub(super) struct HermesStream {
    state: HermesState,
    text: TextAround,
}

impl HermesStream {
    pub(super) fn new() -> Self {
        Self { state: HermesState::Text, text: TextAround::default() }
    }

    /// The memory for the text that can't be sent yet.
    pub(super) fn held_bytes(&self) -> usize {
        let call = match &self.state {
            HermesState::Call(call, raw) => call.held_bytes().saturating_add(raw.capacity()),
            HermesState::Text | HermesState::Close | HermesState::Skip => 0,
        };
        call.saturating_add(self.text.held_bytes())
    }

    /// Processes the start of a text. Returns its length, or `None` if more text is needed.
    pub(super) fn step(
        &mut self,
        rest: &str,
        is_last: bool,
        out: &mut EventOutput<'_>,
    ) -> Option<usize> {
        match &mut self.state {
            HermesState::Text => self.text(rest, is_last, out),
            HermesState::Call(call, raw) => {
                if rest.is_empty() {
                    return None;
                }
                let length = call.feed(rest, out);
                if !call.has_begun() {
                    raw.push_str(rest.get(..length)?);
                }
                if call.is_done() {
                    self.state = HermesState::Close;
                } else if call.is_malformed() && call.has_begun() {
                    self.state = HermesState::Skip;
                } else if call.is_malformed() {
                    out.content(&format!("{OPEN}{raw}"));
                    self.state = HermesState::Text;
                }
                Some(length)
            }
            HermesState::Close => self.close(rest, is_last),
            HermesState::Skip => {
                let (end, is_found) = skip_past(rest, CLOSE, is_last);
                if is_found {
                    self.state = HermesState::Text;
                }
                (end > 0).then_some(end)
            }
        }
    }

    fn text(&mut self, rest: &str, is_last: bool, out: &mut EventOutput<'_>) -> Option<usize> {
        let end = match search(rest, &[(OPEN, ())]) {
            MarkerSearch::Found { start, end, .. } => {
                self.text.push(rest.get(..start)?, out);
                self.text.end_at_call();
                self.state = HermesState::Call(Box::new(CallScanner::new()), String::new());
                end
            }
            MarkerSearch::Missing { clear } => {
                let end = if is_last { rest.len() } else { clear };
                self.text.push(rest.get(..end)?, out);
                end
            }
        };
        (end > 0).then_some(end)
    }

    fn close(&mut self, rest: &str, is_last: bool) -> Option<usize> {
        let behind = rest.trim_start();
        let space = rest.len().saturating_sub(behind.len());
        if behind.is_empty() {
            return (space > 0).then_some(space);
        }
        if !is_last && behind.len() < CLOSE.len() && CLOSE.starts_with(behind) {
            return None;
        }
        self.state = HermesState::Text;
        let length = if behind.starts_with(CLOSE) { CLOSE.len() } else { 0 };
        Some(space.saturating_add(length))
    }

    /// Processes the end of the message.
    pub(super) fn end(&mut self, out: &mut EventOutput<'_>) {
        if let HermesState::Call(call, raw) = &self.state
            && !call.has_begun()
        {
            out.content(&format!("{OPEN}{raw}"));
        }
        self.text.end(out);
    }
}
