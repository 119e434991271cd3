//! Adapters of a model, one of which a client selects behind the model's name.

use std::path::PathBuf;

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

/// An adapter of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// The name.
    pub name: String,
    /// The tensors of the adapter; `None` for the vLLM backend, which reads them itself.
    pub task: Option<AdapterTask>,
}

/// The tensors of an adapter, which TensorRT-LLM calls a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterTask {
    /// The identifier: the position in the list, from 1.
    pub id: u64,
    /// The directory with the files of the tensors, or the reason why it can't be used.
    pub folder: Result<PathBuf, String>,
}

/// The adapters of a model, according to its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterList {
    /// The files don't say. As in Triton, a request with any adapter reaches the model without it.
    Unknown,
    /// The model has these adapters.
    Known(Vec<Adapter>),
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
        if !is_enabled {
            return Self::Known(Vec::new());
        }
        Self::of_list(list, |_, name, _| Some(Adapter { name: name.to_owned(), task: None }))
    }

    /// Reads the text of `multi_lora.json` for all other models, which have no adapters without it.
    /// `folder_of` returns the directory with an adapter's tensors, or the reason why it can't be
    /// used, for the adapter's name and its path in the file; `None` for a path that makes the
    /// whole list malformed.
    #[must_use]
    pub fn of_others(
        list: Option<&str>,
        folder_of: impl Fn(&str, &str) -> Option<Result<PathBuf, String>>,
    ) -> Self {
        if list.is_none() {
            return Self::Known(Vec::new());
        }
        Self::of_list(list, |id, name, path| {
            let folder = folder_of(name, path.as_str()?)?;
            Some(Adapter { name: name.to_owned(), task: Some(AdapterTask { id, folder }) })
        })
    }

    fn of_list(
        list: Option<&str>,
        adapter: impl Fn(u64, &str, &JsonValue) -> Option<Adapter>,
    ) -> Self {
        let Some(JsonValue::Object(list)) = list.and_then(|text| parse_text(text).ok()) else {
            return Self::Unknown;
        };
        let adapters = (1..).zip(list.iter()).map(|(id, (name, path))| adapter(id, name, path));
        adapters.collect::<Option<_>>().map_or(Self::Unknown, Self::Known)
    }

    /// The names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let adapters = match self {
            Self::Unknown => &[][..],
            Self::Known(adapters) => adapters,
        };
        adapters.iter().map(|adapter| &*adapter.name)
    }

    /// Returns the adapter with the name that a client sent behind a model's.
    ///
    /// # Errors
    ///
    /// Code 400 if the model lacks this adapter.
    pub fn find(&self, adapter: &str, requested: &str) -> Result<Option<Adapter>, Failure> {
        let Self::Known(adapters) = self else { return Ok(None) };
        match adapters.iter().find(|known| known.name == adapter) {
            Some(adapter) => Ok(Some(adapter.clone())),
            None => {
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

    fn names(list: &AdapterList) -> Option<Vec<&str>> {
        matches!(list, AdapterList::Known(_)).then(|| list.names().collect())
    }

    #[test]
    fn adapters_are_listed_if_they_are_enabled() {
        let list = Some(r#"{"b": "x", "a": "y"}"#);
        let check = |model, list, expected: Option<&[&str]>| {
            let found = AdapterList::of_vllm(model, list);
            assert_eq!(names(&found).as_deref(), expected, "{model:?}");
        };
        check(Some(r#"{"enable_lora": true}"#), list, Some(&["b", "a"]));
        check(Some(r#"{"enable_lora": "True"}"#), list, Some(&["b", "a"]));
        check(Some(r#"{"enable_lora": "no"}"#), list, Some(&[]));
        check(Some("{}"), list, Some(&[]));
        check(Some(r#"{"enable_lora": true}"#), None, None);
        check(Some("["), list, None);
        check(None, list, None);
    }

    #[test]
    fn adapters_of_tensorrt_llm_have_tasks_in_their_order() {
        let folder_of = |name: &str, path: &str| match path {
            "outside" => None,
            "missing" => Some(Err(format!("no {name}"))),
            _ => Some(Ok(PathBuf::from(path))),
        };
        let read = |list| AdapterList::of_others(list, folder_of);
        let list = read(Some(r#"{"b": "x", "a": "missing"}"#));
        let task = |name| list.find(name, name).unwrap().unwrap().task.unwrap();
        assert_eq!(task("b"), AdapterTask { id: 1, folder: Ok(PathBuf::from("x")) });
        assert_eq!(task("a"), AdapterTask { id: 2, folder: Err(String::from("no a")) });
        for malformed in ["[]", r#"{"a": 1}"#, r#"{"b": "x", "a": "outside"}"#] {
            assert_eq!(read(Some(malformed)), AdapterList::Unknown, "{malformed}");
        }
        assert_eq!(read(None), AdapterList::Known(Vec::new()));
    }

    #[test]
    fn an_unknown_adapter_is_refused() {
        let adapter = Adapter { name: String::from("a"), task: None };
        let list = AdapterList::Known(vec![adapter.clone()]);
        assert_eq!(list.find("a", "m-a").unwrap(), Some(adapter));
        let error = list.find("b", "m-b").unwrap_err().to_string();
        assert_eq!(error, "Unknown LoRA: b; for model: m-b");
        assert_eq!(AdapterList::Unknown.find("b", "m-b").unwrap(), None);
    }
}
