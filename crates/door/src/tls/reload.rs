//! When changed files are taken.
//!
//! Certificates are renewed while the server runs. Programs that replace them write two or three
//! files, one after the other, or switches a symbolic link. So a change counts only when it was
//! seen twice in a row, and then it is judged once: what is broken leaves the server with what
//! it has.

use std::fmt::Debug;

/// Decides when changed files are taken. `F` is what the files hold.
#[derive(Debug)]
pub struct Reload<F> {
    served: F,
    /// The files that were seen last, if they aren't what is served.
    seen: Option<Seen<F>>,
}

#[derive(Debug)]
struct Seen<F> {
    reading: Result<F, String>,
    is_judged: bool,
}

/// The next step after a look at the files.
#[derive(Debug, PartialEq, Eq)]
pub enum ReloadStep<'r, F> {
    /// Nothing.
    Keep,
    /// Make a configuration of what they hold. If that succeeds, serve it and tell
    /// [`Reload::adopt`].
    Judge(&'r F),
    /// Tell the operator that they can't be read, for this reason.
    Complain(&'r str),
}

impl<F: PartialEq + Clone + Debug> Reload<F> {
    /// `served` is what is served now.
    #[must_use]
    pub const fn new(served: F) -> Self {
        Self { served, seen: None }
    }

    /// Takes a look at the files, or the reason why they can't be read.
    pub fn step(&mut self, reading: Result<F, String>) -> ReloadStep<'_, F> {
        if reading.as_ref() == Ok(&self.served) {
            self.seen = None;
            return ReloadStep::Keep;
        }
        if self.seen.as_ref().is_none_or(|seen| seen.reading != reading) {
            self.seen = Some(Seen { reading, is_judged: false });
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

    /// Notes that the files that were judged last are served now.
    pub fn adopt(&mut self) {
        if let Some(Seen { reading: Ok(files), .. }) = self.seen.take() {
            self.served = files;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at the files, and returns what is done.
    fn look(reload: &mut Reload<&'static str>, files: &'static str) -> String {
        let reading = match files.strip_prefix("error: ") {
            Some(reason) => Err(reason.to_owned()),
            None => Ok(files),
        };
        match reload.step(reading) {
            ReloadStep::Keep => String::from("keep"),
            ReloadStep::Judge(files) => format!("judge {files}"),
            ReloadStep::Complain(reason) => format!("complain {reason}"),
        }
    }

    /// Checks what is done at each look; what begins with `good` is adopted.
    #[track_caller]
    fn check(looks: &[(&'static str, &str)]) {
        let mut reload = Reload::new("first");
        for (place, (files, expected)) in looks.iter().enumerate() {
            let done = look(&mut reload, files);
            assert_eq!(&done, expected, "look {place}");
            if done.starts_with("judge good") {
                reload.adopt();
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
