//! The messages of a model's worker: any frames on both sockets while it has a batch.
//!
//! The first byte of an input says whether the model is decoupled. Then come frames without
//! their lengths: the socket, the length of the body in two bytes, and the body. What is left
//! is sent as it is on the socket of executions.

#![no_main]

use galatea_backend_python::serve_nonsense;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&first, mut rest)) = data.split_first() else { return };
    let (mut executions, mut others) = (Vec::new(), Vec::new());
    while let Some((&[socket, low, high], behind)) = rest.split_first_chunk() {
        let Some((body, behind)) = behind.split_at_checked(u16::from_le_bytes([low, high]).into())
        else {
            break;
        };
        let frames = if socket % 2 == 0 { &mut executions } else { &mut others };
        frames.extend_from_slice(&u32::from(u16::from_le_bytes([low, high])).to_le_bytes());
        frames.extend_from_slice(body);
        rest = behind;
    }
    executions.extend_from_slice(rest);
    serve_nonsense(&executions, &others, first % 2 == 1);
});
