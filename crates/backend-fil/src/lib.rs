//! The `fil` backend, which executes tree ensembles from XGBoost, LightGBM and treelite. It accepts
//! the configurations of Triton's backend of the same name.
//!
//! - `backend` is the interface to the engine. Like Triton's backend, it doesn't complete
//!   configurations.
//! - `loaded_forest` loads models.
//! - `signature` compares a configuration with its model: the input `input__0`, the output
//!   `output__0` and, if it is configured, `treeshap_output`.
//! - `instance` executes batches.
//!
//! The crate `forest` reads the files and computes predictions. It also implements Triton's rules
//! for parameters and outputs (`galatea_forest::fil`). No library is called.
//!
//! # What it is not
//!
//! The backend only runs on CPUs. It doesn't form batches or keep a queue. It starts threads only
//! for large batches, and only if the model's configuration sets `cpu_nthread`.

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod backend;
mod instance;
mod loaded_forest;
mod refusal;
mod signature;
#[cfg(test)]
mod tests;

pub use backend::FilBackend;
