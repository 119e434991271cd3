//! Compressed messages: choosing a coding, and inflating within limits.
//!
//! A flag in each message states whether it is compressed, and the call's headers name the coding.
//! The connection's task inflates messages in slices, so a long message delays neither other calls
//! nor other connections.

use std::sync::Arc;

use bytes::Bytes;
use galatea_codec::compression::{
    CompressedStreamEnd, CompressionFormat, ContentCoding, InflateProgress, Inflater,
};
use galatea_codec_grpc::GrpcCode;
use galatea_gate::ledger::MemoryAccount;
use http::{HeaderMap, HeaderValue};

use crate::failure::{Failure, Refusal};

/// The maximum number of bytes that a connection inflates per round.
pub(crate) const INFLATE_BYTES: usize = 128 << 10;

/// The codings that clients may use, named as gRPC's own servers name them.
pub(crate) const ACCEPTED: HeaderValue = HeaderValue::from_static("identity, deflate, gzip");

/// The response compression level, which decides among the codings that the client accepts.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum CompressionLevel {
    /// No compression.
    #[default]
    None,
    /// gzip is preferred to deflate.
    Low,
    /// deflate is preferred to gzip.
    Medium,
    /// deflate is preferred to gzip, as with [`Self::Medium`].
    High,
}

/// A message in the form in which it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArrivedMessage {
    pub(crate) bytes: Bytes,
    /// The message's compression flag. It has no meaning if the call's headers name no coding.
    pub(crate) is_compressed: bool,
}

/// Returns the coding of the call's messages, from its headers.
pub(crate) fn request_coding(
    encoding: Option<&HeaderValue>,
) -> Result<Option<ContentCoding>, Refusal> {
    let Some(name) = encoding else { return Ok(None) };
    match ContentCoding::named(name.as_bytes()) {
        None if !matches!(name.as_bytes(), b"identity" | b"") => {
            let name = String::from_utf8_lossy(name.as_bytes());
            let text = format!("Compression algorithm '{name}' is not supported");
            Err(Refusal::Compressed(Failure::new(GrpcCode::Unimplemented, text)))
        }
        coding => Ok(coding),
    }
}

/// Returns the coding for responses to a client with these headers.
///
/// As in gRPC's own servers, the level decides among the codings that the client accepts: `Low`
/// prefers gzip, while `Medium` and `High` prefer deflate.
pub(crate) fn response_coding(
    level: CompressionLevel,
    headers: &HeaderMap,
) -> Option<ContentCoding> {
    if level == CompressionLevel::None {
        return None;
    }
    let accepts = |coding: ContentCoding| {
        let mut lists = headers.get_all("grpc-accept-encoding").iter();
        lists.any(|list| {
            let mut names = list.as_bytes().split(|byte| *byte == b',');
            names.any(|name| name.trim_ascii() == coding.name().as_bytes())
        })
    };
    let gzip = accepts(ContentCoding::Gzip).then_some(ContentCoding::Gzip);
    let deflate = accepts(ContentCoding::Deflate).then_some(ContentCoding::Deflate);
    match level {
        CompressionLevel::None => None,
        CompressionLevel::Low => gzip.or(deflate),
        CompressionLevel::Medium | CompressionLevel::High => deflate.or(gzip),
    }
}

/// The settings for inflating a call's messages.
pub(crate) struct Inflating<'a> {
    pub(crate) coding: Option<ContentCoding>,
    /// The maximum length of an inflated message.
    pub(crate) bytes_max: usize,
    pub(crate) account: &'a Arc<MemoryAccount>,
}

impl Inflating<'_> {
    /// Begins to inflate a message, if it is compressed.
    pub(crate) fn begin(&self, message: ArrivedMessage) -> Result<Inflation, Bytes> {
        Inflation::begin(message, self.coding, self.bytes_max, self.account)
    }
}

/// A message that is being inflated.
pub(crate) struct Inflation {
    inflater: Inflater,
    coding: ContentCoding,
    compressed_bytes: usize,
    bytes_max: usize,
}

impl Inflation {
    /// Begins to inflate `message`, if it is compressed, to at most `bytes_max` bytes, which are
    /// charged to `account`.
    pub(crate) fn begin(
        message: ArrivedMessage,
        coding: Option<ContentCoding>,
        bytes_max: usize,
        account: &Arc<MemoryAccount>,
    ) -> Result<Self, Bytes> {
        let ArrivedMessage { bytes, is_compressed } = message;
        let Some(coding) = coding.filter(|_| is_compressed && !bytes.is_empty()) else {
            return Err(bytes);
        };
        let compressed_bytes = bytes.len();
        let format = match coding {
            ContentCoding::Gzip => CompressionFormat::Gzip,
            ContentCoding::Deflate => CompressionFormat::Zlib,
        };
        let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX);
        let inflater = Inflater::new(bytes, format, limit, account.clone());
        Ok(Self { inflater, coding, compressed_bytes, bytes_max })
    }

    /// The memory that the message occupies, compressed and inflated.
    pub(crate) fn bytes(&self) -> usize {
        self.compressed_bytes.saturating_add(self.inflater.inflated_len())
    }

    /// Continues within `budget` and deducts the work from it. Returns true once the message is
    /// complete.
    pub(crate) fn advance(&mut self, budget: &mut usize) -> Result<bool, Failure> {
        if *budget == 0 {
            return Ok(false);
        }
        let before = self.done();
        let progress = self.inflater.advance(*budget);
        *budget = budget.saturating_sub(self.done().saturating_sub(before));
        match progress {
            InflateProgress::Paused => {
                *budget = 0;
                Ok(false)
            }
            InflateProgress::Ended(CompressedStreamEnd::Complete)
                if self.inflater.unread_len() == 0 =>
            {
                Ok(true)
            }
            InflateProgress::Ended(_) => Err(self.damaged()),
            InflateProgress::TooLong => Err(self.too_long()),
            InflateProgress::Exhausted(exhausted) => Err(exhausted.into()),
        }
    }

    /// The number of bytes read and written.
    fn done(&self) -> usize {
        self.bytes().saturating_sub(self.inflater.unread_len())
    }

    /// The complete inflated message.
    pub(crate) fn into_message(self) -> Bytes {
        self.inflater.into_output()
    }

    fn damaged(&self) -> Failure {
        let name = self.coding.name();
        let text = format!("Unexpected error decompressing data for algorithm {name}");
        Failure::new(GrpcCode::Internal, text)
    }

    fn too_long(&self) -> Failure {
        let most = self.bytes_max;
        let text = format!("Received message larger than max (more than {most} vs. {most})");
        Failure::new(GrpcCode::ResourceExhausted, text)
    }
}

impl std::fmt::Debug for Inflation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inflation({:?}, {} bytes)", self.coding, self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use galatea_codec::compression::{DeflateLevel, compress};

    use super::*;

    fn headers(name: &'static str, values: &[&'static str]) -> HeaderMap {
        let values = values.iter().map(|value| HeaderValue::from_static(value));
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name, value);
        }
        headers
    }

    #[test]
    fn a_head_names_the_coding_of_requests() {
        let check = |values: &[&'static str], expected: Option<ContentCoding>| {
            assert_eq!(
                request_coding(headers("grpc-encoding", values).get("grpc-encoding")),
                Ok(expected)
            );
        };
        check(&[], None);
        check(&["identity"], None);
        check(&["gzip"], Some(ContentCoding::Gzip));
        check(&["deflate"], Some(ContentCoding::Deflate));
        for unknown in ["snappy", "GZIP", "gzip, deflate"] {
            let refusal = request_coding(headers("grpc-encoding", &[unknown]).get("grpc-encoding"))
                .unwrap_err();
            let Refusal::Compressed(failure) = refusal else { panic!("{refusal:?}") };
            let text = format!("Compression algorithm '{unknown}' is not supported");
            assert_eq!(failure.into_parts(), (GrpcCode::Unimplemented, text));
        }
    }

    #[test]
    fn the_level_chooses_among_accepted_codings() {
        use CompressionLevel::{High, Low, Medium, None as Off};
        let check = |values: &[&'static str], level, expected: Option<ContentCoding>| {
            let headers = headers("grpc-accept-encoding", values);
            assert_eq!(response_coding(level, &headers), expected, "{values:?} {level:?}");
        };
        let (gzip, deflate) = (Some(ContentCoding::Gzip), Some(ContentCoding::Deflate));
        for both in [&["identity, deflate, gzip"][..], &["gzip,deflate"], &["deflate", "gzip"]] {
            check(both, Off, None);
            check(both, Low, gzip);
            check(both, Medium, deflate);
            check(both, High, deflate);
        }
        for level in [Low, Medium, High] {
            check(&[], level, None);
            check(&["identity"], level, None);
            check(&["gzip "], level, gzip);
            check(&["GZIP;q=1,deflate ,foo"], level, deflate);
        }
    }

    fn account() -> Arc<MemoryAccount> {
        Arc::new(MemoryAccount::unlimited())
    }

    /// Inflates in slices of `budget`. Returns the message or its failure, along with the number of
    /// slices.
    fn inflate(
        bytes: &[u8],
        coding: ContentCoding,
        bytes_max: usize,
        budget: usize,
    ) -> (Result<Bytes, Failure>, usize) {
        let message = ArrivedMessage { bytes: Bytes::copy_from_slice(bytes), is_compressed: true };
        let mut inflation = Inflation::begin(message, Some(coding), bytes_max, &account()).unwrap();
        for slices in 1.. {
            let mut left = budget;
            match inflation.advance(&mut left) {
                Ok(true) => return (Ok(inflation.into_message()), slices),
                Ok(false) => assert_eq!(left, 0),
                Err(failure) => return (Err(failure), slices),
            }
        }
        unreachable!()
    }

    #[test]
    fn messages_are_inflated_in_slices() {
        let message = Bytes::from(b"abcdefgh".repeat(1 << 18));
        for coding in [ContentCoding::Gzip, ContentCoding::Deflate] {
            let compressed =
                compress(std::slice::from_ref(&message), coding, DeflateLevel::DEFAULT);
            let (inflated, slices) = inflate(&compressed, coding, message.len(), 100_000);
            assert_eq!(inflated, Ok(message.clone()));
            assert!((4..=30).contains(&slices), "{slices}");
            let (failure, _) = inflate(&compressed, coding, message.len() - 1, 100_000);
            let (code, text) = failure.unwrap_err().into_parts();
            assert_eq!(code, GrpcCode::ResourceExhausted);
            assert_eq!(text, "Received message larger than max (more than 2097151 vs. 2097151)");
        }
    }

    #[test]
    fn a_bomb_ends_at_the_limit() {
        let bomb =
            compress(&[Bytes::from(vec![0; 64 << 20])], ContentCoding::Gzip, DeflateLevel::DEFAULT);
        let message = ArrivedMessage { bytes: Bytes::from(bomb), is_compressed: true };
        let mut inflation =
            Inflation::begin(message, Some(ContentCoding::Gzip), 1 << 20, &account()).unwrap();
        let mut budget = usize::MAX;
        assert!(inflation.advance(&mut budget).is_err());
        assert!(inflation.bytes() < 2 << 20);
    }

    #[test]
    fn damaged_messages_fail() {
        let whole =
            compress(&[Bytes::from_static(b"message")], ContentCoding::Gzip, DeflateLevel::DEFAULT);
        let check = |bytes: &[u8], coding: ContentCoding| {
            let (code, text) = inflate(bytes, coding, 1000, 1000).0.unwrap_err().into_parts();
            let name = coding.name();
            let expected = format!("Unexpected error decompressing data for algorithm {name}");
            assert_eq!((code, text), (GrpcCode::Internal, expected));
        };
        check(b"garbage12345", ContentCoding::Gzip);
        check(&whole[..whole.len() - 3], ContentCoding::Gzip);
        check(&[&whole[..], b"x"].concat(), ContentCoding::Gzip);
        check(&[&whole[..], &whole[..]].concat(), ContentCoding::Gzip);
        check(&whole, ContentCoding::Deflate);
        let mut wrong_sum = whole.clone();
        wrong_sum[whole.len() - 6] ^= 1;
        check(&wrong_sum, ContentCoding::Gzip);
    }

    #[test]
    fn only_messages_with_flag_coding_and_content_are_inflated() {
        let message = |text: &'static [u8], is_compressed| ArrivedMessage {
            bytes: Bytes::from_static(text),
            is_compressed,
        };
        for (message, coding) in [
            (message(b"x", false), Some(ContentCoding::Gzip)),
            (message(b"x", true), None),
            (message(b"", true), Some(ContentCoding::Gzip)),
        ] {
            let bytes = message.bytes.clone();
            assert_eq!(Inflation::begin(message, coding, 10, &account()).err(), Some(bytes));
        }
    }
}
