//! The commands that start no server in the program's process: they measure, tune, record and
//! simulate, or write a starter model.
//!
//! The commands talk to servers over the network. `bench` and `tune` may start a server themselves,
//! as `galatea serve` in a separate process. The table of all commands is also in this crate
//! ([`commands`]), for completions. The program parses the command line and prints the text that a
//! command returns.
//!
//! The crate depends on no server flag, door or backend, so changes in those don't affect it.

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
