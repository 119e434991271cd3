//! Tree ensembles: reads the files of XGBoost, LightGBM and treelite, and predicts with them.
//!
//! - [`Forest::predict`]: rows become predictions, [`Forest::margins`] the sums before the
//!   transformation
//!
//! This crate knows no server, opens no file and calls no library. A file may be hostile: it gives
//! an error or a forest, within memory of a multiple of its size. Keys that a format's newer versions
//! add are no error.
//!
//! All numerical tests become comparisons of 32-bit numbers ([`threshold`]), all trees one array of
//! nodes ([`forest`]), and rows walk through it in groups ([`predict`]).

#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(not(test), expect(dead_code, reason = "the readers of files follow"))]
#![cfg_attr(test, allow(dead_code))]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::cast_possible_truncation))]

mod error;
mod forest;
mod postprocessor;
mod predict;
mod shape;
mod source;
mod special;
mod threshold;

pub use error::{LengthError, ReadError};
pub use forest::Forest;
pub use postprocessor::Postprocessor;
pub use shape::{ForestTask, Precision};
