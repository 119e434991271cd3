//! The objects of one repository.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use galatea_outbound::OutboundError;
use galatea_repository::{
    InFlightDownloads, ObjectDownload, ObjectVersion, RemoteError, RemoteObject, RemoteStore,
};
use galatea_stdx::Lock;
use object_store::ObjectStore;
use object_store::path::Path;
use tokio::time::timeout;

use crate::address::{Address, BucketPlace};
use crate::download::{DownloadFailure, DownloadPermits, download};
use crate::explain::{self, FailedPart, RequestFailureCause};
use crate::open::KeylessIdentity;
use crate::runtime::Runtime;

/// The time limit for one page of a listing, including the client's retries.
const PAGE_TIME_MAX: Duration = Duration::from_mins(2);

/// A function that reopens an object store with the current credentials.
pub(crate) type StoreOpener =
    Box<dyn Fn(KeylessIdentity) -> Result<Arc<dyn ObjectStore>, String> + Send + Sync>;

/// A repository in an object store.
pub(crate) struct BucketStore {
    pub(crate) origin: RepositoryLocation,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) permits: DownloadPermits,
    pub(crate) reopen: StoreOpener,
    /// The store, and the identity of its requests if there are no keys.
    pub(crate) store: Lock<(KeylessIdentity, Arc<dyn ObjectStore>)>,
}

/// The location of a repository.
#[derive(Clone, Debug)]
pub(crate) struct RepositoryLocation {
    pub(crate) url: String,
    pub(crate) address: Address,
}

impl fmt::Debug for BucketStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BucketStore").field("address", &self.origin.address).finish_non_exhaustive()
    }
}

/// The purpose of a request, which determines the error message.
enum RequestPurpose<'a> {
    Open,
    List,
    Read(&'a str),
}

impl BucketStore {
    /// Lists a few objects to check that the repository exists.
    pub(crate) fn check(&self) -> Result<(), RemoteError> {
        let found = self.ask(RequestPurpose::Open, |store, prefix| async move {
            match store.list(Some(&prefix)).next().await {
                None => Ok(false),
                Some(Ok(_)) => Ok(true),
                // Invalid names are reported when the models are listed.
                Some(Err(object_store::Error::InvalidPath { .. })) => Ok(true),
                Some(Err(error)) => Err(error),
            }
        })?;
        if !found && !self.origin.address.folder.is_empty() {
            return Err(RemoteError::NotDirectory);
        }
        Ok(())
    }

    /// Sends a request to the store. If the current credentials are refused, repeats it with new
    /// ones: as in Triton, the credential file may have changed.
    fn ask<T, F>(
        &self,
        purpose: RequestPurpose<'_>,
        question: impl Fn(Arc<dyn ObjectStore>, Path) -> F,
    ) -> Result<T, RemoteError>
    where
        T: Send + 'static,
        F: Future<Output = object_store::Result<T>> + Send + 'static,
    {
        let ask = || {
            let (_, store) = self.store.lock("take the object store").clone();
            let prefix =
                Path::parse(&self.origin.address.folder).map_err(object_store::Error::from)?;
            let answer = self.runtime.wait_for(question(store, prefix));
            let panicked = || object_store::Error::Generic {
                store: "repository",
                source: "the request ended without a result".into(),
            };
            answer.unwrap_or_else(|| Err(panicked()))
        };
        let outcome = ask().or_else(|error| match RequestFailureCause::of(&error).kind {
            FailedPart::Credentials | FailedPart::Permission => {
                // A machine that seems to have a role but doesn't sends its requests anonymously.
                let has_no_role = explain::is_of_role(&error);
                let fallback =
                    if has_no_role { KeylessIdentity::Anonymous } else { self.store.lock("ask").0 };
                let Ok(store) = (self.reopen)(fallback) else { return Err(error) };
                *self.store.lock("replace the object store") = (fallback, store);
                ask()
            }
            FailedPart::Told | FailedPart::Region | FailedPart::Bucket | FailedPart::Other => {
                Err(error)
            }
        });
        outcome.map_err(|error| {
            let text = self.origin.text(&purpose, &error);
            if matches!(error, object_store::Error::InvalidPath { .. }) {
                RemoteError::Name(text)
            } else {
                RemoteError::Failed(text)
            }
        })
    }
}

impl RepositoryLocation {
    /// Describes why an object was not copied.
    fn told(&self, path: &str, failure: &DownloadFailure) -> RemoteError {
        let url = &self.url;
        match failure {
            DownloadFailure::Changed => RemoteError::Changed { path: format!("{url}/{path}") },
            DownloadFailure::Store(error) => {
                RemoteError::Failed(self.text(&RequestPurpose::Read(path), error))
            }
            DownloadFailure::File(error) => {
                RemoteError::Failed(format!("can't keep a copy of '{url}/{path}': {error}"))
            }
        }
    }

    /// Describes a failure in Triton's words, followed by its cause.
    fn text(&self, purpose: &RequestPurpose<'_>, error: &object_store::Error) -> String {
        let cause = RequestFailureCause::of(error);
        let RequestFailureCause { code, message, .. } = &cause;
        let url = &self.url;
        let text = match (&self.address.place, purpose) {
            (BucketPlace::S3 { .. }, RequestPurpose::Open) => format!(
                "Unable to create S3 filesystem client. Check account credentials. \
                 Exception: '{code}' Message: '{message}'"
            ),
            (BucketPlace::S3 { .. }, RequestPurpose::List) => format!(
                "Could not list contents of directory at {url} due to exception: {code}, \
                 error message: {message}"
            ),
            (BucketPlace::S3 { .. }, RequestPurpose::Read(path)) => format!(
                "Failed to get object at {url}/{path} due to exception: {code}, \
                 error message: {message}"
            ),
            (BucketPlace::Gcs { bucket }, RequestPurpose::Open) => {
                format!("Could not get MetaData for bucket with name {bucket} : {message}")
            }
            (BucketPlace::Gcs { .. }, RequestPurpose::List) => {
                format!("Could not list contents of directory at {url} : {message}")
            }
            (BucketPlace::Gcs { .. }, RequestPurpose::Read(path)) => {
                format!("Failed to get object at {url}/{path} : {message}")
            }
            (BucketPlace::Azure { .. }, RequestPurpose::Open) => {
                format!("Failed to check if directory at {url}:{message}")
            }
            (BucketPlace::Azure { .. }, RequestPurpose::List) => {
                format!("Failed to get contents of directory {url}:{message}")
            }
            (BucketPlace::Azure { .. }, RequestPurpose::Read(path)) => {
                format!("Failed to download file at {path}:{message}")
            }
        };
        text + cause.remark()
    }
}

impl RemoteStore for BucketStore {
    fn list(&self, folder: &str, count_max: usize) -> Result<Vec<RemoteObject>, RemoteError> {
        let below = self.origin.address.folder.len();
        let objects = self.ask(RequestPurpose::List, |store, prefix| {
            let folder = Path::parse(folder)
                .map(|inside| prefix.parts().chain(inside.parts()).collect::<Path>());
            async move {
                let mut pages = store.list(Some(&folder?));
                let mut objects = Vec::new();
                while let Some(object) =
                    timeout(PAGE_TIME_MAX, pages.next()).await.map_err(|_| silence())?
                {
                    objects.push(object?);
                    if objects.len() > count_max {
                        break;
                    }
                }
                Ok(objects)
            }
        })?;
        if objects.len() > count_max {
            let text =
                format!("'{}' has more than {count_max} objects: name a folder", self.origin.url);
            return Err(RemoteError::Failed(text));
        }
        let relative = |object: object_store::ObjectMeta| {
            let inside = object.location.as_ref().get(below..)?.trim_start_matches('/').to_owned();
            let state = ObjectVersion {
                byte_size: object.size,
                etag: object.e_tag,
                modified_ns: object.last_modified.timestamp_nanos_opt().unwrap_or_default(),
            };
            (!inside.is_empty()).then_some(RemoteObject { path: inside, state })
        };
        Ok(objects.into_iter().filter_map(relative).collect())
    }

    fn folders(&self) -> Result<Vec<String>, RemoteError> {
        let prefixes = self.ask(RequestPurpose::List, |store, prefix| async move {
            let listed = timeout(PAGE_TIME_MAX, store.list_with_delimiter(Some(&prefix)));
            Ok(listed.await.map_err(|_| silence())??.common_prefixes)
        })?;
        let name = |prefix: Path| prefix.parts().next_back().map(|part| part.as_ref().to_owned());
        Ok(prefixes.into_iter().filter_map(name).collect())
    }

    fn begin(&self, downloads: Vec<ObjectDownload>) -> InFlightDownloads {
        let (_, store) = self.store.lock("take the object store").clone();
        let folder = self.origin.address.folder.clone();
        let (permits, orders) = (self.permits.clone(), downloads.clone());
        let under_way = self.runtime.spawn(async move {
            let copies = orders.into_iter().map(|order| {
                let (store, permits) = (store.clone(), permits.clone());
                let path = format!("{folder}/{}", order.object.path);
                async move { download(&*store, &path, &order, &permits).await }
            });
            // Results are yielded in order; the permits limit the number of requests.
            stream::iter(copies).buffered(DownloadPermits::FILES_MAX).collect::<Vec<_>>().await
        });
        let origin = self.origin.clone();
        Box::new(move || {
            let Some(finished) = under_way.wait() else {
                let lost = RemoteError::Failed(String::from("a download ended without a result"));
                return vec![Err(lost); downloads.len()];
            };
            let told = |(order, result): (&ObjectDownload, Result<(), DownloadFailure>)| {
                result.map_err(|failure| origin.told(&order.object.path, &failure))
            };
            downloads.iter().zip(finished).map(told).collect()
        })
    }
}

fn silence() -> object_store::Error {
    let source = OutboundError::Silence {
        server: String::from("the object store"),
        reason: String::from("no list within 2 min"),
        is_late: true,
    };
    object_store::Error::Generic { store: "repository", source: Box::new(source) }
}
