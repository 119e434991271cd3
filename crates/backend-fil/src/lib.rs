//! The backend `fil`: executes tree ensembles of XGBoost, LightGBM and treelite, with the
//! configurations of Triton's backend of that name.
//!
//! - `backend` is what the engine calls. It completes no configuration, as in Triton.
//! - `loaded_forest` loads models.
//! - `signature` compares a configuration with its model: the input `input__0`, the output `output__0`
//!   and, if it is configured, `treeshap_output`.
//! - `instance` executes batches.
//!
//! The crate `forest` reads the files and predicts, and has Triton's rules of parameters and of
//! outputs (`galatea_forest::fil`). No library is called.
//!
//! # What it is not
//!
//! The backend executes on CPUs only. It forms no batches and holds no queue. It starts threads for
//! large batches alone, and only for a model whose configuration sets `cpu_nthread`.

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
