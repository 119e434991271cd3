//! Error recovery.

use super::super::lexer::TokenKind;
use super::Parser;

impl Parser<'_> {
    /// Skips the value of a field whose name has been read.
    pub(super) fn skip_value(&mut self) {
        self.take(':');
        match self.token().kind {
            TokenKind::Symbol('{' | '<' | '[') => self.skip_brackets(),
            TokenKind::Symbol('-') => {
                self.advance();
                self.skip_scalar();
            }
            TokenKind::Identifier if self.starts_field() => {}
            TokenKind::Identifier | TokenKind::Number | TokenKind::String => self.skip_scalar(),
            TokenKind::Symbol(_) | TokenKind::End => {}
        }
    }

    fn skip_scalar(&mut self) {
        match self.token().kind {
            TokenKind::String => {
                while self.token().kind == TokenKind::String {
                    self.advance();
                }
            }
            TokenKind::Identifier | TokenKind::Number => self.advance(),
            TokenKind::Symbol(_) | TokenKind::End => {}
        }
    }

    /// Skips from an opening bracket to the matching closing bracket.
    pub(super) fn skip_brackets(&mut self) {
        let opening = self.token().span;
        let mut depth: usize = 0;
        loop {
            match self.token().kind {
                TokenKind::Symbol('{' | '<' | '[') => depth = depth.saturating_add(1),
                TokenKind::Symbol('}' | '>' | ']') => depth = depth.saturating_sub(1),
                TokenKind::End => {
                    return self.report(&opening, "", "this bracket is never closed", None, None);
                }
                TokenKind::Symbol(_)
                | TokenKind::Identifier
                | TokenKind::Number
                | TokenKind::String => {}
            }
            self.advance();
            if depth == 0 {
                return;
            }
        }
    }

    /// Skips to the end of a list element.
    pub(super) fn skip_element(&mut self) {
        loop {
            match self.token().kind {
                TokenKind::Symbol(',' | ']' | '}' | '>') | TokenKind::End => return,
                TokenKind::Symbol('{' | '<' | '[') => self.skip_brackets(),
                _ if self.starts_field() => return,
                TokenKind::Symbol(_)
                | TokenKind::Identifier
                | TokenKind::Number
                | TokenKind::String => self.advance(),
            }
        }
    }

    /// Skips to a possible field start or the end of the message.
    pub(super) fn recover(&mut self) {
        if !matches!(self.token().kind, TokenKind::Symbol('{' | '<' | '[')) {
            self.advance();
        }
        loop {
            match self.token().kind {
                TokenKind::Symbol('}' | '>') | TokenKind::End => return,
                TokenKind::Symbol('{' | '<' | '[') => self.skip_brackets(),
                _ if self.starts_field() => return,
                TokenKind::Symbol(_)
                | TokenKind::Identifier
                | TokenKind::Number
                | TokenKind::String => self.advance(),
            }
        }
    }

    /// Returns true if a field seems to begin here: a name and a token that may follow it.
    pub(super) fn starts_field(&self) -> bool {
        self.token().kind == TokenKind::Identifier
            && matches!(self.second().kind, TokenKind::Symbol(':' | '{' | '<' | '['))
    }
}
