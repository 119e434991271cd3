//! Splits a stream's body into messages.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use galatea_codec_grpc::{GrpcCode, MESSAGE_PREFIX_BYTES};
use galatea_gate::ledger::MemoryAccount;

use crate::buffers::{MessageMemory, PartialMessage};
use crate::compression::ArrivedMessage;
use crate::failure::Failure;
use crate::message_reader::{MessagePrefix, parse_prefix};

/// Splits a body into messages as its frames arrive.
#[derive(Debug)]
pub(crate) struct MessageSplitter {
    message_bytes_max: usize,
    memory: MessageMemory,
    frames: VecDeque<Bytes>,
    state: SplitterState,
    /// The compression flag of the current message.
    is_compressed: bool,
    /// The number of bytes that have been taken out of the frames since the last call to
    /// [`MessageSplitter::take_consumed`].
    consumed: usize,
}

#[derive(Debug)]
enum SplitterState {
    /// The bytes of a prefix, and the number of those that have arrived.
    Prefix([u8; MESSAGE_PREFIX_BYTES], usize),
    /// A partly received message.
    Message(PartialMessage),
}

impl SplitterState {
    const START: Self = Self::Prefix([0; MESSAGE_PREFIX_BYTES], 0);
}

impl MessageSplitter {
    pub(crate) const fn new(message_bytes_max: usize, memory: MessageMemory) -> Self {
        Self {
            message_bytes_max,
            memory,
            frames: VecDeque::new(),
            state: SplitterState::START,
            is_compressed: false,
            consumed: 0,
        }
    }

    /// The maximum length of a message.
    pub(crate) const fn message_bytes_max(&self) -> usize {
        self.message_bytes_max
    }

    /// Adds the next frame of the body.
    pub(crate) fn push(&mut self, frame: Bytes) {
        if !frame.is_empty() {
            self.frames.push_back(frame);
        }
    }

    /// Returns the next message if it is complete. A message within a single frame isn't copied.
    pub(crate) fn next(&mut self) -> Result<Option<ArrivedMessage>, Failure> {
        loop {
            if let Some(message) = self.take_complete() {
                return Ok(Some(self.arrived(message)));
            }
            let Some(mut frame) = self.frames.pop_front() else { return Ok(None) };
            let before = frame.len();
            let complete = self.advance(&mut frame);
            self.consumed = self.consumed.saturating_add(before.saturating_sub(frame.len()));
            if !frame.is_empty() {
                self.frames.push_front(frame);
            }
            if let Some(message) = complete? {
                return Ok(Some(self.arrived(message)));
            }
        }
    }

    const fn arrived(&self, bytes: Bytes) -> ArrivedMessage {
        ArrivedMessage { bytes, is_compressed: self.is_compressed }
    }

    /// Returns the current message if it is complete.
    fn take_complete(&mut self) -> Option<Bytes> {
        match std::mem::replace(&mut self.state, SplitterState::START) {
            SplitterState::Message(part) if part.missing() == 0 => Some(part.finish()),
            state => {
                self.state = state;
                None
            }
        }
    }

    /// Consumes the bytes of the current prefix or message from `frame`. Returns a message that
    /// lies completely within the frame.
    fn advance(&mut self, frame: &mut Bytes) -> Result<Option<Bytes>, Failure> {
        match &mut self.state {
            SplitterState::Prefix(prefix, filled) => {
                let missing = prefix.iter_mut().skip(*filled);
                let copied = missing.zip(frame.iter()).map(|(to, from)| *to = *from).count();
                frame.advance(copied);
                *filled = filled.saturating_add(copied);
                if *filled == MESSAGE_PREFIX_BYTES {
                    let MessagePrefix { length, is_compressed } =
                        parse_prefix(*prefix, self.message_bytes_max)?;
                    self.is_compressed = is_compressed;
                    self.state = SplitterState::Message(PartialMessage::new(length, &self.memory));
                }
                Ok(None)
            }
            SplitterState::Message(part) if part.len() == 0 && frame.len() >= part.missing() => {
                let message = frame.split_to(part.missing());
                self.state = SplitterState::START;
                Ok(Some(self.memory.charged(message)?))
            }
            SplitterState::Message(part) => {
                let bytes = frame.split_to(part.missing().min(frame.len()));
                part.push(&bytes)?;
                Ok(None)
            }
        }
    }

    /// Returns the number of bytes taken out since the last call. The client may send that many
    /// again.
    pub(crate) const fn take_consumed(&mut self) -> usize {
        std::mem::replace(&mut self.consumed, 0)
    }

    /// The account to which messages are charged.
    pub(crate) const fn account(&self) -> &Arc<MemoryAccount> {
        &self.memory.account
    }

    /// The number of frame bytes that have not been taken out yet.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.frames.iter().map(Bytes::len).fold(0, usize::saturating_add)
    }

    /// The number of bytes of the incomplete message that have arrived.
    pub(crate) fn partial_bytes(&self) -> usize {
        match &self.state {
            SplitterState::Prefix(..) => 0,
            SplitterState::Message(part) => part.len(),
        }
    }

    /// Checks the end of the body, where no partial message may remain.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        match self.state {
            SplitterState::Prefix(_, 0) if self.frames.is_empty() => Ok(()),
            SplitterState::Prefix(..) | SplitterState::Message(..) => {
                Err(Failure::new(GrpcCode::Internal, "the body ends inside a message"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> MessageSplitter {
        MessageSplitter::new(1000, MessageMemory::unlimited())
    }

    fn body(lengths: &[usize]) -> Vec<u8> {
        let mut body = Vec::new();
        for (number, &length) in lengths.iter().enumerate() {
            body.push(0);
            body.extend_from_slice(&u32::try_from(length).unwrap().to_be_bytes());
            body.extend(std::iter::repeat_n(u8::try_from(number).unwrap(), length));
        }
        body
    }

    /// Returns the messages of `body`, which arrives in frames of `size` bytes.
    fn read(
        messages: &mut MessageSplitter,
        body: &[u8],
        size: usize,
    ) -> Result<Vec<Bytes>, Failure> {
        let mut read = Vec::new();
        for frame in body.chunks(size) {
            messages.push(Bytes::copy_from_slice(frame));
            while let Some(message) = messages.next()? {
                read.push(message.bytes);
            }
        }
        messages.finish()?;
        Ok(read)
    }

    #[test]
    fn messages_arrive_complete_however_they_are_split() {
        let lengths = [0, 1, 300, 0, 0, 5, 1000, 2];
        let body = body(&lengths);
        for size in [1, 2, 4, 5, 6, 7, 100, 1005, 5000] {
            let mut messages = messages();
            let read = read(&mut messages, &body, size).unwrap();
            let expected: Vec<Vec<u8>> =
                lengths.iter().zip(0..).map(|(&length, number)| vec![number; length]).collect();
            assert_eq!(read, expected, "size {size}");
            assert_eq!(messages.take_consumed(), body.len());
            assert_eq!(messages.take_consumed(), 0);
        }
    }

    #[test]
    fn frames_that_were_not_read_are_not_counted() {
        let mut messages = messages();
        messages.push(Bytes::from(body(&[10, 20])));
        messages.push(Bytes::from(body(&[30])));
        assert_eq!(messages.next().unwrap().unwrap().bytes.len(), 10);
        assert_eq!(messages.take_consumed(), 15);
        assert!(messages.finish().is_err());
        assert_eq!(messages.next().unwrap().unwrap().bytes.len(), 20);
        assert_eq!(messages.next().unwrap().unwrap().bytes.len(), 30);
        assert_eq!(messages.take_consumed(), 60);
        assert_eq!(messages.next().unwrap(), None);
    }

    #[test]
    fn malformed_bodies_are_refused() {
        let check = |body: &[u8], code, text: &str| {
            for size in [1, 3, 100] {
                let failure = read(&mut messages(), body, size).unwrap_err();
                assert_eq!(failure.into_parts(), (code, text.to_owned()));
            }
        };
        let inside = "the body ends inside a message";
        check(&body(&[3])[..7], GrpcCode::Internal, inside);
        check(&[0, 0], GrpcCode::Internal, inside);
        let long = "Received message larger than max (1001 vs. 1000)";
        check(&body(&[2, 1001]), GrpcCode::ResourceExhausted, long);
    }

    #[test]
    fn messages_say_whether_they_are_compressed() {
        let mut bytes = body(&[10, 0, 20, 5]);
        for (offset, flags) in [(0, 1), (20, 3), (45, 2)] {
            bytes[offset] = flags;
        }
        for size in [1, 4, 7, 100] {
            let (mut messages, mut flags) = (messages(), Vec::new());
            for frame in bytes.chunks(size) {
                messages.push(Bytes::copy_from_slice(frame));
                while let Some(message) = messages.next().unwrap() {
                    flags.push(message.is_compressed);
                }
            }
            assert_eq!(flags, [true, false, true, false], "size {size}");
        }
    }

    #[test]
    fn a_message_in_one_frame_is_not_copied() {
        let frame = Bytes::from(body(&[100]));
        let mut messages = messages();
        messages.push(frame.clone());
        assert_eq!(messages.next().unwrap().unwrap().bytes.as_ptr(), frame[5..].as_ptr());
    }
}
