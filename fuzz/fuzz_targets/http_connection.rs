//! Everything that a client sends on a connection of the HTTP door: heads and bodies.

#![no_main]

use std::sync::LazyLock;

use galatea_fuzz::{DoorBuilder, exchange};
use libfuzzer_sys::fuzz_target;

static DOOR: LazyLock<DoorBuilder> = LazyLock::new(DoorBuilder::http);

fuzz_target!(|data: &[u8]| {
    let answer = exchange(&DOOR, data);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{answer:?}");
});
