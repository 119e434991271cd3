//! Tests of the rate limiter alone, and of models that share resources.

mod limits;
mod sharing;
