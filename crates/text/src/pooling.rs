//! Converts the vectors of a text's tokens to one embedding.

use std::ops::Range;

use serde_json::Value;

use crate::error::TextModelError;

/// The smallest norm that an embedding is divided by, so that zeros stay zeros.
const NORM_MIN: f32 = 1e-12;

/// A way to combine the vectors of a text's tokens. The names are those of sentence-transformers.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PoolingMode {
    /// The vector of the first token.
    Cls,
    /// The largest value in each dimension.
    Max,
    /// The mean of all vectors.
    Mean,
    /// The sum of all vectors, divided by the square root of their number.
    MeanSqrtLen,
    /// The mean, in which each vector's weight is its position.
    WeightedMean,
    /// The vector of the last token.
    LastToken,
}

impl PoolingMode {
    /// The modes in the order in which embeddings of several modes are concatenated, with their
    /// names in older files.
    const LEGACY: [(&str, Self); 6] = [
        ("pooling_mode_cls_token", Self::Cls),
        ("pooling_mode_max_tokens", Self::Max),
        ("pooling_mode_mean_tokens", Self::Mean),
        ("pooling_mode_mean_sqrt_len_tokens", Self::MeanSqrtLen),
        ("pooling_mode_weightedmean_tokens", Self::WeightedMean),
        ("pooling_mode_lasttoken", Self::LastToken),
    ];

    /// Returns the mode with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "cls" => Some(Self::Cls),
            "max" => Some(Self::Max),
            "mean" => Some(Self::Mean),
            "mean_sqrt_len_tokens" => Some(Self::MeanSqrtLen),
            "weightedmean" => Some(Self::WeightedMean),
            "lasttoken" => Some(Self::LastToken),
            _ => None,
        }
    }
}

/// The settings of pooling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolingSettings {
    /// The modes, whose results are concatenated.
    pub modes: Vec<PoolingMode>,
    /// False if the tokens of the prompt are left out.
    pub include_prompt: bool,
}

impl Default for PoolingSettings {
    fn default() -> Self {
        Self { modes: vec![PoolingMode::Mean], include_prompt: true }
    }
}

impl PoolingSettings {
    /// Reads the configuration of a pooling module.
    pub(crate) fn read(file: &str, config: &Value) -> Result<Self, TextModelError> {
        let invalid = |problem: String| TextModelError::new(file, problem);
        let include_prompt = match config.get("include_prompt") {
            None | Some(Value::Null) => true,
            Some(Value::Bool(include)) => *include,
            Some(_) => return Err(invalid(String::from("'include_prompt' is not a boolean"))),
        };
        let mode = |value: &Value| {
            let named = value.as_str().and_then(PoolingMode::from_name);
            named.ok_or_else(|| invalid(format!("'pooling_mode' {value} is not supported")))
        };
        let modes = match config.get("pooling_mode") {
            None | Some(Value::Null) => legacy_modes(file, config)?,
            Some(Value::Array(modes)) => modes.iter().map(mode).collect::<Result<_, _>>()?,
            Some(one) => vec![mode(one)?],
        };
        if modes.is_empty() {
            return Err(invalid(String::from("'pooling_mode' is empty")));
        }
        Ok(Self { modes, include_prompt })
    }

    /// Appends the embedding of one text. `values` contains the vectors of the text's tokens, and
    /// possibly those of its padding, as little-endian numbers. `width` is the length of a vector.
    pub fn pool(
        &self,
        values: &[[u8; 4]],
        width: usize,
        tokens: Range<usize>,
        embedding: &mut Vec<f32>,
    ) {
        let vectors = Vectors { values, width };
        for mode in &self.modes {
            let start = embedding.len();
            embedding.resize(start.saturating_add(width), 0.0);
            let part = embedding.get_mut(start..).unwrap_or_default();
            match mode {
                PoolingMode::Cls => vectors.copy(tokens.start, part),
                PoolingMode::LastToken => vectors.copy(tokens.end.saturating_sub(1), part),
                PoolingMode::Max => vectors.max(tokens.clone(), part),
                PoolingMode::Mean => {
                    vectors.sum(tokens.clone(), |_| 1.0, part);
                    divide(part, float(tokens.len()));
                }
                PoolingMode::MeanSqrtLen => {
                    vectors.sum(tokens.clone(), |_| 1.0, part);
                    divide(part, float(tokens.len()).sqrt());
                }
                PoolingMode::WeightedMean => {
                    let weight = |token: usize| float(token.saturating_add(1));
                    vectors.sum(tokens.clone(), weight, part);
                    divide(part, tokens.clone().map(weight).sum());
                }
            }
        }
    }
}

/// The modes in the form of older files, in which each mode has a boolean.
fn legacy_modes(file: &str, config: &Value) -> Result<Vec<PoolingMode>, TextModelError> {
    let mut modes = Vec::new();
    for (key, mode) in PoolingMode::LEGACY {
        match config.get(key) {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(Value::Bool(true)) => modes.push(mode),
            Some(_) => {
                return Err(TextModelError::new(file, format!("'{key}' is not a boolean")));
            }
        }
    }
    if modes.is_empty() { Ok(vec![PoolingMode::Mean]) } else { Ok(modes) }
}

/// The vectors of a text's tokens.
#[derive(Copy, Clone)]
struct Vectors<'a> {
    values: &'a [[u8; 4]],
    width: usize,
}

impl Vectors<'_> {
    /// The vector of a token; empty if there is none.
    fn of(&self, token: usize) -> impl Iterator<Item = f32> {
        let start = token.saturating_mul(self.width);
        let vector = self.values.get(start..start.saturating_add(self.width)).unwrap_or_default();
        vector.iter().map(|value| f32::from_le_bytes(*value))
    }

    fn copy(&self, token: usize, target: &mut [f32]) {
        for (target, value) in target.iter_mut().zip(self.of(token)) {
            *target = value;
        }
    }

    fn max(&self, tokens: Range<usize>, target: &mut [f32]) {
        self.copy(tokens.start, target);
        for token in tokens {
            for (target, value) in target.iter_mut().zip(self.of(token)) {
                *target = target.max(value);
            }
        }
    }

    fn sum(&self, tokens: Range<usize>, weight: impl Fn(usize) -> f32, target: &mut [f32]) {
        for token in tokens {
            let weight = weight(token);
            for (target, value) in target.iter_mut().zip(self.of(token)) {
                *target += weight * value;
            }
        }
    }
}

fn divide(values: &mut [f32], divisor: f32) {
    let divisor = divisor.max(1e-9);
    for value in values {
        *value /= divisor;
    }
}

/// A number of tokens, which is far below the numbers that a float can't represent.
#[expect(clippy::cast_precision_loss, reason = "token counts are small")]
const fn float(count: usize) -> f32 {
    count as f32
}

/// Scales an embedding to a length of 1.
pub fn normalize(embedding: &mut [f32]) {
    let norm = embedding.iter().map(|value| value * value).sum::<f32>().sqrt().max(NORM_MIN);
    for value in embedding {
        *value /= norm;
    }
}

/// Keeps the first dimensions of each of several embeddings of the same width.
pub fn keep_dimensions(embeddings: &mut Vec<f32>, width: usize, kept: usize) {
    let rows = embeddings.chunks(width.max(1));
    *embeddings = rows.flat_map(|row| row.iter().take(kept).copied()).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three tokens of two dimensions, followed by padding.
    const VALUES: [f32; 8] = [1.0, -2.0, 3.0, 0.5, -1.0, 4.0, 99.0, 99.0];

    fn pool(modes: &[PoolingMode], tokens: Range<usize>) -> Vec<f32> {
        let values = VALUES.map(f32::to_le_bytes);
        let settings = PoolingSettings { modes: modes.to_vec(), include_prompt: true };
        let mut embedding = Vec::new();
        settings.pool(&values, 2, tokens, &mut embedding);
        embedding
    }

    #[test]
    fn vectors_are_combined() {
        use PoolingMode::*;
        let check = |modes: &[PoolingMode], tokens, expected: &[f32]| {
            let found = pool(modes, tokens);
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() < 1e-6, "{modes:?}: {found} {expected}");
            }
        };
        check(&[Cls], 0..3, &[1.0, -2.0]);
        check(&[LastToken], 0..3, &[-1.0, 4.0]);
        check(&[Max], 0..3, &[3.0, 4.0]);
        check(&[Mean], 0..3, &[1.0, 2.5 / 3.0]);
        check(&[MeanSqrtLen], 0..3, &[3.0 / 3.0_f32.sqrt(), 2.5 / 3.0_f32.sqrt()]);
        check(&[WeightedMean], 0..3, &[4.0 / 6.0, 11.0 / 6.0]);
        check(&[Cls, Mean], 1..3, &[3.0, 0.5, 1.0, 2.25]);
        check(&[WeightedMean], 1..2, &[3.0, 0.5]);
        check(&[Mean], 0..0, &[0.0, 0.0]);
        // A token beyond the output has no vector.
        check(&[LastToken], 0..9, &[0.0, 0.0]);
    }

    #[test]
    fn embeddings_are_scaled_and_shortened() {
        let mut embeddings = vec![3.0, 4.0, 0.0, 0.0, 0.0, 5.0];
        keep_dimensions(&mut embeddings, 3, 2);
        assert_eq!(embeddings, [3.0, 4.0, 0.0, 0.0]);
        embeddings.chunks_mut(2).for_each(normalize);
        assert_eq!(embeddings, [0.6, 0.8, 0.0, 0.0]);
    }

    #[test]
    fn both_forms_of_the_file_are_read() {
        use PoolingMode::*;
        let check = |config: &str, expected: Result<&[PoolingMode], &str>| {
            let read = PoolingSettings::read("f", &serde_json::from_str(config).unwrap());
            let modes = read.map(|read| read.modes).map_err(|error| error.to_string());
            assert_eq!(modes, expected.map(<[_]>::to_vec).map_err(str::to_owned));
        };
        check("{}", Ok(&[Mean]));
        check(
            "{\"pooling_mode_cls_token\": true, \"pooling_mode_mean_tokens\": false}",
            Ok(&[Cls]),
        );
        check(
            "{\"pooling_mode_mean_tokens\": true, \"pooling_mode_cls_token\": true}",
            Ok(&[Cls, Mean]),
        );
        check("{\"pooling_mode\": \"lasttoken\"}", Ok(&[LastToken]));
        check("{\"pooling_mode\": [\"mean\", \"max\"]}", Ok(&[Mean, Max]));
        check("{\"pooling_mode\": \"sum\"}", Err("f: 'pooling_mode' \"sum\" is not supported"));
        check("{\"pooling_mode\": []}", Err("f: 'pooling_mode' is empty"));
        check(
            "{\"pooling_mode_cls_token\": 1}",
            Err("f: 'pooling_mode_cls_token' is not a boolean"),
        );
        check("{\"include_prompt\": 1}", Err("f: 'include_prompt' is not a boolean"));
    }
}
