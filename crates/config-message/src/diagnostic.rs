//! Diagnostics: the errors in a configuration, their positions and suggestions.

use std::error::Error;
use std::fmt;
use std::ops::Deref;

use galatea_gate::text;

/// The maximum number of errors reported for one configuration.
pub const DIAGNOSTICS_MAX: usize = 100;
/// The maximum length of each string in a diagnostic, in bytes.
const DIAGNOSTIC_BYTES_MAX: usize = 2 << 10;

/// Formats a string for a diagnostic, like `format!` but in bounded memory.
#[macro_export]
macro_rules! bounded {
    ($($argument:tt)*) => {
        $crate::BoundedText::from(format_args!($($argument)*))
    };
}

/// The maximum number of cut-off bytes to count: formatting stops after that.
const COUNTED_BYTES_MAX: usize = 64 << 10;

/// A string in a diagnostic, which may repeat parts of a configuration of any length. It is
/// truncated to two kilobytes while it is built.
///
/// There is no conversion from `String`, because a `String` built for a diagnostic would have been
/// unbounded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoundedText(String);

impl BoundedText {
    /// Copies the start of a string.
    #[must_use]
    pub fn truncated(quoted: &str) -> Self {
        Self(text::format_bounded(quoted, DIAGNOSTIC_BYTES_MAX))
    }
}

impl From<fmt::Arguments<'_>> for BoundedText {
    fn from(arguments: fmt::Arguments<'_>) -> Self {
        Self(text::format_prefix(arguments, DIAGNOSTIC_BYTES_MAX, COUNTED_BYTES_MAX))
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

/// A position in a file. Both numbers start at 1, and columns count characters.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line number.
    pub line: usize,
    /// The column number, in characters.
    pub column: usize,
}

/// The line of a file to which a diagnostic points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// The line, or for a long line the part around the position.
    pub text: String,
    /// The number of characters in `text` before the position.
    pub offset: usize,
    /// The number of underlined characters, at least 1.
    pub width: usize,
}

/// The stage at which Triton finds an error.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum TritonDetectionStage {
    /// Triton finds the error when it reads the repository.
    Poll,
    /// Triton finds the error when it loads a version, whose configuration is complete by then.
    #[default]
    Load,
    /// Triton never finds the error and loads the model. Galatea also loads the model, without the
    /// meaningless element.
    Never,
}

/// One error in a configuration.
///
/// `{}` formats one line, for an error message. `{:#}` adds the line from the file with a caret,
/// for a terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file's name; empty if there is none.
    pub file: String,
    /// The position in the file; `None` if the value is not from a file.
    pub position: Option<Position>,
    /// The field, such as `input[0].dims`; empty for the whole file.
    pub path: BoundedText,
    /// The mistake, in Triton's words if Triton also finds it.
    pub message: BoundedText,
    /// The stage at which Triton finds the error.
    pub stage: TritonDetectionStage,
    /// The valid values, if known.
    pub expected: Option<BoundedText>,
    /// The value that was probably intended.
    pub suggestion: Option<BoundedText>,
    /// The line to which `position` points.
    pub excerpt: Option<Excerpt>,
}

impl Diagnostic {
    /// Creates a diagnostic about a field, without a file position.
    #[must_use]
    pub fn about(path: impl Into<BoundedText>, message: impl Into<BoundedText>) -> Self {
        Self { path: path.into(), message: message.into(), ..Self::default() }
    }

    /// Creates a diagnostic for an error that Triton finds when it reads the repository.
    #[must_use]
    pub fn at_poll(path: impl Into<BoundedText>, message: impl Into<BoundedText>) -> Self {
        Self { stage: TritonDetectionStage::Poll, ..Self::about(path, message) }
    }

    /// Creates a diagnostic for an error that Triton never finds.
    #[must_use]
    pub fn new_tolerated(path: impl Into<BoundedText>, message: impl Into<BoundedText>) -> Self {
        Self { stage: TritonDetectionStage::Never, ..Self::about(path, message) }
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

/// The errors found in a configuration, up to a hundred: a configuration sent with a load may have
/// any number.
#[derive(Debug, Default)]
pub struct Diagnostics {
    kept: Vec<Diagnostic>,
    /// The number of dropped errors.
    dropped: usize,
}

impl Diagnostics {
    /// Adds an error, which is created only if it is kept: finding a suggestion and quoting values
    /// take time.
    pub fn push(&mut self, make: impl FnOnce() -> Diagnostic) {
        if self.kept.len() < DIAGNOSTICS_MAX {
            self.kept.push(make());
        } else {
            self.dropped = self.dropped.saturating_add(1);
        }
    }

    /// The number of errors, including dropped errors.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.kept.len().saturating_add(self.dropped)
    }

    /// Returns true if there are no errors.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Splits the errors into tolerated errors and the rest. If any were dropped, none are
    /// tolerated, because tolerated elements must be left out.
    #[must_use]
    pub fn split_tolerated(self) -> (Vec<Diagnostic>, Self) {
        let Self { kept, dropped } = self;
        if dropped > 0 {
            return (Vec::new(), Self { kept, dropped });
        }
        let (tolerated, kept) =
            kept.into_iter().partition(|one| one.stage == TritonDetectionStage::Never);
        (tolerated, Self { kept, dropped })
    }

    /// The errors. If some were dropped, the last error states how many.
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
/// `{}` formats one line per diagnostic; `{:#}` formats the long form of each, separated by blank
/// lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigErrors {
    /// Returns the diagnostics, in file order.
    pub diagnostics: Vec<Diagnostic>,
}

impl ConfigErrors {
    /// The first error, without its position. This is the text that clients see, and they may
    /// compare it with Triton's.
    #[must_use]
    pub fn first_message(&self) -> &str {
        self.diagnostics.first().map_or("", |diagnostic| &*diagnostic.message)
    }

    /// Returns `Ok` if there are no diagnostics.
    ///
    /// # Errors
    ///
    /// Returns the diagnostics, in file order.
    pub fn into_result(mut self) -> Result<(), Self> {
        if self.diagnostics.is_empty() {
            return Ok(());
        }
        // Diagnostics without a position come last; equal positions keep their order.
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
            stage: TritonDetectionStage::Poll,
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
