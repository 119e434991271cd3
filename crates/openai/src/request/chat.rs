//! Requests for chat completions.

use super::chat_schema::CHAT;
use super::fields::SAMPLING;
use super::{Capabilities, Fields, Generation, Guide, NamedTool};
use crate::Failure;
use crate::json::{Bounds, JsonValue, Object, parse, push_compact, values_max};

/// The maximum number of messages.
const MESSAGES_MAX: usize = 1 << 14;
/// The maximum number of tools.
const TOOLS_MAX: usize = 1 << 10;

/// A request for a chat completion.
#[derive(Clone, Debug)]
pub struct ChatRequest {
    fields: Fields,
    /// The part of the request that contains the schema of the text.
    schema_field: &'static str,
}

impl ChatRequest {
    /// Validates the fields of a body.
    ///
    /// # Errors
    ///
    /// Code 422 for invalid fields, and 400 for more messages or tools than the limits allow.
    pub fn check(body: &JsonValue) -> Result<Self, Failure> {
        let count = |name| {
            let list = body.as_object().and_then(|object| object.get(name));
            list.and_then(JsonValue::as_list).map_or(0, <[JsonValue]>::len)
        };
        // This precedes the validation, which copies them.
        for (name, max) in [("messages", MESSAGES_MAX), ("tools", TOOLS_MAX)] {
            if count(name) > max {
                return Err(Failure::client(format!(
                    "Received {} {name}, but at most {max} are supported",
                    count(name)
                )));
            }
        }
        Ok(Self { fields: Fields::check(body, &CHAT)?, schema_field: "response_format" })
    }

    /// Names the part of the request that contains the schema of the text.
    pub(crate) const fn with_schema_field(mut self, name: &'static str) -> Self {
        self.schema_field = name;
        self
    }

    /// The model that the client specifies.
    #[must_use]
    pub fn model(&self) -> &str {
        self.fields.text("model").unwrap_or_default()
    }

    /// True if the client requests the token counts at the end of a stream.
    #[must_use]
    pub fn includes_usage(&self) -> bool {
        self.fields.includes_usage()
    }

    /// Returns the generation that the model should perform, unless the request is refused.
    ///
    /// # Errors
    ///
    /// Refuses requests in the same cases and the same order as Triton's frontend.
    pub fn generation(&self, capabilities: Capabilities) -> Result<Generation, Failure> {
        let fields = &self.fields;
        fields.check_choices()?;
        if fields.get("logit_bias").is_some() {
            return Err(Failure::client("logit bias is not currently supported"));
        }
        let (wants_logprobs, top) = (fields.is_true("logprobs"), fields.int("top_logprobs"));
        if !capabilities.is_vllm && (wants_logprobs || top.is_some()) {
            return Err(Failure::client(
                "logprobs are currently available only for the vLLM backend",
            ));
        }
        if top.is_some() && !wants_logprobs {
            return Err(Failure::client("`top_logprobs` can only be used when `logprobs` is True"));
        }
        self.check_tools(capabilities)?;
        fields.check_stream_options()?;
        Ok(Generation {
            is_stream: fields.is_true("stream"),
            tokens_max: fields.int("max_completion_tokens").or_else(|| fields.int("max_tokens")),
            likely_tokens: wants_logprobs.then(|| top.unwrap_or(1)),
            adapter: None,
            echo: None,
            stop_words: fields.stop_words()?,
            sampling: fields.some_of(&SAMPLING),
            guide: self.guide()?,
            schema_field: self.schema_field,
        })
    }

    fn check_tools(&self, capabilities: Capabilities) -> Result<(), Failure> {
        let has_tools = !self.tools().is_empty();
        let refusal = match self.fields.get("tool_choice") {
            Some(JsonValue::Text(word)) if &**word == "required" && !has_tools => {
                "\"required\" tool choice requires CreateChatCompletionRequest.tools to be provided"
            }
            Some(JsonValue::Object(_)) if !has_tools => {
                "Named tool choice requires CreateChatCompletionRequest.tools to be provided"
            }
            Some(JsonValue::Text(word)) if &**word == "auto" && !capabilities.has_tool_parser => {
                "\"auto\" tool choice requires --tool-call-parser to be set"
            }
            None if has_tools && !capabilities.has_tool_parser => {
                "having tools in the request requires --tool-call-parser to be set"
            }
            _ => return Ok(()),
        };
        Err(Failure::client(refusal))
    }

    fn tools(&self) -> &[JsonValue] {
        self.fields.get("tools").and_then(JsonValue::as_list).unwrap_or_default()
    }

    /// True if the text may contain calls that a parser should find.
    #[must_use]
    pub fn lets_model_choose_tools(&self) -> bool {
        let choice = self.fields.get("tool_choice");
        !self.tools().is_empty() && choice.is_none_or(|choice| choice.as_str() == Some("auto"))
    }

    /// The tools in the form that templates see; `None` if the client sent none.
    pub(crate) fn template_tools(&self) -> Option<&JsonValue> {
        self.fields.get("tools")
    }

    /// Returns the tool that the text must call.
    #[must_use]
    pub fn named_tool(&self) -> Option<NamedTool> {
        let name = match self.fields.get("tool_choice")? {
            JsonValue::Object(choice) => function_name(choice),
            JsonValue::Text(word) if &**word == "required" => {
                self.tools().first().and_then(JsonValue::as_object).and_then(function_name)
            }
            _ => None,
        };
        name.map(|name| NamedTool(name.to_owned()))
    }

    /// Returns the form of the text: the schema for the arguments of the tool that the client chose,
    /// or the response format.
    fn guide(&self) -> Result<Option<Guide>, Failure> {
        let Some(NamedTool(name)) = self.named_tool() else { return Ok(self.response_format()) };
        let objects = self.tools().iter().filter_map(JsonValue::as_object);
        // If several tools have the name, the last one counts.
        let mut tools = objects.filter(|tool| function_name(tool) == Some(&*name));
        let Some(tool) = tools.next_back() else {
            return Err(Failure::client(format!("Tool '{name}' has not been passed in `tools`.")));
        };
        let function = tool.get("function").and_then(JsonValue::as_object);
        match function.and_then(|function| function.get("parameters")) {
            Some(parameters @ JsonValue::Object(_)) => {
                Ok(Some(Guide::ToolSchema(schema_text(parameters))))
            }
            // The text of Python's error for calling a method of `None`.
            _ => Err(Failure::server("'NoneType' object has no attribute 'model_dump_json'")),
        }
    }

    fn response_format(&self) -> Option<Guide> {
        let format = self.fields.get("response_format")?.as_object()?;
        if let Some(JsonValue::Object(described)) = format.get("json_schema") {
            return described.get("schema").map(schema_text).map(Guide::JsonSchema);
        }
        let kind = format.get("type").and_then(JsonValue::as_str);
        (kind == Some("json_object")).then_some(Guide::JsonObject)
    }

    /// Returns the messages in the form that templates see.
    ///
    /// # Errors
    ///
    /// Code 400 for content that is not text, and 500 for arguments of a tool call that are not
    /// JSON.
    pub(crate) fn conversation(&self) -> Result<Vec<JsonValue>, Failure> {
        let messages = self.fields.get("messages").and_then(JsonValue::as_list).unwrap_or_default();
        let messages = messages.iter().filter_map(JsonValue::as_object);
        messages.map(|message| template_message(message).map(JsonValue::Object)).collect()
    }
}

fn schema_text(schema: &JsonValue) -> String {
    let mut text = Vec::new();
    push_compact(&mut text, schema);
    String::from_utf8_lossy(&text).into_owned()
}

fn function_name(parent: &Object) -> Option<&str> {
    parent.get("function")?.as_object()?.get("name")?.as_str()
}

fn template_message(message: &Object) -> Result<Object, Failure> {
    let role = message.get("role").and_then(JsonValue::as_str).unwrap_or_default();
    let mut shown = Object::default();
    shown.push("role", JsonValue::text(role));
    let content = match message.get("content") {
        Some(JsonValue::List(parts)) => content_parts(parts)?,
        Some(content) => content.clone(),
        None => JsonValue::Null,
    };
    shown.push("content", content);
    let calls = message.get("tool_calls").and_then(JsonValue::as_list).unwrap_or_default();
    if !calls.is_empty() {
        let calls: Result<_, _> =
            calls.iter().filter_map(JsonValue::as_object).map(tool_call).collect();
        shown.push("tool_calls", JsonValue::List(calls?));
    }
    let text = |name| message.get(name).and_then(JsonValue::as_str);
    if let Some(id) = text("tool_call_id").filter(|id| !id.is_empty()) {
        shown.push("tool_call_id", JsonValue::text(id));
    }
    if let Some(name) = text("name").filter(|_| role == "user") {
        shown.push("name", JsonValue::text(name));
    }
    Ok(shown)
}

fn content_parts(parts: &[JsonValue]) -> Result<JsonValue, Failure> {
    let mut shown = Vec::with_capacity(parts.len());
    for part in parts.iter().filter_map(JsonValue::as_object) {
        let member = |name| part.get(name).and_then(JsonValue::as_str).unwrap_or_default();
        if member("type") != "text" {
            return Err(Failure::client(format!(
                "only text message is supported, but got {}",
                member("type")
            )));
        }
        let mut text = Object::default();
        text.push("type", JsonValue::text("text"));
        text.push("text", JsonValue::text(member("text")));
        shown.push(JsonValue::Object(text));
    }
    Ok(JsonValue::List(shown))
}

/// Returns a tool call whose arguments are a value instead of text, as templates expect.
fn tool_call(call: &Object) -> Result<JsonValue, Failure> {
    let function = call.get("function").and_then(JsonValue::as_object);
    let member =
        |name| function.and_then(|function| function.get(name)).and_then(JsonValue::as_str);
    let arguments = member("arguments").unwrap_or_default().as_bytes();
    let arguments = parse(arguments, Bounds { values_max: values_max(arguments) })
        .map_err(|error| Failure::server(error.to_string()))?;
    let mut shown_function = Object::default();
    shown_function.push("name", JsonValue::text(member("name").unwrap_or_default()));
    shown_function.push("arguments", arguments);
    let mut shown = Object::default();
    for name in ["id", "type"] {
        shown.push(name, call.get(name).cloned().unwrap_or(JsonValue::Null));
    }
    shown.push("function", JsonValue::Object(shown_function));
    Ok(JsonValue::Object(shown))
}
