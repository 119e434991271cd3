//! Edits a configuration file while preserving the rest of it, including comments.

use super::lexer::{self, Token, TokenKind};
use super::literal;
use galatea_config_message::Span;

/// The text of a `config.pbtxt`, for field-by-field changes.
///
/// Fields are found only by name: the caller must parse the result to check that it is the desired
/// configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PbtxtEditor {
    text: String,
}

/// A field and its value.
#[derive(Clone, Debug)]
struct Field {
    name: String,
    /// The span from the field's name to the end of its value, including a separator.
    span: Span,
    value: Span,
    /// The messages in the value.
    bodies: Vec<Body>,
}

/// The contents of a message in brackets.
#[derive(Clone, Debug)]
struct Body {
    /// The span, without the brackets.
    span: Span,
    fields: Vec<Field>,
}

impl PbtxtEditor {
    /// Wraps the text of a file.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into() }
    }

    /// The changed text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Sets a field of the configuration to a value in the text format.
    pub fn set(&mut self, name: &str, value: &str) {
        match self.fields().into_iter().rfind(|field| field.name == name) {
            Some(field) => self.replace(&field.value, value),
            None => self.append(&format!("{name}: {value}")),
        }
    }

    /// Sets a field in the first message with this name. Returns false if there is none.
    pub fn set_within(&mut self, message: &str, name: &str, value: &str) -> bool {
        let mut bodies = self.bodies(message).into_iter();
        let Some(body) = bodies.next() else { return false };
        self.set_in(&body, name, value);
        true
    }

    /// The number of messages in a field of the configuration.
    #[must_use]
    pub fn message_count(&self, name: &str) -> usize {
        self.bodies(name).len()
    }

    /// Removes the fields with this name, along with their lines.
    pub fn remove(&mut self, name: &str) {
        while let Some(field) = self.fields().into_iter().find(|field| field.name == name) {
            self.cut(&field.span);
        }
    }

    /// Adds a line.
    pub fn append(&mut self, line: &str) {
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Sets a model parameter to a number.
    pub fn set_parameter(&mut self, key: &str, value: u64) {
        let value = format!("\"{value}\"");
        let own = self.bodies("parameters").into_iter().find(|body| self.is_about(body, key));
        let inner = own.and_then(|body| {
            body.fields.into_iter().find(|field| field.name == "value")?.bodies.into_iter().next()
        });
        match inner {
            Some(body) => self.set_in(&body, "string_value", &value),
            None => self.append(&format!(
                "parameters {{ key: \"{key}\" value {{ string_value: {value} }} }}"
            )),
        }
    }

    /// Removes a parameter that is a separate field, not an element of a list.
    pub fn remove_parameter(&mut self, key: &str) {
        let is_about = |field: &Field| {
            let [body] = field.bodies.as_slice() else { return false };
            field.name == "parameters" && self.is_about(body, key)
        };
        if let Some(field) = self.fields().into_iter().find(is_about) {
            self.cut(&field.span);
        }
    }

    fn is_about(&self, body: &Body, key: &str) -> bool {
        let named = body.fields.iter().find(|field| field.name == "key");
        let token = named.and_then(|field| self.text.get(field.value.clone()));
        token.and_then(|token| literal::string(token).ok()).is_some_and(|own| own == key.as_bytes())
    }

    fn set_in(&mut self, body: &Body, name: &str, value: &str) {
        if let Some(field) = body.fields.iter().rfind(|field| field.name == name) {
            return self.replace(&field.value, value);
        }
        // Insert before the first field, with its indentation if it is on a separate line.
        let first = body.fields.first().map(|field| field.span.start);
        let at = first.unwrap_or(body.span.start);
        let line = self.text.get(..at).and_then(|before| before.rsplit('\n').next());
        let indent = line.filter(|line| line.trim().is_empty() && first.is_some());
        let added = match indent {
            Some(indent) => format!("{name}: {value}\n{indent}"),
            None if first.is_some() => format!("{name}: {value} "),
            None => format!(" {name}: {value}"),
        };
        self.replace(&(at..at), &added);
    }

    fn replace(&mut self, span: &Span, text: &str) {
        self.text.replace_range(span.clone(), text);
    }

    /// Removes a span, including its line if nothing else is on it.
    fn cut(&mut self, span: &Span) {
        let (before, behind) = (&self.text[..span.start], &self.text[span.end..]);
        let begin = before.trim_end_matches([' ', '\t']);
        let rest = behind.trim_start_matches([' ', '\t', '\r']);
        let is_alone = (begin.is_empty() || begin.ends_with('\n')) && rest.starts_with('\n');
        let cut =
            if is_alone { begin.len()..self.text.len() - rest.len() + 1 } else { span.clone() };
        self.text.replace_range(cut, "");
    }

    fn bodies(&self, name: &str) -> Vec<Body> {
        let fields = self.fields().into_iter().filter(|field| field.name == name);
        fields.flat_map(|field| field.bodies).collect()
    }

    fn fields(&self) -> Vec<Field> {
        let tokens = lexer::tokens(&self.text);
        Reader { text: &self.text, tokens: &tokens, at: 0 }.fields(true)
    }
}

/// A field reader that needs no descriptor.
struct Reader<'a> {
    text: &'a str,
    tokens: &'a [Token],
    at: usize,
}

impl Reader<'_> {
    fn kind(&self) -> TokenKind {
        self.tokens.get(self.at).map_or(TokenKind::End, |token| token.kind)
    }

    fn start(&self) -> usize {
        self.tokens.get(self.at).map_or(self.text.len(), |token| token.span.start)
    }

    /// The end of the last token read.
    fn end(&self) -> usize {
        let last = self.at.checked_sub(1).and_then(|at| self.tokens.get(at));
        last.map_or(0, |token| token.span.end)
    }

    /// Reads the fields up to a closing bracket, or in the whole text. The nesting is no deeper
    /// than the parser has already read.
    fn fields(&mut self, is_whole: bool) -> Vec<Field> {
        let mut fields = Vec::new();
        loop {
            match self.kind() {
                TokenKind::Identifier => fields.push(self.field()),
                TokenKind::End => return fields,
                TokenKind::Symbol('}' | '>') if !is_whole => return fields,
                _ => self.at += 1,
            }
        }
    }

    fn field(&mut self) -> Field {
        let start = self.start();
        self.at += 1;
        let name = self.text.get(start..self.end()).unwrap_or_default().to_owned();
        if self.kind() == TokenKind::Symbol(':') {
            self.at += 1;
        }
        let from = self.start();
        let bodies = self.value();
        let value = from..self.end();
        if matches!(self.kind(), TokenKind::Symbol(',' | ';')) {
            self.at += 1;
        }
        Field { name, span: start..self.end(), value, bodies }
    }

    /// Reads a value and returns its messages.
    fn value(&mut self) -> Vec<Body> {
        match self.kind() {
            TokenKind::Symbol('{' | '<') => self.body().into_iter().collect(),
            TokenKind::Symbol('[') => {
                self.at += 1;
                let mut bodies = Vec::new();
                loop {
                    match self.kind() {
                        TokenKind::Symbol('{' | '<') => bodies.extend(self.body()),
                        TokenKind::End => return bodies,
                        TokenKind::Symbol(']') => {
                            self.at += 1;
                            return bodies;
                        }
                        _ => self.at += 1,
                    }
                }
            }
            TokenKind::String => {
                while self.kind() == TokenKind::String {
                    self.at += 1;
                }
                Vec::new()
            }
            TokenKind::Symbol('-') => {
                self.at += 2;
                Vec::new()
            }
            TokenKind::End => Vec::new(),
            _ => {
                self.at += 1;
                Vec::new()
            }
        }
    }

    /// Reads a message, including its brackets.
    fn body(&mut self) -> Option<Body> {
        self.at += 1;
        let start = self.end();
        let fields = self.fields(false);
        let span = start..self.start();
        self.at += 1;
        Some(Body { span, fields })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
# A model.
name: \"m\"   # its name
max_batch_size : 4
input [ { name: \"max_batch_size\" dims: [ -1, 3 ] } ]
dynamic_batching {
  # Small ones.
  preferred_batch_size: [ 2, 4 ]
}
parameters { key: \"a\" value { string_value: \"max_batch_size: 1\" } }
parameters {
  key: 'b'  # of b
  value: { string_value: \"1\" }
}
";

    fn check(edit: impl Fn(&mut PbtxtEditor), changed: &[(&str, &str)]) {
        let mut text = PbtxtEditor::new(FILE);
        edit(&mut text);
        let mut expected = FILE.to_owned();
        for (from, to) in changed {
            assert!(expected.contains(from), "{from}");
            expected = expected.replacen(from, to, 1);
        }
        assert_eq!(text.as_str(), expected);
    }

    #[test]
    fn a_value_is_replaced_or_added_and_the_rest_stays() {
        check(|text| text.set("max_batch_size", "8"), &[("size : 4", "size : 8")]);
        check(
            |text| assert!(text.set_within("dynamic_batching", "preferred_batch_size", "[ 2 ]")),
            &[("[ 2, 4 ]", "[ 2 ]")],
        );
        check(
            |text| {
                text.set_within("dynamic_batching", "max_queue_delay_microseconds", "100");
            },
            &[("  pref", "  max_queue_delay_microseconds: 100\n  pref")],
        );
        let mut text = PbtxtEditor::new("a: -1 b < >");
        assert!(text.set_within("b", "c", "2") && !text.set_within("d", "c", "2"));
        text.set("a", "3");
        text.set("d", "[ 4 ]");
        assert_eq!(text.as_str(), "a: 3 b < c: 2 >\nd: [ 4 ]\n");
        let mut text = PbtxtEditor::new("instance_group [ { kind: KIND_CPU }, { count: 2 } ]");
        assert_eq!(text.message_count("instance_group"), 2);
        text.set_within("instance_group", "count", "3");
        assert_eq!(text.as_str(), "instance_group [ { count: 3 kind: KIND_CPU }, { count: 2 } ]");
    }

    #[test]
    fn fields_and_parameters_go_with_their_lines() {
        let batching = &FILE[FILE.find("dynamic").unwrap()..FILE.find("parameters").unwrap()];
        check(|text| text.remove("dynamic_batching"), &[(batching, "")]);
        check(|text| text.remove("name"), &[("name: \"m\"", "")]);
        let first = "parameters { key: \"a\" value { string_value: \"max_batch_size: 1\" } }\n";
        check(|text| text.remove_parameter("a"), &[(first, "")]);
        check(|text| text.remove_parameter("c"), &[]);
        check(|text| text.set_parameter("b", 2), &[("_value: \"1\"", "_value: \"2\"")]);
        let mut text = PbtxtEditor::new("max_batch_size: 2");
        text.set_parameter("c", 1);
        let added = "max_batch_size: 2\nparameters { key: \"c\" value { string_value: \"1\" } }\n";
        assert_eq!(text.as_str(), added);
    }

    #[test]
    fn any_text_can_be_changed() {
        for text in
            ["", "a", "a:", "a: {", "a [ {", "} a: 1", "a: -", "\"", "a: [ 1, ] b {}}", "# é"]
        {
            let mut text = PbtxtEditor::new(text);
            text.set("a", "1");
            text.set_within("a", "b", "2");
            text.set_parameter("c", 1);
            text.remove_parameter("c");
            text.remove("a");
        }
    }
}
