//! Tests with mutated bodies. No body may cause a panic or use more memory than its length allows.

use super::*;

/// A small deterministic generator (SplitMix64).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

const SEEDS: [&str; 4] = [
    r#"{"id":"a","inputs":[{"name":"x","datatype":"FP32","shape":[2,2],"data":[[1.5,-2],[3e2,0]]}]}"#,
    r#"{"inputs":[{"name":"x","datatype":"BYTES","shape":[2],"data":["a\u00e4\ud83d\ude00",""]}],"outputs":[{"name":"y","parameters":{"binary_data":true}}]}"#,
    r#"{"parameters":{"sequence_id":"q","priority":1,"timeout":2,"p":1.5,"binary_data_output":true},"inputs":[{"name":"x","shape":[3],"datatype":"UINT8","parameters":{"binary_data_size":3}},{"data":[true],"name":"b","shape":[1],"datatype":"BOOL"}]}"#,
    r#"{"inputs":[{"name":"x","datatype":"INT64","shape":[3],"data":[-1,9223372036854775807,0]}],"z":[NaN,Infinity,null,{"a":[{}]}]}"#,
];

/// Fragments that are more likely than single bytes to reach rare code.
const PIECES: [&[u8]; 24] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\"",
    b"\\",
    b"\\u",
    b"\\ud800",
    b"null",
    b"true",
    b"-",
    b"1e999",
    b"NaN",
    b"99999999999999999999",
    b"9223372036854775807",
    b"0",
    b".",
    b"\"data\":",
    b"\"shape\":",
    b"\"parameters\":",
    b"\0",
    b"\xff",
];

fn mutate(random: &mut Random, body: &mut Vec<u8>) {
    let at = random.below(body.len() as u64 + 1) as usize;
    let length = (random.below(8) as usize).min(body.len() - at);
    let piece = PIECES[random.below(PIECES.len() as u64) as usize];
    match random.below(5) {
        0 => drop(body.drain(at..at + length)),
        1 => drop(body.splice(at..at, piece.iter().copied())),
        2 => drop(body.splice(at..at + length, piece.iter().copied())),
        3 => {
            let copy = body[at..at + length].to_vec();
            drop(body.splice(at..at, copy));
        }
        _ => {
            if let Some(byte) = body.get_mut(at) {
                *byte = random.next() as u8;
            }
        }
    }
}

#[test]
fn mutated_bodies_cause_no_panic() {
    let mut random = Random::new(1);
    let mut accepted = 0;
    for round in 0..100_000_usize {
        let seed = SEEDS[round % SEEDS.len()];
        let tail = if seed.contains("binary_data_size") { "123" } else { "" };
        let mut body = [seed, tail].concat().into_bytes();
        let rounds = random.below(3);
        for _ in 0..=rounds {
            mutate(&mut random, &mut body);
        }
        let length = match random.below(8) {
            0 => random.below(body.len() as u64 + 2) as usize,
            _ => body.len().saturating_sub(tail.len()),
        };
        let size = body.len();
        let decoded = decode_infer(&Bytes::from(body), length, target(), &MessageLimits::default());
        let Ok((request, _)) = decoded else { continue };
        accepted += 1;
        for input in &request.inputs {
            assert!(input.data.len() <= size * 8, "{input:?} of {size} bytes");
        }
    }
    assert!(accepted > 1000, "only {accepted} mutants were accepted: they test too little");
}
