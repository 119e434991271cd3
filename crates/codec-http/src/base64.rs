//! Decodes base64 text in JSON.

/// Returns the value of a character of the standard alphabet.
const fn value(character: u8) -> Option<u8> {
    match character {
        b'A'..=b'Z' => Some(character.wrapping_sub(b'A')),
        b'a'..=b'z' => Some(character.wrapping_sub(b'a').wrapping_add(26)),
        b'0'..=b'9' => Some(character.wrapping_sub(b'0').wrapping_add(52)),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

/// Decodes text in the standard alphabet. Whitespace is ignored. Any number of padding characters
/// may end the text, and nothing may follow them.
///
/// # Errors
///
/// The error in the text.
pub(super) fn decode(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut significant =
        text.iter().copied().filter(|character| !character.is_ascii_whitespace()).peekable();
    while significant.peek().is_some_and(|character| *character != b'=') {
        let mut group = [0; 4];
        let mut count: usize = 0;
        for slot in &mut group {
            let Some(character) = significant.next_if(|character| *character != b'=') else {
                break;
            };
            *slot = value(character).ok_or_else(|| unexpected(character))?;
            count = count.saturating_add(1);
        }
        decode_group(group, count, &mut bytes)?;
    }
    significant
        .find(|character| *character != b'=')
        .map_or(Ok(bytes), |character| Err(unexpected(character)))
}

/// Decodes a group of `count` characters into one byte fewer. As in Triton, the bits after the last
/// byte do not matter.
fn decode_group(group: [u8; 4], count: usize, bytes: &mut Vec<u8>) -> Result<(), String> {
    let [a, b, c, d] = group;
    let decoded = [a << 2 | b >> 4, b << 4 | c >> 2, c << 6 | d];
    let (complete, _) = decoded.split_at(count.saturating_sub(1));
    if complete.is_empty() {
        return Err(String::from("is not in base 64: its end is missing"));
    }
    bytes.extend_from_slice(complete);
    Ok(())
}

fn unexpected(character: u8) -> String {
    format!("is not in base 64: '{}' is out of place", char::from(character).escape_default())
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn encoded_text_is_decoded() {
        let check = |text: &str, expected: &[u8]| {
            assert_eq!(decode(text.as_bytes()).as_deref(), Ok(expected), "{text}");
        };
        check("", b"");
        check("Zg==", b"f");
        check("Zg", b"f");
        check("Zm8=", b"fo");
        check("Zm9v", b"foo");
        check("Zm9v\nYmFy\r\n", b"foobar");
        check("+/+/", &[0xfb, 0xff, 0xbf]);
        check("AAECAw==", &[0, 1, 2, 3]);
        check("Zh==", b"f");
        check("Zg====", b"f");
        check("====", b"");
    }

    #[test]
    fn invalid_text_is_refused() {
        for text in ["Z", "Zg=x", "Zm9vY", "-_-_", "Zg==Zg==", "Z\u{e9}"] {
            assert!(decode(text.as_bytes()).is_err(), "{text}");
        }
    }
}
