//! Tools of responses, in the form that chats have.

use super::super::Fields;
use super::{member, mistyped, refused, required_text};
use crate::Failure;
use crate::json::{JsonValue, Object};

/// The maximum number of tools.
const TOOLS_MAX: usize = 1 << 10;

/// The members of a function. The server doesn't read `strict`: a schema that is sent to the model
/// is always complied with, and other arguments are those that the model writes.
const MEMBERS: [&str; 5] = ["type", "name", "description", "parameters", "strict"];

/// The tools and the choice, in the form that requests for chats have.
pub(super) struct ChosenTools {
    pub(super) tools: Option<JsonValue>,
    pub(super) choice: Option<JsonValue>,
    /// The choice as the client sent it.
    pub(super) sent_choice: JsonValue,
}

pub(super) fn chosen_tools(fields: &Fields) -> Result<ChosenTools, Failure> {
    let (tools, names) = tools(fields)?;
    let choice = match fields.get("tool_choice") {
        Some(choice) => Some(tool_choice(choice, &names)?),
        None => None,
    };
    let has_tools = !names.is_empty();
    let is_single = fields.get("parallel_tool_calls").and_then(JsonValue::as_bool) == Some(false);
    if has_tools && is_single {
        return Err(refused(
            "parallel_tool_calls",
            "Unsupported value: 'parallel_tool_calls' can only be true: the number of a text's \
             calls is not limited.",
        ));
    }
    let sent_choice = fields.get("tool_choice").cloned().unwrap_or(JsonValue::text("auto"));
    // A choice between no tools has no effect.
    let choice = choice.filter(|_| has_tools);
    Ok(ChosenTools { tools: has_tools.then_some(JsonValue::List(tools)), choice, sent_choice })
}

fn tools(fields: &Fields) -> Result<(Vec<JsonValue>, Vec<&str>), Failure> {
    let Some(sent) = fields.get("tools") else { return Ok((Vec::new(), Vec::new())) };
    let sent = sent.as_list().ok_or_else(|| mistyped("tools", "a list"))?;
    if sent.len() > TOOLS_MAX {
        let text = format!("Received {} tools, but at most {TOOLS_MAX} are supported", sent.len());
        return Err(refused("tools", text));
    }
    let (mut tools, mut names) = (Vec::with_capacity(sent.len()), Vec::new());
    for (index, tool) in sent.iter().enumerate() {
        let at = format!("tools[{index}]");
        let tool = tool.as_object().ok_or_else(|| mistyped(&at, "an object"))?;
        let (function, name) = function(tool, &at)?;
        tools.push(function);
        names.push(name);
    }
    Ok((tools, names))
}

fn function<'t>(tool: &'t Object, at: &str) -> Result<(JsonValue, &'t str), Failure> {
    let kind = required_text(tool, "type", at)?;
    if kind != "function" {
        let text = format!(
            "Unsupported value: '{at}.type' can only be 'function': there are no built-in tools."
        );
        return Err(refused(format!("{at}.type"), text));
    }
    for (name, _) in tool.iter().filter(|(_, value)| !value.is_null()) {
        if !MEMBERS.contains(&name) {
            let text = format!("Unsupported parameter: '{at}.{name}'.");
            return Err(refused(format!("{at}.{name}"), text));
        }
    }
    let name = required_text(tool, "name", at)?;
    let parameters = match member(tool, "parameters") {
        Some(parameters @ JsonValue::Object(_)) => parameters.clone(),
        Some(_) => return Err(mistyped(&format!("{at}.parameters"), "an object")),
        None => no_parameters(),
    };
    let mut function = Object::default();
    if let Some(description) = member(tool, "description") {
        if description.as_str().is_none() {
            return Err(mistyped(&format!("{at}.description"), "a string"));
        }
        function.push("description", description.clone());
    }
    function.push("name", JsonValue::text(name));
    function.push("parameters", parameters);
    Ok((tool_of(function), name))
}

/// The schema of a function without parameters.
fn no_parameters() -> JsonValue {
    let mut schema = Object::default();
    schema.push("type", JsonValue::text("object"));
    schema.push("properties", JsonValue::Object(Object::default()));
    JsonValue::Object(schema)
}

fn tool_of(function: Object) -> JsonValue {
    let mut tool = Object::default();
    tool.push("type", JsonValue::text("function"));
    tool.push("function", JsonValue::Object(function));
    JsonValue::Object(tool)
}

fn tool_choice(choice: &JsonValue, names: &[&str]) -> Result<JsonValue, Failure> {
    match choice {
        JsonValue::Text(word) if matches!(&**word, "none" | "auto") => Ok(choice.clone()),
        JsonValue::Text(word) if &**word == "required" && names.is_empty() => {
            Err(refused("tool_choice", "Tool choice 'required' must be specified with 'tools'."))
        }
        JsonValue::Text(word) if &**word == "required" => Ok(choice.clone()),
        JsonValue::Object(named)
            if named.get("type").and_then(JsonValue::as_str) == Some("function") =>
        {
            let name = required_text(named, "name", "tool_choice")?;
            if !names.contains(&name) {
                let text = format!("Tool choice '{name}' not found in 'tools'.");
                return Err(refused("tool_choice", text));
            }
            let mut function = Object::default();
            function.push("name", JsonValue::text(name));
            Ok(tool_of(function))
        }
        _ => Err(refused(
            "tool_choice",
            "Unsupported value: 'tool_choice' can only be 'none', 'auto', 'required' or an object \
             of type 'function'.",
        )),
    }
}
