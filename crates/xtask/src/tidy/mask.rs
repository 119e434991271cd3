//! Source texts with blanked parts. Spaces replace the blanked parts, so that lines and columns
//! don't change.

/// A source's language.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Language {
    /// Rust, with nested comments, raw strings and lifetimes.
    Rust,
    /// C and C++.
    C,
    /// Python, in which documentation strings are kept.
    Python,
    /// TOML and shell scripts.
    Hash,
    /// Prose such as Markdown, in which nothing is blanked.
    Text,
}

/// A text in the two forms that checks read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MaskedSource {
    /// The text without string literals: code and comments.
    pub(super) words: String,
    /// The text without string literals and comments.
    pub(super) code: String,
}

/// The kind of source region that the lexer is in.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Region {
    Code,
    LineComment,
    BlockComment(u32),
    /// A literal, the character that ends it, and the number of these characters or `#` signs.
    Literal {
        end: char,
        length: usize,
        raw: bool,
    },
    /// A Python documentation string.
    Documentation,
}

/// Blanks the literals and comments of a source.
pub(super) fn mask(language: Language, text: &str) -> MaskedSource {
    if language == Language::Text {
        return MaskedSource { words: text.to_owned(), code: text.to_owned() };
    }
    let mut lexer = Lexer {
        language,
        characters: text.chars().collect(),
        at: 0,
        region: Region::Code,
        masked: MaskedSource::default(),
    };
    while lexer.at < lexer.characters.len() {
        lexer.step();
    }
    lexer.masked
}

struct Lexer {
    language: Language,
    characters: Vec<char>,
    at: usize,
    region: Region,
    masked: MaskedSource,
}

impl Lexer {
    fn step(&mut self) {
        match self.region {
            Region::Code => self.in_code(),
            Region::LineComment => {
                if self.peek(0) == '\n' {
                    self.region = Region::Code;
                }
                self.take(1, true, false);
            }
            Region::BlockComment(depth) => self.in_block_comment(depth),
            Region::Literal { end, length, raw } => self.in_literal(end, length, raw),
            Region::Documentation => {
                let ends = self.starts_with("\"\"\"");
                if ends {
                    self.region = Region::Code;
                }
                self.take(if ends { 3 } else { 1 }, true, false);
            }
        }
    }

    fn in_code(&mut self) {
        let hash = matches!(self.language, Language::Python | Language::Hash);
        if (hash && self.peek(0) == '#') || (!hash && self.starts_with("//")) {
            self.region = Region::LineComment;
        } else if !hash && self.starts_with("/*") {
            self.region = Region::BlockComment(0);
        } else if self.language == Language::Python && self.documents() {
            self.region = Region::Documentation;
            self.take(3, true, false);
        } else if let Some((opening, region)) = self.literal() {
            self.region = region;
            self.take(opening, false, false);
        } else {
            self.take(1, true, true);
        }
    }

    fn in_block_comment(&mut self, depth: u32) {
        if self.starts_with("/*") && (depth == 0 || self.language == Language::Rust) {
            self.region = Region::BlockComment(depth.saturating_add(1));
            self.take(2, true, false);
        } else if self.starts_with("*/") {
            let outer = depth.saturating_sub(1);
            self.region = if outer == 0 { Region::Code } else { Region::BlockComment(outer) };
            self.take(2, true, false);
        } else {
            self.take(1, true, false);
        }
    }

    fn in_literal(&mut self, end: char, length: usize, raw: bool) {
        if !raw && self.peek(0) == '\\' {
            return self.take(2, false, false);
        }
        let hashes = raw && self.language == Language::Rust;
        let wanted: String = if hashes {
            std::iter::once(end).chain(std::iter::repeat_n('#', length)).collect()
        } else {
            std::iter::repeat_n(end, length).collect()
        };
        let ends = self.starts_with(&wanted);
        // A single quote that isn't closed on its line did not start a literal.
        let is_broken = self.peek(0) == '\n' && self.language != Language::Rust && length == 1;
        if ends || is_broken {
            self.region = Region::Code;
        }
        self.take(if ends { wanted.len() } else { 1 }, false, false);
    }

    /// Returns true if a documentation string begins here, on its own line.
    fn documents(&self) -> bool {
        let before = self.characters.get(..self.at).unwrap_or_default();
        let line = before.rsplit(|character| *character == '\n').next().unwrap_or_default();
        self.starts_with("\"\"\"") && line.iter().all(|character| character.is_whitespace())
    }

    /// The literal that begins here: the length of its opening, and its region.
    fn literal(&self) -> Option<(usize, Region)> {
        match (self.language, self.peek(0)) {
            (Language::Rust, 'r' | 'b' | 'c') if !self.follows_name() => self.prefixed(),
            (Language::Rust, '\'') => {
                let closes = self.peek(1) == '\\' || self.peek(2) == '\'';
                closes.then_some((1, Region::Literal { end: '\'', length: 1, raw: false }))
            }
            (Language::Python | Language::Hash, quote @ ('"' | '\'')) => {
                let triple: String = std::iter::repeat_n(quote, 3).collect();
                let length = if self.starts_with(&triple) { 3 } else { 1 };
                Some((length, Region::Literal { end: quote, length, raw: false }))
            }
            (_, quote @ ('"' | '\'')) if quote == '"' || self.language == Language::C => {
                Some((1, Region::Literal { end: quote, length: 1, raw: false }))
            }
            _ => None,
        }
    }

    /// Recognizes `r"`, `r#"`, `b"`, `br"`, `c"` and similar Rust prefixes.
    fn prefixed(&self) -> Option<(usize, Region)> {
        let mut at: usize = 0;
        let mut raw = false;
        while let letter @ ('r' | 'b' | 'c') = self.peek(at) {
            raw |= letter == 'r';
            at = at.saturating_add(1);
        }
        let prefix = at;
        while raw && self.peek(at) == '#' {
            at = at.saturating_add(1);
        }
        let length = if raw { at.saturating_sub(prefix) } else { 1 };
        (self.peek(at) == '"')
            .then_some((at.saturating_add(1), Region::Literal { end: '"', length, raw }))
    }

    fn follows_name(&self) -> bool {
        let before = self.at.checked_sub(1).and_then(|at| self.characters.get(at));
        before.is_some_and(|character| character.is_alphanumeric() || *character == '_')
    }

    fn peek(&self, ahead: usize) -> char {
        self.characters.get(self.at.saturating_add(ahead)).copied().unwrap_or('\0')
    }

    fn starts_with(&self, wanted: &str) -> bool {
        wanted.chars().enumerate().all(|(ahead, character)| self.peek(ahead) == character)
    }

    /// Advances by some characters, which are kept as words, as code, or not at all.
    fn take(&mut self, count: usize, word: bool, code: bool) {
        for _ in 0..count {
            let Some(&character) = self.characters.get(self.at) else { return };
            let blank = if character == '\n' { '\n' } else { ' ' };
            self.masked.words.push(if word { character } else { blank });
            self.masked.code.push(if code { character } else { blank });
            self.at = self.at.saturating_add(1);
        }
    }
}

/// The code with test-only items also blanked: `#[cfg(test)]` and the item after it.
pub(super) fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some((before, after)) = rest.split_once(MARK) {
        kept.push_str(before);
        let end = item_end(after);
        let (item, next) = after.split_at(end);
        kept.extend(std::iter::repeat_n(' ', MARK.len()));
        kept.extend(item.chars().map(|character| if character == '\n' { '\n' } else { ' ' }));
        rest = next;
    }
    kept.push_str(rest);
    kept
}

/// The end of an item: after its braces, or after a semicolon before any brace.
fn item_end(text: &str) -> usize {
    let mut depth: usize = 0;
    for (at, character) in text.char_indices() {
        match character {
            '{' => depth = depth.saturating_add(1),
            '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at.saturating_add(1);
                }
            }
            ';' if depth == 0 => return at.saturating_add(1),
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(language: Language, text: &str, words: &str, code: &str) {
        let trim = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let masked = mask(language, text);
        assert_eq!(masked.words.lines().count(), text.lines().count());
        assert_eq!((trim(&masked.words), trim(&masked.code)), (words.into(), code.into()));
    }

    #[test]
    fn rust_loses_its_literals() {
        check(
            Language::Rust,
            "a(\"x \\\" y\", 'c', '\\'', b\"z\") // d",
            "a( , , , ) // d",
            "a( , , , )",
        );
        check(Language::Rust, "r#\"a \" b\"# + r\"c\"\n+ d", "+ + d", "+ + d");
        check(
            Language::Rust,
            "fn a<'b>(c: &'b str) {}",
            "fn a<'b>(c: &'b str) {}",
            "fn a<'b>(c: &'b str) {}",
        );
        check(Language::Rust, "a /* b /* c */ \" */ d", "a /* b /* c */ \" */ d", "a d");
        check(Language::Rust, "/// don't\nbar(\"e\")", "/// don't bar( )", "bar( )");
    }

    #[test]
    fn other_languages_lose_theirs() {
        check(
            Language::Python,
            "\"\"\"A.\n\nB's.\"\"\"\na = 'c' # d",
            "\"\"\"A. B's.\"\"\" a = # d",
            "a =",
        );
        check(Language::Python, "a = \"\"\"b 'c'\"\"\"\nd", "a = d", "a = d");
        check(
            Language::C,
            "char a = '\"'; /* b */ f(\"c\");",
            "char a = ; /* b */ f( );",
            "char a = ; f( );",
        );
        check(Language::Hash, "a = \"b\" # c", "a = # c", "a =");
        check(Language::Text, "it's \"a\"", "it's \"a\"", "it's \"a\"");
    }

    #[test]
    fn items_of_tests_are_dropped() {
        let code = "a\n#[cfg(test)]\nmod b;\nc\n#[cfg(test)]\nmod tests { fn d() {} }\ne\n";
        let kept = without_tests(code);
        assert_eq!(kept.split_whitespace().collect::<Vec<_>>(), ["a", "c", "e"]);
        assert_eq!(kept.lines().count(), code.lines().count());
    }
}
