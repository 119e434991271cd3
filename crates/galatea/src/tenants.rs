//! The file of tenants, which is read at startup and checked for changes while the server runs.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use galatea_gate::access::TenantDirectory;
use galatea_infer::Status;
use galatea_telemetry::{CustomFamilySnapshot, Logger, MetricKind, SeriesValue};
use galatea_tenants::{FILE_BYTES_MAX, ServerTenants, TenantReading, TenantsDocument};

/// The file of tenants, and the tenants that the endpoints know.
#[derive(Clone)]
pub(crate) struct TenantsFile {
    path: PathBuf,
    directory: Arc<ServerTenants>,
    /// The file that was read last, readable or not.
    last: Option<FileIdentity>,
    logger: Logger,
}

/// The properties by which a changed file is recognized.
#[derive(Copy, Clone, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl FileIdentity {
    fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        Some(Self {
            device: found.dev(),
            inode: found.ino(),
            bytes: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
        })
    }
}

impl TenantsFile {
    /// Reads the file that the flag names, if any. The error names the flag and the file.
    pub(crate) fn open(path: Option<&Path>, logger: &Logger) -> Result<Option<Self>, Status> {
        let Some(path) = path else { return Ok(None) };
        let last = FileIdentity::of(path);
        let document = read(path).map_err(Status::invalid_argument)?;
        let directory = Arc::new(ServerTenants::new(document));
        Ok(Some(Self { path: path.to_owned(), directory, last, logger: logger.clone() }))
    }

    /// The tenants, as the gate asks for them.
    pub(crate) fn directory(&self) -> Arc<dyn TenantDirectory> {
        self.directory.clone()
    }

    /// Returns the metrics of the tenants.
    pub(crate) fn metrics(&self) -> Vec<CustomFamilySnapshot> {
        let readings = self.directory.read();
        let family = |name: &str, help: &str, value: fn(&TenantReading) -> u64| {
            let labels = |one: &TenantReading| vec![(String::from("tenant"), one.name.clone())];
            // This is exact below 2^53 requests.
            let number = |one: &TenantReading| SeriesValue::Number(value(one) as f64);
            CustomFamilySnapshot {
                name: name.to_owned(),
                help: help.to_owned(),
                kind: MetricKind::Counter,
                series: readings.iter().map(|one| (labels(one), number(one))).collect(),
            }
        };
        vec![
            family(
                "galatea_tenant_requests_total",
                "Inference requests within the limits of a tenant",
                |one| one.admitted,
            ),
            family(
                "galatea_tenant_refusals_total",
                "Inference requests beyond the limits of a tenant",
                |one| one.refused,
            ),
        ]
    }

    /// Checks the file and puts its tenants into use if it has changed.
    pub(crate) fn look(&mut self) {
        let found = FileIdentity::of(&self.path);
        if found == self.last {
            return;
        }
        self.last = found;
        match read(&self.path) {
            Ok(document) => {
                let count = document.len();
                self.directory.replace(document);
                let path = self.path.display();
                self.logger.info(format_args!(
                    "--tenants-file '{path}' has changed and is in use, tenants: {count}"
                ));
            }
            Err(reason) => {
                self.logger.error(format_args!("the tenants stay as they are: {reason}"));
            }
        }
    }
}

fn read(path: &Path) -> Result<TenantsDocument, String> {
    let about = |reason: String| format!("--tenants-file '{}': {reason}", path.display());
    let text = read_bytes(path).map_err(|error| about(format!("it can't be read: {error}")))?;
    TenantsDocument::parse(&text).map_err(about)
}

fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other("it is longer than 16 MiB"));
    }
    Ok(bytes)
}
