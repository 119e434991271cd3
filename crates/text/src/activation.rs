//! The functions that convert a classifier's outputs to scores.

/// A function that converts the outputs of one row to scores.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Activation {
    /// The outputs are the scores.
    Identity,
    /// Each score is between 0 and 1.
    Sigmoid,
    /// The scores are probabilities, whose sum is 1.
    Softmax,
}

impl Activation {
    /// Returns the function with this name in a configuration.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "none" => Some(Self::Identity),
            "sigmoid" => Some(Self::Sigmoid),
            "softmax" => Some(Self::Softmax),
            _ => None,
        }
    }

    /// Returns the function with this path in Python, such as
    /// `torch.nn.modules.activation.Sigmoid`.
    #[must_use]
    pub fn from_python_path(path: &str) -> Option<Self> {
        let class = path.strip_prefix("torch.nn.").map(|rest| rest.rsplit('.').next())?;
        match class.unwrap_or_default() {
            "Identity" => Some(Self::Identity),
            "Sigmoid" => Some(Self::Sigmoid),
            "Softmax" => Some(Self::Softmax),
            _ => None,
        }
    }

    /// Applies the function to the outputs of one row.
    pub fn apply(self, outputs: &mut [f32]) {
        match self {
            Self::Identity => {}
            Self::Sigmoid => {
                for value in outputs {
                    *value = 1.0 / (1.0 + (-*value).exp());
                }
            }
            Self::Softmax => {
                // Subtracting the largest output keeps the exponentials finite.
                let largest = outputs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let mut sum = 0.0;
                for value in outputs.iter_mut() {
                    *value = (*value - largest).exp();
                    sum += *value;
                }
                for value in outputs {
                    *value /= sum;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(activation: Activation, outputs: &[f32], expected: &[f32]) {
        let mut scores = outputs.to_vec();
        activation.apply(&mut scores);
        for (score, expected) in scores.iter().zip(expected) {
            assert!((score - expected).abs() < 1e-6, "{scores:?}");
        }
    }

    #[test]
    fn functions_are_those_of_pytorch() {
        check(Activation::Identity, &[3.0, -1.0], &[3.0, -1.0]);
        check(Activation::Sigmoid, &[0.0, 2.0, -200.0], &[0.5, 0.880_797, 0.0]);
        check(Activation::Softmax, &[1.0, 1.0], &[0.5, 0.5]);
        check(Activation::Softmax, &[1000.0, 0.0], &[1.0, 0.0]);
    }

    #[test]
    fn functions_are_known_by_their_paths() {
        for (path, expected) in [
            ("torch.nn.modules.linear.Identity", Some(Activation::Identity)),
            ("torch.nn.modules.activation.Sigmoid", Some(Activation::Sigmoid)),
            ("torch.nn.Softmax", Some(Activation::Softmax)),
            ("torch.nn.modules.activation.Tanh", None),
            ("my_module.Sigmoid", None),
        ] {
            assert_eq!(Activation::from_python_path(path), expected, "{path}");
        }
    }
}
