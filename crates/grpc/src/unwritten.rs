//! Answers that are made and not yet written, and who has to wait for them.
//!
//! A client decides how fast it reads. What it doesn't read lies in the
//! server, so every answer is counted from the moment at which it is made
//! until `h2` lets go of it: because it was written, because its call was
//! reset, or because the connection is gone. The count is tied to the message
//! itself, so that no way out of the server can be forgotten.

use std::io::IoSlice;
use std::sync::Arc;

use bytes::Buf;
use galatea_codec::grpc::MessageChunks;

use crate::signal::{Signal, Use};
use crate::stream::StreamSignal;

/// What an answer takes beside its bytes: frames, lists and reference counts.
/// A guess on the high side, so that many tiny answers count as well.
const OVERHEAD_BYTES: usize = 512;

/// Whose client an answer waits for.
#[derive(Clone)]
pub(crate) enum Holder {
    /// That of a single call.
    Call(Arc<Signal>),
    /// That of a stream.
    Stream(Arc<StreamSignal>),
}

/// An answer on its way out, counted for as long as it exists.
pub(crate) struct Outgoing {
    message: MessageChunks,
    bytes: usize,
    holder: Holder,
}

impl Holder {
    fn connection(&self) -> &Signal {
        match self {
            Self::Call(signal) => signal,
            Self::Stream(signal) => signal.connection(),
        }
    }
}

impl Outgoing {
    /// Counts `message`; `None` if so much waits already that this one is
    /// dropped. If what waits already keeps too much beside its bytes, this one
    /// is copied.
    pub(crate) fn new(message: MessageChunks, holder: Holder) -> Option<Self> {
        let bytes = message.remaining().saturating_add(OVERHEAD_BYTES);
        let taken = match &holder {
            Holder::Call(signal) => signal.hold(bytes, Use::Call),
            Holder::Stream(signal) => signal.hold(bytes),
        };
        // Only what was counted may be dropped as such.
        if !taken {
            return None;
        }
        let beside = message.extra_retained_bytes();
        if beside == 0 || holder.connection().hold_beside(beside) {
            return Some(Self { message, bytes, holder });
        }
        Some(Self { message: message.into_owned(), bytes, holder })
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        let beside = self.message.extra_retained_bytes();
        if beside > 0 {
            self.holder.connection().let_go_beside(beside);
        }
        match &self.holder {
            Holder::Call(signal) => signal.let_go(self.bytes, Use::Call),
            Holder::Stream(signal) => signal.let_go(self.bytes),
        }
    }
}

impl std::fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Outgoing({} bytes)", self.bytes)
    }
}

impl Buf for Outgoing {
    fn remaining(&self) -> usize {
        self.message.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.message.chunk()
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.message.chunks_vectored(slices)
    }

    fn advance(&mut self, count: usize) {
        self.message.advance(count);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use galatea_codec::grpc::encode_infer_response;
    use galatea_infer::{InferenceResponse, OutputTensor};
    use galatea_tensor::{Buffer, DataType, Shape};

    use super::*;
    use crate::signal::Limits;

    const PART_BYTES: usize = 4000;

    fn answer(signal: &Arc<Signal>, whole: &Bytes) -> Outgoing {
        let part = whole.slice(..PART_BYTES);
        let output = OutputTensor {
            name: "O".into(),
            datatype: DataType::Uint8,
            shape: Shape::new(&[i64::try_from(PART_BYTES).unwrap()]).unwrap(),
            data: Buffer::from_bytes(part).retaining(whole.len()),
        };
        let response = InferenceResponse {
            model_name: "m".into(),
            model_version: 1,
            id: String::new(),
            parameters: Vec::new(),
            outputs: vec![output],
        };
        let message = encode_infer_response(&response).unwrap();
        Outgoing::new(message, Holder::Call(signal.clone())).unwrap()
    }

    #[test]
    fn parts_of_what_is_large_are_copied_when_much_waits() {
        let signal = Arc::new(Signal::new(Limits {
            call_bytes_max: 1 << 30,
            bytes_max: 1 << 30,
            bytes_dropped: 1 << 30,
            beside_bytes_max: 200_000,
            request_bytes_max: 1 << 30,
            arriving_bytes_max: 1 << 30,
        }));
        let wholes: Vec<Bytes> = (0..4).map(|value| Bytes::from(vec![value; 100_000])).collect();
        let mut answers: Vec<Outgoing> =
            wholes.iter().map(|whole| answer(&signal, whole)).collect();
        let alone = |wholes: &[Bytes]| wholes.iter().map(Bytes::is_unique).collect::<Vec<_>>();
        assert_eq!(alone(&wholes), [false, false, true, true]);
        // What was written makes room.
        answers.remove(0);
        let last = answer(&signal, &wholes[0]);
        assert_eq!(alone(&wholes), [false, false, true, true]);
        // Copied or not, they say the same.
        answers.insert(0, last);
        for (value, mut answer) in (0..).zip(answers) {
            let message = answer.copy_to_bytes(answer.remaining());
            assert!(message.ends_with(&[value; PART_BYTES]));
            assert!(message.len() < PART_BYTES + 50);
        }
        assert_eq!(alone(&wholes), [true; 4]);
        assert!(signal.hold_beside(200_000));
    }
}
