//! Outgoing messages. Each consists of a length prefix followed by chunks that are never joined.

use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes};
use galatea_infer::Status;
use galatea_tensor::Buffer;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use galatea_codec::compression::{ContentCoding, DeflateLevel, compress};

/// The length of the prefix of every message, which contains a compression flag and a length.
pub const MESSAGE_PREFIX_BYTES: usize = 5;

/// The flag for a compressed message, a bit in the first byte of the message's prefix.
pub const COMPRESSED: u8 = 1;

/// The maximum length of a message that this server accepts or sends.
pub const MESSAGE_BYTES_MAX: usize = 0x7fff_ffff;

/// The length up to which tensors are copied into the chunk of the fields: copying half a page
/// costs less than writing another chunk.
const COPY_BYTES_MAX: usize = 2048;

/// A length-prefixed message in one or more chunks for a connection to send.
#[derive(Debug)]
pub struct MessageChunks {
    /// The current chunk. It is empty only if the message is consumed.
    head: Bytes,
    tail: std::vec::IntoIter<Bytes>,
    remaining: usize,
    extra_retained_bytes: usize,
    charged_bytes: usize,
}

impl MessageChunks {
    /// The number of bytes of the message that its owners have already charged.
    #[must_use]
    pub const fn charged_bytes(&self) -> usize {
        self.charged_bytes
    }

    /// The number of bytes that the message keeps alive in addition to its own, because its chunks
    /// are slices of larger buffers.
    #[must_use]
    pub const fn extra_retained_bytes(&self) -> usize {
        self.extra_retained_bytes
    }

    /// Compresses the message, unless compression would lengthen it.
    #[must_use]
    pub fn compressed(mut self, coding: ContentCoding) -> Self {
        let length = self.remaining.saturating_sub(MESSAGE_PREFIX_BYTES);
        let content = self.head.slice(MESSAGE_PREFIX_BYTES.min(self.head.len())..);
        let parts: Vec<Bytes> =
            std::iter::once(content).chain(self.tail.as_slice().iter().cloned()).collect();
        let compressed = compress(&parts, coding, DeflateLevel::DEFAULT);
        if compressed.len() >= length {
            return self;
        }
        let Ok(length) = u32::try_from(compressed.len()) else { return self };
        let mut prefix = Vec::with_capacity(MESSAGE_PREFIX_BYTES);
        prefix.put_u8(COMPRESSED);
        prefix.put_u32(length);
        self.remaining = compressed.len().saturating_add(MESSAGE_PREFIX_BYTES);
        self.head = Bytes::from(prefix);
        self.tail = vec![Bytes::from(compressed)].into_iter();
        self.extra_retained_bytes = 0;
        self.charged_bytes = 0;
        self
    }

    /// Copies the message into a separate buffer.
    #[must_use]
    pub fn into_owned(mut self) -> Self {
        let remaining = self.remaining;
        let head = self.copy_to_bytes(remaining);
        let tail = Vec::new().into_iter();
        Self { head, tail, remaining, extra_retained_bytes: 0, charged_bytes: 0 }
    }
}

impl Buf for MessageChunks {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        &self.head
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let chunks = std::iter::once(&self.head).chain(self.tail.as_slice());
        let filled = chunks.filter(|chunk| !chunk.is_empty()).zip(slices.iter_mut());
        filled.map(|(chunk, slice)| *slice = IoSlice::new(chunk)).count()
    }

    fn advance(&mut self, count: usize) {
        // This is the contract of `Buf`: advancing past the end is the caller's bug.
        assert!(count <= self.remaining, "advanced past the end of a message");
        self.remaining = self.remaining.saturating_sub(count);
        let mut left = count;
        while left >= self.head.len() {
            left = left.saturating_sub(self.head.len());
            match self.tail.next() {
                Some(next) => self.head = next,
                None => {
                    self.head = Bytes::new();
                    return;
                }
            }
        }
        self.head.advance(left);
    }
}

/// Encodes a generated message with its prefix.
///
/// # Errors
///
/// `InvalidArgument` if the message exceeds gRPC's size limit.
pub fn frame_message(message: &impl Message) -> Result<MessageChunks, Status> {
    let length = message.encoded_len();
    check_length(length)?;
    let mut writer = MessageWriter::with_capacity(length);
    message.encode_raw(&mut writer.fields);
    writer.finish()
}

/// The number of bytes reserved before a message that becomes a field of another one: the prefix, a
/// key and a length.
const OUTER_FIELD_BYTES_MAX: usize = MESSAGE_PREFIX_BYTES + 6;

/// Writes a message field by field. Large `bytes` fields become separate chunks.
pub(super) struct MessageWriter {
    /// The reserved bytes, all small fields, and the keys and lengths of the chunks.
    pub(super) fields: Vec<u8>,
    /// The number of reserved bytes that are unused.
    unused: usize,
    /// The chunks, each with its offset in the fields.
    chunks: Vec<(usize, Bytes)>,
    chunks_bytes: usize,
    extra_retained_bytes: usize,
    charged_bytes: usize,
}

impl MessageWriter {
    pub(super) fn with_capacity(fields_bytes: usize) -> Self {
        Self::new(fields_bytes, MESSAGE_PREFIX_BYTES)
    }

    /// Creates a writer for a message that [`MessageWriter::wrap_in_field`] will wrap.
    pub(super) fn with_outer_field(fields_bytes: usize) -> Self {
        Self::new(fields_bytes, OUTER_FIELD_BYTES_MAX)
    }

    fn new(fields_bytes: usize, reserved: usize) -> Self {
        let mut fields = Vec::with_capacity(fields_bytes.saturating_add(reserved));
        fields.resize(reserved, 0);
        Self {
            fields,
            unused: 0,
            chunks: Vec::new(),
            chunks_bytes: 0,
            extra_retained_bytes: 0,
            charged_bytes: 0,
        }
    }

    /// Writes a string field, or omits it if it is empty.
    pub(super) fn string_field(&mut self, number: u32, text: &str) {
        put_text(&mut self.fields, number, text);
    }

    /// Writes a message field of this length through `write`.
    pub(super) fn message_field(
        &mut self,
        number: u32,
        length: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        put_length(&mut self.fields, number, length);
        write(&mut self.fields);
    }

    /// Writes an entry of a repeated `bytes` field, even if the entry is empty. `bytes` is the
    /// content of `buffer`.
    pub(super) fn bytes_field(&mut self, number: u32, bytes: &Bytes, buffer: &Buffer) {
        put_length(&mut self.fields, number, bytes.len());
        if bytes.len() <= COPY_BYTES_MAX {
            self.fields.extend_from_slice(bytes);
        } else {
            self.chunks_bytes = self.chunks_bytes.saturating_add(bytes.len());
            let extra = buffer.retained_bytes().saturating_sub(bytes.len());
            if buffer.is_charged() {
                self.charged_bytes = self.charged_bytes.saturating_add(bytes.len());
            }
            self.extra_retained_bytes = self.extra_retained_bytes.saturating_add(extra);
            self.chunks.push((self.fields.len(), bytes.clone()));
        }
    }

    /// Turns the message so far into the field `number`, below 16, of another message, to which
    /// later fields belong.
    pub(super) fn wrap_in_field(&mut self, number: u32) -> Result<(), Status> {
        let written = self.fields.len().saturating_add(self.chunks_bytes);
        let length = check_length(written.saturating_sub(OUTER_FIELD_BYTES_MAX))?;
        let mut outer = [0_u8; OUTER_FIELD_BYTES_MAX];
        let mut free = &mut outer[MESSAGE_PREFIX_BYTES..];
        encode_key(number, WireType::LengthDelimited, &mut free);
        encode_varint(u64::from(length), &mut free);
        // A short length leaves unused bytes before the prefix.
        self.unused = free.len();
        let used = self.fields.iter_mut().skip(self.unused);
        used.zip(outer)
            .take(OUTER_FIELD_BYTES_MAX.saturating_sub(self.unused))
            .for_each(|(slot, byte)| *slot = byte);
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<MessageChunks, Status> {
        let fields = self.fields.get_mut(self.unused..).unwrap_or_default();
        let remaining = fields.len().saturating_add(self.chunks_bytes);
        let length = check_length(remaining.saturating_sub(MESSAGE_PREFIX_BYTES))?;
        if let Some(prefix) = fields.first_chunk_mut::<MESSAGE_PREFIX_BYTES>() {
            let [a, b, c, d] = length.to_be_bytes();
            *prefix = [0, a, b, c, d];
        }
        let (extra_retained_bytes, charged_bytes) = (self.extra_retained_bytes, self.charged_bytes);
        let mut head = Bytes::from(self.fields);
        if self.chunks.is_empty() {
            head.advance(self.unused);
            return Ok(MessageChunks {
                head,
                tail: Vec::new().into_iter(),
                remaining,
                extra_retained_bytes,
                charged_bytes,
            });
        }
        let mut tail = Vec::with_capacity(self.chunks.len().saturating_mul(2));
        for (offset, chunk) in self.chunks.into_iter().rev() {
            let after = head.split_off(offset);
            if !after.is_empty() {
                tail.push(after);
            }
            tail.push(chunk);
        }
        head.advance(self.unused);
        tail.reverse();
        let tail = tail.into_iter();
        Ok(MessageChunks { head, tail, remaining, extra_retained_bytes, charged_bytes })
    }
}

fn check_length(length: usize) -> Result<u32, Status> {
    u32::try_from(length).ok().filter(|_| length <= MESSAGE_BYTES_MAX).ok_or_else(|| {
        Status::invalid_argument(format!(
            "Response has byte size {length} which exceeds gRPC's byte size limit \
             {MESSAGE_BYTES_MAX}."
        ))
    })
}

pub(super) fn put_text(into: &mut Vec<u8>, number: u32, text: &str) {
    if !text.is_empty() {
        put_length(into, number, text.len());
        into.extend_from_slice(text.as_bytes());
    }
}

pub(super) fn put_length(into: &mut Vec<u8>, number: u32, length: usize) {
    if let (Ok(number @ ..16), Ok(length @ ..128)) = (u8::try_from(number), u8::try_from(length)) {
        // Most fields are short. The two bytes are written together.
        into.extend_from_slice(&[number << 3 | LENGTH_DELIMITED, length]);
        return;
    }
    encode_key(number, WireType::LengthDelimited, into);
    encode_varint(u64::try_from(length).unwrap_or(u64::MAX), into);
}

/// The wire type of strings, bytes and messages in a key.
const LENGTH_DELIMITED: u8 = WireType::LengthDelimited as u8;
