//! Batches of several requests, with TensorFlow itself.

#![allow(clippy::unwrap_used, reason = "a test may fail in any line")]

mod support;

use galatea_tensor::{Buffer, DataType};

use support::{library, load};

fn row(number: f32) -> Buffer {
    Buffer::from_vec([number; 16].iter().flat_map(|number| number.to_le_bytes()).collect())
}

#[test]
fn outputs_that_refer_to_a_gathered_batch_stay_as_they_are() {
    let Some(library) = library() else { return };
    let mut model = load(&library, "identity");
    let mut execute = |numbers: [f32; 3]| {
        let rows = numbers.map(|number| (DataType::Fp32, vec![1, 16], row(number)));
        model.execute_batch("x", rows.to_vec())
    };
    // The graph returns its input, which is the memory in which the batch was gathered.
    let first = execute([1.0, 2.0, 3.0]);
    let second = execute([4.0, 5.0, 6.0]);
    let all = first.iter().chain(&second);
    for (response, number) in all.zip([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) {
        let [output] = &response.outputs[..] else { panic!("one output") };
        assert_eq!(output.data.host_bytes(), row(number).host_bytes());
    }
    // Consecutive rows are contiguous in memory.
    let address = |index: usize| first[index].outputs[0].data.host_bytes().unwrap().as_ptr().addr();
    assert_eq!(address(1) - address(0), 64);
}
