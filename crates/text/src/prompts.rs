//! Prompts: text that is put in front of each text, such as `query: `.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::error::TextModelError;
use crate::json_object::JsonObject;

/// The prompts of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompts {
    by_name: BTreeMap<String, String>,
    /// The name of the prompt for requests that don't specify one.
    default: Option<String>,
}

/// A request for a prompt that the model doesn't have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model has no prompt '{name}': {known}")]
pub struct UnknownPrompt {
    name: String,
    known: String,
}

impl Prompts {
    /// Reads the prompts in `config_sentence_transformers.json`.
    pub(crate) fn read(config: JsonObject<'_>) -> Result<Self, TextModelError> {
        let mut prompts = Self::default();
        match config.get("prompts") {
            None => {}
            Some(Value::Object(listed)) => {
                for (name, text) in listed {
                    let text = text.as_str().ok_or_else(|| {
                        config.error(format!("the prompt '{name}' is not a string"))
                    })?;
                    prompts.by_name.insert(name.clone(), text.to_owned());
                }
            }
            Some(_) => return Err(config.invalid("prompts", "is not an object")),
        }
        match config.string("default_prompt_name")? {
            None => Ok(prompts),
            Some(name) => prompts
                .with_default(name)
                .map_err(|error| config.error(format!("default_prompt_name: {error}"))),
        }
    }

    /// Makes this prompt the default.
    pub(crate) fn with_default(mut self, name: &str) -> Result<Self, UnknownPrompt> {
        self.find(name)?;
        self.default = Some(name.to_owned());
        Ok(self)
    }

    /// Makes no prompt the default.
    pub(crate) fn without_default(mut self) -> Self {
        self.default = None;
        self
    }

    /// Returns the text of the prompt with this name.
    ///
    /// # Errors
    ///
    /// An error that lists the names of the model's prompts.
    pub fn find(&self, name: &str) -> Result<&str, UnknownPrompt> {
        self.by_name.get(name).map(String::as_str).ok_or_else(|| {
            let names: Vec<String> = self.by_name.keys().map(|name| format!("'{name}'")).collect();
            let known = if names.is_empty() {
                String::from("it has none")
            } else {
                format!("it has {}", names.join(", "))
            };
            UnknownPrompt { name: name.escape_debug().to_string(), known }
        })
    }

    /// Returns the default prompt; empty if there is none.
    #[must_use]
    pub fn default_text(&self) -> &str {
        let text = self.default.as_ref().and_then(|name| self.by_name.get(name));
        text.map_or("", String::as_str)
    }

    /// Returns the texts of all prompts.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        self.by_name.values().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(config: &str, expected: Result<&str, &str>) {
        let config = serde_json::from_str(config).unwrap();
        let read = Prompts::read(JsonObject::new("f", &config)).map_err(|error| error.to_string());
        let text = read.map(|prompts| prompts.default_text().to_owned());
        assert_eq!(text, expected.map(str::to_owned).map_err(str::to_owned));
    }

    #[test]
    fn the_default_is_one_of_the_prompts() {
        check("{}", Ok(""));
        check("{\"prompts\": {\"query\": \"q: \"}}", Ok(""));
        check("{\"prompts\": {\"query\": \"q: \"}, \"default_prompt_name\": \"query\"}", Ok("q: "));
        check(
            "{\"prompts\": {\"query\": \"q: \", \"document\": \"\"}, \"default_prompt_name\": \"x\"}",
            Err("f: default_prompt_name: the model has no prompt 'x': it has 'document', 'query'"),
        );
        check("{\"prompts\": [1]}", Err("f: 'prompts' is not an object"));
        check("{\"prompts\": {\"a\": 1}}", Err("f: the prompt 'a' is not a string"));
        check("{\"default_prompt_name\": 1}", Err("f: 'default_prompt_name' is not a string"));
    }
}
