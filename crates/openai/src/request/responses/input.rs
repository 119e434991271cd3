//! The input of responses, in the form of the messages of a chat.

use super::super::Fields;
use super::{member, mistyped, refused, required_text};
use crate::Failure;
use crate::json::{JsonValue, Object};

/// The maximum number of items.
const ITEMS_MAX: usize = 1 << 14;

/// Returns the messages of a chat: the instructions, and the items of the input.
pub(super) fn messages(fields: &Fields) -> Result<Vec<JsonValue>, Failure> {
    let mut messages = Vec::new();
    if let Some(instructions) = fields.text("instructions") {
        messages.push(message("system", instructions));
    }
    match fields.get("input") {
        Some(JsonValue::Text(text)) => messages.push(message("user", text)),
        Some(JsonValue::List(items)) if items.len() > ITEMS_MAX => {
            let text =
                format!("Received {} items, but at most {ITEMS_MAX} are supported", items.len());
            return Err(refused("input", text));
        }
        Some(JsonValue::List(items)) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                let at = format!("input[{index}]");
                let item = item.as_object().ok_or_else(|| mistyped(&at, "an object"))?;
                add_item(&mut messages, item, &at)?;
            }
        }
        _ => return Err(mistyped("input", "a string or a list of items that is not empty")),
    }
    // The last place is not reached by a message that takes further calls.
    Ok(messages.into_iter().map(JsonValue::Object).collect())
}

fn message(role: &str, content: &str) -> Object {
    let mut message = Object::default();
    message.push("role", JsonValue::text(role));
    message.push("content", JsonValue::text(content));
    message
}

fn add_item(messages: &mut Vec<Object>, item: &Object, at: &str) -> Result<(), Failure> {
    let kind = match member(item, "type") {
        None => "message",
        Some(kind) => kind.as_str().ok_or_else(|| mistyped(&format!("{at}.type"), "a string"))?,
    };
    match kind {
        "message" => messages.push(input_message(item, at)?),
        "function_call" => add_call(messages, item, at)?,
        "function_call_output" => {
            let id = required_text(item, "call_id", at)?;
            let mut output = message("tool", &content(item, "output", at)?);
            output.push("tool_call_id", JsonValue::text(id));
            messages.push(output);
        }
        _ => {
            let text = format!(
                "Unsupported value: '{at}.type' can only be 'message', 'function_call' or \
                 'function_call_output'."
            );
            return Err(refused(format!("{at}.type"), text));
        }
    }
    Ok(())
}

fn input_message(item: &Object, at: &str) -> Result<Object, Failure> {
    let role = match required_text(item, "role", at)? {
        role @ ("user" | "assistant" | "system") => role,
        // Templates know the role under its earlier name.
        "developer" => "system",
        _ => {
            let text = format!(
                "Invalid value for '{at}.role': the roles are 'user', 'assistant', 'system' and \
                 'developer'."
            );
            return Err(refused(format!("{at}.role"), text));
        }
    };
    Ok(message(role, &content(item, "content", at)?))
}

/// Returns the text of a string or a list of parts, with a line for each part.
fn content(item: &Object, name: &str, at: &str) -> Result<String, Failure> {
    let at = format!("{at}.{name}");
    match member(item, name) {
        Some(JsonValue::Text(text)) => Ok(text.to_string()),
        Some(JsonValue::List(parts)) => {
            let part = |(index, part): (usize, &JsonValue)| {
                let at = format!("{at}[{index}]");
                let part = part.as_object().ok_or_else(|| mistyped(&at, "an object"))?;
                part_text(part, &at).map(str::to_owned)
            };
            let parts: Vec<String> =
                parts.iter().enumerate().map(part).collect::<Result<_, _>>()?;
            Ok(parts.join("\n"))
        }
        _ => Err(mistyped(&at, "a string or a list")),
    }
}

fn part_text<'p>(part: &'p Object, at: &str) -> Result<&'p str, Failure> {
    match required_text(part, "type", at)? {
        "input_text" | "output_text" => required_text(part, "text", at),
        "refusal" => required_text(part, "refusal", at),
        kind => {
            let kind = kind.escape_debug();
            let text =
                format!("Unsupported value: '{at}' is of type '{kind}', but models take text.");
            Err(refused(format!("{at}.type"), text))
        }
    }
}

/// Adds a call to the message of the assistant that precedes it.
fn add_call(messages: &mut Vec<Object>, item: &Object, at: &str) -> Result<(), Failure> {
    let mut function = Object::default();
    for name in ["name", "arguments"] {
        function.push(name, JsonValue::text(required_text(item, name, at)?));
    }
    let mut call = Object::default();
    call.push("id", JsonValue::text(required_text(item, "call_id", at)?));
    call.push("type", JsonValue::text("function"));
    call.push("function", JsonValue::Object(function));
    let is_assistant = |message: &&mut Object| {
        message.get("role").and_then(JsonValue::as_str) == Some("assistant")
    };
    if messages.last_mut().filter(is_assistant).is_none() {
        let mut message = Object::default();
        message.push("role", JsonValue::text("assistant"));
        message.push("content", JsonValue::Null);
        messages.push(message);
    }
    if let Some(message) = messages.last_mut() {
        message.push_to_list("tool_calls", JsonValue::Object(call));
    }
    Ok(())
}
