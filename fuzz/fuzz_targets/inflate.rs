//! Compressed bodies. The first byte selects the format.

#![no_main]

use std::sync::Arc;

use bytes::Bytes;
use galatea_codec::compression::{CompressionFormat, InflateProgress, Inflater};
use galatea_gate::ledger::MemoryAccount;
use libfuzzer_sys::fuzz_target;

const OUTPUT_BYTES_MAX: u64 = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let Some((first, body)) = data.split_first() else { return };
    let format = [CompressionFormat::Gzip, CompressionFormat::Zlib, CompressionFormat::Either]
        [usize::from(first % 3)];
    let body = Bytes::copy_from_slice(body);
    let at_once = inflate(&body, format, usize::MAX >> 1);
    let in_slices = inflate(&body, format, 1 + usize::from(*first));
    assert_eq!(at_once, in_slices);
});

/// The end of the stream, the length that was read of it, and its content.
fn inflate(
    body: &Bytes,
    format: CompressionFormat,
    budget: usize,
) -> (InflateProgress, usize, Bytes) {
    let mut inflater =
        Inflater::new(body.clone(), format, OUTPUT_BYTES_MAX, Arc::new(MemoryAccount::unlimited()));
    loop {
        let progress = inflater.advance(budget);
        if progress != InflateProgress::Paused {
            let unread = inflater.unread_len();
            assert!(unread <= body.len());
            let output = inflater.into_output();
            assert!(output.len() as u64 <= OUTPUT_BYTES_MAX);
            return (progress, unread, output);
        }
    }
}
