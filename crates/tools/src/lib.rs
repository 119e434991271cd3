//! The commands of the program that start no server within it: they measure, tune, record and
//! simulate, and write a model to begin with.
//!
//! Servers are asked over the network. One that `bench` and `tune` start themselves is
//! `galatea serve` in a process of its own. The table of all commands is here too
//! ([`commands`]), for completions. The program reads the command line, and prints what
//! a command returns.
//!
//! The crate knows no flag of the server, no door and no backend, so that a change in
//! any of these leaves it alone.

#![forbid(unsafe_code)]

mod arguments;
pub mod bench;
pub mod commands;
pub mod completions;
pub mod console;
pub mod new_model;
pub mod record;
pub mod simulate;
pub mod tune;

pub use arguments::Arguments;
