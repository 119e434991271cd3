//! What is wrong with a configuration, where, and what to write instead.

use std::error::Error;
use std::fmt;

/// A place in a file; both numbers start at 1 and columns count characters.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Number of the line.
    pub line: usize,
    /// Number of the character in the line.
    pub column: usize,
}

/// The line of a file that a diagnostic points at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// The line, or the part of a long line around the place.
    pub text: String,
    /// Characters of `text` before the place.
    pub offset: usize,
    /// Characters that are underlined, at least 1.
    pub width: usize,
}

/// One thing that is wrong.
///
/// `{}` is one line, fit for an error message; `{:#}` shows the line of the
/// file with a caret, fit for people at a terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file, as it was named by whoever read it; empty if there is none.
    pub file: String,
    /// Where in the file; absent when the value did not come from it.
    pub position: Option<Position>,
    /// The field, such as `input[0].dims`; empty for the file as a whole.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What would be right, if it can be said.
    pub expected: Option<String>,
    /// What was probably meant.
    pub suggestion: Option<String>,
    /// The line that `position` points at.
    pub excerpt: Option<Excerpt>,
}

impl Diagnostic {
    /// A diagnostic about a field, without a place in a file.
    #[must_use]
    pub fn about(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into(), ..Self::default() }
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

/// Everything that is wrong with a configuration; never empty when it is an
/// error.
///
/// `{}` has one line per diagnostic, `{:#}` the rendered ones with an empty
/// line between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigErrors {
    /// The diagnostics, in the order of the file where they have a place in it.
    pub diagnostics: Vec<Diagnostic>,
}

impl ConfigErrors {
    /// `Ok` if there is nothing wrong.
    pub(crate) fn into_result(mut self) -> Result<(), Self> {
        if self.diagnostics.is_empty() {
            return Ok(());
        }
        // Diagnostics without a place come last; equal places keep their order.
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
            excerpt: Some(Excerpt { text: "  dimz: 1".into(), offset: 2, width: 4 }),
        }
    }

    #[test]
    fn one_line_for_messages() {
        assert_eq!(
            example().to_string(),
            "config.pbtxt:12:3: input[0].dimz: unknown field 'dimz', expected a field of \
             ModelInput (did you mean 'dims'?)"
        );
        assert_eq!(Diagnostic::about("name", "is missing").to_string(), "name: is missing");
    }

    #[test]
    fn carets_for_people() {
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
    fn errors_come_in_the_order_of_the_file() {
        let mut later = example();
        later.position = Some(Position { line: 13, column: 1 });
        let placeless = Diagnostic::about("output", "is missing");
        let errors =
            ConfigErrors { diagnostics: vec![placeless.clone(), later.clone(), example()] };
        let sorted = errors.into_result().unwrap_err();
        assert_eq!(sorted.diagnostics, [example(), later, placeless]);
        assert_eq!(sorted.to_string().lines().count(), 3);
    }
}
