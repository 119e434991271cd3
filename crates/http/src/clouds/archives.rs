//! The models of SageMaker's multi-model endpoints. Each model is an archive that SageMaker puts on
//! the disk, and is loaded from its own repository.
//!
//! Requests for the same name are served one after another, so that a load and an unload never
//! interleave. They run to completion even if their client disconnects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use galatea_codec_http::{
    SageMakerModelEntry, SageMakerModelPath, encode_sagemaker_model, encode_sagemaker_models,
};
use galatea_control::{
    LoadParameters, ModelArchiveClassifier, ModelArchiveKind, ModelNameMapping, ModelState,
    RepositoryEntry, ServerControl,
};
use galatea_door::RepositoryPermits;
use galatea_infer::{AccessPass, Status, api};
use galatea_stdx::Lock;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::options::LogLineSink;
use crate::guard::{exiting, guarded};

/// The maximum time that an unload waits for the model's last requests. SageMaker waits slightly
/// longer.
const UNLOAD_TIME_MAX: Duration = Duration::from_secs(350);

/// The first pause between two checks whether a model is unloaded.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// The longest pause between two checks.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// The model version that is listed, as in Triton.
const LISTED_VERSION: i64 = 1;

/// An archive that a client wants to load.
pub(super) struct WantedArchive {
    /// The name that SageMaker uses for the archive.
    pub(super) name: String,
    /// The name of the archive's model.
    pub(super) target: String,
    /// The path of the archive.
    pub(super) path: SageMakerModelPath,
}

/// An archive whose model has been loaded.
#[derive(Clone)]
struct LoadedArchive {
    target: String,
    /// The archive's repository, followed by those of later loads under the same name with other
    /// model names.
    repositories: Vec<String>,
}

/// The reason why a load failed.
#[derive(Debug)]
pub(super) enum LoadFailure {
    /// The archive's path belongs to the system. The client receives no message.
    System,
    /// The request is malformed, or the archive's repository can't be added.
    Refused(Status),
    /// The model can't be loaded.
    Load(Status),
}

/// The reason why an unload failed.
#[derive(Debug)]
pub(super) enum UnloadFailure {
    /// There is no archive with that name.
    Unknown,
    /// The server refused to unload it.
    Refused(Status),
}

/// The loaded archives.
pub(super) struct Archives {
    control: Arc<dyn ServerControl>,
    layouts: Arc<dyn ModelArchiveClassifier>,
    permits: RepositoryPermits,
    notices: Arc<LogLineSink>,
    loaded: Lock<BTreeMap<String, LoadedArchive>>,
    /// One lock for each name that current requests refer to. A request holds the lock of its name
    /// while it is served.
    turns: Lock<BTreeMap<String, Arc<Mutex<()>>>>,
}

impl Archives {
    pub(super) fn new(
        control: Arc<dyn ServerControl>,
        layouts: Arc<dyn ModelArchiveClassifier>,
        permits: RepositoryPermits,
        notices: Arc<LogLineSink>,
    ) -> Self {
        let (loaded, turns) = (Lock::new(BTreeMap::new()), Lock::new(BTreeMap::new()));
        Self { control, layouts, permits, notices, loaded, turns }
    }

    /// Returns true if an archive with this name is loaded.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.loaded.lock("look for an archive").contains_key(name)
    }

    /// Returns one archive as JSON.
    pub(super) fn describe(&self, name: &str) -> Option<Vec<u8>> {
        let loaded = self.loaded.lock("describe an archive");
        let archive = loaded.get(name)?;
        Some(encode_sagemaker_model(archive.listed(name)))
    }

    /// Returns all archives as JSON.
    pub(super) async fn list(
        &self,
        pass: AccessPass<api::ModelRepository>,
    ) -> Result<Vec<u8>, Status> {
        let index = self.index(pass).await?;
        let is_ready = |name: &str| {
            index.iter().any(|entry| {
                let found = (entry.name.as_str(), entry.version, entry.state);
                found == (name, Some(LISTED_VERSION), Some(ModelState::Ready))
            })
        };
        let loaded = self.loaded.lock("list the archives");
        let listed =
            loaded.iter().map(|(name, archive)| is_ready(name).then(|| archive.listed(name)));
        Ok(encode_sagemaker_models(listed))
    }

    /// Loads the model of an archive.
    pub(super) async fn load(
        self: &Arc<Self>,
        pass: AccessPass<api::ModelRepository>,
        wanted: WantedArchive,
    ) -> Result<(), LoadFailure> {
        let turn = self.turn(&wanted.name).await;
        let permit = self.permits.loads.acquire().await;
        let archives = self.clone();
        let loading = tokio::task::spawn_blocking(move || {
            let _held = (turn, permit);
            archives.load_now(pass, wanted)
        });
        loading.await.unwrap_or_else(|_| Err(LoadFailure::Load(exiting())))
    }

    fn load_now(
        &self,
        pass: AccessPass<api::ModelRepository>,
        wanted: WantedArchive,
    ) -> Result<(), LoadFailure> {
        let WantedArchive { name, target, path } = wanted;
        let layout = guarded(|| Ok(self.layouts.layout(pass, &path.directory)));
        let (repository, directory) = match layout.map_err(LoadFailure::Refused)? {
            ModelArchiveKind::Model => (path.parent, SageMakerModelPath::MODEL.to_owned()),
            ModelArchiveKind::Repository(directory) => (path.directory, directory),
        };
        // As in Triton, a repository without a model is added anyway; the load then reports the
        // problem.
        let mapping = ModelNameMapping { directory, name: target.clone() };
        let names = if mapping.directory.is_empty() { Vec::new() } else { vec![mapping] };
        guarded(|| self.control.register_repository(pass, &repository, &names))
            .map_err(LoadFailure::Refused)?;
        let parameters = LoadParameters::default();
        let loaded = guarded(|| self.control.load_model(pass, &target, parameters));
        if let Err(status) = loaded {
            // The client learns why the load failed, but not that this failed too.
            let _ = guarded(|| self.control.unregister_repository(pass, &repository));
            return Err(LoadFailure::Load(status));
        }
        let mut archives = self.loaded.lock("add an archive");
        let archive = archives.entry(name);
        archive
            .or_insert_with(|| LoadedArchive { target, repositories: Vec::new() })
            .repositories
            .push(repository);
        Ok(())
    }

    /// Unloads an archive's model and the models that only it needs. If `target` is empty, the name
    /// of the loaded model is used.
    pub(super) async fn unload(
        self: &Arc<Self>,
        pass: AccessPass<api::ModelRepository>,
        name: String,
        target: Option<String>,
    ) -> Result<(), UnloadFailure> {
        let archives = self.clone();
        let unloading = tokio::spawn(async move { archives.unload_now(pass, &name, target).await });
        unloading.await.unwrap_or_else(|_| Err(UnloadFailure::Refused(exiting())))
    }

    async fn unload_now(
        &self,
        pass: AccessPass<api::ModelRepository>,
        name: &str,
        target: Option<String>,
    ) -> Result<(), UnloadFailure> {
        let _turn = self.turn(name).await;
        let found = self.loaded.lock("find an archive").get(name).cloned();
        let LoadedArchive { target: loaded, repositories } = found.ok_or(UnloadFailure::Unknown)?;
        let target = target.unwrap_or(loaded);
        (self.notices)(&format_args!("Unloading SageMaker TargetModel: {target}"));
        let permit = self.permits.unloads.acquire().await;
        let model = target.clone();
        self.blocking(move |control| {
            let _permit = permit;
            control.unload_model(pass, &model, true)
        })
        .await
        .map_err(UnloadFailure::Refused)?;
        self.wait_until_unloaded(pass, &target).await;
        let removed = self
            .blocking(move |control| {
                let removed = |path: &String| control.unregister_repository(pass, path);
                let results: Vec<_> = repositories.iter().map(removed).collect();
                results.into_iter().next().unwrap_or(Ok(()))
            })
            .await;
        self.loaded.lock("remove an archive").remove(name);
        removed.map_err(UnloadFailure::Refused)
    }

    /// Waits until the requests for a model are done. Returns immediately if the model's state
    /// can't be determined.
    async fn wait_until_unloaded(&self, pass: AccessPass<api::ModelRepository>, model: &str) {
        let waiting = async {
            let mut pause = PAUSE_MIN;
            while self.index(pass).await.is_ok_and(|index| is_loaded(&index, model)) {
                tokio::time::sleep(pause).await;
                pause = pause.saturating_mul(2).min(PAUSE_MAX);
            }
        };
        if tokio::time::timeout(UNLOAD_TIME_MAX, waiting).await.is_err() {
            let seconds = UNLOAD_TIME_MAX.as_secs();
            (self.notices)(&format_args!(
                "SageMaker TargetModel {model} was not unloaded within {seconds} seconds"
            ));
        }
    }

    async fn index(
        &self,
        pass: AccessPass<api::ModelRepository>,
    ) -> Result<Vec<RepositoryEntry>, Status> {
        let permit = self.permits.indexes.acquire().await;
        self.blocking(move |control| {
            let _permit = permit;
            control.repository_index(pass, false)
        })
        .await
    }

    /// Runs `work` on a thread that may block.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn ServerControl) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let control = self.control.clone();
        let done = tokio::task::spawn_blocking(move || guarded(|| work(&*control)));
        done.await.unwrap_or_else(|_| Err(exiting()))
    }

    /// Waits for earlier requests for the same name.
    async fn turn(&self, name: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.turns.lock("queue for a name");
            // If only this map refers to a turn, the turn is over, and no request waits for it.
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            turns.entry(name.to_owned()).or_default().clone()
        };
        turn.lock_owned().await
    }
}

impl LoadedArchive {
    fn url(&self) -> &str {
        self.repositories.first().map_or("", String::as_str)
    }

    fn listed<'a>(&'a self, name: &'a str) -> SageMakerModelEntry<'a> {
        SageMakerModelEntry { name, url: self.url() }
    }
}

/// Returns true if a version of a model is loaded or being loaded.
fn is_loaded(index: &[RepositoryEntry], model: &str) -> bool {
    index.iter().filter(|entry| entry.name == model).any(|entry| match entry.state {
        Some(ModelState::Ready | ModelState::Loading | ModelState::Unloading) => true,
        Some(ModelState::Unknown | ModelState::Unavailable) | None => false,
    })
}
