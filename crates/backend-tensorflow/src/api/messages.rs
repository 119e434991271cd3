//! The messages that the library writes to standard error.

/// The environment variable that sets the lowest level of messages that the library writes. The
/// library has no function for this purpose.
pub const LOG_LEVEL_VARIABLE: &str = "TF_CPP_MIN_LOG_LEVEL";

/// The warning level. At the next lower level, the library writes several lines for each model.
const WARNINGS: &str = "1";

/// Sets the variable so that the library writes only warnings and errors. Returns false, and does
/// nothing, if the process has several threads: C code in another thread might be reading the
/// environment.
pub fn choose_warnings_and_errors() -> bool {
    let threads = std::fs::read_dir("/proc/self/task");
    if threads.is_ok_and(|threads| threads.count() == 1) {
        // SAFETY: the process has no other thread that could read the environment.
        unsafe { std::env::set_var(LOG_LEVEL_VARIABLE, WARNINGS) };
        return true;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_keeps_its_environment() {
        // The thread lives until its handle is unparked.
        let waiting = std::thread::spawn(std::thread::park);
        assert!(!choose_warnings_and_errors());
        waiting.thread().unpark();
        waiting.join().unwrap();
    }
}
