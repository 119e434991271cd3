//! JSON documents that models use to send requests to the server.

pub(crate) mod control;
pub(crate) mod metrics;

use galatea_infer::Status;
use serde_json::{Map, Value};

/// The members of a document.
pub(crate) struct Members(Map<String, Value>);

impl Members {
    pub(crate) fn parse(document: &str) -> Result<Self, Status> {
        serde_json::from_str(document)
            .map(Self)
            .map_err(|error| Status::internal(format!("a worker sent a wrong document: {error}")))
    }

    pub(crate) fn text(&self, name: &str) -> Result<&str, Status> {
        self.0.get(name).and_then(Value::as_str).ok_or_else(|| missing(name))
    }

    pub(crate) fn number(&self, name: &str) -> Result<f64, Status> {
        let value = self.0.get(name).ok_or_else(|| missing(name))?;
        // Non-finite values arrive as strings, because JSON numbers can't represent them.
        let text = || value.as_str().and_then(|text| text.parse().ok());
        value.as_f64().or_else(text).ok_or_else(|| missing(name))
    }

    pub(crate) fn index(&self, name: &str) -> Result<u64, Status> {
        self.0.get(name).and_then(Value::as_u64).ok_or_else(|| missing(name))
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or_default()
    }

    pub(crate) fn texts(&self, name: &str) -> Result<Vec<(&str, &str)>, Status> {
        let Some(object) = self.0.get(name).filter(|value| !value.is_null()) else {
            return Ok(Vec::new());
        };
        let object = object.as_object().ok_or_else(|| missing(name))?;
        let member = |(key, value): (_, _)| -> Result<(&str, &str), Status> {
            let (key, value): (&String, &Value) = (key, value);
            let value = value.as_str().ok_or_else(|| {
                // Triton's message. A model's own values are passed through unchanged.
                Status::internal("attempt to access JSON non-string as string")
            })?;
            Ok((key.as_str(), value))
        };
        object.iter().map(member).collect()
    }

    pub(crate) fn numbers(&self, name: &str) -> Result<Option<Vec<f64>>, Status> {
        let Some(list) = self.0.get(name).filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        let list = list.as_array().ok_or_else(|| missing(name))?;
        let numbers = list.iter().map(|one| one.as_f64().ok_or_else(|| missing(name)));
        numbers.collect::<Result<_, _>>().map(Some)
    }
}

fn missing(name: &str) -> Status {
    Status::internal(format!("a worker sent a document without the right '{name}'"))
}
