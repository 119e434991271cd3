//! Server-side paths in client errors.
//!
//! As in Triton, load and model errors contain absolute paths. `--error-paths=relative` removes the
//! repository paths from every error that a network door sends ([`service`]). The log and the C API
//! keep the paths.

mod service;

use std::path::{Path, PathBuf};

pub(crate) use service::{DoorServices, door_services};

/// The form in which errors show paths.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ErrorPaths {
    /// Absolute paths, as in Triton.
    #[default]
    Absolute,
    /// Paths relative to the model repository.
    Relative,
}

impl ErrorPaths {
    /// The form with this name.
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        [Self::Absolute, Self::Relative].into_iter().find(|form| form.name() == name)
    }

    /// The name of the form on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Absolute => "absolute",
            Self::Relative => "relative",
        }
    }
}

/// The directories that errors must not reveal.
#[derive(Debug)]
struct HiddenRoots {
    /// The repositories, without trailing slashes, longest first.
    repositories: Vec<String>,
    /// The path prefix of models' temporary directories; [`NAME_DIGITS`] digits follow it.
    temporary: String,
}

/// The length of the hexadecimal number in a temporary directory's name.
const NAME_DIGITS: usize = 16;

impl HiddenRoots {
    fn new(repositories: &[PathBuf], temporary_folder: &Path) -> Self {
        let resolved = repositories.iter().filter_map(|path| std::fs::canonicalize(path).ok());
        let all = repositories.iter().cloned().chain(resolved);
        let trimmed = all.map(|path| path.to_string_lossy().trim_end_matches('/').to_owned());
        let mut repositories: Vec<String> = trimmed.filter(|root| !root.is_empty()).collect();
        repositories.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        repositories.dedup();
        let temporary = temporary_folder.join("galatea-").to_string_lossy().into_owned();
        Self { repositories, temporary }
    }

    /// The text with paths made relative to a root; `None` if it mentions no root.
    fn relative(&self, text: &str) -> Option<String> {
        let mut kept = String::new();
        let (mut copied, mut at) = (0, 0);
        while at < text.len() {
            let (Some(root), true) = (self.root_at(text, at), is_start(text, at)) else {
                at += text[at..].chars().next().map_or(1, char::len_utf8);
                continue;
            };
            kept.push_str(&text[copied..at]);
            let behind = &text[at + root..];
            let inside = behind.trim_start_matches('/');
            let names_inside = behind.starts_with('/') && !is_end(inside);
            if !names_inside {
                kept.push('.');
            }
            at = text.len() - inside.len();
            copied = at;
        }
        (copied > 0).then(|| kept + &text[copied..])
    }

    /// The length of the root that begins at this position in the text.
    fn root_at(&self, text: &str, at: usize) -> Option<usize> {
        let rest = &text[at..];
        let ends = |length: &usize| {
            let behind = &rest[*length..];
            behind.starts_with('/') || is_end(behind)
        };
        let named = self.repositories.iter().filter(|root| rest.starts_with(root.as_str()));
        let temporary = rest.strip_prefix(&self.temporary).filter(|name| {
            let digits = name.as_bytes().get(..NAME_DIGITS);
            digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
        });
        let temporary = temporary.map(|_| self.temporary.len() + NAME_DIGITS);
        named.map(String::len).chain(temporary).find(ends)
    }
}

/// Returns true if a path may start here, that is, if no path character precedes it.
fn is_start(text: &str, at: usize) -> bool {
    text[..at].chars().next_back().is_none_or(|before| !is_of_path(before))
}

/// Returns true if a path ends where this text begins. A full stop before a space ends a sentence.
fn is_end(behind: &str) -> bool {
    let mut next = behind.chars();
    match next.next() {
        None => true,
        Some('.') => next.next().is_none_or(char::is_whitespace),
        Some(other) => !is_of_path(other),
    }
}

fn is_of_path(letter: char) -> bool {
    letter.is_alphanumeric() || matches!(letter, '/' | '.' | '-' | '_' | '~' | '+' | '@')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relative(text: &str) -> String {
        let repositories = ["/srv/models", "/srv/models/more/", "s3://b/models"].map(PathBuf::from);
        let roots = HiddenRoots::new(&repositories, Path::new("/tmp"));
        roots.relative(text).unwrap_or_else(|| text.to_owned())
    }

    #[test]
    fn paths_start_at_the_repository() {
        for (text, expected) in [
            (
                "ValueError: no\n\nAt:\n  /srv/models/m/1/model.py(3): initialize\n",
                "ValueError: no\n\nAt:\n  m/1/model.py(3): initialize\n",
            ),
            ("'/srv/models/more/m' and /srv/models//n", "'m' and n"),
            ("no '/srv/models', no /srv/models/", "no '.', no ."),
            ("in /srv/models. And /srv/models.", "in .. And .."),
            ("s3://b/models/m/config.pbtxt", "m/config.pbtxt"),
            ("at /tmp/galatea-0123456789abcdef/1/model.py", "at 1/model.py"),
            ("failed:/srv/models/m", "failed:m"),
        ] {
            assert_eq!(relative(text), expected);
        }
    }

    #[test]
    fn other_paths_stay() {
        for text in [
            "/srv/models2/m",
            "/srv/models.old/m",
            "/mnt/srv/models/m",
            "/srv/model",
            "/tmp/galatea-0123/model.py",
            "/usr/lib/python3/json.py",
            "é/srv/models/m",
            "",
        ] {
            assert_eq!(relative(text), text);
        }
    }

    #[test]
    fn the_root_directory_hides_nothing() {
        let roots = HiddenRoots::new(&[PathBuf::from("/")], Path::new("/tmp"));
        assert_eq!(roots.relative("/a/b"), None);
    }
}
