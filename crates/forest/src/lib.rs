//! Tree ensembles: reads the files of XGBoost, LightGBM and treelite, and predicts with them.
//!
//! - [`read`]: a file of one of the [`ModelFormat`]s becomes a [`Forest`]
//! - [`Forest::predict`]: rows become predictions, [`Forest::margins`] the sums before the
//!   transformation
//! - [`Explainer`]: the contribution of each feature to a sum
//! - [`fil`]: the parameters and outputs of Triton's backend `fil`
//!
//! This crate knows no server, opens no file and calls no library. A file may be hostile: it gives
//! an error or a forest, within memory of a multiple of its size. Keys that a format's newer versions
//! add are no error.
//!
//! All numerical tests become comparisons of 32-bit numbers ([`threshold`]), all trees one array of
//! nodes ([`forest`]), and rows walk through it in groups ([`predict`]).
//!
//! ```
//! use galatea_forest::{ModelFormat, read};
//!
//! let model = br#"{"version": [3, 2, 0], "learner": {
//!     "learner_model_param":
//!         {"base_score": "[5E-1]", "num_class": "0", "num_feature": "2", "num_target": "1"},
//!     "objective": {"name": "reg:squarederror"},
//!     "gradient_booster": {"name": "gbtree", "model": {"tree_info": [0], "trees": [{
//!         "left_children": [1, -1, -1], "right_children": [2, -1, -1],
//!         "split_indices": [1, 0, 0], "split_conditions": [0.25, -1.0, 2.0],
//!         "default_left": [1, 0, 0]
//!     }]}}
//! }}"#;
//! let forest = read(ModelFormat::XgboostJson, model)?;
//! let mut output = [0.0; 3];
//! let rows = [9.0, 0.0, 9.0, 0.25, 9.0, f32::NAN];
//! forest.predict(&rows, 3, &mut output, 1)?;
//! assert_eq!(output, [-0.5, 2.5, -0.5]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

mod bytes;
mod error;
pub mod fil;
mod forest;
mod json;
mod lightgbm;
mod postprocessor;
mod predict;
#[cfg(test)]
mod predict_tests;
mod shap;
mod shape;
mod source;
mod special;
mod threshold;
mod treelite;
mod ubjson;
mod value;
mod xgboost;

pub use error::{LengthError, ReadError};
pub use forest::Forest;
pub use postprocessor::Postprocessor;
pub use shap::{ExplainError, Explainer};
pub use shape::{ForestTask, Precision};

/// A format of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModelFormat {
    /// The binary format of XGBoost before version 3.1.
    XgboostLegacy,
    /// XGBoost's JSON.
    XgboostJson,
    /// XGBoost's UBJSON.
    XgboostUbjson,
    /// LightGBM's text.
    Lightgbm,
    /// A checkpoint of treelite 4 or 3.9.
    Treelite,
}

/// Reads a model.
pub fn read(format: ModelFormat, file: &[u8]) -> Result<Forest, ReadError> {
    match format {
        ModelFormat::XgboostLegacy => xgboost::read_legacy(file),
        ModelFormat::XgboostJson => xgboost::read_json(file),
        ModelFormat::XgboostUbjson => xgboost::read_ubjson(file),
        ModelFormat::Lightgbm => lightgbm::read(file),
        ModelFormat::Treelite => treelite::read(file),
    }
}
