//! The program's standard streams: lines, colours, and a progress line that is rewritten in place.

use std::io::{IsTerminal, Write, stderr, stdout};
use std::process::ExitCode;

use serde_json::json;

/// Prints a line. Errors from a closed stream are ignored.
pub fn print_line(stream: &mut dyn Write, line: &str) {
    let _ = writeln!(stream, "{line}").and_then(|()| stream.flush());
}

/// Prints the text that a command returns, or the reason why it failed.
#[must_use]
pub fn print_result(text: Result<String, String>, format: ReportFormat) -> ExitCode {
    match text {
        Ok(text) => {
            print_line(&mut stdout(), text.trim_end());
            ExitCode::SUCCESS
        }
        Err(reason) => print_failure(&reason, format),
    }
}

/// Reports why a command failed, to people or, in JSON, to programs.
#[must_use]
pub fn print_failure(reason: &str, format: ReportFormat) -> ExitCode {
    if format == ReportFormat::Json {
        print_line(&mut stdout(), &json!({ "error": reason }).to_string());
    }
    print_line(&mut stderr(), &format!("error: {reason}"));
    ExitCode::FAILURE
}

/// The format in which a command prints its results.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ReportFormat {
    /// Text for people.
    Text,
    /// One JSON document, for programs.
    Json,
}

impl ReportFormat {
    /// Selects JSON if the arguments request it.
    #[must_use]
    pub const fn json_if(is_asked: bool) -> Self {
        if is_asked { Self::Json } else { Self::Text }
    }
}

/// The role of a piece of text, which terminals show as a colour.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Style {
    /// Success.
    Good,
    /// A failure.
    Bad,
    /// The most important part.
    Strong,
    /// The least important part.
    Faint,
}

/// The use of colours.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum ColourMode {
    /// Colours on terminals.
    #[default]
    Allowed,
    /// No colours: `NO_COLOR` is set, or the terminal doesn't support them.
    Off,
}

/// A standard stream for people. On a terminal, it has colours and a progress line.
#[derive(Copy, Clone, Debug)]
pub struct Console {
    is_terminal: bool,
    has_colours: bool,
}

impl Console {
    /// Standard error, which shows progress.
    #[must_use]
    pub fn on_stderr(colours: ColourMode) -> Self {
        Self::new(stderr().is_terminal(), colours)
    }

    /// Standard output, which shows results.
    #[must_use]
    pub fn on_stdout(colours: ColourMode) -> Self {
        Self::new(stdout().is_terminal(), colours)
    }

    fn new(is_terminal: bool, colours: ColourMode) -> Self {
        Self { is_terminal, has_colours: is_terminal && colours == ColourMode::Allowed }
    }

    /// Returns true if the stream can show a progress line.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        self.is_terminal
    }

    /// The text, in the colour of its role.
    #[must_use]
    pub fn paint(self, style: Style, text: &str) -> String {
        if !self.has_colours {
            return text.to_owned();
        }
        let code = match style {
            Style::Good => "32",
            Style::Bad => "31",
            Style::Strong => "1",
            Style::Faint => "2",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// Replaces the progress line. Has no effect unless the stream is a terminal.
    pub fn show_progress(self, text: &str) {
        if self.is_terminal {
            let text: String = text.chars().take(COLUMNS_MAX).collect();
            let mut stream = stderr();
            let _ = write!(stream, "\r\x1b[2K{text}").and_then(|()| stream.flush());
        }
    }

    /// Shows a long-running step. On a terminal, the step replaces the previous one; elsewhere, it
    /// gets a separate line.
    pub fn show_step(self, text: &str) {
        if self.is_terminal {
            self.show_progress(text);
        } else {
            print_line(&mut stderr(), text);
        }
    }

    /// Removes the progress line.
    pub fn clear_progress(self) {
        self.show_progress("");
    }
}

/// The maximum width of a progress line, which must not wrap.
const COLUMNS_MAX: usize = 79;

/// Renders a bar filled to the given share.
#[must_use]
pub fn render_bar(share: f64, width: usize) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is clamped")]
    #[expect(clippy::cast_precision_loss, reason = "a bar is short")]
    let filled = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
    format!("[{}{}]", "#".repeat(filled), ".".repeat(width - filled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_terminals_have_colours_unless_they_are_off() {
        let painted =
            |is_terminal, colours| Console::new(is_terminal, colours).paint(Style::Good, "a");
        assert_eq!(painted(true, ColourMode::Allowed), "\x1b[32ma\x1b[0m");
        assert_eq!(painted(true, ColourMode::Off), "a");
        assert_eq!(painted(false, ColourMode::Allowed), "a");
    }

    #[test]
    fn a_bar_is_filled_in_proportion() {
        assert_eq!(render_bar(0.0, 4), "[....]");
        assert_eq!(render_bar(0.5, 4), "[##..]");
        assert_eq!(render_bar(7.0, 4), "[####]");
    }
}
