//! Calls in the form of DeepSeek V3 and V3.1: a name and arguments between markers.
//!
//! V3 writes the word `function` before its separator, then the name, and the arguments in a fenced
//! block. V3.1 writes the name before the separator and the arguments behind it.

use super::json_scan::ValueScanner;
use super::markers::{MarkerSearch, search, skip_past};
use super::output::{EventOutput, TextAround};

const CALLS_BEGIN: &str = "<｜tool▁calls▁begin｜>";
const CALLS_END: &str = "<｜tool▁calls▁end｜>";
const CALL_BEGIN: &str = "<｜tool▁call▁begin｜>";
const CALL_END: &str = "<｜tool▁call▁end｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";
const FENCE: &str = "```json";
/// The maximum length of a name.
const NAME_BYTES_MAX: usize = 4096;

#[derive(Debug)]
enum DeepSeekState {
    Text,
    /// The part before the separator.
    Head,
    /// The name of V3.
    Name,
    /// The start of the arguments.
    Fence,
    Arguments(ValueScanner),
    /// The part between the arguments and the end of the call.
    Skip,
}

/// The calls of a stream.
#[derive(Debug)]
pub(super) struct DeepSeekStream {
    state: DeepSeekState,
    text: TextAround,
}

impl DeepSeekStream {
    pub(super) fn new() -> Self {
        Self { state: DeepSeekState::Text, text: TextAround::default() }
    }

    /// The memory for the text that can't be sent yet.
    pub(super) const fn held_bytes(&self) -> usize {
        self.text.held_bytes()
    }

    /// Processes the start of a text. Returns its length, or `None` if more text is needed.
    pub(super) fn step(
        &mut self,
        rest: &str,
        is_last: bool,
        out: &mut EventOutput<'_>,
    ) -> Option<usize> {
        match &mut self.state {
            DeepSeekState::Text => self.text(rest, is_last, out),
            DeepSeekState::Head => self.head(rest, is_last, out),
            DeepSeekState::Name => self.name(rest, is_last, out),
            DeepSeekState::Fence => self.fence(rest, is_last, out),
            DeepSeekState::Arguments(value) => {
                let length = value.feed(rest.as_bytes());
                out.arguments(rest.get(..length)?);
                let is_done = value.is_done();
                if is_done {
                    self.state = DeepSeekState::Skip;
                }
                (is_done || length > 0).then_some(length)
            }
            DeepSeekState::Skip => {
                let (end, is_found) = skip_past(rest, CALL_END, is_last);
                if is_found {
                    self.state = DeepSeekState::Text;
                }
                (end > 0).then_some(end)
            }
        }
    }

    fn text(&mut self, rest: &str, is_last: bool, out: &mut EventOutput<'_>) -> Option<usize> {
        let markers =
            [(CALLS_BEGIN, false), (CALLS_END, false), (CALL_END, false), (CALL_BEGIN, true)];
        let end = match search(rest, &markers) {
            MarkerSearch::Found { start, end, marker: is_call } => {
                self.text.push(rest.get(..start)?, out);
                self.text.end_at_call();
                if is_call {
                    self.state = DeepSeekState::Head;
                }
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

    fn head(&mut self, rest: &str, is_last: bool, out: &mut EventOutput<'_>) -> Option<usize> {
        match search(rest, &[(SEPARATOR, ())]) {
            MarkerSearch::Found { start, end, .. } if start <= NAME_BYTES_MAX => {
                self.state = match rest.get(..start)?.trim() {
                    "function" => DeepSeekState::Name,
                    "" => DeepSeekState::Skip,
                    name => {
                        out.begin(name);
                        DeepSeekState::Fence
                    }
                };
                Some(end)
            }
            MarkerSearch::Missing { clear } if !is_last && clear <= NAME_BYTES_MAX => None,
            MarkerSearch::Found { .. } | MarkerSearch::Missing { .. } => {
                out.content(CALL_BEGIN);
                self.state = DeepSeekState::Text;
                Some(0)
            }
        }
    }

    fn name(&mut self, rest: &str, is_last: bool, out: &mut EventOutput<'_>) -> Option<usize> {
        let found = rest.find(['\n', '<']);
        if found.is_none() && !is_last && rest.len() <= NAME_BYTES_MAX {
            return None;
        }
        let end = found.unwrap_or(rest.len());
        let name = rest.get(..end)?.trim();
        if name.is_empty() || end > NAME_BYTES_MAX {
            self.state = DeepSeekState::Skip;
            return Some(0);
        }
        out.begin(name);
        self.state = DeepSeekState::Fence;
        Some(end)
    }

    fn fence(&mut self, rest: &str, is_last: bool, out: &mut EventOutput<'_>) -> Option<usize> {
        let behind = rest.trim_start();
        let space = rest.len().saturating_sub(behind.len());
        if behind.is_empty() {
            return (space > 0).then_some(space);
        }
        if !is_last && behind.len() < FENCE.len() && FENCE.starts_with(behind) {
            return None;
        }
        if behind.starts_with(FENCE) {
            return Some(space.saturating_add(FENCE.len()));
        }
        if behind.starts_with('<') {
            out.arguments("{}");
            self.state = DeepSeekState::Skip;
            return Some(space);
        }
        let ticks = behind.bytes().take(3).take_while(|byte| *byte == b'`').count();
        self.state = DeepSeekState::Arguments(ValueScanner::default());
        Some(space.saturating_add(ticks))
    }

    /// Processes the end of the message.
    pub(super) fn end(&mut self, out: &mut EventOutput<'_>) {
        self.text.end(out);
    }
}
