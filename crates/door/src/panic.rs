//! Panics end at the request that they are about.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The work panicked. The panic was reported where it happened.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Panicked;

/// Runs `work`, which serves one request, and makes an error of a panic: the requests of
/// other clients go on.
///
/// # Errors
///
/// If the work panicked.
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
