//! Messages on their way out: a length, then pieces that are never joined.

use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use galatea_infer::Status;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

/// The bytes before every message: a flag for compression and a length.
pub const MESSAGE_PREFIX_BYTES: usize = 5;

/// The longest message that this server takes or sends.
pub const MESSAGE_BYTES_MAX: usize = 0x7fff_ffff;

/// Tensors up to this length are copied behind the fields before them: a copy
/// of two pages' half costs less than one more piece to carry and write.
const COPY_BYTES_MAX: usize = 2048;

/// A length-prefixed message in one or more pieces, for a connection to send.
#[derive(Debug)]
pub struct MessageChunks {
    /// Not empty unless everything was consumed.
    head: Bytes,
    tail: std::vec::IntoIter<Bytes>,
    remaining: usize,
    kept_beside: usize,
}

impl MessageChunks {
    /// How much more memory than its bytes the message keeps alive, because its
    /// pieces are parts of what is larger.
    #[must_use]
    pub const fn kept_beside(&self) -> usize {
        self.kept_beside
    }

    /// The message in memory of its own.
    #[must_use]
    pub fn into_copy(mut self) -> Self {
        let remaining = self.remaining;
        let head = self.copy_to_bytes(remaining);
        Self { head, tail: Vec::new().into_iter(), remaining, kept_beside: 0 }
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
        let pieces = std::iter::once(&self.head).chain(self.tail.as_slice());
        let filled = pieces.filter(|piece| !piece.is_empty()).zip(slices.iter_mut());
        filled.map(|(piece, slice)| *slice = IoSlice::new(piece)).count()
    }

    fn advance(&mut self, count: usize) {
        // The contract of `Buf`: advancing past the end is the caller's bug.
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
/// `InvalidArgument` if it is longer than gRPC can say.
pub fn frame_message(message: &impl Message) -> Result<MessageChunks, Status> {
    let length = message.encoded_len();
    check_length(length)?;
    let mut writer = MessageWriter::with_capacity(length);
    message.encode_raw(&mut writer.fields);
    writer.finish()
}

/// What is kept free before a message that becomes the field of another: the
/// prefix, a key and a length.
const OUTER_BYTES_MAX: usize = MESSAGE_PREFIX_BYTES + 6;

/// Writes a message field by field; large `bytes` fields become pieces.
pub(super) struct MessageWriter {
    /// Room for what comes before, all fields, and the keys and lengths of the
    /// pieces.
    pub(super) fields: BytesMut,
    /// Each piece with its place among the fields.
    pieces: Vec<(usize, Bytes)>,
    pieces_bytes: usize,
    kept_beside: usize,
}

impl MessageWriter {
    pub(super) fn with_capacity(fields_bytes: usize) -> Self {
        let mut fields = BytesMut::with_capacity(fields_bytes.saturating_add(MESSAGE_PREFIX_BYTES));
        fields.put_bytes(0, MESSAGE_PREFIX_BYTES);
        Self::of(fields)
    }

    /// A writer for a message that will [`MessageWriter::become_field`].
    pub(super) fn within(fields_bytes: usize) -> Self {
        let mut fields = BytesMut::with_capacity(fields_bytes.saturating_add(OUTER_BYTES_MAX));
        fields.put_bytes(0, OUTER_BYTES_MAX);
        Self::of(fields)
    }

    const fn of(fields: BytesMut) -> Self {
        Self { fields, pieces: Vec::new(), pieces_bytes: 0, kept_beside: 0 }
    }

    /// A string field, left out if it is empty.
    pub(super) fn text(&mut self, number: u32, text: &str) {
        put_text(&mut self.fields, number, text);
    }

    /// A field that holds a message, written by `write`.
    pub(super) fn nested(&mut self, number: u32, length: usize, write: impl FnOnce(&mut BytesMut)) {
        put_length(&mut self.fields, number, length);
        write(&mut self.fields);
    }

    /// A `bytes` field that is an entry of a list, so it is written even if
    /// it is empty; they keep so much memory.
    pub(super) fn piece(&mut self, number: u32, bytes: &Bytes, kept_bytes: usize) {
        put_length(&mut self.fields, number, bytes.len());
        if bytes.len() <= COPY_BYTES_MAX {
            self.fields.extend_from_slice(bytes);
        } else {
            self.pieces_bytes = self.pieces_bytes.saturating_add(bytes.len());
            let beside = kept_bytes.saturating_sub(bytes.len());
            self.kept_beside = self.kept_beside.saturating_add(beside);
            self.pieces.push((self.fields.len(), bytes.clone()));
        }
    }

    /// Makes what was written since [`MessageWriter::within`] the field
    /// `number`, below 16, of another message, which further fields go to.
    pub(super) fn become_field(&mut self, number: u32) -> Result<(), Status> {
        let written = self.fields.len().saturating_add(self.pieces_bytes);
        let length = check_length(written.saturating_sub(OUTER_BYTES_MAX))?;
        let mut outer = [0_u8; OUTER_BYTES_MAX];
        let mut free = &mut outer[MESSAGE_PREFIX_BYTES..];
        encode_key(number, WireType::LengthDelimited, &mut free);
        encode_varint(u64::from(length), &mut free);
        // A short length leaves room before the prefix.
        let unused = free.len();
        self.fields.advance(unused);
        self.fields
            .iter_mut()
            .zip(outer)
            .take(OUTER_BYTES_MAX.saturating_sub(unused))
            .for_each(|(place, byte)| *place = byte);
        for (place, _) in &mut self.pieces {
            *place = place.saturating_sub(unused);
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<MessageChunks, Status> {
        let remaining = self.fields.len().saturating_add(self.pieces_bytes);
        let length = check_length(remaining.saturating_sub(MESSAGE_PREFIX_BYTES))?;
        if let Some(prefix) = self.fields.first_chunk_mut::<MESSAGE_PREFIX_BYTES>() {
            let [a, b, c, d] = length.to_be_bytes();
            *prefix = [0, a, b, c, d];
        }
        let kept_beside = self.kept_beside;
        let mut head = self.fields.freeze();
        if self.pieces.is_empty() {
            return Ok(MessageChunks {
                head,
                tail: Vec::new().into_iter(),
                remaining,
                kept_beside,
            });
        }
        let mut tail = Vec::with_capacity(self.pieces.len().saturating_mul(2));
        for (place, piece) in self.pieces.into_iter().rev() {
            let after = head.split_off(place);
            if !after.is_empty() {
                tail.push(after);
            }
            tail.push(piece);
        }
        tail.reverse();
        Ok(MessageChunks { head, tail: tail.into_iter(), remaining, kept_beside })
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

pub(super) fn put_text(into: &mut BytesMut, number: u32, text: &str) {
    if !text.is_empty() {
        put_length(into, number, text.len());
        into.extend_from_slice(text.as_bytes());
    }
}

pub(super) fn put_length(into: &mut BytesMut, number: u32, length: usize) {
    encode_key(number, WireType::LengthDelimited, into);
    encode_varint(u64::try_from(length).unwrap_or(u64::MAX), into);
}
