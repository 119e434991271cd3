//! Resolution of names that several models may share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use galatea_policy::{ModelId, name_of_model_id};

use super::entry::ModelEntry;

/// The models by id. Copies share the unchanged entries.
pub(super) type Models = BTreeMap<Arc<str>, Arc<ModelEntry>>;

/// The meaning of each name. The table is recomputed with each registry change, so a request looks
/// up its model only once, just as without namespaces.
#[derive(Clone, Debug, Default)]
pub(super) struct NameTable {
    /// The ids of the desired models. Names refer only to these.
    desired: Arc<BTreeSet<ModelId>>,
    meanings: BTreeMap<Arc<str>, NameMeaning>,
}

/// The meaning of a name.
#[derive(Clone, Debug)]
pub(super) enum NameMeaning {
    /// A single model, with its id. The model has no entry while it waits for other models.
    One(Arc<str>, Option<Arc<ModelEntry>>),
    /// This many models; the name resolves to none of them.
    Several(usize),
    /// The model no longer exists.
    None,
}

impl NameTable {
    pub(super) fn get(&self, name: &str) -> Option<&NameMeaning> {
        self.meanings.get(name)
    }

    pub(super) fn desired(&self) -> &BTreeSet<ModelId> {
        &self.desired
    }

    pub(super) fn set_desired(&mut self, ids: BTreeSet<ModelId>) {
        self.desired = Arc::new(ids);
    }

    /// Recomputes the meanings. Models without any version that was ever tried are ignored.
    pub(super) fn update(&mut self, models: &Models) {
        let mut meanings: BTreeMap<Arc<str>, NameMeaning> = BTreeMap::new();
        let tried = models.iter().filter(|(_, entry)| !entry.versions.is_empty());
        for (id, _) in tried {
            meanings.insert(name_of_model_id(id).into(), NameMeaning::None);
        }
        for id in &*self.desired {
            let meaning = meanings.entry(name_of_model_id(id).into()).or_insert(NameMeaning::None);
            *meaning = match meaning {
                NameMeaning::None => NameMeaning::One(id.clone(), models.get(id).cloned()),
                NameMeaning::One(..) => NameMeaning::Several(2),
                NameMeaning::Several(count) => NameMeaning::Several(*count + 1),
            };
        }
        self.meanings = meanings;
    }
}
