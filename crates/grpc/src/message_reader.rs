//! Reads the single message of a unary call.

use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use galatea_codec_grpc::{COMPRESSED, GrpcCode, MESSAGE_PREFIX_BYTES};
use galatea_gate::ledger::MemoryAccount;

use crate::buffers::{MessageMemory, PartialMessage};
use crate::compression::ArrivedMessage;
use crate::failure::Failure;

/// The contents of a message prefix.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct MessagePrefix {
    pub(crate) length: usize,
    pub(crate) is_compressed: bool,
}

/// Parses a prefix and checks that the length in it is permitted. As in Triton, flags other than
/// the compression flag have no meaning.
pub(crate) fn parse_prefix(
    prefix: [u8; MESSAGE_PREFIX_BYTES],
    message_bytes_max: usize,
) -> Result<MessagePrefix, Failure> {
    let [flags, a, b, c, d] = prefix;
    let is_compressed = flags & COMPRESSED != 0;
    let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    if length > message_bytes_max {
        let message =
            format!("Received message larger than max ({length} vs. {message_bytes_max})");
        return Err(Failure::new(GrpcCode::ResourceExhausted, message));
    }
    Ok(MessagePrefix { length, is_compressed })
}

/// Reads the body of a call with a single message.
#[derive(Debug)]
pub(crate) struct MessageReader {
    message_bytes_max: usize,
    memory: MessageMemory,
    state: ReaderState,
    is_compressed: bool,
}

#[derive(Debug)]
enum ReaderState {
    /// The first bytes, fewer than a whole prefix.
    Prefix(Vec<u8>),
    /// A partly received message.
    Message(PartialMessage),
    /// The complete message.
    Complete(Bytes),
}

impl ReaderState {
    const START: Self = Self::Prefix(Vec::new());
}

impl MessageReader {
    pub(crate) const fn new(message_bytes_max: usize, memory: MessageMemory) -> Self {
        Self { message_bytes_max, memory, state: ReaderState::START, is_compressed: false }
    }

    /// The account to which the message is charged.
    pub(crate) const fn account(&self) -> &Arc<MemoryAccount> {
        &self.memory.account
    }

    /// Consumes the next bytes of the body.
    pub(crate) fn push(&mut self, bytes: Bytes) -> Result<(), Failure> {
        match &mut self.state {
            ReaderState::Prefix(start)
                if start.is_empty() && bytes.len() >= MESSAGE_PREFIX_BYTES =>
            {
                self.begin(bytes)
            }
            ReaderState::Prefix(start) => {
                start.extend_from_slice(&bytes);
                if start.len() < MESSAGE_PREFIX_BYTES {
                    return Ok(());
                }
                let start = Bytes::from(std::mem::take(start));
                self.begin(start)
            }
            ReaderState::Message(part) => {
                if bytes.len() > part.missing() {
                    return Err(one_message_only());
                }
                part.push(&bytes)?;
                self.end_part();
                Ok(())
            }
            ReaderState::Complete(_) if bytes.is_empty() => Ok(()),
            ReaderState::Complete(_) => Err(one_message_only()),
        }
    }

    /// Begins a message from bytes that include its complete prefix.
    fn begin(&mut self, mut bytes: Bytes) -> Result<(), Failure> {
        let Some(&prefix) = bytes.first_chunk::<MESSAGE_PREFIX_BYTES>() else {
            return Err(no_message());
        };
        let MessagePrefix { length, is_compressed } = parse_prefix(prefix, self.message_bytes_max)?;
        self.is_compressed = is_compressed;
        bytes.advance(MESSAGE_PREFIX_BYTES);
        self.state = match bytes.len().cmp(&length) {
            std::cmp::Ordering::Equal => ReaderState::Complete(self.memory.charged(bytes)?),
            std::cmp::Ordering::Greater => return Err(one_message_only()),
            std::cmp::Ordering::Less => {
                let mut part = PartialMessage::new(length, &self.memory);
                part.push(&bytes)?;
                ReaderState::Message(part)
            }
        };
        Ok(())
    }

    /// Moves to the next state if nothing is missing.
    fn end_part(&mut self) {
        self.state = match std::mem::replace(&mut self.state, ReaderState::START) {
            ReaderState::Message(part) if part.missing() == 0 => {
                ReaderState::Complete(part.finish())
            }
            state => state,
        };
    }

    /// Returns the message once the body has ended.
    pub(crate) fn finish(&mut self) -> Result<ArrivedMessage, Failure> {
        let is_compressed = self.is_compressed;
        match std::mem::replace(&mut self.state, ReaderState::START) {
            ReaderState::Complete(bytes) => Ok(ArrivedMessage { bytes, is_compressed }),
            ReaderState::Prefix(start) if start.is_empty() => Err(no_message()),
            ReaderState::Prefix(_) | ReaderState::Message(_) => {
                Err(Failure::new(GrpcCode::Internal, "the body ends inside a message"))
            }
        }
    }
}

fn one_message_only() -> Failure {
    Failure::new(GrpcCode::Unimplemented, "the method takes one message, and more were sent")
}

fn no_message() -> Failure {
    Failure::new(GrpcCode::Unimplemented, "the method takes one message, and none was sent")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 1000;

    fn reader() -> MessageReader {
        MessageReader::new(MAX, MessageMemory::unlimited())
    }

    /// Feeds `body` in pieces of `size` bytes.
    fn read(body: &[u8], size: usize) -> Result<Bytes, (GrpcCode, String)> {
        let mut reader = reader();
        for piece in body.chunks(size) {
            reader.push(Bytes::copy_from_slice(piece)).map_err(Failure::into_parts)?;
        }
        let message = reader.finish().map_err(Failure::into_parts)?;
        assert_eq!(message.is_compressed, body.first().is_some_and(|flags| flags & 1 == 1));
        Ok(message.bytes)
    }

    fn body(flag: u8, length: u32, bytes: usize) -> Vec<u8> {
        let mut body = vec![flag];
        body.extend_from_slice(&length.to_be_bytes());
        body.extend((0..bytes).map(|i| u8::try_from(i % 251).unwrap()));
        body
    }

    fn check(body: &[u8], expected: Result<usize, (GrpcCode, &str)>) {
        for size in [1, 2, 4, 5, 6, 100, 2000] {
            let result = read(body, size);
            match (&result, &expected) {
                (Ok(message), Ok(length)) => {
                    assert_eq!(message.len(), *length, "size {size}");
                    assert_eq!(message.as_ref(), &body[5..], "size {size}");
                }
                (Err((code, text)), Err((expected_code, expected_text))) => {
                    assert_eq!((code, text.as_str()), (expected_code, *expected_text));
                }
                _ => panic!("size {size}: {result:?} instead of {expected:?}"),
            }
        }
    }

    #[test]
    fn a_message_arrives_complete_however_it_is_split() {
        check(&body(0, 0, 0), Ok(0));
        check(&body(0, 1, 1), Ok(1));
        check(&body(0, 1000, 1000), Ok(1000));
    }

    #[test]
    fn malformed_bodies_are_refused() {
        let none = "the method takes one message, and none was sent";
        let more = "the method takes one message, and more were sent";
        check(&[], Err((GrpcCode::Unimplemented, none)));
        check(&body(0, 0, 1), Err((GrpcCode::Unimplemented, more)));
        check(&body(0, 3, 9), Err((GrpcCode::Unimplemented, more)));
        check(&body(0, 8, 12), Err((GrpcCode::Unimplemented, more)));
        check(&[0, 0, 0], Err((GrpcCode::Internal, "the body ends inside a message")));
        check(&body(0, 9, 8), Err((GrpcCode::Internal, "the body ends inside a message")));
        check(
            &body(0, 1001, 0),
            Err((GrpcCode::ResourceExhausted, "Received message larger than max (1001 vs. 1000)")),
        );
        check(
            &body(0, u32::MAX, 10),
            Err((
                GrpcCode::ResourceExhausted,
                "Received message larger than max (4294967295 vs. 1000)",
            )),
        );
    }

    #[test]
    fn one_flag_has_a_meaning() {
        check(&body(1, 1, 1), Ok(1));
        check(&body(2, 1, 1), Ok(1));
        check(&body(255, 1, 1), Ok(1));
    }

    #[test]
    fn a_message_in_one_piece_is_not_copied() {
        let body = Bytes::from(body(0, 100, 100));
        let mut reader = reader();
        reader.push(body.clone()).unwrap();
        assert_eq!(reader.finish().unwrap().bytes.as_ptr(), body[5..].as_ptr());
    }
}
