//! TLS to the servers of object stores.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The files in which systems keep the certificates that programs trust.
const TRUSTED: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Certificates, which are read with the first connection that needs them.
#[derive(Debug)]
pub(crate) struct Tls {
    /// A file instead of the system's.
    trusted: Option<PathBuf>,
    config: OnceLock<Result<Arc<ClientConfig>, String>>,
}

impl Tls {
    pub(crate) fn new(trusted: Option<PathBuf>) -> Self {
        Self { trusted, config: OnceLock::new() }
    }

    pub(crate) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, String> {
        let config = self.config.get_or_init(|| self.read()).clone()?;
        let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
        let connected = TlsConnector::from(config).connect(name, stream).await;
        connected.map_err(|error| error.to_string())
    }

    fn read(&self) -> Result<Arc<ClientConfig>, String> {
        let system = || TRUSTED.iter().map(Path::new).find(|path| path.exists());
        let path = self.trusted.as_deref().or_else(system);
        let path = path.ok_or("this system trusts no certificates: set SSL_CERT_FILE")?;
        let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect)
            .map_err(|error| format!("'{}': {error}", path.display()))?;
        let mut roots = RootCertStore::empty();
        // As in other clients, those of a system that are no good are left out.
        let (added, _) = roots.add_parsable_certificates(certificates);
        if added == 0 {
            return Err(format!("'{}' has no certificates", path.display()));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Arc::new(config))
    }
}
