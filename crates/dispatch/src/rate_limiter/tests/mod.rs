//! The rate limiter by itself, and models that share resources.

mod limits;
mod sharing;
