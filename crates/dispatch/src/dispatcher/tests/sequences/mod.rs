//! Tests of sequences from request to reply, with scripted backends.

mod iterative;
mod lifetime;
mod load;
mod refusals;
mod rows;
mod states;
