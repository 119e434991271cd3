//! Model names and namespaces, and the resolution of names to models.
//!
//! With namespaces, several repositories may contain models with the same name. A model is then
//! identified by its namespace and name, `NAMESPACE::NAME`, as Triton displays it, and
//! [`ModelIdsByName`] maps a name to its ids. A name must not contain `::` or begin with a colon,
//! so that ids are unambiguous. Without namespaces, the id is the name.
//!
//! The names of an ensemble's composing models are resolved among the desired models. When a name
//! starts to refer to a different model, the driver sets the ensemble desired in a new revision
//! before it removes the earlier model.

use std::collections::{BTreeMap, BTreeSet};

/// A model's identifier: its name, or its id with namespaces.
pub type ModelId = std::sync::Arc<str>;

/// The separator between namespace and name.
const SEPARATOR: &str = "::";

/// Returns the id of a model: its name, prefixed with its namespace if it has one.
#[must_use]
pub fn model_id(namespace: Option<&str>, name: &str) -> ModelId {
    match namespace {
        Some(namespace) => format!("{namespace}{SEPARATOR}{name}").into(),
        None => name.into(),
    }
}

/// Returns the name part of an id with a namespace.
#[must_use]
pub fn name_of_model_id(id: &str) -> &str {
    id.rsplit_once(SEPARATOR).map_or(id, |(_, name)| name)
}

/// Returns true if an id with this name is unambiguous.
#[must_use]
pub fn can_have_namespace(name: &str) -> bool {
    !name.starts_with(':') && !name.contains(SEPARATOR)
}

/// The model ids by name.
#[derive(Clone, Debug, Default)]
pub struct ModelIdsByName {
    ids: BTreeMap<String, BTreeSet<ModelId>>,
}

impl ModelIdsByName {
    /// Adds a model's id.
    pub fn insert(&mut self, id: ModelId) {
        self.ids.entry(name_of_model_id(&id).to_owned()).or_default().insert(id);
    }

    /// Removes a model's id.
    pub fn remove(&mut self, id: &str) {
        if let Some(ids) = self.ids.get_mut(name_of_model_id(id)) {
            ids.remove(id);
            if ids.is_empty() {
                self.ids.remove(name_of_model_id(id));
            }
        }
    }

    /// Returns all models with this name.
    pub fn ids_of(&self, name: &str) -> impl Iterator<Item = &ModelId> {
        self.ids.get(name).into_iter().flatten()
    }

    /// Returns the model that a model in `namespace` refers to by this name: the one in its own
    /// namespace, or otherwise the only one. If there is no such model or more than one, returns
    /// the bare name, which isn't the id of any model.
    #[must_use]
    pub fn resolve(&self, namespace: &str, name: &str) -> ModelId {
        let own = model_id(Some(namespace), name);
        let mut others = self.ids_of(name);
        match (others.next(), others.next()) {
            (Some(only), None) => only.clone(),
            (Some(_), Some(_)) if self.ids_of(name).any(|id| *id == own) => own,
            (None | Some(_), _) => name.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(ids: &[&str]) -> ModelIdsByName {
        let mut names = ModelIdsByName::default();
        ids.iter().for_each(|id| names.insert((*id).into()));
        names
    }

    #[test]
    fn ids_contain_namespace_and_name() {
        assert_eq!(&*model_id(None, "m"), "m");
        assert_eq!(&*model_id(Some("/r"), "m"), "/r::m");
        for (namespace, name) in
            [("/r", "m"), ("/r::x", "m"), ("/r:", "a:b"), ("", "m:"), ("", "m")]
        {
            assert!(can_have_namespace(name));
            assert_eq!(name_of_model_id(&model_id(Some(namespace), name)), name);
        }
        for name in [":m", "a::b", "::", ":"] {
            assert!(!can_have_namespace(name), "{name}");
        }
    }

    #[test]
    fn a_name_refers_to_the_own_namespace_or_the_only_model() {
        let check = |ids: &[&str], expected: &str| {
            assert_eq!(&*names(ids).resolve("/a", "m"), expected, "{ids:?}");
        };
        check(&["/a::m"], "/a::m");
        check(&["/b::m"], "/b::m");
        check(&["/a::m", "/b::m", "/c::m"], "/a::m");
        check(&["/b::m", "/c::m"], "m");
        check(&[], "m");
        check(&["/a::n", "/b::mm"], "m");
    }

    #[test]
    fn a_removed_model_has_no_name() {
        let mut names = names(&["/a::m", "/b::m"]);
        assert_eq!(names.ids_of("m").count(), 2);
        names.remove("/a::m");
        names.remove("/c::m");
        assert_eq!(&*names.resolve("/a", "m"), "/b::m");
        names.remove("/b::m");
        assert_eq!(names.ids_of("m").count(), 0);
        assert_eq!(&*names.resolve("/a", "m"), "m");
    }
}
