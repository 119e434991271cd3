//! Threads, mutexes and atomics: the standard library's or, in models, loom's.
//!
//! With `--cfg loom_models` the code that uses these runs under loom, which tries the
//! interleavings of its threads one after the other (the modules
//! `models` here and in other crates; `cargo xtask loom` runs them). The name is not `loom`, because libraries such as
//! tokio change themselves under that one.

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
