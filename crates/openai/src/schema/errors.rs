//! A request's errors, in FastAPI's format.

use crate::json::{JsonValue, push_compact, push_string, python_float};

/// The size of the error list beyond which further errors are omitted. A few invalid values may
/// cause many errors, each of which repeats its value.
const BYTES_MAX: usize = 1 << 20;

/// A step on the path to a value.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    Name(&'a str),
    Index(usize),
}

/// One error.
pub(crate) struct Issue<'a> {
    pub(crate) problem: Problem,
    /// The value that has the error.
    pub(crate) input: &'a JsonValue,
}

/// The mistake in a value.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Problem {
    Missing,
    Extra,
    TextType,
    IntType,
    IntParsing,
    IntFraction,
    NotFinite,
    /// An integer that doesn't fit into 64 bits.
    IntSize,
    FloatType,
    FloatParsing,
    BoolType,
    BoolParsing,
    ListType,
    MapType,
    ModelType,
    Choice(&'static [&'static str]),
    Literal(&'static [&'static str]),
    UrlType,
    UrlParsing(&'static str),
    IntTooSmall(i64),
    IntTooLarge(i64),
    FloatTooSmall(f64),
    FloatTooLarge(f64),
    /// Too few items in a collection with this name.
    TooShort {
        kind: &'static str,
        min: usize,
        actual: usize,
    },
    TooLong {
        kind: &'static str,
        max: usize,
        actual: usize,
    },
}

/// The errors of a request, written one by one.
#[derive(Debug, Default)]
pub struct ErrorList {
    text: Vec<u8>,
    count: usize,
    /// The first error, in the terms of OpenAI's API.
    first: Option<FirstError>,
}

/// An error in the terms of OpenAI's API: the text, the path of the field, and the kind.
type FirstError = (String, Option<String>, Option<&'static str>);

/// Returns an error in the terms of OpenAI's API.
fn in_openai_terms(path: &[Step<'_>], problem: Problem) -> FirstError {
    let mut param = String::new();
    for step in path {
        match step {
            Step::Name(name) if param.is_empty() => param.push_str(name),
            Step::Name(name) => param.push_str(&format!(".{name}")),
            Step::Index(index) => param.push_str(&format!("[{index}]")),
        }
    }
    let (text, code) = match problem {
        Problem::Missing => {
            (format!("Missing required parameter: '{param}'."), "missing_required_parameter")
        }
        Problem::Extra => (format!("Unknown parameter: '{param}'."), "unknown_parameter"),
        other => (format!("Invalid value for '{param}': {}.", other.message()), "invalid_value"),
    };
    if param.is_empty() {
        return (format!("Invalid body: {}.", problem.message()), None, None);
    }
    (text, Some(param), Some(code))
}

impl ErrorList {
    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds an error at the end of a path.
    pub(crate) fn add(&mut self, path: &[Step<'_>], issue: &Issue<'_>) {
        self.count = self.count.saturating_add(1);
        self.first.get_or_insert_with(|| in_openai_terms(path, issue.problem));
        if self.text.len() > BYTES_MAX {
            return;
        }
        let before = self.text.len();
        self.text.extend_from_slice(if before == 0 { b"{\"type\":" } else { b",{\"type\":" });
        push_string(&mut self.text, issue.problem.kind());
        self.push_path(path);
        self.text.extend_from_slice(b",\"msg\":");
        push_string(&mut self.text, &issue.problem.message());
        self.text.extend_from_slice(b",\"input\":");
        self.push_input(issue.input);
        if let Some(context) = issue.problem.context() {
            self.text.extend_from_slice(b",\"ctx\":{");
            self.text.extend_from_slice(context.as_bytes());
            self.text.push(b'}');
        }
        self.text.push(b'}');
        if before > 0 && self.text.len() > BYTES_MAX {
            self.text.truncate(before);
        }
    }

    /// Repeats a value, unless the value is so long that it would dominate the response.
    fn push_input(&mut self, input: &JsonValue) {
        let start = self.text.len();
        push_compact(&mut self.text, input);
        if self.text.len().saturating_sub(start) > BYTES_MAX {
            self.text.truncate(start);
            self.text.extend_from_slice(b"null");
        }
    }

    fn push_path(&mut self, path: &[Step<'_>]) {
        self.text.extend_from_slice(b",\"loc\":[\"body\"");
        for step in path {
            self.text.push(b',');
            match step {
                Step::Name(name) => push_string(&mut self.text, name),
                Step::Index(index) => {
                    self.text.extend_from_slice(itoa::Buffer::new().format(*index).as_bytes());
                }
            }
        }
        self.text.push(b']');
    }

    /// Appends the errors of another list.
    pub(crate) fn append(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        if self.first.is_none() {
            self.first.clone_from(&other.first);
        }
        if other.text.is_empty() || self.text.len() > BYTES_MAX {
            return;
        }
        if !self.text.is_empty() {
            self.text.push(b',');
        }
        self.text.extend_from_slice(&other.text);
    }

    /// Returns the body of the response.
    #[must_use]
    pub fn into_document(self) -> Vec<u8> {
        let mut document = b"{\"detail\":[".to_vec();
        document.extend_from_slice(&self.text);
        document.extend_from_slice(b"]}");
        document
    }

    /// Returns the first error in the terms of OpenAI's API.
    pub(crate) fn into_first(self) -> FirstError {
        self.first.unwrap_or_else(|| (String::from("The request is invalid."), None, None))
    }

    /// The error list for a body that is not JSON.
    pub(crate) fn of_syntax(message: &str, position: usize) -> Self {
        let mut text = Vec::new();
        text.extend_from_slice(b"{\"type\":\"json_invalid\",\"loc\":[\"body\",");
        text.extend_from_slice(itoa::Buffer::new().format(position).as_bytes());
        text.extend_from_slice(b"],\"msg\":\"JSON decode error\",\"input\":{},\"ctx\":{\"error\":");
        push_string(&mut text, message);
        text.extend_from_slice(b"}}");
        let first = format!("The body is not JSON: {message} at position {position}.");
        Self { text, count: 1, first: Some((first, None, None)) }
    }
}

impl Problem {
    const fn kind(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Extra => "extra_forbidden",
            Self::TextType => "string_type",
            Self::IntType => "int_type",
            Self::IntParsing => "int_parsing",
            Self::IntFraction => "int_from_float",
            Self::NotFinite => "finite_number",
            Self::IntSize => "int_parsing_size",
            Self::FloatType => "float_type",
            Self::FloatParsing => "float_parsing",
            Self::BoolType => "bool_type",
            Self::BoolParsing => "bool_parsing",
            Self::ListType => "list_type",
            Self::MapType => "dict_type",
            Self::ModelType => "model_attributes_type",
            Self::Choice(_) => "enum",
            Self::Literal(_) => "literal_error",
            Self::UrlType => "url_type",
            Self::UrlParsing(_) => "url_parsing",
            Self::IntTooSmall(_) | Self::FloatTooSmall(_) => "greater_than_equal",
            Self::IntTooLarge(_) | Self::FloatTooLarge(_) => "less_than_equal",
            Self::TooShort { .. } => "too_short",
            Self::TooLong { .. } => "too_long",
        }
    }

    fn message(self) -> String {
        String::from(match self {
            Self::Missing => "Field required",
            Self::Extra => "Extra inputs are not permitted",
            Self::TextType => "Input should be a valid string",
            Self::IntType => "Input should be a valid integer",
            Self::IntParsing => {
                "Input should be a valid integer, unable to parse string as an integer"
            }
            Self::IntFraction => {
                "Input should be a valid integer, got a number with a fractional part"
            }
            Self::NotFinite => "Input should be a finite number",
            Self::IntSize => "Unable to parse input string as an integer, exceeded maximum size",
            Self::FloatType => "Input should be a valid number",
            Self::FloatParsing => {
                "Input should be a valid number, unable to parse string as a number"
            }
            Self::BoolType => "Input should be a valid boolean",
            Self::BoolParsing => "Input should be a valid boolean, unable to interpret input",
            Self::ListType => "Input should be a valid list",
            Self::MapType => "Input should be a valid dictionary",
            Self::ModelType => {
                "Input should be a valid dictionary or object to extract fields from"
            }
            Self::Choice(words) | Self::Literal(words) => {
                return format!("Input should be {}", alternatives(words));
            }
            Self::UrlType => "URL input should be a string or URL",
            Self::UrlParsing(reason) => return format!("Input should be a valid URL, {reason}"),
            Self::IntTooSmall(min) => {
                return format!("Input should be greater than or equal to {min}");
            }
            Self::IntTooLarge(max) => {
                return format!("Input should be less than or equal to {max}");
            }
            Self::FloatTooSmall(min) => {
                return format!("Input should be greater than or equal to {min}");
            }
            Self::FloatTooLarge(max) => {
                return format!("Input should be less than or equal to {max}");
            }
            Self::TooShort { kind, min, actual } => {
                let items = if min == 1 { "item" } else { "items" };
                return format!(
                    "{kind} should have at least {min} {items} after validation, not {actual}"
                );
            }
            Self::TooLong { kind, max, actual } => {
                let items = if max == 1 { "item" } else { "items" };
                return format!(
                    "{kind} should have at most {max} {items} after validation, not {actual}"
                );
            }
        })
    }

    /// The members of the error's context.
    fn context(self) -> Option<String> {
        Some(match self {
            Self::Choice(words) | Self::Literal(words) => {
                let mut text = b"\"expected\":".to_vec();
                push_string(&mut text, &alternatives(words));
                String::from_utf8_lossy(&text).into_owned()
            }
            Self::UrlParsing(reason) => format!("\"error\":\"{reason}\""),
            Self::IntTooSmall(min) => format!("\"ge\":{min}"),
            Self::IntTooLarge(max) => format!("\"le\":{max}"),
            Self::FloatTooSmall(min) => format!("\"ge\":{}", python_float(min)),
            Self::FloatTooLarge(max) => format!("\"le\":{}", python_float(max)),
            Self::TooShort { kind, min, actual } => {
                format!("\"field_type\":\"{kind}\",\"min_length\":{min},\"actual_length\":{actual}")
            }
            Self::TooLong { kind, max, actual } => {
                format!("\"field_type\":\"{kind}\",\"max_length\":{max},\"actual_length\":{actual}")
            }
            _ => return None,
        })
    }
}

/// Formats words as alternatives: `'a', 'b' or 'c'`.
fn alternatives(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        Some((last, _)) => last.clone(),
        None => String::new(),
    }
}
