//! The time at which changed files take effect.
//!
//! Certificates are renewed while the server runs. The programs that replace them write two or
//! three files in turn, or switch a symbolic link. A change therefore counts only once it has been
//! seen twice in a row, and is then evaluated once: if the new files are faulty, the server keeps
//! its current ones.

use std::fmt::Debug;

/// Decides when changed files take effect. `F` represents the contents of the files.
#[derive(Debug)]
pub struct TlsReloader<F> {
    served: F,
    /// The files seen last, if they differ from those in use.
    seen: Option<SeenFiles<F>>,
}

#[derive(Debug)]
struct SeenFiles<F> {
    reading: Result<F, String>,
    is_judged: bool,
}

/// The next step after the files have been read.
#[derive(Debug, PartialEq, Eq)]
pub enum ReloadStep<'r, F> {
    /// Do nothing.
    Keep,
    /// Create a configuration from these files. If that succeeds, use it and call
    /// [`TlsReloader::mark_adopted`].
    Judge(&'r F),
    /// Report to the operator that the files can't be read, for this reason.
    Complain(&'r str),
}

impl<F: PartialEq + Clone + Debug> TlsReloader<F> {
    /// Creates a reloader with the files in use, `served`.
    #[must_use]
    pub const fn new(served: F) -> Self {
        Self { served, seen: None }
    }

    /// Processes a reading: the contents of the files, or the reason why they can't be read.
    pub fn process_files(&mut self, reading: Result<F, String>) -> ReloadStep<'_, F> {
        if reading.as_ref() == Ok(&self.served) {
            self.seen = None;
            return ReloadStep::Keep;
        }
        if self.seen.as_ref().is_none_or(|seen| seen.reading != reading) {
            self.seen = Some(SeenFiles { reading, is_judged: false });
            return ReloadStep::Keep;
        }
        match &mut self.seen {
            Some(seen) if !seen.is_judged => {
                seen.is_judged = true;
                match &seen.reading {
                    Ok(files) => ReloadStep::Judge(files),
                    Err(reason) => ReloadStep::Complain(reason),
                }
            }
            Some(_) | None => ReloadStep::Keep,
        }
    }

    /// Notes that the last evaluated files are now in use.
    pub fn mark_adopted(&mut self) {
        if let Some(SeenFiles { reading: Ok(files), .. }) = self.seen.take() {
            self.served = files;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the files, and returns the step taken.
    fn look(reload: &mut TlsReloader<&'static str>, files: &'static str) -> String {
        let reading = match files.strip_prefix("error: ") {
            Some(reason) => Err(reason.to_owned()),
            None => Ok(files),
        };
        match reload.process_files(reading) {
            ReloadStep::Keep => String::from("keep"),
            ReloadStep::Judge(files) => format!("judge {files}"),
            ReloadStep::Complain(reason) => format!("complain {reason}"),
        }
    }

    /// Checks the step taken after each reading. Files that begin with `good` are adopted.
    #[track_caller]
    fn check(looks: &[(&'static str, &str)]) {
        let mut reload = TlsReloader::new("first");
        for (place, (files, expected)) in looks.iter().enumerate() {
            let done = look(&mut reload, files);
            assert_eq!(&done, expected, "look {place}");
            if done.starts_with("judge good") {
                reload.mark_adopted();
            }
        }
    }

    #[test]
    fn a_change_is_judged_when_it_was_seen_twice() {
        check(&[
            ("first", "keep"),
            ("good 1", "keep"),
            ("good 1", "judge good 1"),
            ("good 1", "keep"),
            ("good 2", "keep"),
            ("half of 3", "keep"),
            ("good 3", "keep"),
            ("good 3", "judge good 3"),
            ("good 1", "keep"),
            ("good 1", "judge good 1"),
        ]);
    }

    #[test]
    fn what_is_broken_is_judged_once() {
        check(&[
            ("bad", "keep"),
            ("bad", "judge bad"),
            ("bad", "keep"),
            ("bad", "keep"),
            ("good", "keep"),
            ("good", "judge good"),
            ("bad", "keep"),
            ("bad", "judge bad"),
        ]);
    }

    #[test]
    fn files_that_come_back_unchanged_are_no_change() {
        check(&[
            ("error: gone", "keep"),
            ("first", "keep"),
            ("error: gone", "keep"),
            ("error: gone", "complain gone"),
            ("error: gone", "keep"),
            ("error: denied", "keep"),
            ("error: denied", "complain denied"),
            ("first", "keep"),
        ]);
    }
}
