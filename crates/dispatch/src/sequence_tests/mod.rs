//! Sequences through the engine as a whole, over backends that do what a test
//! says.

mod crowds;
mod iterating;
mod lives;
mod refusals;
mod rows;
mod states;
