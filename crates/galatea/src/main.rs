//! The server as a program; what it does is in the library of this name.

#![forbid(unsafe_code)]

use galatea_allocator::ThreadCachingAllocator;

#[global_allocator]
static ALLOCATOR: ThreadCachingAllocator = ThreadCachingAllocator;

fn main() -> std::process::ExitCode {
    galatea::program(std::env::args_os())
}
