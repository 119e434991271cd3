//! The framing of BYTES tensors: a length before each element.

#![no_main]

use galatea_tensor::elements::{BytesElements, count_bytes_elements, push_bytes_element};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let elements: Result<Vec<&[u8]>, _> = BytesElements::new(data).collect();
    let count = count_bytes_elements(data);
    match (&elements, &count) {
        (Ok(elements), Ok(count)) => assert_eq!(elements.len() as u64, *count),
        (Err(one), Err(other)) => assert_eq!(one, other),
        _ => panic!("one reader finds {elements:?}, the other {count:?}"),
    }
    let Ok(elements) = elements else { return };
    let mut written = Vec::new();
    for element in elements {
        push_bytes_element(&mut written, element).expect("it fitted before");
    }
    assert_eq!(written, data);
});
