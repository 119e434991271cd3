//! Reads bodies as FastAPI does.

use crate::Failure;
use crate::json::{Bounds, JsonError, JsonValue, parse, values_max};
use crate::schema::{ErrorList, Issue, Problem};

/// The maximum number of values in a body. A value takes many times as much memory as its JSON.
const VALUES_MAX: usize = 1 << 20;

/// The content type of a body.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ContentType {
    /// JSON, or unspecified.
    Json,
    /// Anything else. FastAPI doesn't read such a body.
    Other,
}

impl ContentType {
    /// Returns the type that a header specifies.
    #[must_use]
    pub fn of(header: Option<&[u8]>) -> Self {
        let Some(header) = header.filter(|header| !header.is_empty()) else { return Self::Json };
        let essence = header.split(|byte| *byte == b';').next().unwrap_or_default();
        let essence = essence.trim_ascii().to_ascii_lowercase();
        let subtype = essence.strip_prefix(b"application/");
        let is_json =
            subtype.is_some_and(|subtype| subtype == b"json" || subtype.ends_with(b"+json"));
        if is_json { Self::Json } else { Self::Other }
    }
}

/// Returns an upper bound on the memory that [`read_body`] needs: twice the size of the body's
/// values, once as they were sent and once as they were validated.
#[must_use]
pub fn parsed_size(body: &[u8]) -> usize {
    values_size(values_max(body).min(VALUES_MAX), body.len())
}

/// Returns an upper bound on the memory for this many values, twice, from JSON of this length.
pub(crate) const fn values_size(values: usize, length: usize) -> usize {
    let names = size_of::<(Box<str>, JsonValue)>();
    values.saturating_mul(names).saturating_add(length).saturating_mul(2)
}

/// Reads a body.
///
/// # Errors
///
/// The errors match FastAPI's: code 422 for a body that is not JSON, and 400 for a body that Python
/// can't read for another reason.
pub fn read_body(body: &[u8], content_type: ContentType) -> Result<JsonValue, Failure> {
    if body.is_empty() {
        return Err(refused(Problem::Missing, &JsonValue::Null));
    }
    if content_type == ContentType::Other {
        let text = JsonValue::text(&String::from_utf8_lossy(body));
        return Err(refused(Problem::ModelType, &text));
    }
    let parsed = parse(body, Bounds { values_max: VALUES_MAX }).map_err(|error| match error {
        JsonError::Syntax { message, position, .. } => {
            Failure::Invalid(ErrorList::of_syntax(message, position))
        }
        JsonError::Unreadable => Failure::client("There was an error parsing the body"),
        JsonError::TooManyValues => {
            Failure::client(format!("the body has more than {VALUES_MAX} values"))
        }
    })?;
    if parsed.is_null() { Err(refused(Problem::Missing, &parsed)) } else { Ok(parsed) }
}

fn refused(problem: Problem, input: &JsonValue) -> Failure {
    let mut errors = ErrorList::default();
    errors.add(&[], &Issue { problem, input });
    Failure::Invalid(errors)
}
