//! A repository in an object store.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use galatea_policy::ModificationTimes;
use galatea_stdx::Lock;

use super::ahead::AheadQueue;
use super::copy::{CopySource, check_space};
use super::listing::{self, ModelListing};
use super::stamps::ObjectTimes;
use super::{ModelCopy, ObjectDownload, RemoteError, RemoteRepository, RemoteStore};
use crate::temporary::TemporaryDirectories;

/// The maximum number of objects in a model repository in a bucket.
///
/// Each object takes some 300 bytes while the repository is listed, for a total of 60 MB. A bucket
/// with more objects also has other contents, and the repository's path should specify a folder.
const BUCKET_OBJECTS_MAX: usize = 200_000;

/// The maximum number of times that a model is listed if its objects change while they are read.
const LISTINGS_MAX: usize = 3;

/// A repository in an object store, with the known state of its models.
#[derive(Debug)]
pub(crate) struct RemoteRoot {
    /// The repository's address, without trailing slashes.
    url: PathBuf,
    store: Arc<dyn RemoteStore>,
    copies: TemporaryDirectories,
    ahead: AheadQueue,
    known: Lock<BTreeMap<String, KnownModel>>,
}

#[derive(Clone, Debug, Default)]
struct KnownModel {
    stamps: ObjectTimes,
    /// The copy. It lives as long as it is used by a model that is loaded or about to be loaded.
    copy: Weak<ModelCopy>,
}

/// A model whose files outside its versions have been copied.
#[derive(Clone, Debug)]
pub(crate) struct FoundModel {
    pub(crate) copy: Arc<ModelCopy>,
    stamps: ObjectTimes,
}

impl FoundModel {
    /// The times of the last changes to the model's objects. `config` is the configuration file.
    pub(crate) fn modified(&self, config: Option<&str>) -> ModificationTimes {
        self.stamps.model_times(config)
    }
}

/// The models by folder, or the reasons why they can't be used.
type FoundModels = BTreeMap<String, Result<FoundModel, String>>;

impl RemoteRoot {
    pub(crate) fn new(url: &Path, repository: RemoteRepository) -> Self {
        let text = url.to_string_lossy();
        Self {
            url: PathBuf::from(text.trim_end_matches('/')),
            store: repository.store,
            copies: TemporaryDirectories::new(repository.copies),
            ahead: AheadQueue::default(),
            known: Lock::default(),
        }
    }

    /// Returns true if this folder contains a model, or may contain one.
    pub(crate) fn has(&self, folder: &str) -> bool {
        // Two objects exceed the limit, which causes an error here. Other problems are reported
        // when the model is read.
        self.store.list(folder, 1).map_or(true, |found| !found.is_empty())
    }

    /// The model folders, without examining them.
    pub(crate) fn folders(&self) -> io::Result<Vec<String>> {
        self.store.folders().map_err(io::Error::other)
    }

    /// Reads all models.
    pub(crate) fn scan(&self) -> io::Result<FoundModels> {
        let listings = self.listings().map_err(io::Error::other)?;
        let mut known = self.known.lock("forget models that are gone");
        known.retain(|folder, _| listings.contains_key(folder));
        drop(known);
        let mut found = self.prepare(listings);
        // A retry costs little, and often only one file has changed.
        let changed: Vec<String> = found
            .iter()
            .filter(|(_, model)| matches!(model, Err(RemoteError::Changed { .. })))
            .map(|(folder, _)| folder.clone())
            .collect();
        for folder in changed {
            let model = self.prepare_one(&folder);
            found.insert(folder, model);
        }
        let shown = |(folder, model): (String, Result<FoundModel, RemoteError>)| {
            (folder, model.map_err(|error| error.to_string()))
        };
        Ok(found.into_iter().map(shown).collect())
    }

    /// The objects of all models, from one listing of the repository. If an object's name makes the
    /// whole listing fail, each model is listed separately, so only that object's model fails.
    fn listings(&self) -> Result<BTreeMap<String, Result<ModelListing, String>>, RemoteError> {
        let mut left = BUCKET_OBJECTS_MAX;
        match self.store.list("", left) {
            Ok(objects) => return Ok(listing::by_model(objects)),
            Err(RemoteError::Name(_)) => {}
            Err(other) => return Err(other),
        }
        let mut listings = BTreeMap::new();
        for folder in self.store.folders()? {
            match self.store.list(&folder, left) {
                Ok(objects) => {
                    left = left.saturating_sub(objects.len());
                    listings.extend(listing::by_model(objects));
                }
                Err(RemoteError::Name(text)) => {
                    listings.insert(folder, Err(text));
                }
                Err(other) => return Err(other),
            }
        }
        Ok(listings)
    }

    /// Finds one model.
    pub(crate) fn model(&self, folder: &str) -> Result<FoundModel, String> {
        self.prepare_one(folder).map_err(|error| error.to_string())
    }

    fn prepare_one(&self, folder: &str) -> Result<FoundModel, RemoteError> {
        let mut last = Err(RemoteError::Changed { path: folder.to_owned() });
        for _ in 0..LISTINGS_MAX {
            let objects = self.store.list(folder, BUCKET_OBJECTS_MAX)?;
            let mut listings = listing::by_model(objects);
            listings.retain(|name, _| name == folder);
            // A folder with only a marker counts as one without files.
            listings.entry(folder.to_owned()).or_insert_with(|| Ok(ModelListing::default()));
            last = self.prepare(listings).remove(folder).unwrap_or(last);
            if !matches!(last, Err(RemoteError::Changed { .. })) {
                break;
            }
        }
        last
    }

    /// Finds or creates the models' copies, and copies the files outside the versions. All models
    /// are handled at once, so that many small models don't wait for each other.
    fn prepare(
        &self,
        listings: BTreeMap<String, Result<ModelListing, String>>,
    ) -> BTreeMap<String, Result<FoundModel, RemoteError>> {
        let mut found: BTreeMap<String, Result<FoundModel, RemoteError>> = listings
            .into_iter()
            .map(|(folder, listing)| {
                let model = listing.and_then(|listing| self.find_copy(&folder, listing));
                (folder, model.map_err(RemoteError::Failed))
            })
            .collect();
        let mut downloads: Vec<ObjectDownload> = Vec::new();
        let mut parts = Vec::new();
        for (folder, model) in &found {
            let Ok(model) = model else { continue };
            let first = downloads.len();
            downloads.extend(model.copy.first_downloads());
            parts.push((folder.clone(), first..downloads.len()));
        }
        let results = match check_space(&*self.store, &downloads, self.copies.parent()) {
            Ok(()) if downloads.is_empty() => Vec::new(),
            Ok(()) => self.store.begin(downloads.clone())(),
            Err(reason) => vec![Err(RemoteError::Failed(reason)); downloads.len()],
        };
        for (folder, part) in parts {
            let Some(Ok(model)) = found.get(&folder) else { continue };
            let (Some(done), Some(results)) = (downloads.get(part.clone()), results.get(part))
            else {
                continue;
            };
            if let Err(error) = model.copy.finish(done, results) {
                found.insert(folder, Err(error));
            }
        }
        found
    }

    /// Finds the copy for this listing, reusing the existing copy if nothing has changed.
    fn find_copy(&self, folder: &str, listing: ModelListing) -> Result<FoundModel, String> {
        let known = self.known.lock("look up a model").get(folder).cloned().unwrap_or_default();
        let stamps = known.stamps.next(&listing);
        let before = known.copy.upgrade();
        let copy = match before {
            Some(copy) if copy.listing == listing => copy,
            before => {
                let (store, ahead) = (&self.store, &self.ahead);
                let origin = CopySource { url: &self.url, folder, store, ahead };
                let made = ModelCopy::new(&origin, listing, before.as_deref(), &self.copies);
                Arc::new(made.map_err(|error| {
                    let parent = self.copies.parent().display();
                    format!("Failed to create local temp folder in '{parent}': {error}")
                })?)
            }
        };
        let known = KnownModel { stamps: stamps.clone(), copy: Arc::downgrade(&copy) };
        self.known.lock("note a model").insert(folder.to_owned(), known);
        Ok(FoundModel { copy, stamps })
    }
}
