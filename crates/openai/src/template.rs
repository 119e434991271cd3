//! Chat templates, which use Jinja in the dialect of Hugging Face's `transformers`.

use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value as JinjaValue};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::calendar::format_time;
use crate::json::{Bounds, JsonValue, Object, parse, push_indented, values_max};
use crate::{ChatRequest, Failure};

/// The maximum amount of work for one rendering: about this many steps, and 64 bytes of text for
/// each. A template with an endless loop is refused after a few tenths of a second.
const FUEL: u64 = 1 << 20;
/// The library's error for macros and templates that are nested too deeply.
const TOO_DEEP: &str = "recursion limit exceeded";

/// The names of the templates in the environment.
const DEFAULT: &str = "default";
const TOOLS: &str = "tool_use";

/// The tokenizer settings that templates see.
const TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Turns a conversation into a prompt.
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// True if there is a template for requests with tools.
    has_tools: bool,
    tokens: Vec<(&'static str, JinjaValue)>,
}

/// The reason why a template can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError(String);

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TemplateError {}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("has_tools", &self.has_tools).finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Creates a template from the text of a `tokenizer_config.json`, if there is one, and the text
    /// of a template, which replaces the one in the configuration.
    ///
    /// # Errors
    ///
    /// Returns an error if neither contains a template, or if one of them can't be parsed.
    pub fn new(tokenizer: Option<&str>, template: Option<&str>) -> Result<Self, TemplateError> {
        let config = match tokenizer {
            None => Object::default(),
            Some(text) => {
                match parse(text.as_bytes(), Bounds { values_max: values_max(text.as_bytes()) }) {
                    Ok(JsonValue::Object(config)) => config,
                    Ok(_) => return Err(TemplateError("the configuration is no object".into())),
                    Err(error) => return Err(TemplateError(error.to_string())),
                }
            }
        };
        let mut environment = environment();
        let mut has_tools = false;
        match (template, config.get("chat_template")) {
            (Some(text), _) => add(&mut environment, DEFAULT, text)?,
            (None, Some(JsonValue::Text(text))) => add(&mut environment, DEFAULT, text)?,
            (None, Some(JsonValue::List(named))) => {
                has_tools = add_named(&mut environment, named)?;
            }
            (None, _) => return Err(TemplateError("there is no chat template".into())),
        }
        let tokens = TOKENS.iter().filter_map(|name| Some((*name, token(config.get(name)?)?)));
        let tokens = tokens.collect();
        Ok(Self { environment, has_tools, tokens })
    }

    /// Returns the prompt for a request that arrived at this time, in seconds since 1970.
    ///
    /// # Errors
    ///
    /// Code 500 with the template's own reason, as in Triton; 400 if the template would do too much
    /// work.
    pub fn render(&self, request: &ChatRequest, now_secs: u64) -> Result<String, Failure> {
        let messages = request.conversation()?;
        let tools = request.template_tools();
        let name = if self.has_tools && tools.is_some() { TOOLS } else { DEFAULT };
        let template = self.environment.get_template(name).map_err(|error| failure(&error))?;
        let strftime = move |format: &str| format_time(now_secs, format);
        let own = [
            ("messages", JinjaValue::from_iter(messages.iter().map(jinja))),
            ("tools", tools.map_or(JinjaValue::from(()), jinja)),
            ("documents", JinjaValue::from(())),
            ("add_generation_prompt", JinjaValue::from(true)),
            ("strftime_now", JinjaValue::from_function(strftime)),
        ];
        let context = JinjaValue::from_pairs(own.into_iter().chain(self.tokens.iter().cloned()));
        template.render(context).map_err(|error| failure(&error))
    }
}

fn failure(error: &Error) -> Failure {
    if error.kind() == ErrorKind::OutOfFuel || error.detail() == Some(TOO_DEEP) {
        return Failure::client("The chat template needs more work than is allowed for a request");
    }
    match error.detail() {
        // The reason that a template itself specifies.
        Some(reason) if error.kind() == ErrorKind::InvalidOperation => Failure::server(reason),
        _ => Failure::server(error.to_string()),
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(
        SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().unwrap_or_default(),
    );
    environment.set_fuel(Some(FUEL));
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", |reason: String| -> Result<JinjaValue, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, reason))
    });
    environment
}

fn add(
    environment: &mut Environment<'static>,
    name: &'static str,
    text: &str,
) -> Result<(), TemplateError> {
    let added = environment.add_template_owned(name, without_generation(text));
    added.map_err(|error| TemplateError(format!("the chat template is malformed: {error}")))
}

/// Adds the templates in a list. Returns true if one of them is for tools.
fn add_named(
    environment: &mut Environment<'static>,
    named: &[JsonValue],
) -> Result<bool, TemplateError> {
    let find = |wanted: &str| {
        named.iter().filter_map(JsonValue::as_object).find_map(|one| {
            let member = |name| one.get(name).and_then(JsonValue::as_str);
            (member("name") == Some(wanted)).then(|| member("template")).flatten()
        })
    };
    let Some(text) = find(DEFAULT) else {
        return Err(TemplateError("there is no chat template called 'default'".into()));
    };
    add(environment, DEFAULT, text)?;
    let Some(text) = find(TOOLS) else { return Ok(false) };
    add(environment, TOOLS, text).map(|()| true)
}

/// Replaces the tags around an assistant's text, which only matter for training, with tags that
/// have no effect.
fn without_generation(text: &str) -> String {
    let mut changed = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, tag)) = rest.split_once("{%") {
        let Some((inside, behind)) = tag.split_once("%}") else { break };
        changed.push_str(before);
        changed.push_str("{%");
        let word = inside.trim_matches(['-', '+', ' ', '\t', '\n', '\r']);
        match word {
            "generation" => changed.push_str(&inside.replace(word, "if true")),
            "endgeneration" => changed.push_str(&inside.replace(word, "endif")),
            _ => changed.push_str(inside),
        }
        changed.push_str("%}");
        rest = behind;
    }
    changed.push_str(rest);
    changed
}

/// Returns a special token, which is a string or an object that contains the string.
fn token(value: &JsonValue) -> Option<JinjaValue> {
    let content = value.as_object().and_then(|token| token.get("content"));
    value.as_str().or_else(|| content.and_then(JsonValue::as_str)).map(JinjaValue::from)
}

fn jinja(value: &JsonValue) -> JinjaValue {
    match value {
        JsonValue::Null => JinjaValue::from(()),
        JsonValue::Bool(value) => JinjaValue::from(*value),
        JsonValue::Int(number) => JinjaValue::from(*number),
        JsonValue::BigInt(digits) => {
            digits.parse::<i128>().map_or_else(|_| JinjaValue::from(&**digits), JinjaValue::from)
        }
        JsonValue::Float(number) => JinjaValue::from(*number),
        JsonValue::Text(text) => JinjaValue::from(&**text),
        JsonValue::List(elements) => JinjaValue::from_iter(elements.iter().map(jinja)),
        JsonValue::Object(object) => {
            JinjaValue::from_pairs(object.iter().map(|(name, member)| (name, jinja(member))))
        }
    }
}

/// The maximum depth to which a template's value is written.
const DEPTH_MAX: usize = 300;

/// Formats a value as `json.dumps` does, without escaping non-ASCII characters.
fn to_json(value: JinjaValue, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // The other options of Hugging Face's filter, whose defaults templates use.
    let _: Option<JinjaValue> = options.get("ensure_ascii")?;
    let _: Option<JinjaValue> = options.get("separators")?;
    let _: Option<JinjaValue> = options.get("sort_keys")?;
    options.assert_all_used()?;
    let mut text = Vec::new();
    push_indented(&mut text, &json(&value, 0)?, indent);
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn json(value: &JinjaValue, depth: usize) -> Result<JsonValue, Error> {
    if depth > DEPTH_MAX {
        return Err(Error::new(ErrorKind::BadSerialization, "the value is nested too deeply"));
    }
    let below = depth.saturating_add(1);
    Ok(match value.kind() {
        ValueKind::None => JsonValue::Null,
        ValueKind::Bool => JsonValue::Bool(value.is_true()),
        ValueKind::Number => number(value),
        ValueKind::String => JsonValue::text(value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            let elements: Result<_, _> = value.try_iter()?.map(|one| json(&one, below)).collect();
            JsonValue::List(elements?)
        }
        ValueKind::Map => {
            let mut object = Object::default();
            for name in value.try_iter()? {
                object.push(&name.to_string(), json(&value.get_item(&name)?, below)?);
            }
            JsonValue::Object(object)
        }
        kind => {
            let reason = format!("Object of type {kind} is not JSON serializable");
            return Err(Error::new(ErrorKind::InvalidOperation, reason));
        }
    })
}

fn number(value: &JinjaValue) -> JsonValue {
    if let Some(number) = value.as_i64().filter(|_| value.is_integer()) {
        return JsonValue::Int(number);
    }
    if value.is_integer() {
        return JsonValue::BigInt(value.to_string().into());
    }
    f64::try_from(value.clone()).map_or(JsonValue::Null, JsonValue::Float)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' \
        + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}\
        {{ '<|im_start|>assistant\n' }}{% endif %}";

    fn request(body: &str) -> ChatRequest {
        let body = crate::read_body(body.as_bytes(), crate::ContentType::Json).unwrap();
        ChatRequest::check(&body).unwrap()
    }

    fn render(template: &str, body: &str) -> String {
        let config = r#"{"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}}"#;
        let template = ChatTemplate::new(Some(config), Some(template)).unwrap();
        match template.render(&request(body), 1_700_000_000) {
            Ok(text) => text,
            Err(failure) => String::from_utf8(failure.into_document().1).unwrap(),
        }
    }

    const HI: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;

    #[test]
    fn a_conversation_becomes_a_prompt() {
        assert_eq!(render(CHATML, HI), "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
        assert_eq!(render("{{ bos_token }}{{ eos_token }}{{ pad_token }}", HI), "<s></s>");
        assert_eq!(render("{{ strftime_now('%d %b %Y') }}", HI), "14 Nov 2023");
    }

    #[test]
    fn the_dialect_is_that_of_hugging_face() {
        // Blocks leave no lines, and strings have Python's methods.
        let template = "{% for m in messages %}\n    {% if m.role == 'user' %}\n{{ m.content.strip() \
            }}{% endif %}\n{% endfor %}";
        let body = r#"{"model":"m","messages":[{"role":"user","content":" hi "}]}"#;
        assert_eq!(render(template, body), "hi");
        assert_eq!(
            render(
                "{% for m in messages %}{%- generation -%} x {%- endgeneration -%}{% endfor %}",
                HI
            ),
            "x"
        );
        assert_eq!(
            render(
                "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}",
                HI
            ),
            "01"
        );
        assert_eq!(
            render(
                "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
                HI
            ),
            "1"
        );
    }

    #[test]
    fn values_become_json() {
        let call = r#"{"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"b\":1.0,\"a\":\"<é>\"}"}}]}]}"#;
        assert_eq!(
            render("{{ messages[0].tool_calls[0].function.arguments | tojson }}", call),
            r#"{"b": 1.0, "a": "<é>"}"#
        );
        assert_eq!(
            render("{{ messages[0].tool_calls[0].function | tojson(indent=2) }}", call),
            "{\n  \"name\": \"f\",\n  \"arguments\": {\n    \"b\": 1.0,\n    \"a\": \"<é>\"\n  }\n}"
        );
    }

    #[test]
    fn a_template_may_refuse_but_not_loop() {
        assert_eq!(render("{{ raise_exception('no') }}", HI), r#"{"detail":"no"}"#);
        let bound =
            r#"{"detail":"The chat template needs more work than is allowed for a request"}"#;
        let loops = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
        assert_eq!(render(loops, HI), bound);
        let doubles = "{% set ns = namespace(s='x') %}{% for a in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}";
        assert_eq!(render(doubles, HI), bound);
        let calls = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
        assert_eq!(render(calls, HI), bound);
    }

    #[test]
    fn templates_are_found_in_a_configuration() {
        let named = r#"{"chat_template":[{"name":"tool_use","template":"T"},{"name":"default","template":"D"}]}"#;
        let template = ChatTemplate::new(Some(named), None).unwrap();
        let render = |body| template.render(&request(body), 0).unwrap();
        assert_eq!(render(HI), "D");
        let tools = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f"}}]}"#;
        assert_eq!(render(tools), "T");
        let error = |config, text| ChatTemplate::new(config, text).unwrap_err().to_string();
        assert_eq!(error(None, None), "there is no chat template");
        assert_eq!(error(Some("{}"), None), "there is no chat template");
        assert_eq!(error(Some("[]"), None), "the configuration is no object");
        assert!(error(None, Some("{% if %}")).starts_with("the chat template is malformed: "));
    }
}
