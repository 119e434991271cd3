//! 16-bit floats.

/// Converts a 16-bit float with 5 bits of exponent. All of them are numbers of 32 bits.
#[must_use]
pub fn widen_half(half: [u8; 2]) -> f32 {
    let bits = u32::from(u16::from_le_bytes(half));
    let (sign, exponent, fraction) = (bits >> 15 << 31, bits >> 10 & 0x1f, bits & 0x3ff);
    let magnitude = match exponent {
        // The fraction of a subnormal number counts multiples of 2^-24.
        0 => {
            let fraction = u16::try_from(fraction).unwrap_or_default();
            return f32::from_bits((f32::from(fraction) / 16_777_216.0).to_bits() | sign);
        }
        0x1f => 0x7f80_0000 | fraction << 13,
        _ => (exponent.wrapping_add(112)) << 23 | fraction << 13,
    };
    f32::from_bits(sign | magnitude)
}

/// Converts a bfloat16, which is the upper half of a 32-bit float.
pub(crate) fn widen_bfloat(half: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(half)) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_widened() {
        for (bits, expected) in [
            (0x0000_u16, 0.0_f32),
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (0x0001, 5.960_464_5e-8),
            (0x8400, -6.103_515_6e-5),
            (0x7c00, f32::INFINITY),
            (0x3555, 0.333_251_95),
        ] {
            assert_eq!(widen_half(bits.to_le_bytes()).to_bits(), expected.to_bits(), "{bits:#x}");
        }
        assert!(widen_half(0x7e00_u16.to_le_bytes()).is_nan());
        assert_eq!(widen_bfloat([0x80, 0x3f]).to_bits(), 1.0_f32.to_bits());
        assert_eq!(widen_bfloat([0x20, 0xc0]).to_bits(), (-2.5_f32).to_bits());
    }
}
