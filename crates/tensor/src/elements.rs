//! The framing of `BYTES` tensors: each element is a little-endian 32-bit length followed by that
//! many bytes, in row-major order.
//!
//! ```
//! use galatea_tensor::elements::{push_bytes_element, BytesElements};
//!
//! let mut data = Vec::new();
//! push_bytes_element(&mut data, b"ab")?;
//! push_bytes_element(&mut data, b"")?;
//! let elements: Result<Vec<_>, _> = BytesElements::new(&data).collect();
//! assert_eq!(elements?, [&b"ab"[..], b""]);
//! # Ok::<(), galatea_tensor::elements::BytesFramingError>(())
//! ```

/// The reason why a region is not a sequence of `BYTES` elements.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BytesFramingError {
    /// Fewer than four bytes remain where a length was expected.
    #[error("incomplete string length indicator for element {element}")]
    TruncatedLength {
        /// The element's index.
        element: usize,
        /// The number of remaining bytes.
        available: usize,
    },
    /// The region ends before the end of the element.
    #[error(
        "incomplete string data for element {element}, expecting string of length {expected} but only {available} bytes available"
    )]
    TruncatedData {
        /// The element's index.
        element: usize,
        /// The declared length.
        expected: usize,
        /// The number of remaining bytes.
        available: usize,
    },
    /// An element's length does not fit 32 bits.
    #[error("string element of {length} bytes is longer than a 32-bit length can express")]
    TooLong {
        /// The element's length.
        length: usize,
    },
}

/// Appends one element to `data`, preceded by its length.
///
/// # Errors
///
/// [`BytesFramingError::TooLong`] if the element has 2³² bytes or more.
pub fn push_bytes_element(data: &mut Vec<u8>, element: &[u8]) -> Result<(), BytesFramingError> {
    let length = u32::try_from(element.len())
        .map_err(|_| BytesFramingError::TooLong { length: element.len() })?;
    data.extend_from_slice(&length.to_le_bytes());
    data.extend_from_slice(element);
    Ok(())
}

/// Iterates over the elements of a `BYTES` tensor; ends after the first error.
#[derive(Clone, Debug)]
pub struct BytesElements<'a> {
    rest: &'a [u8],
    element: usize,
}

impl<'a> BytesElements<'a> {
    /// Reads elements from the start of `data`.
    #[must_use]
    pub const fn new(data: &'a [u8]) -> Self {
        Self { rest: data, element: 0 }
    }
}

impl<'a> Iterator for BytesElements<'a> {
    type Item = Result<&'a [u8], BytesFramingError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let element = self.element;
        self.element = element.saturating_add(1);
        let Some((length, rest)) = self.rest.split_first_chunk::<4>() else {
            let available = self.rest.len();
            self.rest = &[];
            return Some(Err(BytesFramingError::TruncatedLength { element, available }));
        };
        let expected = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let Some((bytes, rest)) = rest.split_at_checked(expected) else {
            let available = rest.len();
            self.rest = &[];
            return Some(Err(BytesFramingError::TruncatedData { element, expected, available }));
        };
        self.rest = rest;
        Some(Ok(bytes))
    }
}

/// Counts the elements of a `BYTES` tensor.
///
/// # Errors
///
/// [`BytesFramingError`] if a length or an element is truncated.
pub fn count_bytes_elements(data: &[u8]) -> Result<u64, BytesFramingError> {
    let mut count: u64 = 0;
    for element in BytesElements::new(data) {
        element?;
        count = count.saturating_add(1);
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(data: &[u8], expected: Result<u64, BytesFramingError>) {
        assert_eq!(count_bytes_elements(data), expected, "{data:?}");
    }

    #[test]
    fn elements_are_counted_and_truncation_is_detected() {
        check(&[], Ok(0));
        check(&[0, 0, 0, 0], Ok(1));
        check(&[1, 0, 0, 0, 0, 0, 0, 0, 0], Ok(2));
        check(&[1, 0], Err(BytesFramingError::TruncatedLength { element: 0, available: 2 }));
        check(
            &[0, 0, 0, 0, 9],
            Err(BytesFramingError::TruncatedLength { element: 1, available: 1 }),
        );
        let short = BytesFramingError::TruncatedData { element: 0, expected: 5, available: 1 };
        check(&[5, 0, 0, 0, 7], Err(short));
        let huge = BytesFramingError::TruncatedData {
            element: 0,
            expected: usize::try_from(u32::MAX).unwrap(),
            available: 0,
        };
        check(&[255, 255, 255, 255], Err(huge));
    }
}
