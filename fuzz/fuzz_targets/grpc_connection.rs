//! Frames that a client sends on a connection of the gRPC door, after the preface.

#![no_main]

use std::sync::LazyLock;

use galatea_fuzz::{DoorBuilder, exchange};
use libfuzzer_sys::fuzz_target;

static DOOR: LazyLock<DoorBuilder> = LazyLock::new(DoorBuilder::grpc);

/// HTTP/2's preface and an empty SETTINGS frame.
const BEGIN: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The length of a frame's head.
const FRAME_HEAD_BYTES: usize = 9;

fuzz_target!(|data: &[u8]| {
    let answer = exchange(&DOOR, &[BEGIN, data].concat());
    let mut rest = answer.as_slice();
    while let Some((length, after)) = rest.split_first_chunk::<3>() {
        let [high, middle, low] = length.map(usize::from);
        let length = (high << 16) | (middle << 8) | low;
        let frame = FRAME_HEAD_BYTES - 3 + length;
        rest = after.get(frame..).expect("a frame that is whole");
    }
});
