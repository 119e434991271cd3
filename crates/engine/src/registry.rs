//! Which models there are, as a snapshot that requests read without a lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use arc_swap::ArcSwap;
use galatea_dispatch::LoadedModel;
use galatea_infer::{ModelState, RepositoryEntry, Status};
use galatea_policy::{ModelName, model_id, name_in_id};
use galatea_repository::ListedModel;

use crate::retire::ModelHandle;
use crate::tenure::Tenure;

/// Why a version that was taken out of service isn't ready, as the original
/// says it: it counts for nothing when the server's readiness is asked for.
const UNLOADED: &str = "unloaded";

/// Why a model that several repositories have isn't ready.
pub(crate) const DUPLICATE: &str = "model appears in two or more repositories";

/// The models of a server. Readers take a snapshot; writers replace it, one
/// at a time, each change as a whole: nobody sees half of a reload.
///
/// A model is known here by its id, which is its name unless there are namespaces.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    snapshot: ArcSwap<Snapshot>,
    writer: Mutex<()>,
}

/// Every model by id. Copies share the models that did not change.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    models: BTreeMap<Arc<str>, Arc<ModelEntry>>,
    /// There with namespaces.
    names: Option<Names>,
}

/// What names mean where there are namespaces. The meanings are made anew with each
/// change, so that a request looks its model up once, as it does without.
#[derive(Clone, Debug, Default)]
struct Names {
    /// The ids of the models that the plan wants: no others count.
    wanted: Arc<BTreeSet<ModelName>>,
    meanings: BTreeMap<Arc<str>, Meaning>,
}

/// What a name means where there are namespaces.
#[derive(Clone, Debug)]
enum Meaning {
    /// One model, with its id; without an entry as long as it waits for others.
    One(Arc<str>, Option<Arc<ModelEntry>>),
    /// So many models: none of them.
    Several(usize),
    /// None any more.
    Gone,
}

/// A model that was ever told to load.
#[derive(Clone, Debug, Default)]
struct ModelEntry {
    /// Every version that was ever tried, by number.
    versions: BTreeMap<i64, VersionEntry>,
    /// Why no version could be tried.
    failure: Option<String>,
}

/// One version of a model.
#[derive(Clone, Debug)]
struct VersionEntry {
    state: ModelState,
    reason: String,
    /// There while the version is ready.
    model: Option<Arc<ModelHandle>>,
    /// There while requests still run that it took before.
    leaving: Option<Weak<LoadedModel>>,
}

impl VersionEntry {
    const fn loading() -> Self {
        Self::without_model(ModelState::Loading, String::new())
    }

    const fn unavailable(reason: String) -> Self {
        Self::without_model(ModelState::Unavailable, reason)
    }

    const fn without_model(state: ModelState, reason: String) -> Self {
        Self { state, reason, model: None, leaving: None }
    }

    const fn ready(model: Arc<ModelHandle>) -> Self {
        Self { state: ModelState::Ready, reason: String::new(), model: Some(model), leaving: None }
    }

    /// Out of service, whatever it was before.
    fn withdraw(&mut self) {
        if let Some(model) = self.model.take() {
            *self = Self::without_model(ModelState::Unloading, String::new());
            self.leaving = Some(model.downgrade());
        } else if self.state != ModelState::Unloading {
            *self = Self::unavailable(String::from(UNLOADED));
        }
    }
}

impl Registry {
    /// A registry whose models may have the same name in different namespaces.
    pub(crate) fn with_namespaces() -> Self {
        let first = Snapshot { names: Some(Names::default()), ..Snapshot::default() };
        Self { snapshot: ArcSwap::from_pointee(first), writer: Mutex::default() }
    }

    pub(crate) fn snapshot(&self) -> arc_swap::Guard<Arc<Snapshot>> {
        self.snapshot.load()
    }

    /// These models are wanted, by the plan: with namespaces, names mean no others.
    pub(crate) fn set_wanted<'a>(&self, ids: impl Iterator<Item = &'a ModelName>) {
        let snapshot = self.snapshot();
        let Some(names) = &snapshot.names else { return };
        let ids: BTreeSet<ModelName> = ids.cloned().collect();
        if *names.wanted != ids {
            self.replace(|next| {
                if let Some(names) = &mut next.names {
                    names.wanted = Arc::new(ids);
                }
            });
        }
    }

    /// These versions are being loaded. Those among them that are ready stay so
    /// until the new ones are.
    pub(crate) fn begin_load(&self, id: &str, versions: &[i64]) {
        self.update(id, |entry| {
            entry.failure = None;
            for version in versions {
                let known = entry.versions.entry(*version).or_insert_with(VersionEntry::loading);
                if known.model.is_none() {
                    *known = VersionEntry::loading();
                }
            }
        });
    }

    /// What was loaded serves now, together with the versions in `kept`. Others
    /// go.
    pub(crate) fn finish_load(&self, id: &str, loaded: Vec<Arc<ModelHandle>>, kept: &[i64]) {
        self.update(id, |entry| {
            entry.failure = None;
            let is_new = |version: &i64| loaded.iter().any(|model| model.version() == *version);
            for (version, known) in &mut entry.versions {
                if !kept.contains(version) && !is_new(version) && known.model.is_some() {
                    known.withdraw();
                }
            }
            for model in loaded {
                entry.versions.insert(model.version(), VersionEntry::ready(model));
            }
        });
    }

    /// Nothing was loaded: what serves goes on. `outcomes` has the reasons of
    /// the versions that failed; the others were loaded in vain.
    pub(crate) fn abort_load(&self, id: &str, outcomes: Vec<(i64, Option<String>)>) {
        self.update(id, |entry| {
            for (version, reason) in outcomes {
                let known = entry.versions.entry(version).or_insert_with(VersionEntry::loading);
                if known.model.is_none() {
                    let reason = reason.unwrap_or_else(|| String::from(UNLOADED));
                    *known = VersionEntry::unavailable(reason);
                }
            }
        });
    }

    /// No version of the model could be tried. What serves goes on.
    pub(crate) fn fail(&self, id: &str, reason: &str) {
        self.update(id, |entry| {
            entry.failure = Some(String::from(reason));
        });
    }

    /// Tells the repository agents of a model's ready versions that those are about to
    /// go, but not agents that will have the model afterwards too.
    pub(crate) fn announce_unload(&self, id: &str, staying: Option<&Arc<Tenure>>) {
        let snapshot = self.snapshot();
        let leaving = snapshot.ready_of(id).filter_map(|model| model.tenure());
        leaving
            .filter(|tenure| !staying.is_some_and(|staying| Arc::ptr_eq(staying, tenure)))
            .for_each(|tenure| tenure.unloading());
    }

    /// Takes a model out of service, whose agents were told; with a reason if somebody
    /// still wants it.
    pub(crate) fn withdraw(&self, id: &str, failure: Option<&str>) {
        self.change(|models| {
            if let Some(entry) = models.get_mut(id) {
                let entry = Arc::make_mut(entry);
                entry.failure = failure.map(String::from);
                entry.versions.values_mut().for_each(VersionEntry::withdraw);
            }
        });
    }

    /// Forgets why a model failed that nobody wants any more. Versions that serve are
    /// left alone: they are taken out of service by [`Registry::withdraw`].
    pub(crate) fn dismiss(&self, id: &str) {
        self.change(|models| {
            let Some(entry) = models.get_mut(id) else { return };
            // One that was never tried is as if nobody had asked for it.
            if entry.versions.is_empty() {
                models.remove(id);
                return;
            }
            let entry = Arc::make_mut(entry);
            entry.failure = None;
            let idle = entry.versions.values_mut().filter(|version| version.model.is_none());
            idle.for_each(VersionEntry::withdraw);
        });
    }

    /// With namespaces, forgets that an order for a name without one failed.
    pub(crate) fn dismiss_name(&self, name: &str) {
        let snapshot = self.snapshot();
        // No model has such an id.
        if snapshot.names.is_some() && snapshot.models.contains_key(name) {
            self.dismiss(name);
        }
    }

    /// Takes every model out of service.
    pub(crate) fn withdraw_all(&self) {
        let names: Vec<Arc<str>> = self.snapshot().models.keys().cloned().collect();
        names.iter().for_each(|name| self.announce_unload(name, None));
        self.change(|models| {
            for entry in models.values_mut() {
                let entry = Arc::make_mut(entry);
                entry.versions.values_mut().for_each(VersionEntry::withdraw);
            }
        });
    }

    /// The last request of a version that was taken out of service has run.
    pub(crate) fn gone(&self, id: &str, version: i64, model: &Weak<LoadedModel>) {
        let is_it = |known: &VersionEntry| {
            known.leaving.as_ref().is_some_and(|leaving| leaving.ptr_eq(model))
        };
        self.change(|models| {
            let Some(entry) = models.get_mut(id) else { return };
            // It may serve again, as another one.
            if entry.versions.get(&version).is_some_and(is_it) {
                let unloaded = VersionEntry::unavailable(String::from(UNLOADED));
                Arc::make_mut(entry).versions.insert(version, unloaded);
            }
        });
    }

    fn update(&self, id: &str, change: impl FnOnce(&mut ModelEntry)) {
        self.change(|models| {
            let entry = Arc::make_mut(models.entry(Arc::from(id)).or_default());
            change(entry);
        });
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<Arc<str>, Arc<ModelEntry>>)) {
        self.replace(|next| change(&mut next.models));
    }

    fn replace(&self, change: impl FnOnce(&mut Snapshot)) {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = Snapshot::clone(&self.snapshot.load());
        change(&mut next);
        if let Some(names) = &mut next.names {
            names.meanings = meanings(&names.wanted, &next.models);
        }
        let previous = self.snapshot.swap(Arc::new(next));
        drop(writer);
        // Perhaps the last to know of a model, which then retires.
        drop(previous);
    }
}

impl Snapshot {
    /// The version asked for, or the newest that is ready.
    ///
    /// # Errors
    ///
    /// `NotFound` for a name or version that isn't there, or if no version is
    /// ready; `Unavailable` for a version that isn't.
    pub(crate) fn find(
        &self,
        name: &str,
        version: Option<i64>,
    ) -> Result<&Arc<ModelHandle>, Status> {
        let unknown = |why: String| Status::not_found(format!("Request for unknown model: {why}"));
        let (name, model) = self.entry(name)?;
        let Some(version) = version else {
            let newest = model.versions.values().rev().find_map(|entry| entry.model.as_ref());
            return newest.ok_or_else(|| unknown(format!("'{name}' has no available versions")));
        };
        let entry = model
            .versions
            .get(&version)
            .ok_or_else(|| unknown(format!("'{name}' version {version} is not found")))?;
        entry.model.as_ref().ok_or_else(|| {
            Status::unavailable(format!(
                "Request for unknown model: '{name}' version {version} is not at ready state"
            ))
        })
    }

    /// The model that a client means by a name, with what it is called in messages.
    fn entry<'s: 't, 'n: 't, 't>(
        &'s self,
        name: &'n str,
    ) -> Result<(&'t str, &'s ModelEntry), Status> {
        let not_found = || format!("Request for unknown model: '{name}' is not found");
        let Some(names) = &self.names else {
            let entry = self.models.get(name).ok_or_else(|| Status::not_found(not_found()))?;
            return Ok((name, entry));
        };
        // The original's words and codes.
        match names.meanings.get(name) {
            Some(Meaning::One(id, Some(entry))) => Ok((id, entry)),
            Some(Meaning::One(id, None)) => {
                Err(Status::not_found(format!("Request for unknown model: '{id}' is not found")))
            }
            Some(Meaning::Several(count)) => Err(Status::invalid_argument(format!(
                "There are {count} identifiers of model '{name}' in global map, model namespace \
                 must be provided to resolve ambiguity."
            ))),
            Some(Meaning::Gone) => Err(Status::not_found(format!(
                "Identifier of model '{name}' is not found in global map"
            ))),
            None => Err(Status::invalid_argument(not_found())),
        }
    }

    /// Whether this version of the model with this id is ready.
    pub(crate) fn ready_version(&self, id: &str, version: i64) -> Option<&Arc<ModelHandle>> {
        self.models.get(id)?.versions.get(&version)?.model.as_ref()
    }

    /// The ready versions, ascending, of what a client means by a name.
    pub(crate) fn ready_of_named(&self, name: &str) -> impl Iterator<Item = &Arc<ModelHandle>> {
        let entry = match &self.names {
            None => self.models.get(name),
            Some(names) => match names.meanings.get(name) {
                Some(Meaning::One(_, entry)) => entry.as_ref(),
                Some(Meaning::Several(_) | Meaning::Gone) | None => None,
            },
        };
        entry.into_iter().flat_map(|entry| entry.ready())
    }

    /// Models of which no version could be tried, and none serves.
    pub(crate) fn failed_names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.models.iter().filter(|(_, model)| model.outage().is_some()).map(|(name, _)| name)
    }

    /// A model's ready versions, ascending.
    pub(crate) fn ready_of(&self, id: &str) -> impl Iterator<Item = &Arc<ModelHandle>> {
        self.models.get(id).into_iter().flat_map(|entry| entry.ready())
    }

    /// The numbers of a model's ready versions.
    pub(crate) fn ready_versions(&self, id: &str) -> Vec<i64> {
        self.ready_of(id).map(|model| model.version()).collect()
    }

    /// Every ready version of every model.
    pub(crate) fn ready(&self) -> impl Iterator<Item = &Arc<ModelHandle>> {
        self.versions().filter_map(|entry| entry.model.as_ref())
    }

    /// Every version that was taken out of service and still has requests.
    pub(crate) fn leaving(&self) -> impl Iterator<Item = Arc<LoadedModel>> {
        self.versions().filter_map(|entry| entry.leaving.as_ref()?.upgrade())
    }

    fn versions(&self) -> impl Iterator<Item = &VersionEntry> {
        self.models.values().flat_map(|model| model.versions.values())
    }

    /// Whether every model that was told to load has a version and did not fail for
    /// good, and every version is ready that was not taken out of service.
    pub(crate) fn all_ready(&self) -> bool {
        let is_fine = |entry: &VersionEntry| entry.model.is_some() || entry.reason == UNLOADED;
        self.models.values().all(|model| {
            model.outage().is_none()
                && !model.versions.is_empty()
                && model.versions.values().all(is_fine)
        })
    }

    /// The repository index: what the repositories list, and whatever serves
    /// without being listed there.
    pub(crate) fn index(&self, listed: &[ListedModel], only_ready: bool) -> Vec<RepositoryEntry> {
        let shown = |id| if self.names.is_some() { name_in_id(id) } else { id };
        let mut models: BTreeMap<ModelName, (&str, bool)> = BTreeMap::new();
        for (id, model) in &self.models {
            if model.versions.values().any(|entry| entry.state != ModelState::Unavailable) {
                models.insert(id.clone(), (shown(id), false));
            }
        }
        for model in listed {
            let id = model_id(model.namespace.as_deref(), &model.name);
            models.insert(id, (&model.name, model.is_duplicate));
        }
        let mut entries = Vec::new();
        for (id, (name, is_duplicate)) in &models {
            match (self.models.get(id), is_duplicate) {
                (_, true) => entries.push(failed(name, DUPLICATE)),
                (None, false) if only_ready => {}
                (None, false) => entries.push(RepositoryEntry {
                    name: (*name).to_owned(),
                    version: None,
                    state: None,
                    reason: String::new(),
                }),
                (Some(model), false) => model.list(name, only_ready, &mut entries),
            }
        }
        entries
    }
}

/// What each name means, of models by their ids. Models that only could not be read
/// have no part in it.
fn meanings(
    wanted: &BTreeSet<ModelName>,
    models: &BTreeMap<Arc<str>, Arc<ModelEntry>>,
) -> BTreeMap<Arc<str>, Meaning> {
    let mut names: BTreeMap<Arc<str>, Meaning> = BTreeMap::new();
    let tried = models.iter().filter(|(_, entry)| !entry.versions.is_empty());
    for (id, _) in tried {
        names.insert(name_in_id(id).into(), Meaning::Gone);
    }
    for id in wanted {
        let meaning = names.entry(name_in_id(id).into()).or_insert(Meaning::Gone);
        *meaning = match meaning {
            Meaning::Gone => Meaning::One(id.clone(), models.get(id).cloned()),
            Meaning::One(..) => Meaning::Several(2),
            Meaning::Several(count) => Meaning::Several(*count + 1),
        };
    }
    names
}

impl ModelEntry {
    fn ready(&self) -> impl Iterator<Item = &Arc<ModelHandle>> {
        self.versions.values().filter_map(|entry| entry.model.as_ref())
    }

    /// Why no version could be tried the last time, if none serves from before.
    fn outage(&self) -> Option<&str> {
        self.failure.as_deref().filter(|_| self.ready().next().is_none())
    }

    fn list(&self, name: &str, only_ready: bool, entries: &mut Vec<RepositoryEntry>) {
        let outage = self.outage().filter(|_| !only_ready);
        entries.extend(outage.map(|reason| failed(name, reason)));
        for (version, entry) in &self.versions {
            // What was said of such versions is from before.
            let is_past = entry.state == ModelState::Unavailable && outage.is_some();
            if is_past || only_ready && entry.state != ModelState::Ready {
                continue;
            }
            entries.push(RepositoryEntry {
                name: name.to_owned(),
                version: Some(*version),
                state: Some(entry.state),
                reason: entry.reason.clone(),
            });
        }
    }
}

fn failed(name: &str, reason: &str) -> RepositoryEntry {
    RepositoryEntry {
        name: name.to_owned(),
        version: None,
        state: Some(ModelState::Unavailable),
        reason: reason.to_owned(),
    }
}
