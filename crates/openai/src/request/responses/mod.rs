//! Requests of OpenAI's Responses API, which become requests for chats. Triton's frontend has no
//! such requests.
//!
//! The server keeps no state between requests, and has no tools of its own. Fields that need
//! either are refused by name. Fields that have no effect are refused unless they ask for what the
//! server does anyway.

mod fixed;
mod input;
mod tools;

use self::input::messages;
use self::tools::{ChosenTools, chosen_tools};
use super::chat_schema::{OPTIONAL_BOOL, OPTIONAL_TEXT, TEMPERATURE, TOP_P};
use super::{ChatRequest, Fields};
use crate::Failure;
use crate::json::{JsonValue, Object, push_compact, push_string};
use crate::schema::{Default, Extra, Field, ObjectForm, Schema};

static TEXT: Schema = Schema::Text;
static POSITIVE: Schema = Schema::Int { min: Some(1), max: None };

const fn any(name: &'static str) -> Field {
    Field::optional(name, Schema::Any, Default::Null)
}

static RESPONSES: Schema = Schema::ObjectForm(&ObjectForm {
    fields: &[
        Field::required("model", Schema::Text),
        Field::required("input", Schema::Any),
        Field::optional("instructions", OPTIONAL_TEXT, Default::Null),
        Field::optional("max_output_tokens", Schema::Nullable(&POSITIVE), Default::Null),
        Field::optional("metadata", Schema::Nullable(&Schema::Map(&TEXT)), Default::Null),
        Field::optional("parallel_tool_calls", OPTIONAL_BOOL, Default::Null),
        Field::optional("prompt_cache_key", OPTIONAL_TEXT, Default::Null),
        Field::optional("safety_identifier", OPTIONAL_TEXT, Default::Null),
        Field::optional("stream", OPTIONAL_BOOL, Default::Null),
        Field::optional("temperature", TEMPERATURE, Default::Null),
        Field::optional("top_p", TOP_P, Default::Null),
        Field::optional("user", OPTIONAL_TEXT, Default::Null),
        any("include"),
        any("reasoning"),
        any("stream_options"),
        any("text"),
        any("tool_choice"),
        any("tools"),
        any("access_programs"),
        any("background"),
        any("background_options"),
        any("context_management"),
        any("conversation"),
        any("image"),
        any("max_tool_calls"),
        any("moderation"),
        any("previous_response_id"),
        any("prompt"),
        any("prompt_cache_options"),
        any("prompt_cache_retention"),
        any("service_tier"),
        any("store"),
        any("top_logprobs"),
        any("truncation"),
    ],
    extra: Extra::Forbidden,
});

/// The defaults of OpenAI's API.
const TEMPERATURE_DEFAULT: f64 = 1.0;
const TOP_P_DEFAULT: f64 = 1.0;

/// The part of a request that contains the schema of the text.
const SCHEMA_FIELD: &str = "text.format";

/// A request for a response.
#[derive(Clone, Debug)]
pub struct ResponsesRequest {
    chat: ChatRequest,
    /// The members of the request that the response repeats, as JSON, each after a comma.
    echo: Vec<u8>,
}

impl ResponsesRequest {
    /// Validates the fields of a body.
    ///
    /// # Errors
    ///
    /// Code 400 for invalid and unsupported fields.
    pub fn check(body: &JsonValue) -> Result<Self, Failure> {
        let fields = Fields::check(body, &RESPONSES)?;
        fixed::check(&fields)?;
        let chosen = chosen_tools(&fields)?;
        let format = text_format(&fields)?;
        let messages = messages(&fields)?;
        let echo = members_text(&echo(&fields, &chosen));
        let chat = chat_body(&fields, messages, chosen, format);
        let chat = ChatRequest::check(&chat)?.with_schema_field(SCHEMA_FIELD);
        Ok(Self { chat, echo })
    }

    /// Returns the request for a chat, and the members of this request that the response repeats:
    /// JSON, with a comma before each member.
    #[must_use]
    pub fn into_parts(self) -> (ChatRequest, Vec<u8>) {
        (self.chat, self.echo)
    }
}

fn members_text(members: &Object) -> Vec<u8> {
    let mut text = Vec::new();
    for (name, value) in members.iter() {
        text.push(b',');
        push_string(&mut text, name);
        text.push(b':');
        push_compact(&mut text, value);
    }
    text.shrink_to_fit();
    text
}

/// Creates a refusal of a field.
fn refused(param: impl Into<String>, text: impl Into<String>) -> Failure {
    Failure::Field { param: param.into(), text: text.into(), code: Some("unsupported_value") }
}

/// Creates the error for a value of the wrong type.
fn mistyped(param: &str, expected: &str) -> Failure {
    let text = format!("Invalid type for '{param}': expected {expected}.");
    Failure::Field { param: param.to_owned(), text, code: Some("invalid_type") }
}

/// Returns a member that is not `null`.
fn member<'o>(object: &'o Object, name: &str) -> Option<&'o JsonValue> {
    object.get(name).filter(|value| !value.is_null())
}

/// Returns a required string.
fn required_text<'o>(object: &'o Object, name: &str, at: &str) -> Result<&'o str, Failure> {
    let param = || format!("{at}.{name}");
    match member(object, name) {
        Some(value) => value.as_str().ok_or_else(|| mistyped(&param(), "a string")),
        None => Err(Failure::Field {
            text: format!("Missing required parameter: '{}'.", param()),
            param: param(),
            code: Some("missing_required_parameter"),
        }),
    }
}

/// Returns the form of the text in the form that requests for chats have.
fn text_format(fields: &Fields) -> Result<Option<JsonValue>, Failure> {
    let Some(text) = fields.get("text") else { return Ok(None) };
    let text = text.as_object().ok_or_else(|| mistyped("text", "an object"))?;
    fixed::check_text(text)?;
    let Some(format) = member(text, "format") else { return Ok(None) };
    let format = format.as_object().ok_or_else(|| mistyped(SCHEMA_FIELD, "an object"))?;
    let kind = required_text(format, "type", SCHEMA_FIELD)?;
    let mut shown = Object::default();
    shown.push("type", JsonValue::text(kind));
    match kind {
        "text" => return Ok(None),
        "json_object" => {}
        "json_schema" => {
            let name = required_text(format, "name", SCHEMA_FIELD)?;
            let schema = member(format, "schema").filter(|schema| schema.as_object().is_some());
            let schema = schema.ok_or_else(|| mistyped("text.format.schema", "an object"))?;
            let mut described = Object::default();
            described.push("name", JsonValue::text(name));
            described.push("schema", schema.clone());
            shown.push("json_schema", JsonValue::Object(described));
        }
        _ => {
            return Err(refused(
                "text.format.type",
                "Invalid value for 'text.format.type': the types are 'text', 'json_object' and \
                 'json_schema'.",
            ));
        }
    }
    Ok(Some(JsonValue::Object(shown)))
}

fn temperature(fields: &Fields) -> JsonValue {
    fields.get("temperature").cloned().unwrap_or(JsonValue::Float(TEMPERATURE_DEFAULT))
}

fn top_p(fields: &Fields) -> JsonValue {
    fields.get("top_p").cloned().unwrap_or(JsonValue::Float(TOP_P_DEFAULT))
}

fn chat_body(
    fields: &Fields,
    messages: Vec<JsonValue>,
    chosen: ChosenTools,
    format: Option<JsonValue>,
) -> JsonValue {
    let mut chat = Object::default();
    chat.push("model", JsonValue::text(fields.text("model").unwrap_or_default()));
    chat.push("messages", JsonValue::List(messages));
    chat.push("temperature", temperature(fields));
    chat.push("top_p", top_p(fields));
    chat.push("stream", JsonValue::Bool(fields.is_true("stream")));
    let tokens_max = fields.get("max_output_tokens").cloned();
    let more = [
        ("max_completion_tokens", tokens_max),
        ("tools", chosen.tools),
        ("tool_choice", chosen.choice),
        ("response_format", format),
    ];
    for (name, value) in more {
        if let Some(value) = value {
            chat.push(name, value);
        }
    }
    JsonValue::Object(chat)
}

/// Returns the members of the request that the response repeats, with their defaults.
fn echo(fields: &Fields, chosen: &ChosenTools) -> Object {
    let sent = |name| fields.get(name).cloned().unwrap_or(JsonValue::Null);
    let or = |name, default| fields.get(name).cloned().unwrap_or(default);
    let single = |name: &str, value| {
        let mut object = Object::default();
        object.push(name, value);
        JsonValue::Object(object)
    };
    let plain = single("format", single("type", JsonValue::text("text")));
    let text = fields
        .get("text")
        .filter(|text| text.as_object().is_some_and(|text| member(text, "format").is_some()));
    let parallel = or("parallel_tool_calls", JsonValue::Bool(true));
    let mut echo = Object::default();
    for (name, value) in [
        ("background", JsonValue::Bool(false)),
        ("instructions", sent("instructions")),
        ("max_output_tokens", sent("max_output_tokens")),
        ("max_tool_calls", JsonValue::Null),
        ("metadata", or("metadata", JsonValue::Object(Object::default()))),
        ("model", sent("model")),
        ("parallel_tool_calls", parallel),
        ("previous_response_id", JsonValue::Null),
        ("prompt_cache_key", sent("prompt_cache_key")),
        ("safety_identifier", sent("safety_identifier")),
        ("service_tier", JsonValue::text("default")),
        ("store", JsonValue::Bool(false)),
        ("temperature", temperature(fields)),
        ("text", text.cloned().unwrap_or(plain)),
        ("tool_choice", chosen.sent_choice.clone()),
        ("tools", or("tools", JsonValue::List(Vec::new()))),
        ("top_logprobs", JsonValue::Int(0)),
        ("top_p", top_p(fields)),
        ("truncation", JsonValue::text("disabled")),
        ("user", sent("user")),
    ] {
        echo.push(name, value);
    }
    echo
}

#[cfg(test)]
mod tests;
