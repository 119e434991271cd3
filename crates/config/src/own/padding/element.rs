//! Parses the bytes of one element from text.

use galatea_tensor::DataType;

/// The little-endian element with this value; `None` if the type has no such value.
pub(super) fn element(datatype: DataType, text: &str) -> Option<Vec<u8>> {
    macro_rules! parsed {
        ($number:ty) => {
            text.parse::<$number>().ok().map(|number| number.to_le_bytes().to_vec())
        };
    }
    match datatype {
        DataType::Bool => match text {
            "0" | "false" => Some(vec![0]),
            "1" | "true" => Some(vec![1]),
            _ => None,
        },
        DataType::Uint8 => parsed!(u8),
        DataType::Uint16 => parsed!(u16),
        DataType::Uint32 => parsed!(u32),
        DataType::Uint64 => parsed!(u64),
        DataType::Int8 => parsed!(i8),
        DataType::Int16 => parsed!(i16),
        DataType::Int32 => parsed!(i32),
        DataType::Int64 => parsed!(i64),
        DataType::Fp32 => parsed!(f32),
        DataType::Fp64 => parsed!(f64),
        DataType::Fp16 => half(text.parse().ok()?).map(|bits| bits.to_le_bytes().to_vec()),
        DataType::Bf16 => upper_half(text.parse().ok()?).map(|bits| bits.to_le_bytes().to_vec()),
        DataType::Bytes => None,
    }
}

/// The half-precision number that exactly equals this number. A rounded value would differ from the
/// one in the configuration.
fn half(number: f32) -> Option<u16> {
    let bits = number.to_bits();
    let sign = u16::try_from(bits >> 31).ok()? << 15;
    let exponent = i32::try_from((bits >> 23) & 0xff).ok()?;
    let fraction = bits & 0x007f_ffff;
    let magnitude = match exponent {
        0 if fraction == 0 => 0,
        0xff if fraction == 0 => 0x7c00,
        0xff => 0x7e00,
        // Normal half-precision numbers have exponents from -14 to 15.
        113..=142 if fraction.trailing_zeros() >= 13 => {
            let exponent = u16::try_from(exponent - 112).ok()? << 10;
            exponent | u16::try_from(fraction >> 13).ok()?
        }
        _ => return None,
    };
    Some(sign | magnitude)
}

/// The upper half of this number, if the lower half is zero.
fn upper_half(number: f32) -> Option<u16> {
    let bits = number.to_bits();
    let is_exact = bits & 0xffff == 0 || number.is_nan();
    if is_exact { u16::try_from(bits >> 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(datatype: DataType, text: &str, expected: Option<&[u8]>) {
        assert_eq!(element(datatype, text).as_deref(), expected, "{datatype} {text}");
    }

    #[test]
    fn values_must_fit_their_type() {
        check(DataType::Int64, "-1", Some(&[255; 8]));
        check(DataType::Uint8, "255", Some(&[255]));
        check(DataType::Uint8, "256", None);
        check(DataType::Uint32, "-1", None);
        check(DataType::Int32, "1.5", None);
        check(DataType::Int32, "", None);
        check(DataType::Bool, "true", Some(&[1]));
        check(DataType::Bool, "2", None);
        check(DataType::Fp32, "-1.5", Some(&(-1.5_f32).to_le_bytes()));
        check(DataType::Fp64, "0.1", Some(&0.1_f64.to_le_bytes()));
        check(DataType::Bytes, "0", None);
    }

    #[test]
    fn halves_are_exact() {
        check(DataType::Fp16, "0", Some(&[0, 0]));
        check(DataType::Fp16, "-1", Some(&[0x00, 0xbc]));
        check(DataType::Fp16, "65504", Some(&[0xff, 0x7b]));
        check(DataType::Fp16, "65536", None);
        check(DataType::Fp16, "0.1", None);
        check(DataType::Fp16, "-inf", Some(&[0x00, 0xfc]));
        check(DataType::Bf16, "-1", Some(&[0x80, 0xbf]));
        check(DataType::Bf16, "1.00001", None);
    }
}
