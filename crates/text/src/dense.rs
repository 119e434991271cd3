//! Dense layers: linear functions of an embedding, followed by an activation.

use crate::activation::Activation;
use crate::directory::{TextModelFiles, join, read_required, read_weights};
use crate::error::TextModelError;
use crate::json_object::JsonObject;
use crate::safetensors::Safetensors;

/// The member of the features of a text that contains its embedding.
const EMBEDDING: &str = "sentence_embedding";

/// The maximum length of an embedding. The longest in use have 8,192 values.
const FEATURES_MAX: u64 = 1 << 16;

/// The number of products that are added independently of each other, so that a processor computes
/// several of them at once.
const LANES: usize = 16;

/// The configuration of a dense layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenseSettings {
    folder: String,
    /// The number of values of an embedding before the layer.
    pub inputs: usize,
    /// The number of values after the layer.
    pub outputs: usize,
    has_bias: bool,
    activation: Activation,
    /// True if the layer's input is added to its output.
    has_residual: bool,
}

/// A dense layer with its weights.
pub(crate) struct DenseLayer {
    settings: DenseSettings,
    /// A row of weights for each output.
    weights: Vec<f32>,
    bias: Option<Vec<f32>>,
    residual: Residual,
}

/// The part of a layer's output that skips the activation.
enum Residual {
    None,
    /// The layer's input.
    Input,
    /// A linear function of the layer's input, whose length is another one.
    Projected(Vec<f32>),
}

impl DenseSettings {
    /// Reads the configuration in the directory of a module.
    pub(crate) fn read(files: &dyn TextModelFiles, folder: &str) -> Result<Self, TextModelError> {
        let path = join(folder, "config.json");
        let config = read_required(files, &path)?;
        let config = JsonObject::new(&path, &config);
        let features = |key: &str| {
            let count = config.count(key)?.filter(|count| *count <= FEATURES_MAX);
            let count = count.and_then(|count| usize::try_from(count).ok());
            count.ok_or_else(|| {
                config.invalid(key, &format!("is not a number from 1 to {FEATURES_MAX}"))
            })
        };
        let input = config.string("module_input_name")?.unwrap_or(EMBEDDING);
        let output = config.string("module_output_name")?.unwrap_or(input);
        for (key, value) in [("module_input_name", input), ("module_output_name", output)] {
            if value != EMBEDDING {
                let value = value.escape_debug();
                return Err(config.invalid(key, &format!("'{value}' is not '{EMBEDDING}'")));
            }
        }
        // The library's default has no name in the file.
        let function = config.string("activation_function")?;
        let activation = function.map_or(Some(Activation::Tanh), Activation::from_python_path);
        Ok(Self {
            folder: folder.to_owned(),
            inputs: features("in_features")?,
            outputs: features("out_features")?,
            has_bias: config.boolean("bias")?.unwrap_or(true),
            activation: activation.ok_or_else(|| {
                let function = function.unwrap_or_default().escape_debug();
                config.invalid("activation_function", &format!("'{function}' is not supported"))
            })?,
            has_residual: config.boolean("use_residual")?.unwrap_or(false),
        })
    }

    /// Compares the number of inputs with the length of the embeddings before the layer.
    pub(crate) fn check_inputs(&self, length: usize) -> Result<(), TextModelError> {
        if self.inputs == length {
            return Ok(());
        }
        let (path, inputs) = (join(&self.folder, "config.json"), self.inputs);
        let problem = format!(
            "'in_features' is {inputs}, but the embeddings before the layer have {length} values"
        );
        Err(TextModelError::new(path, problem))
    }
}

impl DenseLayer {
    /// Reads the weights of a layer.
    pub(crate) fn read(
        files: &dyn TextModelFiles,
        settings: DenseSettings,
    ) -> Result<Self, TextModelError> {
        let path = join(&settings.folder, "model.safetensors");
        let Some(content) = read_weights(files, &path)? else {
            return Err(Self::missing(files, &settings.folder, &path));
        };
        let file = Safetensors::read(&path, &content)?;
        let (inputs, outputs) = (settings.inputs, settings.outputs);
        let weights = file.floats("linear.weight", &[outputs, inputs])?;
        let bias = settings.has_bias.then(|| file.floats("linear.bias", &[outputs])).transpose()?;
        let residual = if !settings.has_residual {
            Residual::None
        } else if inputs == outputs {
            Residual::Input
        } else {
            Residual::Projected(file.floats("residual.weight", &[outputs, inputs])?)
        };
        Ok(Self { settings, weights, bias, residual })
    }

    /// The error about a directory without `model.safetensors`.
    fn missing(files: &dyn TextModelFiles, folder: &str, path: &str) -> TextModelError {
        let pickled = join(folder, "pytorch_model.bin");
        // Any error means that the file is there.
        if files.read(&pickled, 1).is_ok_and(|content| content.is_none()) {
            return TextModelError::new(path, "the file is missing");
        }
        TextModelError::new(
            pickled,
            "weights in this format are not supported; sentence-transformers converts them to \
             'model.safetensors' with SentenceTransformer(DIRECTORY).save(NEW_DIRECTORY)",
        )
    }

    /// Applies the layer to several embeddings, one after the other.
    pub(crate) fn apply(&self, rows: &[f32]) -> Vec<f32> {
        let (inputs, outputs) = (self.settings.inputs.max(1), self.settings.outputs.max(1));
        let mut values = linear(rows, &self.weights, inputs, outputs);
        for row in values.chunks_mut(outputs) {
            for (value, bias) in row.iter_mut().zip(self.bias.iter().flatten()) {
                *value += bias;
            }
            self.settings.activation.apply(row);
        }
        match &self.residual {
            Residual::None => {}
            Residual::Input => add(&mut values, rows),
            Residual::Projected(weights) => {
                add(&mut values, &linear(rows, weights, inputs, outputs));
            }
        }
        values
    }
}

impl std::fmt::Debug for DenseLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DenseLayer").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Multiplies each row with a matrix, which has a row for each output.
fn linear(rows: &[f32], weights: &[f32], inputs: usize, outputs: usize) -> Vec<f32> {
    let mut results = vec![0.0; (rows.len() / inputs).saturating_mul(outputs)];
    // Each row of the matrix is used for all embeddings while it is in the processor's cache.
    for (output, weights) in weights.chunks_exact(inputs).enumerate() {
        let of_rows = results.iter_mut().skip(output).step_by(outputs);
        for (result, row) in of_rows.zip(rows.chunks_exact(inputs)) {
            *result = dot(row, weights);
        }
    }
    results
}

/// The sum of the products.
fn dot(left: &[f32], right: &[f32]) -> f32 {
    let ((left, left_rest), (right, right_rest)) =
        (left.as_chunks::<LANES>(), right.as_chunks::<LANES>());
    let mut sums = [0.0_f32; LANES];
    for (left, right) in left.iter().zip(right) {
        for (sum, (left, right)) in sums.iter_mut().zip(left.iter().zip(right)) {
            *sum += left * right;
        }
    }
    let rest: f32 = left_rest.iter().zip(right_rest).map(|(left, right)| left * right).sum();
    sums.iter().sum::<f32>() + rest
}

fn add(values: &mut [f32], others: &[f32]) {
    for (value, other) in values.iter_mut().zip(others) {
        *value += other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(inputs: usize, outputs: usize, weights: &[f32]) -> DenseLayer {
        assert_eq!(weights.len(), inputs * outputs);
        let settings = DenseSettings {
            folder: String::new(),
            inputs,
            outputs,
            has_bias: false,
            activation: Activation::Identity,
            has_residual: false,
        };
        DenseLayer { settings, weights: weights.to_vec(), bias: None, residual: Residual::None }
    }

    #[test]
    fn layers_are_those_of_pytorch() {
        let mut dense = layer(2, 3, &[1.0, 2.0, 0.0, -1.0, 3.0, 0.5]);
        let rows = [1.0, -1.0, 2.0, 4.0];
        assert_eq!(dense.apply(&rows), [-1.0, 1.0, 2.5, 10.0, -4.0, 8.0]);
        dense.bias = Some(vec![1.0, 0.0, -2.5]);
        assert_eq!(dense.apply(&rows[..2]), [0.0, 1.0, 0.0]);
        dense.settings.activation = Activation::Relu;
        dense.residual = Residual::Projected(vec![1.0, 1.0, 0.0, 1.0, 2.0, 0.0]);
        assert_eq!(dense.apply(&rows[2..]), [17.0, 4.0, 9.5]);
        let mut square = layer(2, 2, &[0.0, 1.0, 1.0, 0.0]);
        square.residual = Residual::Input;
        assert_eq!(square.apply(&rows[2..]), [6.0, 6.0]);
    }

    #[test]
    fn products_of_any_number_are_added() {
        for count in [0_u8, 1, 15, 16, 17, 50] {
            let numbers: Vec<f32> = (0..count).map(f32::from).collect();
            let expected: f32 = numbers.iter().map(|number| number * 2.0).sum();
            assert_eq!(dot(&numbers, &vec![2.0; numbers.len()]), expected);
        }
    }
}
