//! A network in OpenVINO's intermediate representation: its layers, layouts and predictability.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| galatea_backend_openvino::fuzzing::read_network(text));
