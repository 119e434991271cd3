//! From tokens to a message, by its descriptor.

use std::collections::{BTreeMap, BTreeSet};

use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage, Value,
};

use super::lexer::{self, Kind as TokenKind, Token};
use super::literal;
use super::scalar::{self, Written, expectation, short};
use crate::diagnostic::Diagnostic;
use crate::source::{Source, Span};
use crate::suggest::nearest;

/// A file with more errors than this is not a configuration.
const MAX_DIAGNOSTICS: usize = 100;

/// What a file says, and what is wrong with it.
pub(super) struct Outcome {
    pub(super) message: DynamicMessage,
    pub(super) spans: BTreeMap<String, Span>,
    pub(super) diagnostics: Vec<Diagnostic>,
}

/// Reads a whole file as one message.
///
/// Messages nest no deeper than the schema does, which is not recursive, and
/// what the schema does not know is skipped without recursion: no input makes
/// the stack grow.
pub(super) fn parse(source: &Source, descriptor: MessageDescriptor) -> Outcome {
    let (tokens, errors) = lexer::tokens(source.text());
    let mut parser = Parser {
        source,
        tokens,
        at: 0,
        spans: BTreeMap::new(),
        diagnostics: Vec::new(),
        root: descriptor.clone(),
        broken: errors.iter().map(|error| error.span.start).collect(),
    };
    for error in errors {
        parser.report(&error.span, "", error.message, None, None);
    }
    let message = parser.message(descriptor, "", None);
    Outcome { message, spans: parser.spans, diagnostics: parser.diagnostics }
}

struct Parser<'a> {
    source: &'a Source,
    tokens: Vec<Token>,
    at: usize,
    spans: BTreeMap<String, Span>,
    diagnostics: Vec<Diagnostic>,
    /// The message that the whole file is.
    root: MessageDescriptor,
    /// Where the strings begin that do not end, which are reported already.
    broken: BTreeSet<usize>,
}

/// What was read of the message that is being filled.
struct Frame {
    message: DynamicMessage,
    path: String,
    /// The name under which each field, and each choice, was first set.
    set: BTreeMap<String, String>,
}

/// What a message stands in directly.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Within {
    Field,
    List,
}

/// The bracket that a message ends with, and where it was opened.
#[derive(Clone)]
struct Opened {
    closer: char,
    span: Span,
    within: Within,
}

impl<'a> Parser<'a> {
    // Tokens.

    fn token(&self) -> Token {
        self.peek(0)
    }

    fn peek(&self, ahead: usize) -> Token {
        let end = self.source.text().len();
        let token = self.tokens.get(self.at.saturating_add(ahead)).cloned();
        token.unwrap_or(Token { kind: TokenKind::End, span: end..end })
    }

    fn text(&self, token: &Token) -> &'a str {
        self.source.text().get(token.span.clone()).unwrap_or("")
    }

    fn advance(&mut self) {
        self.at = self.at.saturating_add(1);
    }

    fn is(&self, symbol: char) -> bool {
        self.token().kind == TokenKind::Symbol(symbol)
    }

    fn take(&mut self, symbol: char) -> bool {
        let found = self.is(symbol);
        if found {
            self.advance();
        }
        found
    }

    // Diagnostics.

    fn report(
        &mut self,
        span: &Span,
        path: &str,
        message: impl Into<String>,
        expected: Option<String>,
        suggestion: Option<String>,
    ) {
        if self.diagnostics.len() >= MAX_DIAGNOSTICS {
            return;
        }
        let mut diagnostic = Diagnostic::about(path, message);
        if self.diagnostics.len().saturating_add(1) == MAX_DIAGNOSTICS {
            diagnostic = Diagnostic::about(path, "and more errors, which are not shown");
        } else {
            diagnostic.expected = expected;
            diagnostic.suggestion = suggestion;
        }
        self.source.place(&mut diagnostic, span);
        self.diagnostics.push(diagnostic);
    }

    /// Says that the next token is not what is needed.
    fn unexpected(&mut self, path: &str, expected: &str) {
        let token = self.token();
        let message = match token.kind {
            TokenKind::End => "the file ends too early".to_owned(),
            _ => format!("'{}' is not expected here", short(self.text(&token))),
        };
        self.report(&token.span, path, message, Some(expected.to_owned()), None);
    }

    // Messages.

    fn message(
        &mut self,
        descriptor: MessageDescriptor,
        path: &str,
        opened: Option<&Opened>,
    ) -> DynamicMessage {
        let mut frame = Frame {
            message: DynamicMessage::new(descriptor),
            path: path.to_owned(),
            set: BTreeMap::new(),
        };
        loop {
            match self.token().kind {
                TokenKind::Identifier => {
                    self.field(&mut frame);
                    if !self.take(',') {
                        self.take(';');
                    }
                }
                TokenKind::Symbol(c) if opened.is_some_and(|o| o.closer == c) => {
                    self.advance();
                    return frame.message;
                }
                TokenKind::Symbol(c @ ('}' | '>')) => {
                    let Some(opened) = opened else {
                        self.report_stray_closer(c);
                        continue;
                    };
                    let expected = format!("'{}'", opened.closer);
                    self.unexpected(path, &expected);
                    self.advance();
                    return frame.message;
                }
                TokenKind::End => {
                    if let Some(opened) = opened {
                        let message = format!("there is no '{}' for this", opened.closer);
                        self.report(&opened.span.clone(), path, message, None, None);
                    }
                    return frame.message;
                }
                TokenKind::Symbol(']') if let Some(opened) = opened => {
                    let expected = format!("'{}'", opened.closer);
                    self.unexpected(path, &expected);
                    if opened.within == Within::Field {
                        self.advance();
                    }
                    return frame.message;
                }
                TokenKind::Symbol('[') => self.extension(&frame.path),
                TokenKind::Symbol(_) | TokenKind::Number | TokenKind::String => {
                    self.unexpected(path, "the name of a field");
                    self.recover();
                }
            }
        }
    }

    fn report_stray_closer(&mut self, closer: char) {
        let token = self.token();
        let message = format!("this '{closer}' closes nothing");
        self.report(&token.span, "", message, None, None);
        self.advance();
    }

    /// `[package.extension]` or `[type.host/name]` in place of a field's name.
    fn extension(&mut self, path: &str) {
        let start = self.token().span.start;
        self.skip_brackets();
        let end = self.tokens.get(self.at.saturating_sub(1)).map_or(start, |t| t.span.end);
        self.report(
            &(start..end),
            path,
            "extensions and Any messages have no place in a configuration",
            Some("the name of a field".to_owned()),
            None,
        );
        self.skip_value();
    }

    fn field(&mut self, frame: &mut Frame) {
        let name_token = self.token();
        let name = self.text(&name_token);
        self.advance();
        let descriptor = frame.message.descriptor();
        let Some(field) = descriptor.get_field_by_name(name) else {
            self.unknown_field(&descriptor, &name_token, &frame.path);
            return self.skip_value();
        };
        let path = join(&frame.path, name);
        self.spans.entry(path.clone()).or_insert_with(|| name_token.span.clone());
        if !field.is_list() && !field.is_map() {
            self.check_set_once(frame, &field, &name_token.span, &path);
        }
        match field.kind() {
            Kind::Message(inner) => {
                self.take(':');
                self.message_values(frame, &field, &inner, &path);
            }
            kind => {
                if !self.take(':') {
                    self.unexpected(&path, &format!("':' and {}", expectation(&kind)));
                    return self.skip_value();
                }
                self.scalar_values(frame, &field, &kind, &path);
            }
        }
    }

    fn unknown_field(&mut self, descriptor: &MessageDescriptor, token: &Token, path: &str) {
        let name = self.text(token);
        let names: Vec<String> = descriptor.fields().map(|f| f.name().to_owned()).collect();
        let suggestion = nearest(name, names.iter().map(String::as_str));
        let mut message = format!("unknown field '{}' in {}", short(name), owner(descriptor));
        // At home in the file's own message: this one was probably not closed.
        if suggestion.is_none() && self.root.get_field_by_name(name).is_some() {
            message.push_str(", a '}' may be missing before it");
        }
        self.report(&token.span, &join(path, &short(name)), message, None, suggestion);
    }

    fn check_set_once(
        &mut self,
        frame: &mut Frame,
        field: &FieldDescriptor,
        span: &Span,
        path: &str,
    ) {
        let choice = field.containing_oneof();
        let key =
            choice.as_ref().map_or_else(|| field.name().to_owned(), |c| c.full_name().to_owned());
        let Some(first) = frame.set.insert(key, field.name().to_owned()) else { return };
        let message = if first == field.name() {
            format!("'{first}' is given more than once")
        } else {
            let choice = choice.map(|c| c.name().to_owned()).unwrap_or_default();
            format!("'{}' excludes '{first}': there is one {choice}", field.name())
        };
        self.report(span, path, message, None, None);
    }

    // Values.

    fn message_values(
        &mut self,
        frame: &mut Frame,
        field: &FieldDescriptor,
        inner: &MessageDescriptor,
        path: &str,
    ) {
        let repeated = field.is_list() || field.is_map();
        if repeated && self.is('[') {
            return self
                .list(path, |parser| parser.one_message(frame, field, inner, path, Within::List));
        }
        if !self.one_message(frame, field, inner, path, Within::Field) {
            self.skip_value();
        }
    }

    /// Reads one message in its brackets; `false` if there is none.
    fn one_message(
        &mut self,
        frame: &mut Frame,
        field: &FieldDescriptor,
        inner: &MessageDescriptor,
        path: &str,
        within: Within,
    ) -> bool {
        let token = self.token();
        let closer = match token.kind {
            TokenKind::Symbol('{') => '}',
            TokenKind::Symbol('<') => '>',
            _ => {
                let expected = expectation(&Kind::Message(inner.clone()));
                self.unexpected(path, &expected);
                return false;
            }
        };
        self.advance();
        let opened = Opened { closer, span: token.span.clone(), within };
        let element = self.element_path(frame, field, path, &token.span);
        let message = self.message(inner.clone(), &element, Some(&opened));
        if field.is_map() {
            self.insert_entry(frame, field, &message, path, &token.span);
        } else {
            store(frame, field, Value::Message(message));
        }
        true
    }

    fn insert_entry(
        &mut self,
        frame: &mut Frame,
        field: &FieldDescriptor,
        entry: &DynamicMessage,
        path: &str,
        span: &Span,
    ) {
        let (Some(key), Some(value)) = (entry.get_field_by_number(1), entry.get_field_by_number(2))
        else {
            return;
        };
        let Some(key) = key.into_owned().into_map_key() else { return };
        let shown = match &key {
            MapKey::String(text) => format!("\"{}\"", short(text)),
            other => map_key_number(other),
        };
        self.spans.entry(format!("{path}[{shown}]")).or_insert_with(|| span.clone());
        let value = value.into_owned();
        if let Some(map) = frame.message.get_field_mut(field).as_map_mut() {
            map.insert(key, value);
        }
    }

    fn scalar_values(
        &mut self,
        frame: &mut Frame,
        field: &FieldDescriptor,
        kind: &Kind,
        path: &str,
    ) {
        if field.is_list() && self.is('[') {
            return self.list(path, |parser| parser.one_scalar(frame, field, kind, path));
        }
        if !self.one_scalar(frame, field, kind, path) {
            self.skip_value();
        }
    }

    /// Reads one scalar; `false` if there is none.
    fn one_scalar(
        &mut self,
        frame: &mut Frame,
        field: &FieldDescriptor,
        kind: &Kind,
        path: &str,
    ) -> bool {
        let start = self.token().span;
        let Some((written, span)) = self.written(kind, path) else { return false };
        let element = self.element_path(frame, field, path, &start);
        match written.map(|written| scalar::value(kind, &written)) {
            Some(Ok(value)) => store(frame, field, value),
            Some(Err(wrong)) => {
                let expected = Some(wrong.expected);
                self.report(&span, &element, wrong.message, expected, wrong.suggestion);
                // The place in the list is taken, so that the elements after
                // it keep their numbers.
                if field.is_list() {
                    store(frame, field, Value::default_value(kind));
                }
            }
            None => {}
        }
        true
    }

    /// Reads the tokens of a scalar. `None` if there are none; no value inside
    /// if it is wrong in itself, which has been reported then.
    fn written(&mut self, kind: &Kind, path: &str) -> Option<(Option<Written<'a>>, Span)> {
        let first = self.token();
        let negative = self.is('-');
        let token = if negative { self.peek(1) } else { first.clone() };
        let span = first.span.start..token.span.end;
        let text = self.text(&token);
        let value = match token.kind {
            TokenKind::Number => match literal::number(text) {
                Some(number) => Some(Written::Number { number, negative, text }),
                None => {
                    let message = format!("'{}' is not a number", short(text));
                    self.report(&span, path, message, Some(expectation(kind)), None);
                    None
                }
            },
            // The next field, so the value is missing.
            TokenKind::Identifier if !negative && self.starts_field() => {
                self.unexpected(path, &expectation(kind));
                return None;
            }
            TokenKind::Identifier => Some(Written::Name { name: text, negative }),
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

    /// Reads one string and those that directly follow it, which continue it.
    fn strings(&mut self, path: &str) -> (Option<Written<'a>>, Span) {
        let mut bytes = Vec::new();
        let mut whole = true;
        let mut span = self.token().span;
        while self.token().kind == TokenKind::String {
            let token = self.token();
            match literal::string(self.text(&token)) {
                _ if self.broken.contains(&token.span.start) => whole = false,
                Ok(part) => bytes.extend(part),
                Err(error) => {
                    whole = false;
                    let start = token.span.start.saturating_add(error.offset);
                    let wrong = start..start.saturating_add(error.length);
                    self.report(&wrong, path, error.message, None, None);
                }
            }
            span.end = token.span.end;
            self.advance();
        }
        (whole.then_some(Written::Text(bytes)), span)
    }

    /// Reads a list in brackets, element by element.
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

    fn element_path(
        &mut self,
        frame: &Frame,
        field: &FieldDescriptor,
        path: &str,
        span: &Span,
    ) -> String {
        if !field.is_list() && !field.is_map() {
            return path.to_owned();
        }
        let index = match frame.message.get_field(field).as_ref() {
            Value::List(list) => list.len(),
            Value::Map(map) => map.len(),
            _ => 0,
        };
        let element = format!("{path}[{index}]");
        self.spans.entry(element.clone()).or_insert_with(|| span.clone());
        element
    }

    // Recovery.

    /// Skips the value of a field whose name has been read.
    fn skip_value(&mut self) {
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

    /// Skips a bracket and everything up to the one that closes it.
    fn skip_brackets(&mut self) {
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

    /// Skips to the end of a list's element.
    fn skip_element(&mut self) {
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

    /// Skips to where a field, or the end of the message, may be.
    fn recover(&mut self) {
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

    /// Whether a field seems to begin here: a name and what may follow it.
    fn starts_field(&self) -> bool {
        self.token().kind == TokenKind::Identifier
            && matches!(self.peek(1).kind, TokenKind::Symbol(':' | '{' | '<' | '['))
    }
}

fn store(frame: &mut Frame, field: &FieldDescriptor, value: Value) {
    if field.is_list() {
        if let Some(list) = frame.message.get_field_mut(field).as_list_mut() {
            list.push(value);
        }
    } else {
        frame.message.set_field(field, value);
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// How a diagnostic calls a message; entries of maps have no name of their own.
fn owner(descriptor: &MessageDescriptor) -> &str {
    if descriptor.is_map_entry() { "an entry of a map" } else { descriptor.name() }
}

fn map_key_number(key: &MapKey) -> String {
    match key {
        MapKey::Bool(b) => b.to_string(),
        MapKey::I32(i) => i.to_string(),
        MapKey::I64(i) => i.to_string(),
        MapKey::U32(u) => u.to_string(),
        MapKey::U64(u) => u.to_string(),
        MapKey::String(s) => s.clone(),
    }
}
