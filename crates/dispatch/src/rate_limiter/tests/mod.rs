//! Tests of the rate limiter by itself, and of models that share resources.

mod limits;
mod sharing;
