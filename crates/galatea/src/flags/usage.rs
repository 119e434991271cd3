//! Documents generated from the flags: the usage text, a Markdown page, and the man page.

use std::fmt::Write;

use galatea_config::nearest_name;
use galatea_tools::commands::{COMMANDS, Command, CommandOption};

use super::flag::Flag;
use super::{GROUPS, flags};

const WIDTH: usize = 72;
const INDENT: &str = "        ";

/// The format of the help.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum HelpForm {
    /// For a terminal.
    Text,
    /// The page `docs/flags.md`.
    Markdown,
    /// The man page `docs/galatea.1`.
    Man,
}

impl HelpForm {
    /// The format that `--help=NAME` requests. Unknown names are ignored.
    pub(super) fn named(name: Option<&str>) -> Self {
        match name {
            Some("markdown") => Self::Markdown,
            Some("man") => Self::Man,
            Some(_) | None => Self::Text,
        }
    }
}

/// Generates the help in this format.
pub(crate) fn help(form: HelpForm) -> String {
    match form {
        HelpForm::Text => usage(),
        HelpForm::Markdown => markdown(),
        HelpForm::Man => man(),
    }
}

/// The help for a command-line error. It describes the flag that the error concerns, or the flag
/// that was probably meant.
pub(crate) fn advice(error: &str) -> String {
    let named = error.strip_prefix("Bad option: \"--").and_then(|rest| rest.split_once('"'));
    let (name, reason) = named.unwrap_or_default();
    let mut text = String::new();
    match flags().find(|flag| flag.name == name) {
        Some(flag) => {
            describe(&mut text, flag);
            if flag.argument == Some("boolean") {
                let _ = writeln!(text, "{INDENT}Values: true, on, 1, false, off, 0.");
            }
        }
        None if reason.contains("unrecognized") => {
            if let Some(meant) = nearest_name(name, flags().map(|flag| flag.name)) {
                let _ = writeln!(text, "Did you mean \"--{meant}\"?");
            }
        }
        None => {
            let argument = error.strip_prefix("Unexpected argument: ");
            let names = COMMANDS.iter().map(|command| command.name);
            if let Some(meant) = argument.and_then(|argument| nearest_name(argument, names)) {
                let _ = writeln!(text, "Did you mean the command '{meant}'?");
            }
        }
    }
    text.push_str("Usage: galatea [flags]; galatea --help prints all of them.");
    text
}

/// The help for a command error. It describes the option that the error concerns, or the option
/// that was probably meant.
pub(crate) fn command_advice(command: &Command, error: &str) -> String {
    let mut text = String::new();
    let is_named = |option: &&CommandOption| {
        [format!("'--{}'", option.name), format!("\"--{}\"", option.name)]
            .iter()
            .any(|quoted| error.contains(quoted))
    };
    let unknown = error.strip_prefix("Bad option: \"--").filter(|_| error.contains("unrecognized"));
    if let Some((name, _)) = unknown.and_then(|rest| rest.split_once('"')) {
        let own = command.options.iter().map(|option| option.name);
        let server = flags().map(|flag| flag.name).filter(|_| command.takes_flags);
        if let Some(meant) = nearest_name(name, own.chain(server)) {
            let _ = writeln!(text, "Did you mean \"--{meant}\"?");
        }
    } else if let Some(option) = command.options.iter().find(is_named) {
        describe_option(&mut text, option);
    }
    let options = if command.options.is_empty() { "" } else { " [options]" };
    let (name, arguments) = (command.name, command.arguments);
    let _ = write!(
        text,
        "Usage: galatea {name}{options} {arguments}; galatea {name} --help explains it."
    );
    text
}

fn usage() -> String {
    let mut text = String::from("Usage: galatea [flags]\n");
    for command in &COMMANDS {
        text.push_str(&synopsis(command, "       "));
    }
    text.push_str(
        "  --help\n        Print this text; behind a command, what that does.\n  --version\n        \
         Print the version.\n\nCommands:\n",
    );
    for command in &COMMANDS {
        let _ = writeln!(text, "  {}", command.name);
        for line in wrap(command.help, WIDTH) {
            let _ = writeln!(text, "{INDENT}{line}");
        }
    }
    for group in &GROUPS {
        let _ = writeln!(text, "\n{}:", group.title);
        group.flags().for_each(|flag| describe(&mut text, flag));
    }
    text
}

/// The synopsis of a command, with each line indented.
fn synopsis(command: &Command, indent: &str) -> String {
    let mut text = String::new();
    // Keep an option and its value on one line.
    let words = command.synopsis().replace(" [", "\n[").replace("] ", "]\n");
    let (mut line, mut further) = (indent.to_owned(), "");
    for word in words.lines() {
        if line.len() + 1 + word.len() > 79 {
            let _ = writeln!(text, "{line}");
            line = format!("{indent}            ");
            further = "";
        }
        let _ = write!(line, "{further}{word}");
        further = " ";
    }
    let _ = writeln!(text, "{line}");
    text
}

/// The help for a command: its purpose and options.
pub(crate) fn command_help(command: &Command) -> String {
    let mut text = format!("Usage: {}", synopsis(command, "       ").trim_start());
    for line in wrap(command.help, WIDTH + INDENT.len()) {
        let _ = writeln!(text, "{line}");
    }
    if !command.options.is_empty() {
        text.push('\n');
    }
    for option in command.options {
        describe_option(&mut text, option);
    }
    if command.takes_flags {
        text.push_str("\nThe server's flags are taken too: see galatea --help.\n");
    }
    text
}

fn describe_option(text: &mut String, option: &CommandOption) {
    let _ = match option.argument {
        Some(argument) => writeln!(text, "  --{} <{argument}>", option.name),
        None => writeln!(text, "  --{}", option.name),
    };
    for line in wrap(&option_explained(option), WIDTH) {
        let _ = writeln!(text, "{INDENT}{line}");
    }
}

fn option_explained(option: &CommandOption) -> String {
    match option.default {
        "" => option.help.to_owned(),
        default => format!("{} Default: {default}.", option.help),
    }
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

/// The effect of a flag and its default.
fn explained(flag: &Flag) -> String {
    let mut help = flag.help.split_whitespace().collect::<Vec<_>>().join(" ");
    let default = flag.default_value();
    if !default.is_empty() {
        let _ = write!(help, " Default: {default}.");
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
         `galatea [flags]` starts the server. All of Triton's flags are taken. A name may be \
         shortened as\nlong as it is unique, and a value follows after `=` or as the next \
         argument. Under the name\n`tritonserver` the program is the server alone; otherwise it \
         has commands too, which\n[commands.md](commands.md) explains:\n\n\
         | command | what it does |\n|---|---|\n",
    );
    for command in &COMMANDS {
        let _ = writeln!(page, "| `{}` | {} |", command.synopsis(), cell(command.help));
    }
    page.push_str(
        "\n`galatea --help` prints this table, `galatea --help=markdown` this page, and \
         `galatea --help=man`\nthe page for `man`.\n",
    );
    for group in &GROUPS {
        let _ = writeln!(
            page,
            "\n## {}\n\n| flag | default | what it does |\n|---|---|---|",
            group.title
        );
        for flag in group.flags() {
            let argument = flag.argument.map(|name| format!(" <{name}>")).unwrap_or_default();
            let default = match flag.default_value() {
                default if default.is_empty() => default,
                default => format!("`{default}`"),
            };
            let help = cell(flag.help);
            let _ = writeln!(page, "| `--{}{argument}` | {default} | {help} |", flag.name);
        }
    }
    page
}

/// The text as a table cell: on one line, with Markdown syntax escaped.
fn cell(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.replace('|', "\\|").replace('<', "\\<").replace('*', "\\*")
}

fn man() -> String {
    let mut page = String::from(
        ".TH GALATEA 1\n.SH NAME\ngalatea \\- model inference server\n.SH SYNOPSIS\n\
         .B galatea\n[flags]\n",
    );
    for command in &COMMANDS {
        let synopsis = command.synopsis();
        let begin = format!("galatea {}", command.name);
        let rest = synopsis.strip_prefix(&begin).unwrap_or(&synopsis).trim_start();
        let _ = write!(page, ".br\n.B {begin}\n{}\n", roff(rest));
    }
    page.push_str(
        ".SH DESCRIPTION\nServes the models of model repositories over HTTP and gRPC, as Triton \
         Inference Server does.\n.SH COMMANDS\n",
    );
    for command in &COMMANDS {
        let _ = writeln!(page, ".TP\n\\fB{}\\fR", roff(command.name));
        add_lines(&mut page, command.help);
        for option in command.options {
            let argument = option.argument.map(|name| format!(" \\fI{}\\fR", roff(name)));
            let name = roff(&format!("--{}", option.name));
            let _ = writeln!(page, ".RS\n.TP\n\\fB{name}\\fR{}", argument.unwrap_or_default());
            add_lines(&mut page, &option_explained(option));
            page.push_str(".RE\n");
        }
    }
    for group in &GROUPS {
        let _ = writeln!(page, ".SH {}", roff(&group.title.to_uppercase()));
        for flag in group.flags() {
            let name = roff(&format!("--{}", flag.name));
            let argument = flag.argument.map(|name| format!(" \\fI{}\\fR", roff(name)));
            let _ = writeln!(page, ".TP\n\\fB{name}\\fR{}", argument.unwrap_or_default());
            add_lines(&mut page, &explained(flag));
        }
    }
    page
}

/// Adds text to the man page.
fn add_lines(page: &mut String, text: &str) {
    for line in wrap(&roff(text), WIDTH) {
        // A line that begins like a roff request would be mistaken for one.
        let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
        let _ = writeln!(page, "{guard}{line}");
    }
}

/// The text with backslashes and hyphens escaped.
fn roff(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a documentation page matches the flags.
    fn check(form: HelpForm, page: &str) {
        assert!(help(form) == page, "write the pages anew with 'cargo xtask flags'");
    }

    #[test]
    fn an_error_of_a_command_is_told_in_a_few_lines() {
        let check = |command: &Command, error: &str, expected: &str| {
            assert_eq!(command_advice(command, error), expected);
        };
        let tune = Command::from_arguments(&[String::from("tune")]).unwrap().0;
        check(
            tune,
            "Bad option: \"--objektive\".\nunrecognized option",
            "Did you mean \"--objective\"?\n\
             Usage: galatea tune [options] MODEL; galatea tune --help explains it.",
        );
        check(
            tune,
            "'--instances' takes a number, not 'x'",
            "  --instances <number>\n        \
             The most instances; by default the processors.\n\
             Usage: galatea tune [options] MODEL; galatea tune --help explains it.",
        );
        let error = "Bad option: \"--zzz\".\nunrecognized option";
        check(tune, error, "Usage: galatea tune [options] MODEL; galatea tune --help explains it.");
        assert!(
            advice("Unexpected argument: tnue").starts_with("Did you mean the command 'tune'?")
        );
    }

    #[test]
    fn the_pages_are_made_from_the_flags() {
        check(HelpForm::Markdown, include_str!("../../../../docs/flags.md"));
        check(HelpForm::Man, include_str!("../../../../docs/galatea.1"));
    }

    #[test]
    fn advice_is_short_and_about_the_flag() {
        let unknown =
            |name: &str| advice(&format!("Bad option: \"--{name}\".\nunrecognized option"));
        assert!(unknown("htp-port").starts_with("Did you mean \"--http-port\"?\n"));
        assert!(unknown("model-repositry").starts_with("Did you mean \"--model-repository\"?\n"));
        assert_eq!(
            unknown("nonsense"),
            "Usage: galatea [flags]; galatea --help prints all of them."
        );
        let value = advice("Bad option: \"--strict-readiness\".\ninvalid value");
        assert!(value.starts_with("  --strict-readiness <boolean>\n"), "{value}");
        assert!(value.contains("Values: true, on"), "{value}");
        let mode = advice("Bad option: \"--model-control-mode\".\ninvalid argument");
        assert!(["none", "poll", "explicit"].iter().all(|one| mode.contains(one)), "{mode}");
        assert!(mode.lines().count() < 10);
        assert_eq!(
            advice("Unexpected argument: a"),
            "Usage: galatea [flags]; galatea --help prints all of them."
        );
    }

    #[test]
    fn pages_escape_what_their_format_would_read() {
        assert_eq!(cell("a\n  <b> | *"), "a \\<b> \\| \\*");
        assert_eq!(roff("--a\\b"), "\\-\\-a\\eb");
    }
}
