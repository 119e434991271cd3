//! Finds the part of a string that needs no escaping.

/// Returns the number of bytes before the first special byte of a string. Quotation marks,
/// backslashes and control characters are special.
#[inline]
#[must_use]
pub fn unescaped_prefix_length(text: &[u8]) -> usize {
    let (words, tail) = text.as_chunks::<8>();
    let mut length: usize = 0;
    for word in words {
        let special = special_bytes(u64::from_le_bytes(*word));
        if special != 0 {
            let bytes = special.trailing_zeros() / u8::BITS;
            return length.saturating_add(usize::try_from(bytes).unwrap_or(0));
        }
        length = length.saturating_add(8);
    }
    if let (Some(last), [_, ..]) = (text.last_chunk::<8>(), tail) {
        // The bytes in front of the tail aren't special.
        let plain = special_bytes(u64::from_le_bytes(*last)).trailing_zeros() / u8::BITS;
        let before = text.len().saturating_sub(last.len());
        return before.saturating_add(usize::try_from(plain).unwrap_or(0));
    }
    let special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
    length.saturating_add(tail.iter().position(special).unwrap_or(tail.len()))
}

/// Sets the highest bit of each special byte. Bytes above the first special byte may be marked
/// wrongly, so only the lowest set bit counts.
const fn special_bytes(word: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const QUOTES: u64 = EACH.wrapping_mul(b'"' as u64);
    const BACKSLASHES: u64 = EACH.wrapping_mul(b'\\' as u64);
    const SPACES: u64 = EACH.wrapping_mul(b' ' as u64);
    // A byte that is less than the subtrahend borrows, which sets its highest bit.
    const fn less(word: u64, than: u64) -> u64 {
        word.wrapping_sub(than) & !word
    }
    let special = less(word ^ QUOTES, EACH) | less(word ^ BACKSLASHES, EACH) | less(word, SPACES);
    special & EACH.wrapping_mul(0x80)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_run_ends_at_the_first_special_byte() {
        let one_by_one = |text: &[u8]| {
            let special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
            text.iter().position(special).unwrap_or(text.len())
        };
        for byte in 0..=u8::MAX {
            for index in 0..20 {
                for fill in [b'a', b' ', b'!', b'#', b'[', b']', 0x7f, 0x80, 0xff] {
                    let mut text = [fill; 20];
                    text[index] = byte;
                    assert_eq!(unescaped_prefix_length(&text), one_by_one(&text), "{text:?}");
                    assert_eq!(unescaped_prefix_length(&text[..index]), index);
                    text[19] = b'"';
                    assert_eq!(unescaped_prefix_length(&text), one_by_one(&text), "{text:?}");
                }
            }
        }
        assert_eq!(unescaped_prefix_length(b""), 0);
    }
}
