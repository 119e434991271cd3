//! Splits text into tokens.

use galatea_config_message::Span;

/// The kind of a token; the span determines its text.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// A field or enumeration-value name, or `true`, `inf` or `nan`.
    Identifier,
    /// A token that starts like a number and may be invalid.
    Number,
    /// A string, including its quotes.
    String,
    /// One punctuation character.
    Symbol(char),
    /// The end of the text.
    End,
}

/// A token and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) span: Span,
}

/// Text that is not a token, and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LexicalError {
    pub(super) message: String,
    pub(super) span: Span,
}

/// Splits `text` into tokens. The last token is always [`TokenKind::End`].
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let mut lexer = Lexer::new(text);
    let mut tokens = Vec::new();
    loop {
        let token = lexer.token();
        let is_end = token.kind == TokenKind::End;
        tokens.push(token);
        if is_end {
            return tokens;
        }
    }
}

/// A token reader. It keeps only the token that it is reading, because a token takes more memory
/// than its text.
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    errors: Vec<LexicalError>,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0, errors: Vec::new() }
    }

    /// Reads the next token. At the end of the text, it is always [`TokenKind::End`].
    pub(super) fn token(&mut self) -> Token {
        while let Some(c) = self.peek() {
            let start = self.at;
            match c {
                '#' => self.skip_while(|c| c != '\n'),
                ' ' | '\t' | '\r' | '\n' | '\u{b}' | '\u{c}' => self.advance(c),
                'A'..='Z' | 'a'..='z' | '_' => {
                    self.skip_while(|c| c.is_ascii_alphanumeric() || c == '_');
                    return self.token_from(TokenKind::Identifier, start);
                }
                '0'..='9' => return self.number(start),
                '.' if self.second().is_some_and(|c| c.is_ascii_digit()) => {
                    return self.number(start);
                }
                '"' | '\'' => return self.string(c, start),
                ':' | '{' | '}' | '<' | '>' | '[' | ']' | ',' | ';' | '-' | '.' | '/' => {
                    self.advance(c);
                    return self.token_from(TokenKind::Symbol(c), start);
                }
                other => self.unexpected(other, start),
            }
        }
        self.token_from(TokenKind::End, self.text.len())
    }

    /// Takes the errors in the tokens read since the last call.
    pub(super) fn take_errors(&mut self) -> Vec<LexicalError> {
        std::mem::take(&mut self.errors)
    }

    fn peek(&self) -> Option<char> {
        self.text.get(self.at..)?.chars().next()
    }

    fn second(&self) -> Option<char> {
        self.text.get(self.at..)?.chars().nth(1)
    }

    fn advance(&mut self, c: char) {
        self.at = self.at.saturating_add(c.len_utf8());
    }

    fn skip_while(&mut self, keep: impl Fn(char) -> bool) {
        while let Some(c) = self.peek()
            && keep(c)
        {
            self.advance(c);
        }
    }

    const fn token_from(&self, kind: TokenKind, start: usize) -> Token {
        Token { kind, span: start..self.at }
    }

    /// Reads a number and all characters attached to it, so `12abc` is one invalid number instead
    /// of a number and a name.
    fn number(&mut self, start: usize) -> Token {
        let mut previous = ' ';
        let hexadecimal = self.text.get(start..).is_some_and(|t| t.starts_with("0x"));
        while let Some(c) = self.peek() {
            let exponent = matches!(previous, 'e' | 'E') && matches!(c, '+' | '-') && !hexadecimal;
            if !(c.is_ascii_alphanumeric() || c == '_' || c == '.' || exponent) {
                break;
            }
            previous = c;
            self.advance(c);
        }
        self.token_from(TokenKind::Number, start)
    }

    fn string(&mut self, quote: char, start: usize) -> Token {
        self.advance(quote);
        let mut escaped = false;
        while let Some(c) = self.peek()
            && c != '\n'
        {
            self.advance(c);
            if escaped {
                escaped = false;
            } else if c == '\\' {
                escaped = true;
            } else if c == quote {
                return self.token_from(TokenKind::String, start);
            }
        }
        let span = start..self.at;
        self.errors.push(LexicalError {
            message: format!("the string has no closing {quote} on its line"),
            span,
        });
        // The parser needs a token to continue.
        self.token_from(TokenKind::String, start)
    }

    fn unexpected(&mut self, c: char, start: usize) {
        self.skip_while(|other| other == c);
        // Editors don't show a byte order mark either.
        let is_unseen = c.is_control() || c == '\u{feff}';
        let name = if is_unseen { c.escape_default().to_string() } else { c.to_string() };
        let message = format!("the character '{name}' has no meaning here");
        self.errors.push(LexicalError { message, span: start..self.at });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Vec<Token>, Vec<LexicalError>) {
        let mut lexer = Lexer::new(text);
        while lexer.token().kind != TokenKind::End {}
        (tokens(text), lexer.take_errors())
    }

    fn check(text: &str, expected: &[&str]) {
        let (tokens, errors) = read(text);
        let (end, rest) = tokens.split_last().unwrap();
        assert_eq!(end.kind, TokenKind::End);
        let shown: Vec<&str> = rest.iter().map(|token| &text[token.span.clone()]).collect();
        assert_eq!(shown, expected);
        assert_eq!(errors, []);
    }

    #[test]
    fn text_is_split_into_tokens_without_comments() {
        check("a: -1 # rest : {", &["a", ":", "-", "1"]);
        check("a{b<[,;]>}", &["a", "{", "b", "<", "[", ",", ";", "]", ">", "}"]);
        check(r##"s: "a\"#b" 'c"d'"##, &["s", ":", r##""a\"#b""##, r#"'c"d'"#]);
        check("1e+5 .5f 1.e-3 12abc 0x1e-5", &["1e+5", ".5f", "1.e-3", "12abc", "0x1e", "-", "5"]);
    }

    #[test]
    fn a_byte_order_mark_is_an_error_as_in_triton() {
        let (_, errors) = read("\u{feff}a: 1");
        assert_eq!(errors[0].message, r"the character '\u{feff}' has no meaning here");
    }

    #[test]
    fn invalid_text_is_reported_and_skipped() {
        let (tokens, errors) = read("a: @@@ 'open\nb: \u{1}");
        let kinds: Vec<TokenKind> = tokens.iter().map(|token| token.kind).collect();
        let colon = TokenKind::Symbol(':');
        let name = TokenKind::Identifier;
        assert_eq!(kinds, [name, colon, TokenKind::String, name, colon, TokenKind::End]);
        let shown: Vec<(&str, Span)> =
            errors.iter().map(|error| (error.message.as_str(), error.span.clone())).collect();
        assert_eq!(
            shown,
            [
                ("the character '@' has no meaning here", 3..6),
                ("the string has no closing ' on its line", 7..12),
                ("the character '\\u{1}' has no meaning here", 16..17),
            ]
        );
    }
}
