//! Words that the glossary replaces: the last table in docs/glossary.md.

use std::collections::HashMap;

use super::Violation;
use super::files::File;

/// The form in which a word is recognized.
#[derive(Copy, Clone, Debug)]
enum Form {
    /// This word, by itself or as part of a name, regardless of case and number.
    Word(&'static str),
    /// This name as a whole in code, such as that of a type.
    Name(&'static str),
    /// This module in a path.
    Module(&'static str),
    /// These words in sequence, unless one of the other words follows.
    Phrase(&'static [&'static str], &'static [&'static str]),
}

/// A word to avoid, and its replacement.
struct ReplacedWord {
    form: Form,
    instead: &'static str,
}

const fn dropped(form: Form, instead: &'static str) -> ReplacedWord {
    ReplacedWord { form, instead }
}

/// Nouns after which "original" doesn't refer to Triton.
const ORIGINALS: &[&str] = &[
    "array",
    "body",
    "bytes",
    "case",
    "configuration",
    "data",
    "error",
    "file",
    "files",
    "input",
    "key",
    "message",
    "model",
    "name",
    "node",
    "one",
    "order",
    "path",
    "request",
    "shape",
    "source",
    "tensor",
    "text",
    "value",
    "values",
];

const DROPPED: &[ReplacedWord] = &[
    dropped(Form::Phrase(&["the", "original"], ORIGINALS), "Triton"),
    dropped(Form::Phrase(&["the", "originals"], &[]), "Triton's"),
    dropped(Form::Word("contestant"), "Triton, implementation"),
    dropped(Form::Name("Answer"), "response, reply"),
    dropped(Form::Name("Outcome"), "response, reply, or a specific name"),
    dropped(Form::Word("deed"), "effect"),
    dropped(Form::Name("Order"), "effect"),
    dropped(Form::Word("errand"), "inline execution"),
    dropped(Form::Word("allowance"), "inline budget"),
    dropped(Form::Name("Turn"), "WakeBatch"),
    dropped(Form::Module("turn"), "wake_batch"),
    dropped(Form::Word("pace"), "latency predictor"),
    dropped(Form::Word("forecast"), "latency predictor"),
    dropped(Form::Word("outlook"), "prediction"),
    dropped(Form::Word("mailroom"), "completion queue"),
    dropped(Form::Word("mailbox"), "inbox"),
    dropped(Form::Name("Letter"), "Completion"),
    dropped(Form::Word("seat"), "driver slot"),
    dropped(Form::Word("news"), "connection event"),
    dropped(Form::Word("tenure"), "agent lease"),
    dropped(Form::Word("attendance"), "agent session"),
    dropped(Form::Word("retirer"), "reaper"),
    dropped(Form::Word("wish"), "desired model"),
    dropped(Form::Word("wishes"), "desired models"),
    dropped(Form::Word("sighting"), "scan"),
    dropped(Form::Word("survey"), "scan"),
    dropped(Form::Name("Finding"), "ModelSource"),
    dropped(Form::Word("books"), "host, statistics"),
    dropped(Form::Word("station"), "trace point"),
    dropped(Form::Word("whoever"), "a plain subject"),
    dropped(Form::Word("nobody"), "a plain subject"),
    dropped(Form::Word("somebody"), "a plain subject"),
    dropped(Form::Phrase(&["so", "many"], &[]), "a plain number"),
    dropped(Form::Phrase(&["what", "becomes", "of"], &[]), "a plain subject"),
];

/// A name or a word in prose, with its line.
struct Token<'a> {
    text: &'a str,
    line: usize,
    /// True if `::` follows.
    leads: bool,
}

/// Every dropped word in the files.
pub(super) fn check(files: &[File]) -> Vec<Violation> {
    let (mut words, mut names) = (KnownTokens::default(), KnownTokens::default());
    let mut found = Vec::new();
    // The list itself contains the words.
    let is_list = |file: &File| file.path == "crates/xtask/src/tidy/words.rs";
    for file in files.iter().filter(|file| !file.is_history() && !is_list(file)) {
        let concerns = |form| !matches!(form, Form::Name(_));
        found.extend(words.search(file, &file.masked.words, concerns));
        // In prose, a name's word may mean anything.
        if !file.is("md") {
            let concerns = |form| matches!(form, Form::Name(_));
            found.extend(names.search(file, &file.masked.code, concerns));
        }
    }
    found
}

/// The distinct tokens so far, with the forms that each begins. Files share most tokens, and hardly
/// any token begins a dropped form.
#[derive(Default)]
struct KnownTokens<'a>(HashMap<&'a str, Vec<&'static ReplacedWord>>);

impl<'a> KnownTokens<'a> {
    fn search(
        &mut self,
        file: &File,
        text: &'a str,
        concerns: impl Fn(Form) -> bool,
    ) -> Vec<Violation> {
        let tokens = tokens(text);
        let mut found = Vec::new();
        for (at, token) in tokens.iter().enumerate() {
            let begun = self.0.entry(token.text).or_insert_with(|| {
                let concerning = DROPPED.iter().filter(|dropped| concerns(dropped.form));
                concerning.filter(|dropped| begins(dropped.form, token.text)).collect()
            });
            if begun.is_empty() {
                continue;
            }
            let rest = tokens.get(at..).unwrap_or_default();
            for dropped in begun.iter().filter(|dropped| matches(dropped.form, rest)) {
                let word = match dropped.form {
                    Form::Phrase(words, _) => words.join(" "),
                    _ => token.text.to_owned(),
                };
                let place = format!("{}:{}", file.path, token.line);
                let text = format!("{place}: '{word}': say {}", dropped.instead);
                found.push(Violation { area: file.area.clone(), text });
            }
        }
        found
    }
}

/// Returns true if a form may begin with a token.
fn begins(form: Form, token: &str) -> bool {
    match form {
        Form::Name(name) | Form::Module(name) => token == name,
        Form::Word(word) => parts(token).any(|part| is_word(part, word)),
        Form::Phrase(words, _) => {
            words.first().is_some_and(|first| first.eq_ignore_ascii_case(token))
        }
    }
}

fn matches(form: Form, tokens: &[Token<'_>]) -> bool {
    let Some(first) = tokens.first() else { return false };
    match form {
        Form::Name(_) | Form::Word(_) => begins(form, first.text),
        Form::Module(_) => begins(form, first.text) && first.leads,
        Form::Phrase(words, unless) => {
            let is = |(token, word): (&Token<'_>, &&str)| token.text.eq_ignore_ascii_case(word);
            let next = tokens.get(words.len()).map(|token| token.text.to_ascii_lowercase());
            tokens.len() >= words.len()
                && tokens.iter().zip(words).all(is)
                && !next.is_some_and(|next| unless.contains(&next.as_str()))
        }
    }
}

/// Returns true if a part of a name is this word, in singular or plural.
fn is_word(part: &str, word: &str) -> bool {
    part.eq_ignore_ascii_case(word)
        || part.strip_suffix(['s', 'S']).is_some_and(|part| part.eq_ignore_ascii_case(word))
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let is_name = |character: char| character.is_alphanumeric() || character == '_';
    let mut tokens = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut rest = line;
        while let Some(start) = rest.find(is_name) {
            let from = rest.get(start..).unwrap_or_default();
            let end = from.find(|character| !is_name(character)).unwrap_or(from.len());
            let (text, after) = from.split_at(end);
            tokens.push(Token { text, line: index + 1, leads: after.starts_with("::") });
            rest = after;
        }
    }
    tokens
}

/// `InlineErrand_MAX` consists of `Inline`, `Errand` and `MAX`.
fn parts(name: &str) -> impl Iterator<Item = &str> {
    name.split('_').flat_map(|part| {
        let mut rest = part;
        std::iter::from_fn(move || {
            let mut previous = rest.chars().next()?;
            let border = rest.char_indices().skip(1).find(|(_, character)| {
                let is_border = character.is_uppercase() && previous.is_lowercase();
                previous = *character;
                is_border
            });
            let (part, after) = rest.split_at(border.map_or(rest.len(), |(at, _)| at));
            rest = after;
            Some(part)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Glossary words that only a reader can distinguish from their other meanings.
    const UNCHECKED: [&str; 2] = ["peer", "line"];

    #[test]
    fn every_dropped_word_of_the_glossary_is_in_the_list() {
        let path = crate::workspace::root().join("docs/glossary.md");
        let glossary = std::fs::read_to_string(path).unwrap();
        let (_, table) = glossary.split_once("| not | but |").unwrap();
        let rows = table.lines().filter_map(|line| line.split('|').nth(1)).skip(1);
        let words = rows.flat_map(|row| row.split('(').next().unwrap().split(','));
        for word in words.map(str::trim).filter(|word| !UNCHECKED.contains(word)) {
            let is_listed = DROPPED.iter().any(|dropped| match dropped.form {
                Form::Word(listed) | Form::Name(listed) | Form::Module(listed) => {
                    listed.eq_ignore_ascii_case(word)
                }
                Form::Phrase(words, _) => words.join(" ") == word,
            });
            assert!(is_listed, "'{word}'");
        }
    }

    fn found(path: &str, text: &str) -> Vec<String> {
        let found = check(&[File::new(path, text)]).into_iter().map(|violation| violation.text);
        found.map(|text| text.split('\'').nth(1).unwrap_or_default().to_owned()).collect()
    }

    fn check_rust(text: &str, expected: &[&str]) {
        assert_eq!(found("crates/http/src/a.rs", text), expected, "{text}");
    }

    #[test]
    fn words_are_found_in_names_and_in_prose() {
        check_rust("let mail_room = Mailroom::new();", &["Mailroom"]);
        check_rust("const ERRANDS_MAX: u32 = 1; // An errand.", &["ERRANDS_MAX", "errand"]);
        check_rust("struct PendingErrand { next_errand: u32 }", &["PendingErrand", "next_errand"]);
        check_rust("let space = pacemaker; // seating", &[]);
    }

    #[test]
    fn names_are_whole_and_modules_lead_a_path() {
        check_rust(
            "turn::wake(Turn::new()); // a Turn in turn, and a TurnStyle",
            &["turn", "Turn"],
        );
    }

    #[test]
    fn phrases_cross_lines() {
        check_rust(
            "// This is what the\n// original says, so\n/// many times.",
            &["the original", "so many"],
        );
        check_rust("// This is the original error.", &[]);
    }

    #[test]
    fn literals_and_history_are_left_alone() {
        check_rust("log(\"nobody waits\"); // nobody", &["nobody"]);
        assert_eq!(found("CHANGELOG.md", "nobody"), Vec::<String>::new());
        assert_eq!(found("docs/models.md", "Nobody"), ["Nobody"]);
    }
}
