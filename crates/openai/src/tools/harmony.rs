//! Calls in OpenAI's Harmony format: messages in channels, some of which are for a function.

use super::markers::{MarkerSearch, search};
use super::output::EventOutput;

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const END: &str = "<|end|>";
const CALL: &str = "<|call|>";
const RETURN: &str = "<|return|>";
/// The start of a header whose first marker was part of the prompt.
const ROLE: &str = "assistant<|";
/// The texts with which a header begins, and those that end a message. A message may lack its end.
const HEADERS: [&str; 5] = [START, CHANNEL, MESSAGE, "<|constrain|>", ROLE];
const ENDS: [&str; 3] = [END, CALL, RETURN];
/// The namespace of the client's functions.
const FUNCTIONS: &str = "functions.";
/// The maximum length of a header.
const HEADER_BYTES_MAX: usize = 4096;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum HarmonyState {
    Header,
    /// Text for the user.
    Content,
    /// Text that isn't for the user, such as the model's thoughts.
    Hidden,
    /// The arguments of a call.
    Arguments {
        is_empty: bool,
    },
}

/// The messages of a stream.
#[derive(Debug)]
pub(super) struct HarmonyStream {
    state: HarmonyState,
}

impl HarmonyStream {
    pub(super) const fn new() -> Self {
        Self { state: HarmonyState::Header }
    }

    /// Processes the start of a text. Returns its length, or `None` if more text is needed.
    pub(super) fn step(
        &mut self,
        rest: &str,
        is_last: bool,
        out: &mut EventOutput<'_>,
    ) -> Option<usize> {
        if self.state == HarmonyState::Header {
            return self.header(rest, is_last, out);
        }
        let markers = [(END, true), (CALL, true), (RETURN, true), (START, false), (CHANNEL, false)];
        let (text_end, end, is_over) = match search(rest, &markers) {
            MarkerSearch::Found { start, end, marker: is_end } => {
                // The header's own marker is still to be read.
                (start, if is_end { end } else { start }, true)
            }
            MarkerSearch::Missing { .. } if is_last => (rest.len(), rest.len(), true),
            MarkerSearch::Missing { clear } => (clear, clear, false),
        };
        self.message(rest.get(..text_end)?, out);
        if is_over {
            if self.state == (HarmonyState::Arguments { is_empty: true }) {
                out.arguments("{}");
            }
            self.state = HarmonyState::Header;
        }
        (is_over && !rest.is_empty() || end > 0).then_some(end)
    }

    fn message(&mut self, text: &str, out: &mut EventOutput<'_>) {
        match &mut self.state {
            HarmonyState::Content => out.content(text),
            HarmonyState::Arguments { is_empty } => {
                *is_empty = *is_empty && text.trim().is_empty();
                out.arguments(text);
            }
            HarmonyState::Hidden | HarmonyState::Header => {}
        }
    }

    fn header(&mut self, rest: &str, is_last: bool, out: &mut EventOutput<'_>) -> Option<usize> {
        if rest.is_empty() {
            return None;
        }
        if let Some(end) = ENDS.iter().find(|end| rest.starts_with(**end)) {
            return Some(end.len());
        }
        let Some(begin) = HEADERS.iter().find(|begin| rest.starts_with(**begin)) else {
            let mut markers = HEADERS.iter().chain(&ENDS);
            if !is_last && markers.any(|marker| marker.starts_with(rest)) {
                return None;
            }
            self.state = HarmonyState::Content;
            return Some(0);
        };
        match search(rest, &[(MESSAGE, ())]) {
            MarkerSearch::Found { start, end, .. } if start <= HEADER_BYTES_MAX => {
                self.state = message_kind(rest.get(..start)?, out);
                Some(end)
            }
            MarkerSearch::Missing { clear } if clear <= HEADER_BYTES_MAX => {
                is_last.then_some(rest.len())
            }
            MarkerSearch::Found { .. } | MarkerSearch::Missing { .. } => {
                self.state = HarmonyState::Hidden;
                Some(begin.len())
            }
        }
    }
}

/// Returns the kind of the message with this header. Begins the call if the message is one.
fn message_kind(header: &str, out: &mut EventOutput<'_>) -> HarmonyState {
    let word = |text: &str| {
        let is_end = |letter: char| letter.is_whitespace() || letter == '<';
        text.split(is_end).next().unwrap_or_default().to_owned()
    };
    if let Some((_, recipient)) = header.split_once("to=") {
        return match word(recipient).strip_prefix(FUNCTIONS) {
            Some(name) if !name.is_empty() => {
                out.begin(name);
                HarmonyState::Arguments { is_empty: true }
            }
            // A tool of the model's maker, which this server lacks.
            _ => HarmonyState::Hidden,
        };
    }
    let channel = header.split_once(CHANNEL).map(|(_, channel)| word(channel));
    if channel.as_deref() == Some("analysis") {
        HarmonyState::Hidden
    } else {
        HarmonyState::Content
    }
}
