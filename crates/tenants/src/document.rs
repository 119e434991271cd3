//! The file of tenants: JSON, checked field by field.

use std::collections::BTreeSet;
use std::fmt;

use galatea_gate::access::ApiCategory;
use serde_json::{Map, Value, json};

use crate::key::{KeyHash, KeyId};

/// The maximum size of the file.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

/// The maximum number of tenants.
const TENANTS_MAX: usize = 100_000;

/// The maximum length of a tenant's name, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// The fields of a tenant that this version refuses, because it would not honor them.
const NOT_SUPPORTED: [&str; 6] = [
    "weight",
    "priorities",
    "bytes_per_second",
    "compute_ms_per_second",
    "resident_bytes",
    "certificate_subjects",
];

/// The APIs of a tenant whose entry names none: those that a client of inference needs.
const DEFAULT_APIS: [ApiCategory; 3] =
    [ApiCategory::Metadata, ApiCategory::Inference, ApiCategory::ModelConfig];

/// A key of a tenant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TenantKey {
    pub(crate) id: KeyId,
    pub(crate) hash: KeyHash,
}

/// A tenant as the file describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TenantEntry {
    pub(crate) name: String,
    pub(crate) keys: Vec<TenantKey>,
    /// `None` if the entry names no APIs.
    apis: Option<Vec<ApiCategory>>,
    pub(crate) requests_per_second: Option<u64>,
}

impl TenantEntry {
    pub(crate) fn new(name: &str) -> Result<Self, String> {
        let is_plain = |text: &str| text.chars().all(|one| !one.is_control());
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !is_plain(name) {
            return Err(format!(
                "a tenant's name has 1 to {NAME_BYTES_MAX} bytes and no control characters"
            ));
        }
        Ok(Self { name: name.to_owned(), keys: Vec::new(), apis: None, requests_per_second: None })
    }

    /// Returns true if the tenant may use the APIs of a category.
    pub(crate) fn allows(&self, category: ApiCategory) -> bool {
        self.apis.as_deref().unwrap_or(&DEFAULT_APIS).contains(&category)
    }

    /// Restricts the tenant to these APIs.
    pub(crate) fn set_apis(&mut self, names: &str) -> Result<(), String> {
        self.apis = Some(names.split(',').map(api_named).collect::<Result<_, _>>()?);
        Ok(())
    }

    pub(crate) fn apis(&self) -> impl Iterator<Item = &'static str> {
        let all = ApiCategory::ALL.into_iter();
        all.filter(|category| self.allows(*category)).map(ApiCategory::name)
    }
}

fn api_named(name: &str) -> Result<ApiCategory, String> {
    ApiCategory::named(name).ok_or_else(|| {
        let known = ApiCategory::ALL.map(ApiCategory::name).join(", ");
        format!("'{name}' is no API; the APIs are {known}")
    })
}

/// The content of a file of tenants.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct TenantsDocument {
    pub(crate) tenants: Vec<TenantEntry>,
}

impl TenantsDocument {
    /// Reads a document.
    ///
    /// # Errors
    ///
    /// Returns the path of the first field that is wrong, and what would be right.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let value: Value =
            serde_json::from_slice(text).map_err(|error| format!("it is not JSON: {error}"))?;
        let fields = object(&value, &"the file")?;
        let unknown = fields.keys().find(|name| *name != "tenants");
        if let Some(unknown) = unknown {
            return Err(format!("'{unknown}' is no field of the file, which has only 'tenants'"));
        }
        let tenants = fields.get("tenants").ok_or("the field 'tenants' is missing")?;
        let tenants = array(tenants, &"tenants")?;
        if tenants.len() > TENANTS_MAX {
            return Err(format!("there are more than {TENANTS_MAX} tenants"));
        }
        let (mut names, mut ids) = (BTreeSet::new(), BTreeSet::new());
        let mut document = Self::default();
        for (index, value) in tenants.iter().enumerate() {
            let place = format!("tenants[{index}]");
            let tenant = tenant(value, &place)?;
            if !names.insert(tenant.name.clone()) {
                return Err(format!("{place}.name: '{}' is the name of another", tenant.name));
            }
            if let Some(key) = tenant.keys.iter().find(|key| !ids.insert(key.id.clone())) {
                let id = key.id.as_str();
                return Err(format!("{place}.keys: '{id}' is the ID of another key"));
            }
            document.tenants.push(tenant);
        }
        Ok(document)
    }

    /// Writes the document as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let tenants: Vec<Value> = self.tenants.iter().map(tenant_json).collect();
        let text = serde_json::to_string_pretty(&json!({ "tenants": tenants }));
        text.unwrap_or_default() + "\n"
    }

    /// The number of tenants.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tenants.len()
    }

    /// Returns true if there are no tenants.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }
}

fn tenant_json(tenant: &TenantEntry) -> Value {
    let key = |key: &TenantKey| json!({ "id": key.id.as_str(), "sha256": key.hash.to_text() });
    let keys: Vec<Value> = tenant.keys.iter().map(key).collect();
    let mut fields = Map::new();
    fields.insert("name".to_owned(), json!(tenant.name));
    fields.insert("keys".to_owned(), json!(keys));
    if let Some(apis) = &tenant.apis {
        let names: Vec<&str> = apis.iter().map(|category| category.name()).collect();
        fields.insert("apis".to_owned(), json!(names));
    }
    if let Some(limit) = tenant.requests_per_second {
        fields.insert("requests_per_second".to_owned(), json!(limit));
    }
    Value::Object(fields)
}

fn tenant(value: &Value, place: &str) -> Result<TenantEntry, String> {
    let fields = object(value, &place)?;
    let name = fields.get("name").ok_or_else(|| format!("{place}.name is missing"))?;
    let name = string(name, &format_args!("{place}.name"))?;
    let mut tenant = TenantEntry::new(name).map_err(|reason| format!("{place}.name: {reason}"))?;
    for (field, value) in fields {
        let place = format!("{place}.{field}");
        match field.as_str() {
            "name" => {}
            "keys" => {
                for (index, value) in array(value, &place)?.iter().enumerate() {
                    tenant.keys.push(key(value, &format!("{place}[{index}]"))?);
                }
            }
            "apis" => {
                let mut apis = Vec::new();
                for (index, value) in array(value, &place)?.iter().enumerate() {
                    let place = format!("{place}[{index}]");
                    let named = api_named(string(value, &place)?);
                    apis.push(named.map_err(|reason| format!("{place}: {reason}"))?);
                }
                tenant.apis = Some(apis);
            }
            "requests_per_second" => {
                let number = value.as_u64().filter(|number| *number > 0);
                let number = number.ok_or_else(|| format!("{place} is no positive integer"))?;
                tenant.requests_per_second = Some(number);
            }
            name if NOT_SUPPORTED.contains(&name) => {
                return Err(format!("{place} isn't supported by this version: remove it"));
            }
            _ => {
                let known = "name, keys, apis and requests_per_second";
                return Err(format!("{place} is no field of a tenant, which has {known}"));
            }
        }
    }
    Ok(tenant)
}

fn key(value: &Value, place: &str) -> Result<TenantKey, String> {
    let fields = object(value, &place)?;
    let unknown = fields.keys().find(|name| !matches!(name.as_str(), "id" | "sha256"));
    if let Some(unknown) = unknown {
        return Err(format!("{place}.{unknown} is no field of a key, which has id and sha256"));
    }
    let field = |name: &str| {
        let value = fields.get(name).ok_or_else(|| format!("{place}.{name} is missing"))?;
        string(value, &format_args!("{place}.{name}"))
    };
    let id = KeyId::new(field("id")?);
    let id = id.ok_or_else(|| format!("{place}.id doesn't have 16 lower-case hexadecimal digits"));
    let hash = KeyHash::parse(field("sha256")?);
    let hash =
        hash.ok_or_else(|| format!("{place}.sha256 doesn't have 64 lower-case hexadecimal digits"));
    Ok(TenantKey { id: id?, hash: hash? })
}

fn object<'v>(
    value: &'v Value,
    place: &dyn fmt::Display,
) -> Result<&'v Map<String, Value>, String> {
    value.as_object().ok_or_else(|| format!("{place} is no object"))
}

fn array<'v>(value: &'v Value, place: &dyn fmt::Display) -> Result<&'v Vec<Value>, String> {
    value.as_array().ok_or_else(|| format!("{place} is no array"))
}

fn string<'v>(value: &'v Value, place: &dyn fmt::Display) -> Result<&'v str, String> {
    value.as_str().ok_or_else(|| format!("{place} is no string"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef";

    #[track_caller]
    fn refused(tenants: &str, expected: &str) {
        let text = format!(r#"{{"tenants": [{tenants}]}}"#);
        assert_eq!(TenantsDocument::parse(text.as_bytes()).unwrap_err(), expected);
    }

    #[test]
    fn a_document_is_read_and_written() {
        let hash = KeyHash::of_key(b"x").to_text();
        let text = format!(
            r#"{{"tenants": [{{"name": "a", "keys": [{{"id": "{ID}", "sha256": "{hash}"}}],
                "apis": ["inference", "trace"], "requests_per_second": 5}}, {{"name": "b"}}]}}"#
        );
        let document = TenantsDocument::parse(text.as_bytes()).unwrap();
        assert_eq!((document.len(), document.is_empty()), (2, false));
        assert_eq!(TenantsDocument::parse(document.to_json().as_bytes()).unwrap(), document);
        let [a, b] = &document.tenants[..] else { panic!("there are two") };
        assert_eq!(a.apis().collect::<Vec<_>>(), ["inference", "trace"]);
        assert_eq!(a.requests_per_second, Some(5));
        assert_eq!(b.apis().collect::<Vec<_>>(), ["metadata", "inference", "model-config"]);
    }

    #[test]
    fn each_mistake_is_named_with_its_place() {
        refused(r#"{"keys": []}"#, "tenants[0].name is missing");
        refused(
            r#"{"name": ""}"#,
            "tenants[0].name: a tenant's name has 1 to 128 bytes and no control characters",
        );
        refused(r#"{"name": "a"}, {"name": "a"}"#, "tenants[1].name: 'a' is the name of another");
        refused(r#"{"name": "a", "apis": "x"}"#, "tenants[0].apis is no array");
        refused(r#"{"name": "a", "apis": [1]}"#, "tenants[0].apis[0] is no string");
        let no_limit = "tenants[0].requests_per_second is no positive integer";
        for number in ["0", "-1", "1.5", "\"1\""] {
            refused(&format!(r#"{{"name": "a", "requests_per_second": {number}}}"#), no_limit);
        }
        refused(
            r#"{"name": "a", "weight": 2}"#,
            "tenants[0].weight isn't supported by this version: remove it",
        );
        refused(
            r#"{"name": "a", "limit": 2}"#,
            "tenants[0].limit is no field of a tenant, which has name, keys, apis and requests_per_second",
        );
        refused(
            r#"{"name": "a", "keys": [{"id": "1", "sha256": ""}]}"#,
            "tenants[0].keys[0].id doesn't have 16 lower-case hexadecimal digits",
        );
        refused(
            r#"{"name": "a", "keys": [{"key": "1"}]}"#,
            "tenants[0].keys[0].key is no field of a key, which has id and sha256",
        );
        let hash = KeyHash::of_key(b"x").to_text();
        let key = format!(r#"{{"id": "{ID}", "sha256": "{hash}"}}"#);
        refused(
            &format!(r#"{{"name": "a", "keys": [{key}]}}, {{"name": "b", "keys": [{key}]}}"#),
            &format!("tenants[1].keys: '{ID}' is the ID of another key"),
        );
    }

    #[test]
    fn other_documents_are_refused() {
        let error = |text: &str| TenantsDocument::parse(text.as_bytes()).unwrap_err();
        assert!(error("x").starts_with("it is not JSON: "));
        assert_eq!(error("[]"), "the file is no object");
        assert_eq!(error("{}"), "the field 'tenants' is missing");
        assert_eq!(
            error(r#"{"tenant": []}"#),
            "'tenant' is no field of the file, which has only 'tenants'"
        );
        assert!(TenantsDocument::parse(br#"{"tenants": []}"#).unwrap().is_empty());
    }
}
