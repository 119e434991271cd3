//! What the flags mean, made from the flags: the usage text, a page in Markdown, and the page
//! for `man`.

use std::fmt::Write;

use super::{Flag, GROUPS};

const WIDTH: usize = 72;
const INDENT: &str = "        ";

/// The form of the help.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum HelpForm {
    /// For a terminal.
    Text,
    /// The page `docs/flags.md`.
    Markdown,
    /// The page `docs/galatea.1`, for `man`.
    Man,
}

impl HelpForm {
    /// The form that `--help=NAME` asks for. Any other value is ignored.
    pub(super) fn named(name: Option<&str>) -> Self {
        match name {
            Some("markdown") => Self::Markdown,
            Some("man") => Self::Man,
            Some(_) | None => Self::Text,
        }
    }
}

/// The help in this form.
pub(crate) fn help(form: HelpForm) -> String {
    match form {
        HelpForm::Text => usage(),
        HelpForm::Markdown => markdown(),
        HelpForm::Man => man(),
    }
}

fn usage() -> String {
    let mut text = String::from(
        "Usage: galatea [options]\n       galatea check [--json] [options] REPOSITORY...\n       \
         galatea trace export FILE...\n       galatea new python [--directory DIRECTORY] NAME\n\
         \x20 --help\n\
         \x20       Print this text.\n  --version\n        Print the version.\n",
    );
    for group in &GROUPS {
        let _ = writeln!(text, "\n{}:", group.title);
        group.flags.iter().for_each(|flag| describe(&mut text, flag));
    }
    text
}

fn describe(text: &mut String, flag: &Flag) {
    let _ = match flag.argument {
        Some(argument) => writeln!(text, "  --{} <{argument}>", flag.name),
        None => writeln!(text, "  --{}", flag.name),
    };
    for line in wrap(&explained(flag), WIDTH) {
        let _ = writeln!(text, "{INDENT}{line}");
    }
}

/// What a flag does, and its default.
fn explained(flag: &Flag) -> String {
    let mut help = flag.help.split_whitespace().collect::<Vec<_>>().join(" ");
    if !flag.default.is_empty() {
        let _ = write!(help, " Default: {}.", flag.default);
    }
    help
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn markdown() -> String {
    let mut page = String::from(
        "# Flags\n\n\
         `galatea [options]` starts the server; `galatea check [--json] [options] REPOSITORY...` \
         checks\nrepositories (see [checking.md](checking.md)); `galatea trace export FILE...` converts \
         traces (see\n[tracing.md](tracing.md)); `galatea new python [--directory DIRECTORY] \
         NAME` writes a model to begin\nwith (see [python.md](python.md)). The program behaves \
         the same under any name, such as\n`tritonserver`. All of Triton's flags are taken. A \
         name may be shortened as long as it is unique, and\na value follows after `=` or as \
         the next argument.\n\n\
         `galatea --help` prints this table, `galatea --help=markdown` this page, and \
         `galatea --help=man`\nthe page for `man`.\n",
    );
    for group in &GROUPS {
        let _ = writeln!(
            page,
            "\n## {}\n\n| flag | default | what it does |\n|---|---|---|",
            group.title
        );
        for flag in group.flags {
            let argument = flag.argument.map(|name| format!(" <{name}>")).unwrap_or_default();
            let default = match flag.default {
                "" => String::new(),
                default => format!("`{default}`"),
            };
            let help = cell(flag.help);
            let _ = writeln!(page, "| `--{}{argument}` | {default} | {help} |", flag.name);
        }
    }
    page
}

/// The text as a cell of a table: on one line, and with nothing that Markdown would read.
fn cell(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.replace('|', "\\|").replace('<', "\\<").replace('*', "\\*")
}

fn man() -> String {
    let mut page = String::from(
        ".TH GALATEA 1\n.SH NAME\ngalatea \\- model inference server\n.SH SYNOPSIS\n\
         .B galatea\n[options]\n.br\n.B galatea check\n[\\-\\-json] [options] REPOSITORY...\n\
         .br\n.B galatea trace export\nFILE...\n.br\n.B galatea new python\n\
         [\\-\\-directory DIRECTORY] NAME\n\
         .SH DESCRIPTION\nServes the models of model repositories over HTTP and gRPC, as Triton \
         Inference Server does.\n",
    );
    for group in &GROUPS {
        let _ = writeln!(page, ".SH {}", roff(&group.title.to_uppercase()));
        for flag in group.flags {
            let name = roff(&format!("--{}", flag.name));
            let argument = flag.argument.map(|name| format!(" \\fI{}\\fR", roff(name)));
            let _ = writeln!(page, ".TP\n\\fB{name}\\fR{}", argument.unwrap_or_default());
            for line in wrap(&roff(&explained(flag)), WIDTH) {
                // A line that begins like a request of roff would be taken for one.
                let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
                let _ = writeln!(page, "{guard}{line}");
            }
        }
    }
    page
}

/// The text with backslashes and hyphens escaped.
fn roff(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a page of the documentation is made from the flags.
    fn check(form: HelpForm, page: &str) {
        assert!(help(form) == page, "write the pages anew with 'cargo xtask flags'");
    }

    #[test]
    fn the_pages_are_made_from_the_flags() {
        check(HelpForm::Markdown, include_str!("../../../../docs/flags.md"));
        check(HelpForm::Man, include_str!("../../../../docs/galatea.1"));
    }

    #[test]
    fn pages_escape_what_their_format_would_read() {
        assert_eq!(cell("a\n  <b> | *"), "a \\<b> \\| \\*");
        assert_eq!(roff("--a\\b"), "\\-\\-a\\eb");
    }
}
