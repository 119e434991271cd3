//! Certificates for connections to other servers.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The usual paths of a system's trusted certificates.
const TRUSTED: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Certificate and key files, in PEM format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The trusted certificates; if `None`, the system's trusted certificates.
    pub trusted: Option<PathBuf>,
    /// The certificate presented to the server, and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// A file that can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFileError {
    path: PathBuf,
    reason: String,
}

impl CertificateFileError {
    fn new(path: &Path, reason: impl ToString) -> Self {
        Self { path: path.to_owned(), reason: reason.to_string() }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The reason why the file can't be used.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for CertificateFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}': {}", self.path.display(), self.reason)
    }
}

impl std::error::Error for CertificateFileError {}

/// The settings that all connections share, read on first use.
#[derive(Debug)]
pub(crate) struct Tls {
    files: CertificateFiles,
    config: OnceLock<Result<Arc<ClientConfig>, CertificateFileError>>,
}

impl Tls {
    pub(crate) fn new(files: CertificateFiles) -> Self {
        Self { files, config: OnceLock::new() }
    }

    pub(crate) fn config(&self) -> Result<Arc<ClientConfig>, CertificateFileError> {
        self.config.get_or_init(|| read(&self.files).map(Arc::new)).clone()
    }

    pub(crate) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let config = self.config().map_err(io::Error::other)?;
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(config).connect(name, stream).await
    }
}

fn read(files: &CertificateFiles) -> Result<ClientConfig, CertificateFileError> {
    let system = || TRUSTED.iter().map(Path::new).find(|path| path.exists());
    let trusted = files.trusted.as_deref().or_else(system).ok_or_else(|| {
        let text = "there is no such file of trusted certificates: name one";
        CertificateFileError::new(Path::new(TRUSTED[0]), text)
    })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| CertificateFileError::new(Path::new("TLS"), error))?
        .with_root_certificates(roots(trusted)?);
    let Some((certificate, key)) = &files.client else {
        return Ok(builder.with_no_client_auth());
    };
    let own = PrivateKeyDer::from_pem_file(key);
    let own = own.map_err(|error| CertificateFileError::new(key, error))?;
    builder
        .with_client_auth_cert(certificates(certificate)?, own)
        .map_err(|error| CertificateFileError::new(certificate, error))
}

fn roots(path: &Path) -> Result<RootCertStore, CertificateFileError> {
    let mut store = RootCertStore::empty();
    // Like other clients, this skips unusable system certificates.
    let (added, _) = store.add_parsable_certificates(certificates(path)?);
    if added == 0 {
        return Err(CertificateFileError::new(path, "it has no certificates"));
    }
    Ok(store)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateFileError> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    all.map_err(|error| CertificateFileError::new(path, error))
}
