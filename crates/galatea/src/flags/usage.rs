//! The usage text, made from the flags.

use std::fmt::Write;

use super::{Flag, GROUPS};

const WIDTH: usize = 72;
const INDENT: &str = "        ";

/// The whole text.
pub(crate) fn usage() -> String {
    let mut text = String::from(
        "Usage: galatea [options]\n       galatea check [--json] [options] REPOSITORY...\n  --help\n\
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
    let mut help = flag.help.to_owned();
    if !flag.default.is_empty() {
        let _ = write!(help, " Default: {}.", flag.default);
    }
    for line in wrap(&help) {
        let _ = writeln!(text, "{INDENT}{line}");
    }
}

fn wrap(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
