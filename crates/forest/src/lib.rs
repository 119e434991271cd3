//! Tree ensembles: reads the files of XGBoost, LightGBM and treelite, and predicts with them.
//!
//! - [`read_forest`] converts a file in one of the [`ModelFormat`]s to a [`Forest`].
//! - [`Forest::predict`] computes predictions for rows, and [`Forest::margins`] the untransformed
//!   sums.
//! - [`Explainer`] computes the contribution of each feature to a sum.
//! - [`fil`] handles the parameters and outputs of Triton's `fil` backend.
//!
//! This crate doesn't depend on the server, open files or call libraries. Files may be hostile:
//! reading one produces an error or a forest, and uses memory in proportion to the file's size.
//! Unknown keys from newer versions of a format are ignored.
//!
//! All numerical tests are converted to comparisons of 32-bit floats (`threshold`). All trees are
//! stored in one array of nodes (`forest`), which rows traverse in groups (`predict`).
//!
//! ```
//! use galatea_forest::{ModelFormat, read_forest};
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
//! let forest = read_forest(ModelFormat::XgboostJson, model)?;
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

/// A model file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModelFormat {
    /// XGBoost's binary format before version 3.1.
    XgboostLegacy,
    /// XGBoost's JSON format.
    XgboostJson,
    /// XGBoost's UBJSON format.
    XgboostUbjson,
    /// LightGBM's text format.
    Lightgbm,
    /// A treelite checkpoint of version 4 or 3.9.
    Treelite,
}

/// Reads a model.
pub fn read_forest(format: ModelFormat, file: &[u8]) -> Result<Forest, ReadError> {
    match format {
        ModelFormat::XgboostLegacy => xgboost::read_legacy(file),
        ModelFormat::XgboostJson => xgboost::read_json(file),
        ModelFormat::XgboostUbjson => xgboost::read_ubjson(file),
        ModelFormat::Lightgbm => lightgbm::read(file),
        ModelFormat::Treelite => treelite::read(file),
    }
}
