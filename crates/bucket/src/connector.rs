//! Opens repositories by address.

use std::path::PathBuf;
use std::sync::Arc;

use galatea_outbound::CertificateFiles;
use galatea_repository::{RemoteConnector, RemoteError, RemoteRepository};
use galatea_stdx::Lock;

use crate::address::{Address, BucketPlace};
use crate::client::BucketClient;
use crate::credentials::BucketEnvironment;
use crate::download::DownloadPermits;
use crate::open::{KeylessIdentity, open};
use crate::runtime::Runtime;
use crate::store::{BucketStore, RepositoryLocation};

/// A connector that opens repositories in buckets. While no repository is open, it costs almost
/// nothing.
#[derive(Debug)]
pub struct BucketConnector {
    around: BucketEnvironment,
    /// The shared state, created when the first repository is opened.
    shared: Lock<Option<ConnectorShared>>,
}

/// The state shared by all repositories.
#[derive(Clone, Debug)]
struct ConnectorShared {
    runtime: Arc<Runtime>,
    client: BucketClient,
    permits: DownloadPermits,
}

impl BucketConnector {
    /// Creates a connector with these environment variables.
    #[must_use]
    pub fn new(around: BucketEnvironment) -> Self {
        Self { around, shared: Lock::default() }
    }

    /// Ends every request in progress: the server is stopping and needs no more data.
    pub fn abort_requests(&self) {
        if let Some(shared) = &*self.shared.lock("end what is under way") {
            shared.runtime.give_up();
        }
    }

    fn shared(&self) -> Result<ConnectorShared, RemoteError> {
        let mut shared = self.shared.lock("start the thread for buckets once");
        if let Some(shared) = &*shared {
            return Ok(shared.clone());
        }
        let failed = |error| RemoteError::Failed(format!("can't start a thread: {error}"));
        let trusted = self.around.get("AWS_CA_BUNDLE").or_else(|| self.around.get("SSL_CERT_FILE"));
        let started = ConnectorShared {
            runtime: Arc::new(Runtime::start().map_err(failed)?),
            client: BucketClient::new(CertificateFiles {
                trusted: trusted.map(PathBuf::from),
                client: None,
            }),
            permits: DownloadPermits::new(),
        };
        *shared = Some(started.clone());
        Ok(started)
    }

    /// The directory for copies. A directory chosen by an operator must exist.
    fn copies(&self, place: &BucketPlace) -> Result<PathBuf, RemoteError> {
        let variable = match place {
            BucketPlace::S3 { .. } => "TRITON_AWS_MOUNT_DIRECTORY",
            BucketPlace::Gcs { .. } => "TRITON_GCS_MOUNT_DIRECTORY",
            BucketPlace::Azure { .. } => "TRITON_AZURE_MOUNT_DIRECTORY",
        };
        let Some(path) = self.around.get(variable) else {
            return Ok(self.around.temporary_folder.clone());
        };
        match std::fs::metadata(path) {
            Ok(found) if found.is_dir() => Ok(PathBuf::from(path)),
            Ok(_) => Err(RemoteError::Failed(format!("{variable}: '{path}' is no directory"))),
            Err(error) => Err(RemoteError::Failed(format!(
                "Failed to create local temp folder: {path}/folderXXXXXX, errno:{error} ({variable})"
            ))),
        }
    }
}

impl RemoteConnector for BucketConnector {
    fn connect(&self, url: &str) -> Result<RemoteRepository, RemoteError> {
        let address = Address::parse(url).map_err(RemoteError::Failed)?;
        let copies = self.copies(&address.place)?;
        let ConnectorShared { runtime, client, permits } = self.shared()?;
        let (around, place) = (self.around.clone(), (url.to_owned(), address.clone()));
        let reopen = move |fallback| open(&place.0, &place.1, &around, &client, fallback);
        let store = reopen(KeylessIdentity::Role).map_err(RemoteError::Failed)?;
        let store = BucketStore {
            origin: RepositoryLocation { url: url.trim_end_matches('/').to_owned(), address },
            runtime,
            permits,
            reopen: Box::new(reopen),
            store: Lock::new((KeylessIdentity::Role, store)),
        };
        store.check()?;
        Ok(RemoteRepository { store: Arc::new(store), copies })
    }
}
