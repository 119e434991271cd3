//! Models of the same name in different namespaces, and which of them is meant.
//!
//! Where repositories may hold models of the same name, a model is known by an id
//! of its namespace and its name, `NAMESPACE::NAME`, as the original shows it, and
//! [`ModelNames`] knows which ids a name has. A name can't contain `::` or begin with
//! a colon, so an id has one meaning. Without namespaces an id is the name, and
//! nothing of this is needed.

use std::collections::{BTreeMap, BTreeSet};

use super::ModelName;

/// Between a namespace and a name.
const SEPARATOR: &str = "::";

/// What a model is known by: its name, with its namespace if there are any.
#[must_use]
pub fn model_id(namespace: Option<&str>, name: &str) -> ModelName {
    match namespace {
        Some(namespace) => format!("{namespace}{SEPARATOR}{name}").into(),
        None => name.into(),
    }
}

/// The name in an id with a namespace.
#[must_use]
pub fn name_in_id(id: &str) -> &str {
    id.rsplit_once(SEPARATOR).map_or(id, |(_, name)| name)
}

/// Whether an id could be taken apart again if a model had this name.
#[must_use]
pub fn fits_namespaces(name: &str) -> bool {
    !name.starts_with(':') && !name.contains(SEPARATOR)
}

/// Which models have which name.
#[derive(Clone, Debug, Default)]
pub struct ModelNames {
    ids: BTreeMap<String, BTreeSet<ModelName>>,
}

impl ModelNames {
    /// There is a model with this id.
    pub fn insert(&mut self, id: ModelName) {
        self.ids.entry(name_in_id(&id).to_owned()).or_default().insert(id);
    }

    /// There is none any more.
    pub fn remove(&mut self, id: &str) {
        if let Some(ids) = self.ids.get_mut(name_in_id(id)) {
            ids.remove(id);
            if ids.is_empty() {
                self.ids.remove(name_in_id(id));
            }
        }
    }

    /// All models of a name.
    pub fn ids_of(&self, name: &str) -> impl Iterator<Item = &ModelName> {
        self.ids.get(name).into_iter().flatten()
    }

    /// Which model of this name another one in `namespace` means: the one in its own
    /// namespace, else the only one that there is. If there is none, or several, it
    /// is the bare name, which is no model's id.
    #[must_use]
    pub fn resolve(&self, namespace: &str, name: &str) -> ModelName {
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

    fn names(ids: &[&str]) -> ModelNames {
        let mut names = ModelNames::default();
        ids.iter().for_each(|id| names.insert((*id).into()));
        names
    }

    #[test]
    fn ids_are_put_together_and_taken_apart() {
        assert_eq!(&*model_id(None, "m"), "m");
        assert_eq!(&*model_id(Some("/r"), "m"), "/r::m");
        for (namespace, name) in
            [("/r", "m"), ("/r::x", "m"), ("/r:", "a:b"), ("", "m:"), ("", "m")]
        {
            assert!(fits_namespaces(name));
            assert_eq!(name_in_id(&model_id(Some(namespace), name)), name);
        }
        for name in [":m", "a::b", "::", ":"] {
            assert!(!fits_namespaces(name), "{name}");
        }
    }

    #[test]
    fn its_own_namespace_comes_first_and_then_the_only_one() {
        let check = |ids: &[&str], meant: &str| {
            assert_eq!(&*names(ids).resolve("/a", "m"), meant, "{ids:?}");
        };
        check(&["/a::m"], "/a::m");
        check(&["/b::m"], "/b::m");
        check(&["/a::m", "/b::m", "/c::m"], "/a::m");
        check(&["/b::m", "/c::m"], "m");
        check(&[], "m");
        check(&["/a::n", "/b::mm"], "m");
    }

    #[test]
    fn models_go_from_their_names() {
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
