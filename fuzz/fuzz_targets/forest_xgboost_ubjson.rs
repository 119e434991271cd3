//! A model in XGBoost's UBJSON: see `read_and_predict`.

#![no_main]

use galatea_forest::ModelFormat;
use galatea_fuzz::read_and_predict;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| read_and_predict(ModelFormat::XgboostUbjson, file));
