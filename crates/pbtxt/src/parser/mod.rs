//! Parses tokens into a message according to its descriptor.

mod recovery;
mod values;

use std::collections::{BTreeMap, BTreeSet};

use galatea_protocol::schema::{FieldCardinality, FieldDescriptor, FieldKind, MessageDescriptor};

use super::lexer::{Lexer, Token, TokenKind};
use super::scalar::{expectation, short};
use galatea_config_message::dynamic::{DynamicMessage, MessageLimiter};
use galatea_config_message::nearest_name;
use galatea_config_message::{BoundedText, DIAGNOSTICS_MAX, Diagnostic};
use galatea_config_message::{FieldSpans, SourceText, Span};

/// The message in a file, the positions of its fields, and its errors.
pub(super) struct ParsedMessage {
    pub(super) message: DynamicMessage,
    pub(super) spans: FieldSpans,
    pub(super) diagnostics: Vec<Diagnostic>,
}

/// Parses a whole file as one message.
///
/// Messages nest no deeper than the schema, which is not recursive, and unknown fields are skipped
/// without recursion. The input therefore can't exhaust the stack.
pub(super) fn parse(source: &SourceText, descriptor: &'static MessageDescriptor) -> ParsedMessage {
    let mut lexer = Lexer::new(source.text());
    let mut parser = Parser {
        source,
        next: [lexer.token(), lexer.token()],
        lexer,
        previous_end: 0,
        spans: FieldSpans::default(),
        diagnostics: Vec::new(),
        root: descriptor,
        unterminated: BTreeSet::new(),
        messages: MessageLimiter::for_text(source.text()),
    };
    parser.report_lexical_errors();
    let message = parser.message(descriptor, "", None);
    ParsedMessage { message, spans: parser.spans, diagnostics: parser.diagnostics }
}

struct Parser<'a> {
    source: &'a SourceText,
    lexer: Lexer<'a>,
    /// The next two tokens.
    next: [Token; 2],
    /// The end of the preceding token.
    previous_end: usize,
    spans: FieldSpans,
    diagnostics: Vec<Diagnostic>,
    /// The message type of the whole file.
    root: &'static MessageDescriptor,
    /// The starts of unterminated strings, which have already been reported.
    unterminated: BTreeSet<usize>,
    messages: MessageLimiter,
}

/// A message that is being parsed.
struct PartialMessage {
    message: DynamicMessage,
    path: String,
    /// The field that first set each field or `oneof`.
    set: BTreeMap<&'static str, &'static str>,
}

/// The direct container of a message.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Container {
    Field,
    List,
}

/// The opening bracket of a message.
#[derive(Clone)]
struct OpenBracket {
    closer: char,
    span: Span,
    container: Container,
}

impl<'a> Parser<'a> {
    // Tokens.

    fn token(&self) -> Token {
        let [token, _] = &self.next;
        token.clone()
    }

    /// The token after the next one.
    fn second(&self) -> Token {
        let [_, token] = &self.next;
        token.clone()
    }

    fn text(&self, token: &Token) -> &'a str {
        self.source.text().get(token.span.clone()).unwrap_or("")
    }

    fn advance(&mut self) {
        let [token, second] = &mut self.next;
        self.previous_end = token.span.end;
        *token = std::mem::replace(second, self.lexer.token());
        self.report_lexical_errors();
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
        suggestion: Option<BoundedText>,
    ) {
        if self.is_full() {
            return;
        }
        let path = BoundedText::truncated(path);
        let mut diagnostic =
            Diagnostic::about(path.clone(), BoundedText::truncated(&message.into()));
        if self.diagnostics.len().saturating_add(1) == DIAGNOSTICS_MAX {
            diagnostic = Diagnostic::about(path, "and more errors, which are not shown");
        } else {
            diagnostic.expected = expected.as_deref().map(BoundedText::truncated);
            diagnostic.suggestion = suggestion;
        }
        self.source.locate_diagnostic(&mut diagnostic, span);
        self.diagnostics.push(diagnostic);
    }

    fn report_lexical_errors(&mut self) {
        for error in self.lexer.take_errors() {
            self.unterminated.insert(error.span.start);
            self.report(&error.span, "", error.message, None, None);
        }
    }

    /// Returns true if no further errors will be kept.
    const fn is_full(&self) -> bool {
        self.diagnostics.len() >= DIAGNOSTICS_MAX
    }

    /// Reports that the next token is not the expected one.
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
        descriptor: &'static MessageDescriptor,
        path: &str,
        bracket: Option<&OpenBracket>,
    ) -> DynamicMessage {
        let mut partial = PartialMessage {
            message: DynamicMessage::new(descriptor),
            path: path.to_owned(),
            set: BTreeMap::new(),
        };
        loop {
            match self.token().kind {
                TokenKind::Identifier => {
                    self.field(&mut partial);
                    if !self.take(',') {
                        self.take(';');
                    }
                }
                TokenKind::Symbol(c) if bracket.is_some_and(|o| o.closer == c) => {
                    self.advance();
                    return partial.message;
                }
                TokenKind::Symbol(c @ ('}' | '>')) => {
                    let Some(bracket) = bracket else {
                        self.report_stray_closer(c);
                        continue;
                    };
                    let expected = format!("'{}'", bracket.closer);
                    self.unexpected(path, &expected);
                    self.advance();
                    return partial.message;
                }
                TokenKind::End => {
                    if let Some(bracket) = bracket {
                        let message = format!("there is no '{}' for this", bracket.closer);
                        self.report(&bracket.span.clone(), path, message, None, None);
                    }
                    return partial.message;
                }
                TokenKind::Symbol(']') if let Some(bracket) = bracket => {
                    let expected = format!("'{}'", bracket.closer);
                    self.unexpected(path, &expected);
                    if bracket.container == Container::Field {
                        self.advance();
                    }
                    return partial.message;
                }
                TokenKind::Symbol('[') => self.extension(&partial.path),
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

    /// Skips `[package.extension]` or `[type.host/name]` in place of a field name.
    fn extension(&mut self, path: &str) {
        let start = self.token().span.start;
        self.skip_brackets();
        self.report(
            &(start..self.previous_end),
            path,
            "extensions and Any messages have no place in a configuration",
            Some("the name of a field".to_owned()),
            None,
        );
        self.skip_value();
    }

    fn field(&mut self, partial: &mut PartialMessage) {
        let name_token = self.token();
        let name = self.text(&name_token);
        self.advance();
        let descriptor = partial.message.descriptor();
        let Some(field) = descriptor.field(name) else {
            self.unknown_field(descriptor, &name_token, &partial.path);
            return self.skip_value();
        };
        let path = join(&partial.path, name);
        self.spans.add_if_absent(&path, &name_token.span);
        if field.arity == FieldCardinality::One {
            self.check_set_once(partial, field, &name_token.span, &path);
        }
        match field.kind {
            FieldKind::Message(inner) => {
                self.take(':');
                self.message_values(partial, field, inner, &path);
            }
            kind => {
                if !self.take(':') {
                    self.unexpected(&path, &format!("':' and {}", expectation(kind)));
                    return self.skip_value();
                }
                self.scalar_values(partial, field, kind, &path);
            }
        }
    }

    fn unknown_field(&mut self, descriptor: &MessageDescriptor, token: &Token, path: &str) {
        if self.is_full() {
            return;
        }
        let name = self.text(token);
        let suggestion = nearest_name(name, descriptor.names());
        let mut message = format!("unknown field '{}' in {}", short(name), owner(descriptor));
        // The name is a field of the root message: this message was probably not closed.
        if suggestion.is_none() && self.root.field(name).is_some() {
            message.push_str(", a '}' may be missing before it");
        }
        self.report(&token.span, &join(path, &short(name)), message, None, suggestion);
    }

    fn check_set_once(
        &mut self,
        partial: &mut PartialMessage,
        field: &FieldDescriptor,
        span: &Span,
        path: &str,
    ) {
        // No `oneof` shares its name with a field of the same message.
        let key = field.oneof.unwrap_or_else(|| field.name());
        let Some(first) = partial.set.insert(key, field.name()) else { return };
        let message = if first == field.name() {
            format!("'{first}' is given more than once")
        } else {
            let oneof = field.oneof.unwrap_or_default();
            format!("'{}' excludes '{first}': there is one {oneof}", field.name())
        };
        self.report(span, path, message, None, None);
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// The name of a message in a diagnostic. Map entries have no name of their own.
fn owner(descriptor: &MessageDescriptor) -> &'static str {
    if descriptor.is_map_entry { "an entry of a map" } else { descriptor.name }
}
