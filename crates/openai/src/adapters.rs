//! Adapters of a model, one of which a client selects behind the model's name.

use crate::Failure;
use crate::json::{JsonValue, parse_text};

/// Splits the name that a client sent into a model and an adapter.
#[must_use]
pub fn split_adapter<'n>(name: &'n str, separator: Option<&str>) -> (&'n str, Option<&'n str>) {
    let Some(separator) = separator.filter(|separator| !separator.is_empty()) else {
        return (name, None);
    };
    let mut parts = name.split(separator);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(model), Some(adapter), None) => (model, Some(adapter)),
        _ => (name, None),
    }
}

/// The adapters of a model, according to its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterList {
    /// The files don't say. As in Triton, a request with any adapter reaches the model without it.
    Unknown,
    /// The model has these adapters.
    Known(Vec<String>),
}

impl AdapterList {
    /// Reads the texts of `model.json` and `multi_lora.json`, which the vLLM backend has.
    #[must_use]
    pub fn of_vllm(model: Option<&str>, list: Option<&str>) -> Self {
        let Some(JsonValue::Object(model)) = model.and_then(|text| parse_text(text).ok()) else {
            return Self::Unknown;
        };
        let is_enabled = match model.get("enable_lora") {
            Some(JsonValue::Bool(value)) => *value,
            Some(JsonValue::Text(text)) => text.eq_ignore_ascii_case("true"),
            _ => false,
        };
        if is_enabled { Self::of_list(list) } else { Self::Known(Vec::new()) }
    }

    /// Reads the text of `multi_lora.json` for all other models, which have no adapters without it.
    #[must_use]
    pub fn of_others(list: Option<&str>) -> Self {
        if list.is_some() { Self::of_list(list) } else { Self::Known(Vec::new()) }
    }

    fn of_list(list: Option<&str>) -> Self {
        match list.and_then(|text| parse_text(text).ok()) {
            Some(JsonValue::Object(list)) => {
                Self::Known(list.iter().map(|(name, _)| name.to_owned()).collect())
            }
            _ => Self::Unknown,
        }
    }

    /// The names.
    #[must_use]
    pub fn names(&self) -> &[String] {
        match self {
            Self::Unknown => &[],
            Self::Known(names) => names,
        }
    }

    /// Returns the adapter with the name that a client sent behind a model's.
    ///
    /// # Errors
    ///
    /// Code 400 if the model lacks this adapter.
    pub fn find(&self, adapter: &str, requested: &str) -> Result<Option<String>, Failure> {
        match self {
            Self::Unknown => Ok(None),
            Self::Known(names) if names.iter().any(|name| name == adapter) => {
                Ok(Some(adapter.to_owned()))
            }
            Self::Known(_) => {
                Err(Failure::client(format!("Unknown LoRA: {adapter}; for model: {requested}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_at_most_one_adapter() {
        assert_eq!(split_adapter("m_lora_a", Some("_lora_")), ("m", Some("a")));
        assert_eq!(split_adapter("m_lora_", Some("_lora_")), ("m", Some("")));
        for separator in [None, Some(""), Some("x"), Some("_")] {
            assert_eq!(split_adapter("m_lora_a", separator), ("m_lora_a", None));
        }
    }

    #[test]
    fn adapters_are_listed_if_they_are_enabled() {
        let list = Some(r#"{"b": "x", "a": "y"}"#);
        let known = |names: &[&str]| {
            AdapterList::Known(names.iter().map(|name| (*name).to_owned()).collect())
        };
        let vllm = AdapterList::of_vllm;
        assert_eq!(vllm(Some(r#"{"enable_lora": true}"#), list), known(&["b", "a"]));
        assert_eq!(vllm(Some(r#"{"enable_lora": "True"}"#), list), known(&["b", "a"]));
        assert_eq!(vllm(Some(r#"{"enable_lora": "no"}"#), list), known(&[]));
        assert_eq!(vllm(Some("{}"), list), known(&[]));
        assert_eq!(vllm(Some(r#"{"enable_lora": true}"#), None), AdapterList::Unknown);
        assert_eq!(vllm(Some("["), list), AdapterList::Unknown);
        assert_eq!(vllm(None, list), AdapterList::Unknown);
        assert_eq!(AdapterList::of_others(list), known(&["b", "a"]));
        assert_eq!(AdapterList::of_others(Some("[]")), AdapterList::Unknown);
        assert_eq!(AdapterList::of_others(None), known(&[]));
    }

    #[test]
    fn an_unknown_adapter_is_refused() {
        let list = AdapterList::Known(vec![String::from("a")]);
        assert_eq!(list.find("a", "m-a").unwrap(), Some(String::from("a")));
        let error = list.find("b", "m-b").unwrap_err().to_string();
        assert_eq!(error, "Unknown LoRA: b; for model: m-b");
        assert_eq!(AdapterList::Unknown.find("b", "m-b").unwrap(), None);
    }
}
