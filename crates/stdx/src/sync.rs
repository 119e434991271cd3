//! Threads, mutexes and atomics: the standard library's, or loom's in models.
//!
//! With `--cfg loom_models`, the code that uses these types runs under loom, which tries all thread
//! interleavings (see the `models` modules here and in other crates; `cargo xtask loom` runs them).
//! The name is not `loom`, because libraries such as tokio change their behaviour under that name.

#[cfg(loom_models)]
pub use loom::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread, thread_local,
};
#[cfg(not(loom_models))]
pub use std::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread, thread_local,
};
