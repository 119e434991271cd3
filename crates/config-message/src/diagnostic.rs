//! Diagnostics: the errors in a configuration, their positions and suggestions.

use std::error::Error;
use std::fmt;
use std::ops::Deref;

use galatea_gate::text;

/// The maximum number of errors that are reported of one configuration.
pub const DIAGNOSTICS_MAX: usize = 100;
/// The maximum length of each text of such an error, in bytes.
const DIAGNOSTIC_BYTES_MAX: usize = 2 << 10;

/// Formats a text of a diagnostic, as `format!` does, but in bounded memory.
#[macro_export]
macro_rules! bounded {
    ($($argument:tt)*) => {
        $crate::BoundedText::from(format_args!($($argument)*))
    };
}

/// The number of bytes cut off that are counted: formatting ends early.
const COUNTED_BYTES_MAX: usize = 64 << 10;

/// A text of a diagnostic, which may repeat parts of a configuration of any length: it is cut
/// at two kilobytes while it is made.
///
/// There is no conversion from `String`, because one that was made for a diagnostic had no
/// bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoundedText(String);

impl BoundedText {
    /// Copies the start of a text.
    #[must_use]
    pub fn quote(quoted: &str) -> Self {
        Self(text::bounded(quoted, DIAGNOSTIC_BYTES_MAX))
    }
}

impl From<fmt::Arguments<'_>> for BoundedText {
    fn from(arguments: fmt::Arguments<'_>) -> Self {
        Self(text::start_of(arguments, DIAGNOSTIC_BYTES_MAX, COUNTED_BYTES_MAX))
    }
}

impl From<&'static str> for BoundedText {
    fn from(text: &'static str) -> Self {
        Self(text.to_owned())
    }
}

impl Deref for BoundedText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BoundedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl PartialEq<&str> for BoundedText {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

/// A position in a file; both numbers start at 1 and columns count characters.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The number of the line.
    pub line: usize,
    /// The number of the character in the line.
    pub column: usize,
}

/// The line of a file that a diagnostic points at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// The line, or the part of a long line around the position.
    pub text: String,
    /// The number of characters of `text` before the position.
    pub offset: usize,
    /// The number of underlined characters, at least 1.
    pub width: usize,
}

/// When Triton finds an error.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// When it reads the repository.
    Poll,
    /// When it loads a version, whose configuration is complete then.
    #[default]
    Load,
    /// Never: it loads the model. So does Galatea, without the element that has no meaning.
    Never,
}

/// One error in a configuration.
///
/// `{}` formats one line, for an error message. `{:#}` adds the line of the file with
/// a caret, for a terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file's name; empty if there is none.
    pub file: String,
    /// The position in the file; `None` if the value is not from a file.
    pub position: Option<Position>,
    /// The field, such as `input[0].dims`; empty for the whole file.
    pub path: BoundedText,
    /// The mistake, in Triton's words if it finds that too.
    pub message: BoundedText,
    /// When Triton finds it.
    pub stage: Stage,
    /// The valid values, if known.
    pub expected: Option<BoundedText>,
    /// The value that was probably meant.
    pub suggestion: Option<BoundedText>,
    /// The line that `position` points at.
    pub excerpt: Option<Excerpt>,
}

impl Diagnostic {
    /// Makes a diagnostic about a field, without a position in a file.
    #[must_use]
    pub fn about(path: impl Into<BoundedText>, message: impl Into<BoundedText>) -> Self {
        Self { path: path.into(), message: message.into(), ..Self::default() }
    }

    /// Makes a diagnostic of what Triton finds when it reads the repository.
    #[must_use]
    pub fn at_poll(path: impl Into<BoundedText>, message: impl Into<BoundedText>) -> Self {
        Self { stage: Stage::Poll, ..Self::about(path, message) }
    }

    /// Makes a diagnostic of what Triton never finds.
    #[must_use]
    pub fn tolerated(path: impl Into<BoundedText>, message: impl Into<BoundedText>) -> Self {
        Self { stage: Stage::Never, ..Self::about(path, message) }
    }

    fn write_body(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(expected) = &self.expected {
            write!(f, ", expected {expected}")?;
        }
        if let Some(suggestion) = &self.suggestion {
            write!(f, " (did you mean '{suggestion}'?)")?;
        }
        Ok(())
    }

    fn write_line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.file.is_empty() {
            f.write_str(&self.file)?;
            if let Some(position) = self.position {
                write!(f, ":{}:{}", position.line, position.column)?;
            }
            f.write_str(": ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        self.write_body(f)
    }

    fn write_rendered(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        let number = self.position.map(|p| p.line.to_string()).unwrap_or_default();
        let margin = " ".repeat(number.len().max(1));
        if !self.file.is_empty() {
            write!(f, "\n{margin}--> {}", self.file)?;
            if let Some(position) = self.position {
                write!(f, ":{}:{}", position.line, position.column)?;
            }
        }
        if !self.path.is_empty() {
            write!(f, "\n{margin} = field: {}", self.path)?;
        }
        if let Some(excerpt) = &self.excerpt {
            let indent = " ".repeat(excerpt.offset);
            let carets = "^".repeat(excerpt.width.max(1));
            write!(f, "\n{margin} |\n{number} | {}\n{margin} | {indent}{carets}", excerpt.text)?;
        }
        if let Some(expected) = &self.expected {
            write!(f, "\n{margin} = expected: {expected}")?;
        }
        if let Some(suggestion) = &self.suggestion {
            write!(f, "\n{margin} = did you mean '{suggestion}'?")?;
        }
        Ok(())
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() { self.write_rendered(f) } else { self.write_line(f) }
    }
}

/// The errors that are found in a configuration, up to
/// a hundred: a configuration that came with a load may have any number.
#[derive(Debug, Default)]
pub struct Diagnostics {
    kept: Vec<Diagnostic>,
    /// The number of those that were dropped.
    dropped: usize,
}

impl Diagnostics {
    /// Adds an error, which is made only if it is kept: looking for a suggestion and quoting
    /// values take time.
    pub fn push(&mut self, make: impl FnOnce() -> Diagnostic) {
        if self.kept.len() < DIAGNOSTICS_MAX {
            self.kept.push(make());
        } else {
            self.dropped = self.dropped.saturating_add(1);
        }
    }

    /// The number of errors, those that were dropped included.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.kept.len().saturating_add(self.dropped)
    }

    /// Returns true if there is no error.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Tolerated errors, and the rest. None are tolerated if some were dropped, because what is
    /// tolerated has to be left out.
    #[must_use]
    pub fn split_tolerated(self) -> (Vec<Diagnostic>, Self) {
        let Self { kept, dropped } = self;
        if dropped > 0 {
            return (Vec::new(), Self { kept, dropped });
        }
        let (tolerated, kept) = kept.into_iter().partition(|one| one.stage == Stage::Never);
        (tolerated, Self { kept, dropped })
    }

    /// The errors, the last of which says how many are missing.
    #[must_use]
    pub fn into_vec(self) -> Vec<Diagnostic> {
        let Self { mut kept, dropped } = self;
        if dropped > 0 {
            let text = bounded!("{dropped} more errors are not shown");
            kept.push(Diagnostic::about("", text));
        }
        kept
    }
}

/// All errors in a configuration; not empty when returned as an error.
///
/// `{}` formats one line for each diagnostic, `{:#}` the long form of each, separated
/// by empty lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigErrors {
    /// The diagnostics, in the order of the file.
    pub diagnostics: Vec<Diagnostic>,
}

impl ConfigErrors {
    /// The first error, without its place: what clients see, who may compare it with
    /// Triton's text.
    #[must_use]
    pub fn first_message(&self) -> &str {
        self.diagnostics.first().map_or("", |diagnostic| &*diagnostic.message)
    }

    /// `Ok` if there are no diagnostics.
    ///
    /// # Errors
    ///
    /// The diagnostics, in the order of the file.
    pub fn into_result(mut self) -> Result<(), Self> {
        if self.diagnostics.is_empty() {
            return Ok(());
        }
        // Diagnostics without a position are last; equal positions keep their order.
        self.diagnostics.sort_by_key(|d| (d.position.is_none(), d.position));
        Err(self)
    }
}

impl From<Diagnostic> for ConfigErrors {
    fn from(diagnostic: Diagnostic) -> Self {
        Self { diagnostics: vec![diagnostic] }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, diagnostic) in self.diagnostics.iter().enumerate() {
            if f.alternate() {
                if index > 0 {
                    f.write_str("\n\n")?;
                }
                write!(f, "{diagnostic:#}")?;
            } else {
                if index > 0 {
                    f.write_str("\n")?;
                }
                write!(f, "{diagnostic}")?;
            }
        }
        Ok(())
    }
}

impl Error for ConfigErrors {}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Diagnostic {
        Diagnostic {
            file: "config.pbtxt".into(),
            position: Some(Position { line: 12, column: 3 }),
            path: "input[0].dimz".into(),
            message: "unknown field 'dimz'".into(),
            expected: Some("a field of ModelInput".into()),
            suggestion: Some("dims".into()),
            stage: Stage::Poll,
            excerpt: Some(Excerpt { text: "  dimz: 1".into(), offset: 2, width: 4 }),
        }
    }

    #[test]
    fn the_short_form_is_one_line() {
        assert_eq!(
            example().to_string(),
            "config.pbtxt:12:3: input[0].dimz: unknown field 'dimz', expected a field of \
             ModelInput (did you mean 'dims'?)"
        );
        assert_eq!(Diagnostic::about("name", "is missing").to_string(), "name: is missing");
    }

    #[test]
    fn the_long_form_has_a_caret() {
        let expected = "\
error: unknown field 'dimz'
  --> config.pbtxt:12:3
   = field: input[0].dimz
   |
12 |   dimz: 1
   |   ^^^^
   = expected: a field of ModelInput
   = did you mean 'dims'?";
        assert_eq!(format!("{:#}", example()), expected);
    }

    #[test]
    fn the_number_and_the_length_of_errors_are_limited() {
        let mut diagnostics = Diagnostics::default();
        for _ in 0..DIAGNOSTICS_MAX + 7 {
            diagnostics.push(|| {
                let (path, message) = ("x".repeat(1 << 20), "y".repeat(1 << 20));
                Diagnostic::about(bounded!("{path}"), bounded!("{message}"))
            });
        }
        assert_eq!(diagnostics.len(), DIAGNOSTICS_MAX + 7);
        let shown = ConfigErrors { diagnostics: diagnostics.into_vec() }.to_string();
        assert!(shown.ends_with("7 more errors are not shown"));
        assert!(shown.len() < DIAGNOSTICS_MAX * 3 * DIAGNOSTIC_BYTES_MAX);
    }

    #[test]
    fn errors_are_sorted_by_position() {
        let mut later = example();
        later.position = Some(Position { line: 13, column: 1 });
        let unlocated = Diagnostic::about("output", "is missing");
        let errors =
            ConfigErrors { diagnostics: vec![unlocated.clone(), later.clone(), example()] };
        let sorted = errors.into_result().unwrap_err();
        assert_eq!(sorted.diagnostics, [example(), later, unlocated]);
        assert_eq!(sorted.to_string().lines().count(), 3);
    }
}
