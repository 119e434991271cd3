//! Parsers of the tool calls in a model's text.
//!
//! Each family of models writes calls in its own form. A parser finds them in a whole text, or in
//! the pieces of a stream, where it turns each piece into events.

mod deepseek;
mod harmony;
mod hermes;
mod json_scan;
mod llama;
mod marked;
mod markers;
mod mistral;
mod open_string;
mod output;
mod partial;
mod python;
mod python_literal;
mod pythonic;
mod triton;

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use self::deepseek::DeepSeekStream;
use self::harmony::HarmonyStream;
use self::hermes::HermesStream;
use self::llama::LlamaStream;
use self::marked::{MarkedFormat, MarkedStream};
use self::mistral::MistralStream;
use self::pythonic::PythonicStream;
use crate::Failure;
use crate::json::openers;
use crate::request::values_size;

/// The form in which a family of models writes calls.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ToolCallFormat {
    /// Llama 3: JSON objects.
    Llama3,
    /// Mistral: a JSON array.
    Mistral,
    /// Hermes and Qwen: JSON objects in tags.
    Hermes,
    /// DeepSeek V3 and V3.1: names and arguments between markers.
    DeepSeekV3,
    /// OpenAI's Harmony format: messages for functions.
    Harmony,
    /// A list of calls in Python.
    Pythonic,
}

impl ToolCallFormat {
    /// All formats, with the names under which they are selected.
    pub const ALL: [(&'static str, Self); 6] = [
        ("llama3", Self::Llama3),
        ("mistral", Self::Mistral),
        ("hermes", Self::Hermes),
        ("deepseek_v3", Self::DeepSeekV3),
        ("openai", Self::Harmony),
        ("pythonic", Self::Pythonic),
    ];

    /// Returns the format with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, format)| format)
    }
}

/// The source of identifiers for calls.
#[derive(Clone)]
pub struct CallIds(Arc<dyn Fn() -> String + Send + Sync>);

impl fmt::Debug for CallIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallIds")
    }
}

/// The length of Mistral's identifiers, and their letters.
const SHORT_LENGTH: usize = 9;
const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

impl CallIds {
    /// Creates identifiers with a function that never returns the same text twice.
    #[must_use]
    pub fn new(unique: Arc<dyn Fn() -> String + Send + Sync>) -> Self {
        Self(unique)
    }

    fn unique(&self) -> String {
        (self.0)()
    }

    /// Returns an identifier of nine letters and digits, as Mistral's templates require.
    fn short(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.unique().hash(&mut hasher);
        let mut rest = hasher.finish();
        let letter = || {
            let index = usize::try_from(rest % 62).unwrap_or(0);
            rest /= 62;
            char::from(LETTERS.get(index).copied().unwrap_or(b'0'))
        };
        std::iter::repeat_with(letter).take(SHORT_LENGTH).collect()
    }
}

/// A call in a whole text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The identifier.
    pub id: String,
    /// The name of the function.
    pub name: String,
    /// The arguments, as JSON.
    pub arguments: String,
}

/// The message in a whole text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedText {
    /// The text for the user.
    pub content: String,
    /// The calls; `None` if the text is for the user alone.
    pub calls: Option<Vec<ToolCall>>,
}

impl ParsedText {
    fn of(events: Vec<ToolEvent>) -> Self {
        let (mut content, mut calls) = (String::new(), Vec::<ToolCall>::new());
        for event in events {
            match event {
                ToolEvent::Content(text) => content.push_str(&text),
                ToolEvent::Begin { id, name, .. } => {
                    calls.push(ToolCall { id, name, arguments: String::new() });
                }
                ToolEvent::Arguments { text, .. } => {
                    if let Some(call) = calls.last_mut() {
                        call.arguments.push_str(&text);
                    }
                }
            }
        }
        Self { content, calls: (!calls.is_empty()).then_some(calls) }
    }
}

impl ParsedText {
    /// Returns the changes that lead to the message.
    pub(crate) fn into_events(self) -> Vec<ToolEvent> {
        let Self { content, calls } = self;
        let mut events = Vec::new();
        if !content.is_empty() {
            events.push(ToolEvent::Content(content));
        }
        for (index, ToolCall { id, name, arguments }) in calls.into_iter().flatten().enumerate() {
            events.push(ToolEvent::Begin { index, id, name });
            events.push(ToolEvent::Arguments { index, text: arguments });
        }
        events
    }
}

/// A change of a message that is being streamed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolEvent {
    /// Text for the user.
    Content(String),
    /// A call begins.
    Begin {
        /// The position of the call in the message.
        index: usize,
        /// The identifier.
        id: String,
        /// The name of the function.
        name: String,
    },
    /// The arguments of a call go on.
    Arguments {
        /// The position of the call in the message.
        index: usize,
        /// The next part of the JSON.
        text: String,
    },
}

/// A parser, and its limit.
#[derive(Clone, Debug)]
pub struct ToolCallParser {
    /// The form of the calls.
    pub format: ToolCallFormat,
    /// The maximum number of characters in a streamed text with tools.
    pub chars_max: usize,
    /// The source of identifiers.
    pub ids: CallIds,
}

impl ToolCallParser {
    /// Returns the message in a whole text. TensorRT-LLM's models may write more after a call than
    /// vLLM's.
    #[must_use]
    pub fn parse(&self, text: &str, is_vllm: bool) -> ParsedText {
        let calls = match self.format {
            ToolCallFormat::Llama3 => llama::parse(text, is_vllm, &self.ids),
            ToolCallFormat::Mistral => mistral::parse(text, &self.ids),
            ToolCallFormat::Hermes
            | ToolCallFormat::DeepSeekV3
            | ToolCallFormat::Harmony
            | ToolCallFormat::Pythonic => {
                let (mut events, mut calls) = (Vec::new(), self.streamed_calls());
                if let StreamedCalls::Marked(stream) = &mut calls {
                    stream.feed(text, true, &self.ids, &mut events);
                }
                return ParsedText::of(events);
            }
        };
        let content = if calls.is_some() { String::new() } else { text.to_owned() };
        ParsedText { content, calls }
    }

    /// Begins a stream.
    #[must_use]
    pub fn stream(&self) -> ToolCallStream {
        let (ids, text, calls) = (self.ids.clone(), String::new(), self.streamed_calls());
        ToolCallStream { ids, chars_left: self.chars_max, text, values_max: 1, calls }
    }

    /// Begins a stream whose events contain each argument once. The parsers of Triton's frontend
    /// may repeat arguments, so a text in their formats is parsed at its end.
    #[must_use]
    pub fn exact_stream(&self, is_vllm: bool) -> ToolCallStream {
        let mut stream = self.stream();
        if matches!(self.format, ToolCallFormat::Llama3 | ToolCallFormat::Mistral) {
            stream.calls = StreamedCalls::AtEnd { parser: self.clone(), is_vllm, has_calls: false };
        }
        stream
    }

    fn streamed_calls(&self) -> StreamedCalls {
        let format = match self.format {
            ToolCallFormat::Llama3 => return StreamedCalls::Llama(LlamaStream::default()),
            ToolCallFormat::Mistral => return StreamedCalls::Mistral(MistralStream::default()),
            ToolCallFormat::Hermes => MarkedFormat::Hermes(HermesStream::new()),
            ToolCallFormat::DeepSeekV3 => MarkedFormat::DeepSeek(DeepSeekStream::new()),
            ToolCallFormat::Harmony => MarkedFormat::Harmony(HarmonyStream::new()),
            ToolCallFormat::Pythonic => MarkedFormat::Pythonic(PythonicStream::new()),
        };
        StreamedCalls::Marked(MarkedStream::new(format))
    }
}

/// The result of a piece.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PieceOutcome {
    /// The piece was parsed.
    Parsed,
    /// The text is longer than the limit, and ends before the piece.
    TooLong,
}

/// A text whose pieces are still arriving.
#[derive(Debug)]
pub struct ToolCallStream {
    ids: CallIds,
    chars_left: usize,
    /// The text so far, for the formats of Triton's frontend.
    text: String,
    /// An upper bound on the number of JSON values in the text.
    values_max: usize,
    calls: StreamedCalls,
}

#[derive(Debug)]
enum StreamedCalls {
    Llama(LlamaStream),
    Mistral(MistralStream),
    Marked(MarkedStream),
    /// The calls are found when the text is complete.
    AtEnd {
        parser: ToolCallParser,
        is_vllm: bool,
        has_calls: bool,
    },
}

impl ToolCallStream {
    /// True if the text contains a call.
    #[must_use]
    pub fn has_calls(&self) -> bool {
        match &self.calls {
            StreamedCalls::Llama(stream) => stream.calls().has_calls(),
            StreamedCalls::Mistral(stream) => stream.calls().has_calls(),
            StreamedCalls::Marked(stream) => stream.count() > 0,
            StreamedCalls::AtEnd { has_calls, .. } => *has_calls,
        }
    }

    /// Returns an upper bound on the memory that the text so far needs.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        match &self.calls {
            StreamedCalls::Llama(stream) => self.held_with(stream.held_bytes()),
            StreamedCalls::Mistral(stream) => self.held_with(stream.held_bytes()),
            StreamedCalls::Marked(stream) => stream.held_bytes(),
            StreamedCalls::AtEnd { .. } => self.held_with(0),
        }
    }

    /// Adds the memory for the text and for the calls in it, which are parsed again for each piece
    /// and kept.
    fn held_with(&self, more: usize) -> usize {
        let calls = values_size(self.values_max, self.text.len());
        self.text.capacity().saturating_add(calls).saturating_add(more)
    }

    /// Appends the events of a piece.
    ///
    /// # Errors
    ///
    /// Code 500 in the cases in which Triton's parser fails.
    pub fn feed(
        &mut self,
        piece: &str,
        is_last: bool,
        events: &mut Vec<ToolEvent>,
    ) -> Result<PieceOutcome, Failure> {
        let Some(left) = self.chars_left.checked_sub(piece.chars().count()) else {
            if matches!(self.calls, StreamedCalls::AtEnd { .. }) && !self.text.is_empty() {
                events.push(ToolEvent::Content(std::mem::take(&mut self.text)));
            }
            return Ok(PieceOutcome::TooLong);
        };
        self.chars_left = left;
        self.values_max = self.values_max.saturating_add(openers(piece.as_bytes()));
        let (event, calls) = match &mut self.calls {
            StreamedCalls::Llama(stream) => {
                self.text.push_str(piece);
                (stream.feed(&self.text, piece, is_last, &self.ids), stream.calls())
            }
            StreamedCalls::Mistral(stream) => {
                self.text.push_str(piece);
                (stream.feed(&self.text, piece, is_last, &self.ids), stream.calls())
            }
            StreamedCalls::Marked(stream) => {
                stream.feed(piece, is_last, &self.ids, events);
                return Ok(PieceOutcome::Parsed);
            }
            StreamedCalls::AtEnd { parser, is_vllm, has_calls } => {
                self.text.push_str(piece);
                if is_last {
                    let parsed = parser.parse(&self.text, *is_vllm);
                    *has_calls = parsed.calls.is_some();
                    events.extend(parsed.into_events());
                }
                return Ok(PieceOutcome::Parsed);
            }
        };
        let event = if is_last { calls.last_event(event)? } else { event };
        events.extend(event);
        Ok(PieceOutcome::Parsed)
    }
}

#[cfg(test)]
mod tests;
