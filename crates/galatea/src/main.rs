//! The server as a program; what it does is in the library of this name.

#![forbid(unsafe_code)]

use galatea_allocator::KeptBlocks;

#[global_allocator]
static ALLOCATOR: KeptBlocks = KeptBlocks;

fn main() -> std::process::ExitCode {
    galatea::program(std::env::args_os())
}
