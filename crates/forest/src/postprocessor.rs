//! Transformations that turn a row's sums into its prediction, under treelite's names.

/// A transformation that is applied to a row's sums.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Postprocessor {
    /// The unchanged sums: `identity` and `identity_multiclass`.
    Identity,
    /// The square, with the sign of the sum.
    SignedSquare,
    /// 1 if the sum is positive, otherwise 0.
    Hinge,
    /// The logistic function of the sum multiplied by `alpha`. For several classes, treelite calls
    /// it `multiclass_ova`.
    Sigmoid {
        /// The factor.
        alpha: f32,
    },
    /// The exponential function.
    Exponential,
    /// 2 to the power of the negated sum divided by `ratio`, which is the score of an isolation
    /// forest.
    ExponentialStandardRatio {
        /// The divisor.
        ratio: f32,
    },
    /// The logarithm of one plus the exponential of the sum.
    LogarithmOnePlusExp,
    /// The exponentials, divided by their total.
    Softmax,
}

impl Postprocessor {
    /// Finds a transformation by treelite's name.
    pub(crate) fn from_name(name: &str, alpha: f32, ratio: f32) -> Option<Self> {
        Some(match name {
            "identity" | "identity_multiclass" => Self::Identity,
            "signed_square" => Self::SignedSquare,
            "hinge" => Self::Hinge,
            "sigmoid" | "multiclass_ova" => Self::Sigmoid { alpha },
            "exponential" => Self::Exponential,
            "exponential_standard_ratio" => Self::ExponentialStandardRatio { ratio },
            "logarithm_one_plus_exp" => Self::LogarithmOnePlusExp,
            // Like treelite 4, reads version 3's `max_index` as `softmax`.
            "softmax" | "max_index" => Self::Softmax,
            _ => return None,
        })
    }

    /// Transforms one row's sums for one target.
    pub(crate) fn apply<R: Real>(self, sums: &mut [R]) {
        match self {
            Self::Identity => {}
            Self::Softmax => softmax(sums),
            _ => sums.iter_mut().for_each(|sum| *sum = self.element(*sum)),
        }
    }

    fn element<R: Real>(self, sum: R) -> R {
        match self {
            Self::Identity | Self::Softmax => sum,
            Self::SignedSquare => sum.signed_square(),
            Self::Hinge => sum.hinge(),
            Self::Sigmoid { alpha } => sum.sigmoid(alpha),
            Self::Exponential => sum.exponential(),
            Self::ExponentialStandardRatio { ratio } => sum.ratio_power(ratio),
            Self::LogarithmOnePlusExp => sum.log_one_plus_exp(),
        }
    }
}

/// Rounds to 32 bits regardless of the precision, as treelite does.
fn softmax<R: Real>(sums: &mut [R]) {
    let mut highest = f32::NEG_INFINITY;
    for sum in sums.iter() {
        highest = highest.max(sum.single());
    }
    let mut norm = 0.0_f64;
    for sum in sums.iter_mut() {
        let power = sum.power_above(highest);
        norm += f64::from(power);
        *sum = R::from_single(power);
    }
    #[expect(clippy::cast_possible_truncation, reason = "treelite divides by 32 bits")]
    let norm = norm as f32;
    sums.iter_mut().for_each(|sum| *sum = sum.divided_by(norm));
}

/// The two floating-point types that sums can have.
pub(crate) trait Real: Copy {
    const ZERO: Self;
    fn from_single(value: f32) -> Self;
    fn single(self) -> f32;
    fn signed_square(self) -> Self;
    fn hinge(self) -> Self;
    fn sigmoid(self, alpha: f32) -> Self;
    fn exponential(self) -> Self;
    fn ratio_power(self, ratio: f32) -> Self;
    fn log_one_plus_exp(self) -> Self;
    /// The exponential of the difference from `highest`, in 32 bits.
    fn power_above(self, highest: f32) -> f32;
    fn divided_by(self, divisor: f32) -> Self;
    fn plus(self, other: Self) -> Self;
    fn plus_double(self, other: f64) -> Self;
}

macro_rules! real {
    ($real:ty) => {
        impl Real for $real {
            const ZERO: Self = 0.0;

            fn from_single(value: f32) -> Self {
                Self::from(value)
            }

            #[allow(clippy::cast_possible_truncation, reason = "predictions have 32 bits")]
            fn single(self) -> f32 {
                self as f32
            }

            fn signed_square(self) -> Self {
                (self * self).copysign(self)
            }

            fn hinge(self) -> Self {
                if self > 0.0 { 1.0 } else { 0.0 }
            }

            fn sigmoid(self, alpha: f32) -> Self {
                1.0 / (1.0 + (Self::from(-alpha) * self).exp())
            }

            fn exponential(self) -> Self {
                self.exp()
            }

            fn ratio_power(self, ratio: f32) -> Self {
                (-self / Self::from(ratio)).exp2()
            }

            fn log_one_plus_exp(self) -> Self {
                self.exp().ln_1p()
            }

            fn power_above(self, highest: f32) -> f32 {
                (self - Self::from(highest)).exp().single()
            }

            fn divided_by(self, divisor: f32) -> Self {
                self / Self::from(divisor)
            }

            fn plus(self, other: Self) -> Self {
                self + other
            }

            #[allow(clippy::cast_possible_truncation, reason = "sums have this precision")]
            fn plus_double(self, other: f64) -> Self {
                (f64::from(self) + other) as Self
            }
        }
    };
}

real!(f32);
real!(f64);

#[cfg(test)]
mod tests {
    use super::Postprocessor;

    fn check(name: &str, sums: &[f32], expected: &[f32]) {
        let post = Postprocessor::from_name(name, 2.0, 4.0).unwrap();
        let mut single = sums.to_vec();
        post.apply(&mut single);
        let mut double: Vec<f64> = sums.iter().copied().map(f64::from).collect();
        post.apply(&mut double);
        for (index, expected) in expected.iter().enumerate() {
            assert!((single[index] - expected).abs() < 1e-6, "{name}: {single:?}");
            assert!((double[index] - f64::from(*expected)).abs() < 1e-6, "{name}: {double:?}");
        }
    }

    #[test]
    fn each_name_is_its_function() {
        check("identity", &[1.5, -2.0], &[1.5, -2.0]);
        check("identity_multiclass", &[1.5, -2.0], &[1.5, -2.0]);
        check("signed_square", &[1.5, -2.0], &[2.25, -4.0]);
        check("hinge", &[1.5, 0.0, -2.0], &[1.0, 0.0, 0.0]);
        check("sigmoid", &[0.5, 0.0], &[0.731_058_6, 0.5]);
        check("multiclass_ova", &[0.5, 0.0], &[0.731_058_6, 0.5]);
        check("exponential", &[0.0, 1.0], &[1.0, std::f32::consts::E]);
        check("exponential_standard_ratio", &[0.0, 4.0], &[1.0, 0.5]);
        check("logarithm_one_plus_exp", &[0.0], &[std::f32::consts::LN_2]);
        check("softmax", &[1.0, 1.0, 1.0, 1.0], &[0.25; 4]);
        check("softmax", &[1000.0, 0.0], &[1.0, 0.0]);
        assert_eq!(Postprocessor::from_name("unknown", 1.0, 1.0), None);
    }
}
