//! Parses field values: messages, scalars, and lists of these.

use galatea_protocol::schema::{FieldCardinality, FieldDescriptor, FieldKind, MessageDescriptor};

use super::super::lexer::TokenKind;
use super::super::literal;
use super::super::scalar::{self, ScalarToken, expectation, short};
use super::{Container, OpenBracket, Parser, PartialMessage};
use galatea_config_message::Span;
use galatea_config_message::dynamic::{DynamicMessage, DynamicValue, MapKey, MessageLimitCheck};

impl<'a> Parser<'a> {
    pub(super) fn message_values(
        &mut self,
        partial: &mut PartialMessage,
        field: &FieldDescriptor,
        inner: &'static MessageDescriptor,
        path: &str,
    ) {
        let repeated = field.arity != FieldCardinality::One;
        if repeated && self.is('[') {
            return self.list(path, |parser| {
                parser.one_message(partial, field, inner, path, Container::List)
            });
        }
        if !self.one_message(partial, field, inner, path, Container::Field) {
            self.skip_value();
        }
    }

    /// Parses one message in brackets. Returns `false` if there is none.
    fn one_message(
        &mut self,
        partial: &mut PartialMessage,
        field: &FieldDescriptor,
        inner: &'static MessageDescriptor,
        path: &str,
        container: Container,
    ) -> bool {
        let token = self.token();
        let closer = match token.kind {
            TokenKind::Symbol('{') => '}',
            TokenKind::Symbol('<') => '>',
            _ => {
                let expected = expectation(FieldKind::Message(inner));
                self.unexpected(path, &expected);
                return false;
            }
        };
        let counted = self.messages.add();
        if counted == MessageLimitCheck::First {
            let text = format!("more than {} objects", self.messages.most);
            self.report(&token.span, path, text, None, None);
        }
        if counted != MessageLimitCheck::Within {
            self.skip_brackets();
            return true;
        }
        self.advance();
        let bracket = OpenBracket { closer, span: token.span.clone(), container };
        let element = element_path(path, field, partial.message.len(field));
        self.spans.add_if_absent(&element, &token.span);
        let message = self.message(inner, &element, Some(&bracket));
        if field.arity == FieldCardinality::Map {
            self.insert_entry(partial, field, message, path, &token.span);
        } else {
            store(partial, field, DynamicValue::Message(Box::new(message)));
        }
        true
    }

    fn insert_entry(
        &mut self,
        partial: &mut PartialMessage,
        field: &FieldDescriptor,
        entry: DynamicMessage,
        path: &str,
        span: &Span,
    ) {
        let Some((key, value)) = entry.into_map_entry() else { return };
        let shown = match &key {
            MapKey::String(text) => format!("\"{}\"", short(text)),
            MapKey::U64(number) => number.to_string(),
        };
        self.spans.add_if_absent(&format!("{path}[{shown}]"), span);
        partial.message.insert(field, key, value);
    }

    pub(super) fn scalar_values(
        &mut self,
        partial: &mut PartialMessage,
        field: &FieldDescriptor,
        kind: FieldKind,
        path: &str,
    ) {
        if field.arity == FieldCardinality::List && self.is('[') {
            return self.list(path, |parser| parser.one_scalar(partial, field, kind, path));
        }
        if !self.one_scalar(partial, field, kind, path) {
            self.skip_value();
        }
    }

    /// Parses one scalar. Returns `false` if there is none.
    fn one_scalar(
        &mut self,
        partial: &mut PartialMessage,
        field: &FieldDescriptor,
        kind: FieldKind,
        path: &str,
    ) -> bool {
        let start = self.token().span;
        let Some((token, span)) = self.scalar_token(kind, path) else { return false };
        let index = partial.message.len(field);
        if field.arity != FieldCardinality::One {
            self.spans.add_element(path, index, &start);
        }
        match token.map(|token| scalar::value(kind, &token)) {
            Some(Ok(value)) => store(partial, field, value),
            Some(Err(wrong)) => {
                let expected = Some(wrong.expected);
                let element = element_path(path, field, index);
                self.report(&span, &element, wrong.message, expected, wrong.suggestion);
                // Add a default to the list, so that later elements keep their indexes.
                if field.arity == FieldCardinality::List {
                    store(partial, field, DynamicValue::default_of(kind));
                }
            }
            None => {}
        }
        true
    }

    /// Reads the tokens of a scalar. The outer `None` means that there are no tokens; the inner
    /// `None` means that the scalar is invalid and has been reported.
    fn scalar_token(
        &mut self,
        kind: FieldKind,
        path: &str,
    ) -> Option<(Option<ScalarToken<'a>>, Span)> {
        let first = self.token();
        let negative = self.is('-');
        let token = if negative { self.second() } else { first.clone() };
        let span = first.span.start..token.span.end;
        let text = self.text(&token);
        let value = match token.kind {
            TokenKind::Number => match literal::number(text) {
                Some(number) => Some(ScalarToken::Number { number, negative, text }),
                None => {
                    let message = format!("'{}' is not a number", short(text));
                    self.report(&span, path, message, Some(expectation(kind)), None);
                    None
                }
            },
            // This is the next field, so the value is missing.
            TokenKind::Identifier if !negative && self.starts_field() => {
                self.unexpected(path, &expectation(kind));
                return None;
            }
            TokenKind::Identifier => Some(ScalarToken::Name { name: text, negative }),
            TokenKind::String if !negative => return Some(self.strings(path)),
            TokenKind::String | TokenKind::Symbol(_) | TokenKind::End => {
                self.unexpected(path, &expectation(kind));
                return None;
            }
        };
        if negative {
            self.advance();
        }
        self.advance();
        Some((value, span))
    }

    /// Reads adjacent strings, which together form one string.
    fn strings(&mut self, path: &str) -> (Option<ScalarToken<'a>>, Span) {
        let mut bytes = Vec::new();
        let mut is_valid = true;
        let mut span = self.token().span;
        while self.token().kind == TokenKind::String {
            let token = self.token();
            match literal::string(self.text(&token)) {
                _ if self.unterminated.contains(&token.span.start) => is_valid = false,
                Ok(part) => bytes.extend(part),
                Err(error) => {
                    is_valid = false;
                    let start = token.span.start.saturating_add(error.offset);
                    let wrong = start..start.saturating_add(error.length);
                    self.report(&wrong, path, error.message, None, None);
                }
            }
            span.end = token.span.end;
            self.advance();
        }
        (is_valid.then_some(ScalarToken::Text(bytes)), span)
    }

    /// Parses a list in brackets, element by element.
    fn list(&mut self, path: &str, mut element: impl FnMut(&mut Self) -> bool) {
        let opening = self.token().span;
        self.advance();
        if self.take(']') {
            return;
        }
        loop {
            if self.token().kind == TokenKind::End {
                return self.report(&opening, path, "there is no ']' for this", None, None);
            }
            if !element(self) {
                self.skip_element();
            }
            if self.take(']') {
                return;
            }
            if self.take(',') {
                continue;
            }
            if self.token().kind == TokenKind::End {
                return self.report(&opening, path, "there is no ']' for this", None, None);
            }
            self.unexpected(path, "',' or ']'");
            if self.starts_field() || self.is('}') || self.is('>') {
                // The list was probably meant to end here.
                return;
            }
            if self.begins_value() {
                continue;
            }
            self.skip_element();
            if self.take(']') || !self.take(',') {
                return;
            }
        }
    }

    fn begins_value(&self) -> bool {
        match self.token().kind {
            TokenKind::Identifier | TokenKind::Number | TokenKind::String => true,
            TokenKind::Symbol(c) => matches!(c, '{' | '<' | '-'),
            TokenKind::End => false,
        }
    }
}

/// The path of a field's value, or of an element if the field is repeated.
fn element_path(path: &str, field: &FieldDescriptor, index: usize) -> String {
    match field.arity {
        FieldCardinality::One => path.to_owned(),
        FieldCardinality::List | FieldCardinality::Map => format!("{path}[{index}]"),
    }
}

fn store(partial: &mut PartialMessage, field: &FieldDescriptor, value: DynamicValue) {
    match field.arity {
        FieldCardinality::List => partial.message.push(field, value),
        FieldCardinality::One | FieldCardinality::Map => partial.message.set(field, value),
    }
}
