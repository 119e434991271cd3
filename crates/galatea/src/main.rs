//! The server executable; the implementation is in the library of the same name.

#![forbid(unsafe_code)]

use galatea_allocator::ThreadCachingAllocator;

#[global_allocator]
static ALLOCATOR: ThreadCachingAllocator = ThreadCachingAllocator;

fn main() -> std::process::ExitCode {
    galatea::run_program(std::env::args_os())
}
