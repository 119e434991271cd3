//! The few certificate fields that are needed here.
//!
//! rustls verifies version 3 certificates. This module reads other certificates in use, such as the
//! version 1 certificates that `openssl x509 -req` creates.

use std::time::Duration;

/// The parts of a certificate, in encoded form.
#[derive(Debug)]
pub(super) struct Certificate<'d> {
    /// True if the certificate has version 1, which has no extensions.
    pub(super) is_version_1: bool,
    pub(super) issuer: &'d [u8],
    pub(super) subject: &'d [u8],
    pub(super) validity: Validity,
    /// The public key with its algorithm, as a `SubjectPublicKeyInfo`.
    pub(super) public_key: &'d [u8],
    /// The part signed by the issuer.
    pub(super) signed: &'d [u8],
    /// The signature algorithm, without the tag of its sequence.
    pub(super) signature_algorithm: &'d [u8],
    pub(super) signature: &'d [u8],
}

/// The validity period of a certificate, in seconds since 1970.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) not_before: i64,
    pub(super) not_after: i64,
}

impl Validity {
    /// Returns true if the certificate is valid at this time.
    pub(super) fn contains(self, now: Duration) -> bool {
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        (self.not_before..=self.not_after).contains(&now)
    }
}

impl<'d> Certificate<'d> {
    /// Parses a certificate; returns `None` if it isn't one.
    pub(super) fn parse(der: &'d [u8]) -> Option<Self> {
        let mut outside = DerReader(der);
        let mut whole = DerReader(outside.value(SEQUENCE)?.content);
        let signed = whole.value(SEQUENCE)?;
        let signature_algorithm = whole.value(SEQUENCE)?.content;
        let signature = bits(&whole.value(BIT_STRING)?)?;
        let mut fields = DerReader(signed.content);
        let is_version_1 = fields.value(VERSION).is_none();
        let _serial = fields.value(INTEGER)?;
        let signed_algorithm = fields.value(SEQUENCE)?.content;
        let issuer = fields.value(SEQUENCE)?.encoded;
        let validity = validity(&fields.value(SEQUENCE)?)?;
        let subject = fields.value(SEQUENCE)?.encoded;
        let public_key = fields.value(SEQUENCE)?.encoded;
        let is_whole = outside.0.is_empty() && whole.0.is_empty();
        if !is_whole || signed_algorithm != signature_algorithm {
            return None;
        }
        Some(Self {
            is_version_1,
            issuer,
            subject,
            validity,
            public_key,
            signed: signed.encoded,
            signature_algorithm,
            signature,
        })
    }
}

/// Returns the algorithm and the bits of a `SubjectPublicKeyInfo`.
pub(super) fn key_parts(public_key: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut parts = DerReader(DerReader(public_key).value(SEQUENCE)?.content);
    let algorithm = parts.value(SEQUENCE)?.content;
    Some((algorithm, bits(&parts.value(BIT_STRING)?)?))
}

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;

/// Reads values in the distinguished encoding rules (DER), one after another.
struct DerReader<'d>(&'d [u8]);

struct DerValue<'d> {
    content: &'d [u8],
    /// The value, including its tag and length.
    encoded: &'d [u8],
}

impl<'d> DerReader<'d> {
    /// Reads the next value if it has this tag.
    fn value(&mut self, tag: u8) -> Option<DerValue<'d>> {
        let (&found, rest) = self.0.split_first()?;
        if found != tag {
            return None;
        }
        let (length, rest) = length(rest)?;
        let (content, rest) = rest.split_at_checked(length)?;
        let encoded = self.0.get(..self.0.len().checked_sub(rest.len())?)?;
        self.0 = rest;
        Some(DerValue { content, encoded })
    }
}

/// Reads a length. Returns it with the remaining bytes.
fn length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    if first < 0x80 {
        return Some((usize::from(first), rest));
    }
    // Four bytes suffice for any certificate.
    let count = usize::from(first & 0x7f);
    if !(1..=4).contains(&count) {
        return None;
    }
    let (digits, rest) = rest.split_at_checked(count)?;
    let length = digits.iter().fold(0_usize, |length, digit| (length << 8) | usize::from(*digit));
    Some((length, rest))
}

/// Returns the bits of a bit string that consists of whole bytes.
fn bits<'d>(value: &DerValue<'d>) -> Option<&'d [u8]> {
    let (&unused, bits) = value.content.split_first()?;
    (unused == 0).then_some(bits)
}

fn validity(value: &DerValue<'_>) -> Option<Validity> {
    let mut times = DerReader(value.content);
    Some(Validity { not_before: time(&mut times)?, not_after: time(&mut times)? })
}

/// Reads a time, in seconds since 1970. It has one of two forms, which differ in the number of
/// digits of the year.
fn time(times: &mut DerReader<'_>) -> Option<i64> {
    if let Some(short) = times.value(UTC_TIME) {
        let (year, rest) = number(short.content, 2)?;
        let century = if year < 50 { 2000 } else { 1900 };
        return seconds(year.checked_add(century)?, rest);
    }
    let long = times.value(GENERALIZED_TIME)?;
    let (year, rest) = number(long.content, 4)?;
    seconds(year, rest)
}

/// Reads a number with this many digits. Returns it with the remaining bytes.
fn number(text: &[u8], digits: usize) -> Option<(i64, &[u8])> {
    let (number, rest) = text.split_at_checked(digits)?;
    if !number.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some((std::str::from_utf8(number).ok()?.parse().ok()?, rest))
}

/// Returns the seconds from 1970 to a time in this year, which is written as `MMDDhhmmssZ`.
#[expect(clippy::arithmetic_side_effects, reason = "a year has at most four digits")]
fn seconds(year: i64, rest: &[u8]) -> Option<i64> {
    let (month, rest) = number(rest, 2)?;
    let (day, rest) = number(rest, 2)?;
    let (hour, rest) = number(rest, 2)?;
    let (minute, rest) = number(rest, 2)?;
    let (second, rest) = number(rest, 2)?;
    if rest != b"Z" || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years begin in March here, so that the leap day is the last day of the year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    // There are 719,468 days from March 1 of the year 0 to the beginning of 1970.
    let days = year * 365 + leap_days + day_of_year - 719_468;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    use super::super::test_certificates as files;
    use super::*;

    #[test]
    fn fields_are_read() {
        let roots = CertificateDer::from_pem_slice(files::ROOTS).unwrap();
        let root = Certificate::parse(&roots).unwrap();
        assert!(!root.is_version_1);
        assert_eq!(root.issuer, root.subject);
        let client = CertificateDer::from_pem_slice(files::CLIENT_VERSION_1).unwrap();
        let client = Certificate::parse(&client).unwrap();
        assert!(client.is_version_1);
        assert_eq!(client.issuer, root.subject);
        assert_ne!(client.subject, root.subject);
        let (_, key) = key_parts(client.public_key).unwrap();
        // This is an uncompressed point on P-256.
        assert_eq!((key.len(), key[0]), (65, 4));
    }

    #[test]
    fn what_is_cut_or_has_wrong_lengths_is_no_certificate() {
        let whole = CertificateDer::from_pem_slice(files::CLIENT_VERSION_1).unwrap();
        for end in 0..whole.len() {
            assert!(Certificate::parse(&whole[..end]).is_none(), "{end}");
        }
        assert!(Certificate::parse(&[&whole, &[0][..]].concat()).is_none());
        for length in [&[0x80][..], &[0x85, 1, 1, 1, 1, 1], &[0x84, 0xff, 0xff, 0xff, 0xff]] {
            assert!(DerReader(&[&[SEQUENCE], length].concat()).value(SEQUENCE).is_none());
        }
    }

    #[test]
    fn times_are_seconds_since_1970() {
        let time = |tag: u8, text: &str| {
            let length = u8::try_from(text.len()).unwrap();
            time(&mut DerReader(&[&[tag, length], text.as_bytes()].concat()))
        };
        assert_eq!(time(UTC_TIME, "700101000000Z"), Some(0));
        assert_eq!(time(UTC_TIME, "000229123456Z"), Some(951_827_696));
        assert_eq!(time(UTC_TIME, "491231235959Z"), Some(2_524_607_999));
        assert_eq!(time(UTC_TIME, "500101000000Z"), Some(-631_152_000));
        assert_eq!(time(GENERALIZED_TIME, "20500101000000Z"), Some(2_524_608_000));
        assert_eq!(time(GENERALIZED_TIME, "99991231235959Z"), Some(253_402_300_799));
        for text in ["", "7001010000Z", "701301000000Z", "70010100000xZ", "700101000000+0100"] {
            assert_eq!(time(UTC_TIME, text), None, "{text}");
        }
        let validity = Validity { not_before: 10, not_after: 20 };
        let is_valid = |now| validity.contains(Duration::from_secs(now));
        assert_eq!([9, 10, 20, 21].map(is_valid), [false, true, true, false]);
    }
}
