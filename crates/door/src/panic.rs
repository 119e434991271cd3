//! Containment of panics within a single request.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The error for work that panicked. The panic was reported where it happened.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Panicked;

/// Runs `work`, which serves one request, and turns a panic into an error, so that the requests of
/// other clients continue.
///
/// # Errors
///
/// Returns an error if the work panicked.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_panic| Panicked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        assert_eq!(catch_panic(|| 1), Ok(1));
        assert_eq!(catch_panic::<()>(|| panic!("on purpose")), Err(Panicked));
    }
}
