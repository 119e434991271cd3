//! The result of a check.

/// Either success or the rule that was broken.
pub(crate) type Check = Result<(), String>;

/// Returns the message from the function unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
pub(crate) use ensure;
