//! Copies one object.
//!
//! Large objects are read as several parts in parallel. If a part's transfer breaks, it resumes
//! where it broke. All parts require the listed tag, so they belong to the same object.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt as _;
use futures_util::stream;
use galatea_outbound::OutboundError;
use galatea_repository::{ObjectDownload, ObjectVersion};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// The maximum number of bytes per request.
const PART_BYTES: u64 = 16 << 20;
/// The maximum number of retries of a part that makes no progress.
const ATTEMPTS_MAX: u32 = 6;
/// The pause before the first retry; it doubles with each further retry.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The maximum time without receiving any body data.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Limits the total number of requests and open files across all repositories.
#[derive(Clone, Debug)]
pub(crate) struct DownloadPermits {
    files: Arc<Semaphore>,
    requests: Arc<Semaphore>,
}

impl DownloadPermits {
    /// The maximum number of files copied concurrently. Each takes a descriptor.
    pub(crate) const FILES_MAX: usize = 32;
    /// The maximum number of concurrent requests. Each takes a connection and its buffers, some 100
    /// KiB.
    const REQUESTS_MAX: usize = 32;

    pub(crate) fn new() -> Self {
        Self {
            files: Arc::new(Semaphore::new(Self::FILES_MAX)),
            requests: Arc::new(Semaphore::new(Self::REQUESTS_MAX)),
        }
    }
}

/// A reason why an object was not copied.
pub(crate) enum DownloadFailure {
    /// The object has changed since it was listed.
    Changed,
    Store(object_store::Error),
    /// The file can't be written.
    File(io::Error),
}

impl From<object_store::Error> for DownloadFailure {
    fn from(error: object_store::Error) -> Self {
        match error {
            object_store::Error::Precondition { .. } | object_store::Error::NotFound { .. } => {
                Self::Changed
            }
            other => Self::Store(other),
        }
    }
}

/// Copies an object to its file.
pub(crate) async fn download(
    store: &dyn ObjectStore,
    path: &str,
    order: &ObjectDownload,
    permits: &DownloadPermits,
) -> Result<(), DownloadFailure> {
    let path = &Path::parse(path).map_err(object_store::Error::from)?;
    let state = &order.object.state;
    // The semaphores are never closed.
    let _permit = permits.files.acquire().await.ok();
    // An existing file may be shared with an earlier copy, so it is replaced, not overwritten.
    match std::fs::remove_file(&order.file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(DownloadFailure::File(error));
        }
        Err(_) | Ok(()) => {}
    }
    let mut options = File::options();
    let created = options.write(true).create_new(true).mode(0o600).open(&order.file);
    let file = &created.map_err(DownloadFailure::File)?;
    let starts = (0..state.byte_size).step_by(usize::try_from(PART_BYTES).unwrap_or(usize::MAX));
    let parts = starts.map(|start| {
        let end = start.saturating_add(PART_BYTES).min(state.byte_size);
        async move {
            let _permit = permits.requests.acquire().await.ok();
            ObjectPart { store, path, state, file, end }.copy(start).await
        }
    });
    let mut parts = stream::iter(parts).buffer_unordered(DownloadPermits::REQUESTS_MAX);
    while let Some(copied) = parts.next().await {
        copied?;
    }
    let since_epoch = Duration::from_nanos(u64::try_from(state.modified_ns).unwrap_or_default());
    file.set_modified(SystemTime::UNIX_EPOCH + since_epoch).map_err(DownloadFailure::File)
}

/// A part of an object that ends at `end`.
struct ObjectPart<'a> {
    store: &'a dyn ObjectStore,
    path: &'a Path,
    state: &'a ObjectVersion,
    file: &'a File,
    end: u64,
}

impl ObjectPart<'_> {
    async fn copy(&self, start: u64) -> Result<(), DownloadFailure> {
        let mut position = start;
        let mut attempts_left = ATTEMPTS_MAX;
        let mut pause = PAUSE_MIN;
        loop {
            let before = position;
            let broken = match self.go_on(&mut position).await {
                Ok(()) if position == self.end => return Ok(()),
                Ok(()) => too_short(),
                Err(PartInterruption::Final(failure)) => return Err(failure),
                Err(PartInterruption::Broken(error)) => error,
            };
            // Progress resets the part's remaining attempts.
            attempts_left = if position > before { ATTEMPTS_MAX } else { attempts_left } - 1;
            if attempts_left == 0 {
                return Err(DownloadFailure::Store(broken));
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    }

    /// Copies the part from `position` on and advances `position`.
    async fn go_on(&self, position: &mut u64) -> Result<(), PartInterruption> {
        let is_whole = *position == 0 && self.end == self.state.byte_size;
        let options = GetOptions {
            if_match: self.state.etag.as_deref().map(quoted),
            range: (!is_whole).then_some(GetRange::Bounded(*position..self.end)),
            ..GetOptions::default()
        };
        let result = self.store.get_opts(self.path, options).await;
        let result = result.map_err(|error| PartInterruption::Final(error.into()))?;
        // Some servers ignore the condition.
        let (now, listed) = (result.meta.e_tag.as_deref(), self.state.etag.as_deref());
        let is_other = now.zip(listed).is_some_and(|(now, listed)| quoted(now) != quoted(listed));
        if is_other || result.meta.size != self.state.byte_size {
            return Err(PartInterruption::Final(DownloadFailure::Changed));
        }
        let mut body = result.into_stream();
        loop {
            let next = timeout(SILENCE_MAX, body.next()).await;
            let bytes = match next.map_err(|_| PartInterruption::Broken(silence()))? {
                None => return Ok(()),
                Some(bytes) => bytes.map_err(PartInterruption::Broken)?,
            };
            let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            if length > self.end.saturating_sub(*position) {
                return Err(PartInterruption::Final(DownloadFailure::Changed));
            }
            let written = self.file.write_all_at(&bytes, *position);
            written.map_err(|error| PartInterruption::Final(DownloadFailure::File(error)))?;
            *position = position.saturating_add(length);
        }
    }
}

/// Adds the quotes that a tag has in requests and responses. Azure lists tags without quotes.
fn quoted(tag: &str) -> String {
    if tag.starts_with('"') || tag.starts_with("W/") {
        tag.to_owned()
    } else {
        format!("\"{tag}\"")
    }
}

/// A reason why a part ended early.
enum PartInterruption {
    /// The transfer broke; another attempt may succeed.
    Broken(object_store::Error),
    Final(DownloadFailure),
}

fn too_short() -> object_store::Error {
    let source = "the object ended early".into();
    object_store::Error::Generic { store: "repository", source }
}

fn silence() -> object_store::Error {
    let source = OutboundError::Silence {
        server: String::from("the object store"),
        reason: String::from("nothing more within 30 s"),
        is_late: true,
    };
    object_store::Error::Generic { store: "repository", source: Box::new(source) }
}
