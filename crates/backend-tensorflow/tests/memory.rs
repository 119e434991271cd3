//! The memory of inputs and outputs, with TensorFlow itself.

#![allow(clippy::unwrap_used, reason = "a test may fail in any line")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use galatea_infer::InferenceResponse;
use galatea_tensor::elements::{BytesElements, push_bytes_element};
use galatea_tensor::{Buffer, DataType};

use support::{library, load};

/// The alignment that the library prefers.
const ALIGNMENT: usize = 64;

/// Memory that reports when it is freed.
struct Tracked {
    memory: Vec<u8>,
    start: usize,
    byte_size: usize,
    freed: Arc<AtomicBool>,
}

impl AsRef<[u8]> for Tracked {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.byte_size]
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.freed.store(true, Ordering::Relaxed);
    }
}

/// Numbers in memory whose address is a multiple of the alignment plus an offset.
fn tracked(numbers: &[f32], offset: usize) -> (Bytes, Arc<AtomicBool>) {
    let content: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let mut memory = vec![0; content.len() + 2 * ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT) + offset;
    memory[start..start + content.len()].copy_from_slice(&content);
    let freed = Arc::new(AtomicBool::new(false));
    let byte_size = content.len();
    let owner = Tracked { memory, start, byte_size, freed: freed.clone() };
    (Bytes::from_owner(owner), freed)
}

fn output<'a>(response: &'a InferenceResponse, name: &str) -> &'a Bytes {
    let output = response.outputs.iter().find(|output| *output.name == *name).unwrap();
    output.data.host_bytes().unwrap()
}

#[test]
fn an_aligned_input_stays_in_place_as_long_as_an_output_refers_to_it() {
    let Some(library) = library() else { return };
    let mut model = load(&library, "identity");
    let numbers = [1.5; 16];
    let (bytes, freed) = tracked(&numbers, 0);
    let (address, expected) = (bytes.as_ptr(), bytes.to_vec());
    let response = model.execute("x", DataType::Fp32, &[1, 16], Buffer::from_bytes(bytes));
    // The graph returns its input, and nothing was copied.
    assert_eq!(output(&response, "y").as_ptr(), address);
    assert_eq!(output(&response, "y")[..], expected);
    assert!(!freed.load(Ordering::Relaxed));
    drop(response);
    assert!(freed.load(Ordering::Relaxed));
}

#[test]
fn an_unaligned_input_is_copied() {
    let Some(library) = library() else { return };
    let mut model = load(&library, "identity");
    let (bytes, freed) = tracked(&[2.5; 16], 4);
    let expected = bytes.to_vec();
    let response = model.execute("x", DataType::Fp32, &[1, 16], Buffer::from_bytes(bytes));
    assert!(freed.load(Ordering::Relaxed));
    assert_eq!(output(&response, "y")[..], expected);
}

#[test]
fn a_variable_may_keep_an_input() {
    let Some(library) = library() else { return };
    let mut model = load(&library, "large_keeper");
    let mut execute = |number: f32| {
        let (bytes, freed) = tracked(&[number; 1 << 14], 0);
        let content = bytes.to_vec();
        let response = model.execute("x", DataType::Fp32, &[1 << 14], Buffer::from_bytes(bytes));
        (output(&response, "before").clone(), content, freed)
    };
    let (zero, first, first_freed) = execute(1.0);
    assert!(zero.iter().all(|&byte| byte == 0));
    assert!(!first_freed.load(Ordering::Relaxed));
    let (before, second, _) = execute(2.0);
    assert_eq!(before[..], first);
    let (again, ..) = execute(3.0);
    assert_eq!(again[..], second);
    drop(before);
    assert!(first_freed.load(Ordering::Relaxed));
}

#[test]
fn a_variable_keeps_copies_of_small_inputs() {
    let Some(library) = library() else { return };
    let mut model = load(&library, "keeper");
    let (bytes, freed) = tracked(&[1.0; 64], 0);
    model.execute("x", DataType::Fp32, &[64], Buffer::from_bytes(bytes));
    // The request's memory may be larger than the input.
    assert!(freed.load(Ordering::Relaxed));
}

#[test]
fn an_operator_that_writes_to_its_input_gets_a_copy() {
    let Some(library) = library() else { return };
    let mut model = load(&library, "overwriter");
    let (bytes, _) = tracked(&[1.5; 32], 0);
    let before = bytes.to_vec();
    let response = model.execute("x", DataType::Fp32, &[2, 16], Buffer::from_bytes(bytes.clone()));
    assert_eq!(bytes[..], before);
    let changed = [[2.5_f32; 16], [1.5; 16]].concat();
    let changed: Vec<u8> = changed.iter().flat_map(|number| number.to_le_bytes()).collect();
    assert_eq!(output(&response, "y")[..], changed);
}

#[test]
fn a_tensor_with_too_many_dimensions_is_refused() {
    let Some(library) = library() else { return };
    let mut model = load(&library, "any_rank");
    for (rank, fits) in [(254, true), (255, false), (300, false)] {
        for offset in [0, 4] {
            let (bytes, _) = tracked(&[1.5], offset);
            let found =
                model.try_execute("x", DataType::Fp32, &vec![1; rank], Buffer::from_bytes(bytes));
            let message = found.as_ref().err().map_or("", |status| status.message());
            assert_eq!(found.is_ok(), fits, "{rank} {message}");
            assert_eq!(message.contains("TensorFlow supports at most 254"), !fits, "{message}");
        }
    }
}

#[test]
fn strings_of_all_lengths_are_copied_both_ways() {
    let Some(library) = library() else { return };
    let mut model = load(&library, "strings");
    let texts = ["", "short", &"x".repeat(22), &"y".repeat(23), &"z".repeat(10_000), "a\0b"];
    let mut framed = Vec::new();
    for text in texts {
        push_bytes_element(&mut framed, text.as_bytes()).unwrap();
    }
    let buffer = Buffer::from_vec(framed);
    let response = model.execute("text", DataType::Bytes, &[3, 2], buffer);
    let joined: Vec<&[u8]> =
        BytesElements::new(output(&response, "joined")).map(Result::unwrap).collect();
    let expected: Vec<String> = texts.chunks(2).map(|pair| pair.join(" ")).collect();
    let expected: Vec<&[u8]> = expected.iter().map(|text| text.as_bytes()).collect();
    assert_eq!(joined, expected);
}

#[test]
fn outputs_of_reference_variables_are_copies() {
    let Some(library) = library() else { return };
    let mut model = load(&library, "graph_with_init_ops");
    let mut execute = || {
        let (bytes, _) = tracked(&[1.0, 2.0], 0);
        model.execute("x", DataType::Fp32, &[2], Buffer::from_bytes(bytes))
    };
    let first = execute();
    let before = output(&first, "updated").to_vec();
    let second = execute();
    // The second run changed the variable in place.
    assert_eq!(output(&first, "updated")[..], before);
    assert_ne!(output(&second, "updated")[..], before);
}
