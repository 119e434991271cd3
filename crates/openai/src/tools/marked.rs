//! The streams of the formats that Triton lacks. Each text is read once, as it arrives.

use super::deepseek::DeepSeekStream;
use super::harmony::HarmonyStream;
use super::hermes::HermesStream;
use super::output::EventOutput;
use super::pythonic::PythonicStream;
use super::{CallIds, ToolEvent};

/// The format of a stream, and the place in it.
#[derive(Debug)]
pub(super) enum MarkedFormat {
    Hermes(HermesStream),
    DeepSeek(DeepSeekStream),
    Harmony(HarmonyStream),
    Pythonic(PythonicStream),
}

impl MarkedFormat {
    fn step(&mut self, rest: &str, is_last: bool, out: &mut EventOutput<'_>) -> Option<usize> {
        match self {
            Self::Hermes(stream) => stream.step(rest, is_last, out),
            Self::DeepSeek(stream) => stream.step(rest, is_last, out),
            Self::Harmony(stream) => stream.step(rest, is_last, out),
            Self::Pythonic(stream) => stream.step(rest, is_last, out),
        }
    }

    fn end(&mut self, out: &mut EventOutput<'_>) {
        match self {
            Self::Hermes(stream) => stream.end(out),
            Self::DeepSeek(stream) => stream.end(out),
            Self::Harmony(_) | Self::Pythonic(_) => {}
        }
    }

    /// The memory for the text that was processed and can't be sent yet.
    fn held_bytes(&self) -> usize {
        match self {
            Self::Hermes(stream) => stream.held_bytes(),
            Self::DeepSeek(stream) => stream.held_bytes(),
            Self::Harmony(_) | Self::Pythonic(_) => 0,
        }
    }
}

/// A stream, with the text that its format can't process yet.
#[derive(Debug)]
pub(super) struct MarkedStream {
    format: MarkedFormat,
    pending: String,
    count: usize,
}

impl MarkedStream {
    pub(super) const fn new(format: MarkedFormat) -> Self {
        Self { format, pending: String::new(), count: 0 }
    }

    /// The number of calls so far.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// The memory for the text that can't be sent yet.
    pub(super) fn held_bytes(&self) -> usize {
        self.pending.capacity().saturating_add(self.format.held_bytes())
    }

    /// Appends the events of a piece.
    pub(super) fn feed(
        &mut self,
        piece: &str,
        is_last: bool,
        ids: &CallIds,
        events: &mut Vec<ToolEvent>,
    ) {
        self.pending.push_str(piece);
        let mut out = EventOutput { ids, events, count: &mut self.count };
        let mut at = 0_usize;
        loop {
            let rest = self.pending.get(at..).unwrap_or_default();
            let Some(length) = self.format.step(rest, is_last, &mut out) else { break };
            at = at.saturating_add(length);
        }
        if self.pending.is_char_boundary(at) {
            self.pending.drain(..at);
        }
        if is_last {
            self.format.end(&mut out);
        }
    }
}
