//! TLS configurations from PEM files.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject, SectionKind};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ServerConfig;
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use super::certificate::{Certificate, Validity};
use super::client_verifier;

/// The contents of the files from which a configuration is created.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsFileContents {
    /// The server's certificate, followed by its issuers' certificates.
    pub certificate: Vec<u8>,
    /// The key of the first certificate.
    pub key: Vec<u8>,
    /// The certificates that sign client certificates.
    pub roots: Option<Vec<u8>>,
}

impl fmt::Debug for TlsFileContents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omits the key, which is secret.
        f.write_str("TlsFiles")
    }
}

/// One of the files.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TlsFileRole {
    /// [`TlsFileContents::certificate`].
    Certificate,
    /// [`TlsFileContents::key`].
    Key,
    /// [`TlsFileContents::roots`].
    Roots,
}

/// The error for a file from which no configuration can be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfigError {
    /// The file.
    pub file: TlsFileRole,
    /// The fault, phrased to follow the file name.
    pub reason: String,
}

/// The protocol inside TLS, on which client and server agree in the handshake (ALPN).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ApplicationProtocol {
    /// `http/1.1`, the default if the client names no protocol.
    Http1,
    /// `h2`. Clients must name it.
    Http2,
}

/// The requirement for clients to authenticate themselves.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ClientAuthentication {
    /// Clients need no certificate.
    Anonymous,
    /// Clients need a certificate signed by one of the roots.
    Certified,
}

/// A configuration, consisting of a certificate with its key and the requirement for clients.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    pub(super) server: Arc<ServerConfig>,
    pub(super) protocol: ApplicationProtocol,
    validity: Validity,
}

impl TlsConfig {
    /// Creates a configuration from the contents of the files.
    ///
    /// # Errors
    ///
    /// Returns an error if a file lacks the expected content, or the key doesn't match the
    /// certificate.
    pub fn new(
        files: &TlsFileContents,
        clients: ClientAuthentication,
        protocol: ApplicationProtocol,
    ) -> Result<Self, TlsConfigError> {
        let provider = Arc::new(ring::default_provider());
        let chain = certificates(&files.certificate, TlsFileRole::Certificate)?;
        let validity = parsed(chain.first(), TlsFileRole::Certificate)?.validity;
        let key = certified_key(chain, &files.key, &provider)?;
        let roots = match &files.roots {
            Some(roots) => certificates(roots, TlsFileRole::Roots)?,
            None => Vec::new(),
        };
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(TlsFileRole::Key, error.to_string()))?;
        let builder = match clients {
            ClientAuthentication::Anonymous => builder.with_no_client_auth(),
            ClientAuthentication::Certified => {
                let verifier = client_verifier::new(roots, &provider)
                    .map_err(|reason| wrong(TlsFileRole::Roots, reason))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut server = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
        server.alpn_protocols = vec![protocol.name().to_vec()];
        Ok(Self { server: Arc::new(server), protocol, validity })
    }

    /// Returns a remark if clients will not trust the certificate because of its dates. The remark
    /// is phrased to follow the file name. `now` is the time since 1970.
    #[must_use]
    pub fn validity_warning(&self, now: Duration) -> Option<&'static str> {
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if now > self.validity.not_after {
            Some("has expired")
        } else if now < self.validity.not_before {
            Some("is not valid yet")
        } else {
            None
        }
    }
}

impl ApplicationProtocol {
    const fn name(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }
}

impl fmt::Display for TlsConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for TlsConfigError {}

fn wrong(file: TlsFileRole, reason: impl Into<String>) -> TlsConfigError {
    TlsConfigError { file, reason: reason.into() }
}

/// Returns all certificates in a file, which must contain at least one.
fn certificates(
    text: &[u8],
    file: TlsFileRole,
) -> Result<Vec<CertificateDer<'static>>, TlsConfigError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let found = found.map_err(|error| wrong(file, format!("is no valid PEM: {error}")))?;
    if found.is_empty() {
        return Err(wrong(file, "has no certificate in PEM form (BEGIN CERTIFICATE)"));
    }
    for certificate in &found {
        parsed(Some(certificate), file)?;
    }
    Ok(found)
}

fn parsed<'d>(
    certificate: Option<&'d CertificateDer<'_>>,
    file: TlsFileRole,
) -> Result<Certificate<'d>, TlsConfigError> {
    certificate
        .and_then(|certificate| Certificate::parse(certificate))
        .ok_or_else(|| wrong(file, "has a certificate that can't be read"))
}

/// Returns the chain with its key if the two match.
///
/// rustls would also check that, but only for version 3 certificates.
fn certified_key(
    chain: Vec<CertificateDer<'static>>,
    text: &[u8],
    provider: &CryptoProvider,
) -> Result<CertifiedKey, TlsConfigError> {
    let key = provider.key_provider.load_private_key(private_key(text)?).map_err(|_| {
        wrong(
            TlsFileRole::Key,
            "has a key that can't be used: keys are RSA (2048 to 4096 bits), ECDSA (P-256, P-384) \
             or Ed25519",
        )
    })?;
    let belongs = {
        let certificate = parsed(chain.first(), TlsFileRole::Certificate)?;
        key.public_key().is_none_or(|public| public.as_ref() == certificate.public_key)
    };
    if !belongs {
        return Err(wrong(TlsFileRole::Key, "is not the key of the first certificate"));
    }
    Ok(CertifiedKey::new(chain, key))
}

/// Returns the first private key in a file.
fn private_key(text: &[u8]) -> Result<PrivateKeyDer<'static>, TlsConfigError> {
    if has(text, b"BEGIN ENCRYPTED PRIVATE KEY") || has(text, b"Proc-Type: 4,ENCRYPTED") {
        let reason = "is encrypted; the key is needed without a passphrase";
        return Err(wrong(TlsFileRole::Key, reason));
    }
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(text) {
        let (kind, der) = section.map_err(|error| bad_key(&error))?;
        if let Some(key) = <PrivateKeyDer<'static> as PemObject>::from_pem(kind, der) {
            return Ok(key);
        }
    }
    Err(bad_key(&pem::Error::NoItemsFound))
}

fn bad_key(error: &pem::Error) -> TlsConfigError {
    let reason = match error {
        pem::Error::NoItemsFound => String::from("has no private key in PEM form"),
        error => format!("is no valid PEM: {error}"),
    };
    wrong(TlsFileRole::Key, reason)
}

fn has(text: &[u8], words: &[u8]) -> bool {
    text.windows(words.len()).any(|window| window == words)
}

#[cfg(test)]
mod tests {
    use super::super::test_certificates as files;
    use super::*;

    fn config(
        certificate: &[u8],
        key: &[u8],
        roots: Option<&[u8]>,
    ) -> Result<TlsConfig, TlsConfigError> {
        let (certificate, key) = (certificate.to_vec(), key.to_vec());
        let clients = if roots.is_some() {
            ClientAuthentication::Certified
        } else {
            ClientAuthentication::Anonymous
        };
        let files = TlsFileContents { certificate, key, roots: roots.map(<[u8]>::to_vec) };
        TlsConfig::new(&files, clients, ApplicationProtocol::Http2)
    }

    #[track_caller]
    fn check(
        certificate: &[u8],
        key: &[u8],
        roots: Option<&[u8]>,
        file: TlsFileRole,
        reason: &str,
    ) {
        let error = config(certificate, key, roots).unwrap_err();
        assert_eq!(error.file, file, "{error}");
        assert!(error.reason.contains(reason), "{error}");
    }

    #[test]
    fn text_before_blocks_and_further_certificates_are_allowed() {
        let certificate = [b"Certificate:\n    Data:\n".as_slice(), files::SERVER].concat();
        let chain = [&certificate, b"\nissuer\r\n".as_slice(), files::ROOTS].concat();
        for certificate in [&certificate, &chain] {
            config(certificate, files::SERVER_KEY, Some(files::ROOTS)).unwrap();
        }
        let key = [b"Bag Attributes\n".as_slice(), files::SERVER_KEY].concat();
        config(files::SERVER, &key, None).unwrap();
        // The certificate and the key may be in one file.
        let both = [files::SERVER_KEY, files::SERVER].concat();
        config(&both, &both, None).unwrap();
        // Windows ends lines with two characters.
        let lines = String::from_utf8(both).unwrap().replace('\n', "\r\n");
        config(lines.as_bytes(), lines.as_bytes(), None).unwrap();
    }

    #[test]
    fn a_certificate_of_version_1_is_served() {
        config(files::CLIENT_VERSION_1, files::CLIENT_VERSION_1_KEY, None).unwrap();
        let other = config(files::CLIENT_VERSION_1, files::SERVER_KEY, None).unwrap_err();
        assert_eq!(other.reason, "is not the key of the first certificate");
    }

    #[test]
    fn what_is_wrong_with_a_certificate_is_said() {
        let key = files::SERVER_KEY;
        let check = |certificate: &[u8], reason| {
            check(certificate, key, None, TlsFileRole::Certificate, reason);
        };
        check(b"", "has no certificate");
        check(b"not PEM", "has no certificate");
        check(key, "has no certificate");
        check(&files::SERVER[..200], "is no valid PEM");
        check(b"-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n", "is no valid PEM");
        check(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "can't be read");
    }

    #[test]
    fn what_is_wrong_with_a_key_is_said() {
        let check = |key: &[u8], reason| check(files::SERVER, key, None, TlsFileRole::Key, reason);
        check(b"", "has no private key");
        check(files::SERVER, "has no private key");
        check(files::CLIENT_KEY, "is not the key of the first certificate");
        check(files::SERVER_KEY_ENCRYPTED, "is encrypted");
        check(files::SERVER_KEY_ENCRYPTED_SEC1, "is encrypted");
        check(&files::SERVER_KEY[..100], "is no valid PEM");
        check(b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "can't be used");
    }

    #[test]
    fn what_is_wrong_with_roots_is_said() {
        let check = |roots: &[u8], reason| {
            check(files::SERVER, files::SERVER_KEY, Some(roots), TlsFileRole::Roots, reason);
        };
        check(b"", "has no certificate");
        check(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "can't be read");
    }

    #[test]
    fn dates_are_remarked_on() {
        let good = config(files::SERVER, files::SERVER_KEY, None).unwrap();
        let (not_before, not_after) = (good.validity.not_before, good.validity.not_after);
        let remark = |seconds: i64| good.validity_warning(Duration::from_secs(seconds as u64));
        assert_eq!(remark(not_before), None);
        assert_eq!(remark(not_after), None);
        assert_eq!(remark(not_after + 1), Some("has expired"));
        assert_eq!(remark(not_before - 1), Some("is not valid yet"));
    }
}
