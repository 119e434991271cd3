//! The digits of doubles, chosen as in RapidJSON 1.1.0, with which Triton writes JSON.
//!
//! The algorithm is Florian Loitsch's Grisu2 ("Printing floating-point numbers quickly and
//! accurately with integers"). Its digits parse back to the same number, but they are not always
//! the fewest. From the ninth digit of the fraction onwards, RapidJSON also keeps the last digit
//! where other libraries round it. For a quarter of all numbers, the text therefore differs from
//! that of other libraries in the last digit.

#![expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "the bounds of the algorithm: exponents, digits and places are proved for all doubles"
)]

/// The size of the digit buffer. A double has at most 17 digits, but a power of two saves checks.
const DIGITS_MAX: usize = 32;

/// The number of digits before the point at which Triton starts to write an exponent.
const WHOLE_DIGITS_MAX: i32 = 21;

/// The number of zeros after the point at which Triton starts to write an exponent.
const LEADING_ZEROS_MAX: i32 = 6;

/// The largest value up to which the algorithm finds the exact digits of every whole number.
const WHOLE_MAX: f64 = 16_777_216.0;

/// Appends a finite double.
pub(super) fn push_finite(out: &mut Vec<u8>, value: f64) {
    if value.is_sign_negative() {
        out.push(b'-');
    }
    let value = value.abs();
    if value <= WHOLE_MAX && value.trunc() == value {
        out.extend_from_slice(itoa::Buffer::new().format(value as u32).as_bytes());
        out.extend_from_slice(b".0");
        return;
    }
    let digits = Digits::of(value);
    push_decimal(out, &digits.digits[..digits.count], digits.exponent);
}

/// Appends the number with these digits. The last digit counts the powers of ten with this
/// exponent.
fn push_decimal(out: &mut Vec<u8>, digits: &[u8], exponent: i32) {
    // The number of digits before the point.
    let point = digits.len() as i32 + exponent;
    let zeros = |out: &mut Vec<u8>, count: i32| {
        out.extend(std::iter::repeat_n(b'0', count.unsigned_abs() as usize));
    };
    if exponent >= 0 && point <= WHOLE_DIGITS_MAX {
        out.extend_from_slice(digits);
        zeros(out, exponent);
        out.extend_from_slice(b".0");
    } else if (1..=WHOLE_DIGITS_MAX).contains(&point) {
        let (whole, fraction) = digits.split_at(point as usize);
        out.extend_from_slice(whole);
        out.push(b'.');
        out.extend_from_slice(fraction);
    } else if (1 - LEADING_ZEROS_MAX..=0).contains(&point) {
        out.extend_from_slice(b"0.");
        zeros(out, point);
        out.extend_from_slice(digits);
    } else {
        let (first, fraction) = digits.split_at(1);
        out.extend_from_slice(first);
        if !fraction.is_empty() {
            out.push(b'.');
            out.extend_from_slice(fraction);
        }
        out.push(b'e');
        out.extend_from_slice(itoa::Buffer::new().format(point - 1).as_bytes());
    }
}

/// The product of a whole number and a power of two.
#[derive(Copy, Clone)]
struct ScaledInteger {
    factor: u64,
    exponent: i32,
}

impl ScaledInteger {
    const FRACTION_BITS: u32 = 52;
    const HIDDEN_BIT: u64 = 1 << Self::FRACTION_BITS;

    /// Converts a positive double.
    fn of(value: f64) -> Self {
        let bits = value.to_bits();
        let fraction = bits & (Self::HIDDEN_BIT - 1);
        match (bits >> Self::FRACTION_BITS) as i32 {
            0 => Self { factor: fraction, exponent: -1074 },
            biased => Self { factor: fraction | Self::HIDDEN_BIT, exponent: biased - 1075 },
        }
    }

    /// Returns the same number with the highest bit set.
    fn normalized(self) -> Self {
        let shift = self.factor.leading_zeros();
        Self { factor: self.factor << shift, exponent: self.exponent - shift as i32 }
    }

    /// Returns the midpoints between a double and its lower and upper neighbours, with a common
    /// exponent.
    fn boundaries(self) -> (Self, Self) {
        let upper = Self { factor: 2 * self.factor + 1, exponent: self.exponent - 1 }.normalized();
        let lower = if self.factor == Self::HIDDEN_BIT {
            // The lower neighbour has a smaller exponent.
            Self { factor: 4 * self.factor - 1, exponent: self.exponent - 2 }
        } else {
            Self { factor: 2 * self.factor - 1, exponent: self.exponent - 1 }
        };
        let factor = lower.factor << (lower.exponent - upper.exponent);
        (Self { factor, ..upper }, upper)
    }

    /// Returns the product, rounded to 64 bits.
    fn times(self, other: Self) -> Self {
        let product = u128::from(self.factor) * u128::from(other.factor);
        let factor = (product >> 64) as u64 + ((product >> 63) as u64 & 1);
        Self { factor, exponent: self.exponent + other.exponent + 64 }
    }
}

/// The ASCII digits of a number. The last digit counts the powers of ten with the exponent.
struct Digits {
    digits: [u8; DIGITS_MAX],
    count: usize,
    exponent: i32,
}

impl Digits {
    #[inline]
    fn of(value: f64) -> Self {
        let exact = ScaledInteger::of(value);
        let (lower, upper) = exact.boundaries();
        let (power, exponent) = power_for(upper.exponent);
        let (exact, mut upper) = (exact.normalized().times(power), upper.times(power));
        // The products may be wrong in their last bit.
        let lower = lower.times(power).factor + 1;
        upper.factor -= 1;
        let mut digits = Self { digits: [0; DIGITS_MAX], count: 0, exponent };
        digits.generate(exact.factor, upper, upper.factor - lower);
        digits
    }

    /// Generates the digits of `upper` until the remainder is within the distance `delta`.
    #[inline]
    fn generate(&mut self, exact: u64, upper: ScaledInteger, mut delta: u64) {
        let fraction_bits = upper.exponent.unsigned_abs() & 63;
        let mask = (1_u64 << fraction_bits) - 1;
        let to_exact = upper.factor - exact;
        // There are at least three bits, so the first digit is not zero.
        let mut whole = (upper.factor >> fraction_bits) as u32;
        let mut fraction = upper.factor & mask;
        if fraction > delta && delta <= mask {
            // No digit of the whole part can be the last digit.
            let mut buffer = itoa::Buffer::new();
            let digits = buffer.format(whole).as_bytes();
            self.digits[..digits.len()].copy_from_slice(digits);
            self.count = digits.len();
        } else {
            for places in (0..=whole.ilog10() as usize).rev() {
                let digit = quotient(whole, places);
                self.push(digit as u8);
                let power = POWERS_OF_TEN[places];
                whole -= digit * power;
                let rest = (u64::from(whole) << fraction_bits) + fraction;
                if rest <= delta {
                    self.exponent += places as i32;
                    let unit = u64::from(power) << fraction_bits;
                    return self.round(delta, rest, unit, to_exact);
                }
            }
        }
        let whole_count = self.count;
        loop {
            fraction *= 10;
            delta *= 10;
            self.push((fraction >> fraction_bits) as u8);
            fraction &= mask;
            if fraction < delta {
                let places = self.count - whole_count;
                self.exponent -= places as i32;
                let power = if places < 9 { POWERS_OF_TEN[places] } else { 0 };
                let to_exact = to_exact.wrapping_mul(u64::from(power));
                return self.round(delta, fraction, mask + 1, to_exact);
            }
        }
    }

    #[inline]
    fn push(&mut self, digit: u8) {
        self.digits[self.count % DIGITS_MAX] = b'0' + digit;
        self.count += 1;
    }

    /// Lowers the last digit while that brings the number closer to the exact value and keeps it
    /// within `delta`.
    #[inline]
    fn round(&mut self, delta: u64, mut rest: u64, unit: u64, to_exact: u64) {
        while rest < to_exact
            && delta - rest >= unit
            && (rest + unit < to_exact || to_exact - rest > rest + unit - to_exact)
        {
            self.digits[self.count - 1] -= 1;
            rest += unit;
        }
    }
}

/// Returns the power of ten that scales a normalized number with this exponent to one with an
/// exponent from -60 to -32, along with the exponent of its reciprocal.
fn power_for(exponent: i32) -> (ScaledInteger, i32) {
    const LOG10_OF_2: f64 = 0.301_029_995_663_981_14;
    let least = f64::from(-61 - exponent) * LOG10_OF_2 + 347.0;
    let index = (least.ceil() as usize >> 3) + 1;
    let power = -348 + 8 * index as i32;
    // This is the binary logarithm of this power, times 2 to the 16th.
    let exponent = ((power * 217_706) >> 16) - 63;
    (ScaledInteger { factor: CACHED_POWERS[index], exponent }, -power)
}

/// Divides by a power of ten. A division by a constant compiles to a multiplication.
const fn quotient(value: u32, places: usize) -> u32 {
    match places {
        0 => value,
        1 => value / 10,
        2 => value / 100,
        3 => value / 1000,
        4 => value / 10_000,
        5 => value / 100_000,
        6 => value / 1_000_000,
        7 => value / 10_000_000,
        8 => value / 100_000_000,
        _ => value / 1_000_000_000,
    }
}

const POWERS_OF_TEN: [u32; 10] =
    [1, 10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000];

/// Every eighth power of ten from the -348th to the 340th: the 64 highest bits, rounded.
const CACHED_POWERS: [u64; 87] = [
    0xfa8f_d5a0_081c_0288,
    0xbaae_e17f_a23e_bf76,
    0x8b16_fb20_3055_ac76,
    0xcf42_894a_5dce_35ea,
    0x9a6b_b0aa_5565_3b2d,
    0xe61a_cf03_3d1a_45df,
    0xab70_fe17_c79a_c6ca,
    0xff77_b1fc_bebc_dc4f,
    0xbe56_91ef_416b_d60c,
    0x8dd0_1fad_907f_fc3c,
    0xd351_5c28_3155_9a83,
    0x9d71_ac8f_ada6_c9b5,
    0xea9c_2277_23ee_8bcb,
    0xaecc_4991_4078_536d,
    0x823c_1279_5db6_ce57,
    0xc210_9436_4dfb_5637,
    0x9096_ea6f_3848_984f,
    0xd774_85cb_2582_3ac7,
    0xa086_cfcd_97bf_97f4,
    0xef34_0a98_172a_ace5,
    0xb238_67fb_2a35_b28e,
    0x84c8_d4df_d2c6_3f3b,
    0xc5dd_4427_1ad3_cdba,
    0x936b_9fce_bb25_c996,
    0xdbac_6c24_7d62_a584,
    0xa3ab_6658_0d5f_daf6,
    0xf3e2_f893_dec3_f126,
    0xb5b5_ada8_aaff_80b8,
    0x8762_5f05_6c7c_4a8b,
    0xc9bc_ff60_34c1_3053,
    0x964e_858c_91ba_2655,
    0xdff9_7724_7029_7ebd,
    0xa6df_bd9f_b8e5_b88f,
    0xf8a9_5fcf_8874_7d94,
    0xb944_7093_8fa8_9bcf,
    0x8a08_f0f8_bf0f_156b,
    0xcdb0_2555_6531_31b6,
    0x993f_e2c6_d07b_7fac,
    0xe45c_10c4_2a2b_3b06,
    0xaa24_2499_6973_92d3,
    0xfd87_b5f2_8300_ca0e,
    0xbce5_0864_9211_1aeb,
    0x8cbc_cc09_6f50_88cc,
    0xd1b7_1758_e219_652c,
    0x9c40_0000_0000_0000,
    0xe8d4_a510_0000_0000,
    0xad78_ebc5_ac62_0000,
    0x813f_3978_f894_0984,
    0xc097_ce7b_c907_15b3,
    0x8f7e_32ce_7bea_5c70,
    0xd5d2_38a4_abe9_8068,
    0x9f4f_2726_179a_2245,
    0xed63_a231_d4c4_fb27,
    0xb0de_6538_8cc8_ada8,
    0x83c7_088e_1aab_65db,
    0xc45d_1df9_4271_1d9a,
    0x924d_692c_a61b_e758,
    0xda01_ee64_1a70_8dea,
    0xa26d_a399_9aef_774a,
    0xf209_787b_b47d_6b85,
    0xb454_e4a1_79dd_1877,
    0x865b_8692_5b9b_c5c2,
    0xc835_53c5_c896_5d3d,
    0x952a_b45c_fa97_a0b3,
    0xde46_9fbd_99a0_5fe3,
    0xa59b_c234_db39_8c25,
    0xf6c6_9a72_a398_9f5c,
    0xb7dc_bf53_54e9_bece,
    0x88fc_f317_f222_41e2,
    0xcc20_ce9b_d35c_78a5,
    0x9816_5af3_7b21_53df,
    0xe2a0_b5dc_971f_303a,
    0xa8d9_d153_5ce3_b396,
    0xfb9b_7cd9_a4a7_443c,
    0xbb76_4c4c_a7a4_4410,
    0x8bab_8eef_b640_9c1a,
    0xd01f_ef10_a657_842c,
    0x9b10_a4e5_e991_3129,
    0xe710_9bfb_a19c_0c9d,
    0xac28_20d9_623b_f429,
    0x8044_4b5e_7aa7_cf85,
    0xbf21_e440_03ac_dd2d,
    0x8e67_9c2f_5e44_ff8f,
    0xd433_179d_9c8c_b841,
    0x9e19_db92_b4e3_1ba9,
    0xeb96_bf6e_badf_77d9,
    0xaf87_023b_9bf0_ee6b,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: f64) -> String {
        let mut out = Vec::new();
        push_finite(&mut out, value);
        String::from_utf8(out).unwrap()
    }

    /// FNV-1a over strings. The program that generated the expected numbers with RapidJSON 1.1.0
    /// computes the same hash.
    struct Texts(u64);

    impl Texts {
        fn new() -> Self {
            Self(0xcbf2_9ce4_8422_2325)
        }

        fn add(&mut self, value: f64) {
            if value.is_finite() {
                let text = text(value);
                assert_eq!(text.parse(), Ok(value), "{text}");
                for byte in text.bytes().chain(*b"\n") {
                    self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
                }
            }
        }
    }

    #[test]
    fn numbers_are_written_as_triton_writes_them() {
        // These values were recorded from Triton.
        for (value, expected) in [
            (7.581454333883296e-148, "7.581454333883297e-148"),
            (3.9382916105133406e27, "3.9382916105133409e27"),
            (69_973_056_331_106_484_000.0, "69973056331106488000.0"),
            (-6.234335614863085e-6, "-0.000006234335614863085"),
            (0.1_f32.into(), "0.10000000149011612"),
        ] {
            assert_eq!(text(value), expected);
        }
        for whole in (0..1000).chain(16_777_200..16_777_300) {
            assert_eq!(text(f64::from(whole)), format!("{whole}.0"));
        }
        assert_eq!((text(0.0), text(-0.0)), (String::from("0.0"), String::from("-0.0")));
        assert_eq!((text(1e21), text(1e20)), ("1e21".into(), "100000000000000000000.0".into()));
        assert_eq!((text(1e-6), text(1.5e-7)), ("0.000001".into(), "1.5e-7".into()));
    }

    #[test]
    fn random_numbers_are_written_as_by_rapidjson() {
        let mut state = 88_172_645_463_325_252_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut texts = Texts::new();
        for _ in 0..100_000 {
            texts.add(f64::from_bits(next()));
            texts.add(f32::from_bits((next() >> 32) as u32).into());
            texts.add((next() >> 11) as f64 / 9_007_199_254_740_992.0);
            texts.add((next() % 2_000_001) as f64 - 1_000_000.0);
            texts.add((next() % 100_000) as f64 / 100.0);
        }
        assert_eq!(texts.0, 16_708_118_529_316_953_241);
    }

    #[test]
    fn powers_of_two_and_their_neighbours_are_written_as_by_rapidjson() {
        let mut texts = Texts::new();
        for exponent in -1074..1024 {
            let power = 2_f64.powi(exponent.max(-1022)) * 2_f64.powi((exponent + 1022).min(0));
            for value in [power, -power, power.next_down(), power.next_up()] {
                texts.add(value);
            }
        }
        assert_eq!(texts.0, 12_335_869_096_188_248_100);
    }
}
