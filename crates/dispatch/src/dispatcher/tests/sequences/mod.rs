//! Sequences from request to reply, over scripted backends.

mod iterative;
mod lifetime;
mod load;
mod refusals;
mod rows;
mod states;
