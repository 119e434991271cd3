//! TLS to a collector.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// The places where systems keep the certificates that programs trust.
const TRUSTED: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Files of certificates and keys, in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateFiles {
    /// Those whom to trust; without it, those whom the system trusts.
    pub trusted: Option<PathBuf>,
    /// The certificate that the collector is shown, with its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// A file that can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateError {
    path: PathBuf,
    reason: String,
}

impl CertificateError {
    fn new(path: &Path, reason: impl ToString) -> Self {
        Self { path: path.to_owned(), reason: reason.to_string() }
    }
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' can't be used for the collector: {}", self.path.display(), self.reason)
    }
}

impl std::error::Error for CertificateError {}

/// The settings that all connections have in common.
#[derive(Clone, Debug)]
pub(super) struct Tls(Arc<ClientConfig>);

impl Tls {
    pub(super) fn new(files: &CertificateFiles) -> Result<Self, CertificateError> {
        let system = || TRUSTED.iter().map(Path::new).find(|path| path.exists());
        let trusted = match files.trusted.as_deref().or_else(system) {
            Some(path) => roots(path)?,
            None => {
                let text = "this system trusts no certificates: name a file of them";
                return Err(CertificateError::new(Path::new(TRUSTED[0]), text));
            }
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| CertificateError::new(Path::new("TLS"), error))?
            .with_root_certificates(trusted);
        let config = match &files.client {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let own = PrivateKeyDer::from_pem_file(key);
                let own = own.map_err(|error| CertificateError::new(key, error))?;
                builder
                    .with_client_auth_cert(certificates(certificate)?, own)
                    .map_err(|error| CertificateError::new(certificate, error))?
            }
        };
        Ok(Self(Arc::new(config)))
    }

    /// TLS over a connection to this host.
    pub(super) fn client<S: Read + Write>(
        &self,
        host: &str,
        stream: S,
    ) -> io::Result<StreamOwned<ClientConnection, S>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let client = ClientConnection::new(self.0.clone(), name).map_err(io::Error::other)?;
        Ok(StreamOwned::new(client, stream))
    }
}

fn roots(path: &Path) -> Result<RootCertStore, CertificateError> {
    let mut store = RootCertStore::empty();
    // As in other clients, those of a system that are no good are left out.
    let (added, _) = store.add_parsable_certificates(certificates(path)?);
    if added == 0 {
        return Err(CertificateError::new(path, "it has no certificates"));
    }
    Ok(store)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    all.map_err(|error| CertificateError::new(path, error))
}
