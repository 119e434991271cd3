//! The functions that convert a classifier's outputs to scores, and those of dense layers.

/// A function of the values of one row.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Activation {
    /// The values stay as they are.
    Identity,
    /// Negative values become 0.
    Relu,
    /// Each value becomes a number between 0 and 1.
    Sigmoid,
    /// Each value is multiplied with its sigmoid.
    Silu,
    /// The values become probabilities, whose sum is 1.
    Softmax,
    /// Each value becomes a number between -1 and 1.
    Tanh,
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
            "ReLU" => Some(Self::Relu),
            "Sigmoid" => Some(Self::Sigmoid),
            "SiLU" => Some(Self::Silu),
            "Softmax" => Some(Self::Softmax),
            "Tanh" => Some(Self::Tanh),
            _ => None,
        }
    }

    /// Applies the function to the values of one row.
    pub fn apply(self, row: &mut [f32]) {
        match self {
            Self::Identity => {}
            Self::Relu => row.iter_mut().for_each(|value| *value = value.max(0.0)),
            Self::Sigmoid => row.iter_mut().for_each(|value| *value = sigmoid(*value)),
            Self::Silu => row.iter_mut().for_each(|value| *value *= sigmoid(*value)),
            Self::Softmax => softmax(row),
            Self::Tanh => row.iter_mut().for_each(|value| *value = value.tanh()),
        }
    }
}

fn sigmoid(value: f32) -> f32 {
    1.0 / (1.0 + (-value).exp())
}

fn softmax(row: &mut [f32]) {
    // Subtracting the largest value keeps the exponentials finite.
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for value in row.iter_mut() {
        *value = (*value - largest).exp();
        sum += *value;
    }
    for value in row {
        *value /= sum;
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
        check(Activation::Relu, &[2.0, -1.0], &[2.0, 0.0]);
        check(Activation::Silu, &[2.0, -1.0], &[1.761_594, -0.268_941]);
        check(Activation::Tanh, &[0.0, 1.0, -9.0], &[0.0, 0.761_594, -1.0]);
        check(Activation::Softmax, &[1.0, 1.0], &[0.5, 0.5]);
        check(Activation::Softmax, &[1000.0, 0.0], &[1.0, 0.0]);
    }

    #[test]
    fn functions_are_known_by_their_paths() {
        for (path, expected) in [
            ("torch.nn.modules.linear.Identity", Some(Activation::Identity)),
            ("torch.nn.modules.activation.Sigmoid", Some(Activation::Sigmoid)),
            ("torch.nn.Softmax", Some(Activation::Softmax)),
            ("torch.nn.modules.activation.Tanh", Some(Activation::Tanh)),
            ("torch.nn.modules.activation.ReLU", Some(Activation::Relu)),
            ("torch.nn.modules.activation.SiLU", Some(Activation::Silu)),
            ("torch.nn.modules.activation.GELU", None),
            ("my_module.Sigmoid", None),
        ] {
            assert_eq!(Activation::from_python_path(path), expected, "{path}");
        }
    }
}
