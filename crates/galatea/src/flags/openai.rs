//! Flags for the OpenAI endpoint. They match the flags of Triton's OpenAI frontend.

use galatea_gate::access::{AccessRuleError, AccessRules};
use galatea_http::{RequestFormat, ToolCallFormat};

use super::flag::{Flag, no_default};
use super::value::{self, InvalidValue};
use super::{Group, Settings};

/// The flag whose value is three arguments, as in Triton's frontend.
pub(super) const RESTRICTED_API: &str = "openai-restricted-api";

/// The flags of Triton's OpenAI frontend.
pub(super) const FRONTEND_FLAGS: [&str; 20] = [
    "model-repository",
    "tokenizer",
    "backend",
    "lora-separator",
    "tritonserver-log-verbose-level",
    "host",
    "tool-call-parser",
    "max-tool-call-parse-bytes",
    "chat-template",
    "default-max-tokens",
    "model-control-mode",
    "load-model",
    "openai-port",
    "uvicorn-log-level",
    "openai-restricted-api",
    "http-max-input-size",
    "enable-kserve-frontends",
    "kserve-http-port",
    "kserve-grpc-port",
    "help",
];

pub(super) const GROUP: Group = Group {
    title: "OpenAI",
    flags: &[&[
        Flag::other(
            "openai-port",
            "integer",
            no_default,
            "The port to listen on for clients of OpenAI; 0 lets the system choose one. Without \
             this flag there is no such endpoint. It has the certificates of the HTTP endpoint.",
            |settings, value| {
                settings.openai.door.port = value::port(settings, "openai-port", value)?;
                settings.openai.door.allow = true;
                Ok(())
            },
        ),
        Flag::boolean(
            "openai-on-http-port",
            "Whether the HTTP endpoint has the paths for clients of OpenAI under /v1, too.",
            |settings| &mut settings.openai.is_on_http_port,
        ),
        Flag::other(
            "host",
            "string",
            no_default,
            "The address to listen on for clients of OpenAI, for HTTP and for gRPC.",
            |settings, value| {
                let Settings { openai, http, grpc, .. } = settings;
                for door in [&mut openai.door, http, grpc] {
                    value.clone_into(&mut door.address);
                }
                Ok(())
            },
        ),
        Flag::file(
            "tokenizer",
            "A folder with the tokenizer of the models, as Hugging Face has it, or the tokenizer's \
             identifier there, if its files are in the local cache. Its chat template turns chats \
             into prompts.",
            |settings| &mut settings.openai.tokenizer,
        ),
        Flag::file(
            "chat-template",
            "A file with the chat template, in place of the tokenizer's.",
            |settings| &mut settings.openai.chat_template,
        ),
        Flag::other(
            "backend",
            "string",
            no_default,
            "The inputs and outputs of all models for clients of OpenAI: \"vllm\" or \
             \"tensorrtllm\". By default, those of the model's backend or configuration.",
            |settings, value| {
                settings.openai.format = Some(match value {
                    "vllm" => RequestFormat::Vllm,
                    "tensorrtllm" => RequestFormat::TensorRtLlm,
                    _ => {
                        return Err(InvalidValue(format!(
                            "invalid choice: '{value}' (choose from 'vllm', 'tensorrtllm')"
                        )));
                    }
                });
                Ok(())
            },
        ),
        Flag::number(
            "default-max-tokens",
            "The most tokens of a text whose client of OpenAI states no limit.",
            |settings| &mut settings.openai.tokens_default,
        ),
        Flag::other(
            RESTRICTED_API,
            "string:string=string",
            no_default,
            "APIs,…:KEY=VALUE, or the three arguments APIs,… KEY VALUE, refuses requests of clients \
             of OpenAI to these APIs, unless they have the header KEY with this value. Each API may \
             be named once; the flag may be repeated. APIs: inference, model-repository, metrics, \
             health.",
            |settings, value| restrict(&mut settings.openai.rules, value),
        ),
        Flag::switch(
            "enable-kserve-frontends",
            "Listen for HTTP and gRPC requests. This is the default, unless --allow-http or \
             --allow-grpc says otherwise.",
            |settings| (settings.http.allow, settings.grpc.allow) = (true, true),
        ),
        Flag::port("kserve-http-port", "The same as --http-port.", |settings| {
            &mut settings.http.port
        }),
        Flag::port("kserve-grpc-port", "The same as --grpc-port.", |settings| {
            &mut settings.grpc.port
        }),
        Flag::other(
            "lora-separator",
            "string",
            no_default,
            "The text between the name of a model and that of its LoRA adapter, in a client's name of \
             a model. Without this flag, clients can't choose an adapter.",
            |settings, value| {
                settings.openai.lora_separator = (!value.is_empty()).then(|| value.to_owned());
                Ok(())
            },
        ),
        Flag::other(
            "tool-call-parser",
            "string",
            no_default,
            "The form of the tool calls in the models' texts, for chats with tools: \"llama3\", \
             \"mistral\", \"hermes\", \"deepseek_v3\", \"openai\" or \"pythonic\". Without this flag, \
             chats with tools are refused.",
            |settings, value| {
                settings.openai.tool_format =
                    Some(ToolCallFormat::named(value).ok_or_else(|| {
                        InvalidValue(format!(
                            "tool parser: '{value}' not found in tool_call_parsers"
                        ))
                    })?);
                Ok(())
            },
        ),
        Flag::other(
            "max-tool-call-parse-bytes",
            "integer",
            |settings| settings.openai.tool_chars_max.to_string(),
            "The maximum length of a streamed text with tools. A longer text ends there, and its \
             model is cancelled.",
            |settings, value| {
                settings.openai.tool_chars_max = value::number(value)?;
                Ok(())
            },
        ),
    ]],
};

/// Adds the rules for a group. The messages match those of Triton's frontend.
fn restrict(rules: &mut AccessRules, group: &str) -> Result<(), InvalidValue> {
    const APIS: [(&str, &str); 4] = [
        ("inference", "inference"),
        ("model-repository", "model-repository"),
        ("metrics", "statistics"),
        ("health", "health"),
    ];
    let malformed = || {
        InvalidValue(format!(
            "--{RESTRICTED_API} option format is '<APIs>:<key>=<value>', or '<APIs> <key> \
             <value>'. Got {group}"
        ))
    };
    let (names, key) = group.split_once(':').ok_or_else(malformed)?;
    for name in names.split(',') {
        let Some((_, category)) = APIS.iter().find(|(api, _)| *api == name) else {
            return Err(InvalidValue(format!(
                "Unknown API '{name}'. Available APIs: ['inference', 'model-repository', \
                 'metrics', 'health']"
            )));
        };
        rules.add(&format!("{category}:{key}"), "").map_err(|error| match error {
            AccessRuleError::Repeated { .. } => InvalidValue(format!(
                "restricted api '{name}' can not be specified in multiple config groups"
            )),
            AccessRuleError::Malformed | AccessRuleError::Unknown { .. } => malformed(),
        })?;
    }
    Ok(())
}

/// Returns the value of the flag, from its first argument and the following ones.
pub(super) fn restriction_of(first: String, mut rest: impl Iterator<Item = String>) -> String {
    if first.contains(':') {
        return first;
    }
    let [key, value] = [rest.next(), rest.next()].map(Option::unwrap_or_default);
    format!("{first}:{key}={value}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apis_are_restricted_in_groups() {
        let check = |groups: &[&str], expected: &str| {
            let mut rules = AccessRules::default();
            let added = groups.iter().try_for_each(|group| restrict(&mut rules, group));
            let found = added.map_or_else(|InvalidValue(reason)| reason, |()| String::from("ok"));
            assert!(found.starts_with(expected), "{found}");
        };
        check(&["inference,health:k=v", "metrics:a=b"], "ok");
        check(&["embedding:k=v"], "Unknown API 'embedding'. Available APIs: ['inference', ");
        check(&["health:k=v", "health:a=b"], "restricted api 'health' can not be specified in ");
        for malformed in ["health", "health:k", "health:=v", "health:k="] {
            check(&[malformed], "--openai-restricted-api option format is ");
        }
    }

    #[test]
    fn a_restriction_may_be_three_arguments() {
        let of = |first: &str, rest: &[&str]| {
            restriction_of(first.to_owned(), rest.iter().map(|one| (*one).to_owned()))
        };
        assert_eq!(of("inference", &["k", "v", "x"]), "inference:k=v");
        assert_eq!(of("inference:k=v", &["x"]), "inference:k=v");
        assert_eq!(of("inference", &[]), "inference:=");
    }
}
