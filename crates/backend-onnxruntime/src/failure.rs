//! Library errors after which a GPU can't be used any more.
//!
//! The library uses the same code for all of them. The message contains the CUDA function and its
//! result: `CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; …`.

/// Returns true if a run's error means that the GPU's context is lost, along with everything on the
/// device, so that every later call would also fail. Other errors, such as exhausted memory, affect
/// only one request.
pub(crate) fn is_of_device(message: &str) -> bool {
    codes(message).any(is_final)
}

/// The CUDA results that a message contains.
fn codes(message: &str) -> impl Iterator<Item = u32> {
    const WORDS: [&str; 2] = ["CUDA failure ", "CUDA error "];
    let behind = WORDS.iter().flat_map(|word| {
        message.match_indices(word).filter_map(|(at, word)| message.get(at + word.len()..))
    });
    behind.filter_map(|text| {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        text.get(..digits)?.parse().ok()
    })
}

/// Returns true for results after which, according to CUDA's documentation, the process can no
/// longer use the device.
const fn is_final(code: u32) -> bool {
    matches!(
        code,
        46 // the device is unavailable
            | 214 | 220 | 226 // errors of memory and links that could not be corrected
            | 700 | 702 | 709 | 710 // an address, a time limit, a destroyed context, an assertion
            | 714
            ..=719 | 721 // a launch that failed
            | 999 // unknown, as when a device fell off the bus
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "Non-zero status code returned while running Conv node. Name:'c1' Status \
                          Message: ";

    #[test]
    fn errors_that_end_a_device_are_recognized() {
        for (text, expected) in [
            ("CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; line=1", true),
            ("CUDA failure 719: unspecified launch failure ; GPU=1 ; hostname=h", true),
            ("CUDA failure 999: unknown error ; GPU=1", true),
            ("CUDA error 46: all devices are busy", true),
            ("CUDA failure 2: out of memory ; GPU=0 ; expr=cudaMalloc(&p, size)", false),
            ("CUDA failure 98: invalid device function; then CUDA failure 214: ECC", true),
            ("CUDA failure : no number", false),
            ("CUDNN failure 8: CUDNN_STATUS_EXECUTION_FAILED", false),
            ("the model has 700 nodes", false),
            ("", false),
        ] {
            assert_eq!(is_of_device(&format!("{PREFIX}{text}")), expected, "{text}");
        }
    }
}
