//! The texts in a package of a compiled model: its metadata, its list of operations, the structure of
//! its arguments, and the source with the shapes that it was compiled for.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| galatea_backend_pytorch::fuzzing::read_texts(text));
