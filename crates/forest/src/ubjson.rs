//! Reads the subset of UBJSON that XGBoost writes: keys without a type, and arrays with a type and
//! a length.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use crate::ReadError;
use crate::bytes::Bytes;
use crate::value::{ArrayBuilder, DEPTH_MAX, Value};

/// Reads a document.
pub(crate) fn read(bytes: &[u8]) -> Result<Value, ReadError> {
    let mut reader = UbjsonReader { bytes: Bytes::new(bytes, "UBJSON") };
    let marker = reader.marker()?;
    reader.value(marker, 0)
}

struct UbjsonReader<'a> {
    bytes: Bytes<'a>,
}

impl UbjsonReader<'_> {
    /// The next byte, with no-op markers skipped.
    fn marker(&mut self) -> Result<u8, ReadError> {
        loop {
            match self.bytes.byte()? {
                b'N' => {}
                marker => return Ok(marker),
            }
        }
    }

    fn value(&mut self, marker: u8, depth: usize) -> Result<Value, ReadError> {
        if depth > DEPTH_MAX {
            return Err(self.bytes.error("nested too deeply"));
        }
        match marker {
            b'{' => self.map(depth),
            b'[' => self.array(depth),
            b'S' => Ok(Value::Text(self.text()?)),
            b'C' => Ok(Value::Text(String::from(char::from(self.bytes.byte()?)).into())),
            b'H' => {
                let text = self.text()?;
                let number = text.parse().map_err(|_| self.bytes.error("expected a number"))?;
                Ok(Value::Number(number))
            }
            b'T' => Ok(Value::Bool(true)),
            b'F' => Ok(Value::Bool(false)),
            b'Z' => Ok(Value::Null),
            _ => Ok(Value::Number(self.number(marker)?)),
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, ReadError> {
        let mut entries = Vec::new();
        loop {
            let marker = self.marker()?;
            if marker == b'}' {
                entries.shrink_to_fit();
                return Ok(Value::Map(entries));
            }
            if matches!(marker, b'$' | b'#') {
                return Err(self.bytes.error("objects with a type or a length are not read"));
            }
            let length = self.length(marker)?;
            let key = self.text_of(length)?;
            let marker = self.marker()?;
            entries.push((key, self.value(marker, depth.saturating_add(1))?));
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, ReadError> {
        let mut marker = self.marker()?;
        if marker == b'$' {
            let kind = self.bytes.byte()?;
            if self.bytes.byte()? != b'#' {
                return Err(self.bytes.error("an array with a type has no length"));
            }
            return self.typed_array(kind);
        }
        let mut array = ArrayBuilder::default();
        if marker == b'#' {
            let marker = self.marker()?;
            // Each value takes at least one byte for its type, so the file size bounds the loop.
            for _ in 0..self.length(marker)? {
                let marker = self.marker()?;
                array.push(self.value(marker, depth.saturating_add(1))?);
            }
            return Ok(array.finish());
        }
        while marker != b']' {
            array.push(self.value(marker, depth.saturating_add(1))?);
            marker = self.marker()?;
        }
        Ok(array.finish())
    }

    /// Reads an array of numbers of one type. Takes the bytes before it allocates memory.
    fn typed_array(&mut self, kind: u8) -> Result<Value, ReadError> {
        let marker = self.marker()?;
        let length = self.length(marker)?;
        let width = self.width(kind)?;
        let total = length.checked_mul(width);
        let total = total.ok_or_else(|| self.bytes.error("an array is longer than the file"))?;
        let mut part = Bytes::new(self.bytes.take(total)?, "UBJSON");
        let mut numbers = Vec::with_capacity(length);
        for _ in 0..length {
            numbers.push(number(&mut part, kind)?);
        }
        Ok(if numbers.is_empty() { Value::List(Vec::new()) } else { Value::Numbers(numbers) })
    }

    fn width(&self, kind: u8) -> Result<usize, ReadError> {
        Ok(match kind {
            b'i' | b'U' => 1,
            b'I' => 2,
            b'l' | b'd' => 4,
            b'L' | b'D' => 8,
            _ => return Err(self.bytes.error("an array has a type that is not of numbers")),
        })
    }

    fn number(&mut self, marker: u8) -> Result<f64, ReadError> {
        self.width(marker).map_err(|_| self.bytes.error("unknown type of a value"))?;
        number(&mut self.bytes, marker)
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "negative and fractional numbers were refused"
    )]
    fn length(&mut self, marker: u8) -> Result<usize, ReadError> {
        let length = self.number(marker)?;
        // All integers below 2^53 are exact.
        if !(0.0..9_007_199_254_740_992.0).contains(&length) || length.fract() != 0.0 {
            return Err(self.bytes.error("expected a length"));
        }
        Ok(length as usize)
    }

    fn text(&mut self) -> Result<Box<str>, ReadError> {
        let marker = self.marker()?;
        let length = self.length(marker)?;
        self.text_of(length)
    }

    fn text_of(&mut self, length: usize) -> Result<Box<str>, ReadError> {
        let bytes = self.bytes.take(length)?;
        Ok(String::from_utf8_lossy(bytes).into_owned().into_boxed_str())
    }
}

/// Reads a number whose type `width` supports.
#[expect(clippy::cast_precision_loss, reason = "numbers of models are exact in 53 bits")]
fn number(bytes: &mut Bytes<'_>, kind: u8) -> Result<f64, ReadError> {
    Ok(match kind {
        b'i' => f64::from(i8::from_be_bytes(bytes.array()?)),
        b'U' => f64::from(bytes.byte()?),
        b'I' => f64::from(i16::from_be_bytes(bytes.array()?)),
        b'l' => f64::from(i32::from_be_bytes(bytes.array()?)),
        b'L' => i64::from_be_bytes(bytes.array()?) as f64,
        b'd' => f64::from(f32::from_be_bytes(bytes.array()?)),
        _ => f64::from_be_bytes(bytes.array()?),
    })
}

#[cfg(test)]
mod tests {
    use super::read;

    fn check(bytes: &[u8], expected: &str) {
        let shown = match read(bytes) {
            Ok(value) => format!("{value:?}"),
            Err(error) => error.to_string(),
        };
        assert_eq!(shown, expected, "{bytes:?}");
    }

    #[test]
    fn values_of_each_kind() {
        check(b"NZ", "Null");
        check(b"T", "Bool(true)");
        check(b"i\xff", "Number(-1.0)");
        check(b"U\xff", "Number(255.0)");
        check(b"I\x01\x00", "Number(256.0)");
        check(b"l\xff\xff\xff\xfe", "Number(-2.0)");
        check(b"L\0\0\0\0\0\0\0\x07", "Number(7.0)");
        check(b"d\x3f\x80\0\0", "Number(1.0)");
        check(b"D\x3f\xf0\0\0\0\0\0\0", "Number(1.0)");
        check(b"HU\x032.5", "Number(2.5)");
        check(b"SU\x02ab", "Text(\"ab\")");
        check(b"Ca", "Text(\"a\")");
        check(b"{U\x01ai\x05}", "Map([(\"a\", Number(5.0))])");
        check(b"[i\x01i\x02]", "Numbers([1.0, 2.0])");
        check(b"[#U\x02i\x01T", "Numbers([1.0, 1.0])");
        check(b"[#U\x02i\x01Z", "Null");
        check(b"[$U#U\x02\x01\x02", "Numbers([1.0, 2.0])");
        check(b"[$l#U\x00", "List([])");
    }

    #[test]
    fn anything_else_is_refused() {
        check(b"", "invalid UBJSON at byte 0: the file ends early");
        check(b"{U\x05ab", "invalid UBJSON at byte 3: the file ends early");
        check(b"{$", "invalid UBJSON at byte 2: objects with a type or a length are not read");
        check(b"[$T#U\x02", "invalid UBJSON at byte 6: an array has a type that is not of numbers");
        check(b"[$d#i\xff", "invalid UBJSON at byte 6: expected a length");
        check(b"[$d#l\x7f\xff\xff\xff", "invalid UBJSON at byte 9: the file ends early");
        check(b"[$d]", "invalid UBJSON at byte 4: an array with a type has no length");
        check(b"x", "invalid UBJSON at byte 1: unknown type of a value");
        check(&[b'['; 1000], "invalid UBJSON at byte 66: nested too deeply");
    }
}
