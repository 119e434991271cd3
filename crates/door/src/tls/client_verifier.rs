//! Verifies client certificates.
//!
//! webpki verifies version 3 certificates by the rules of the web. Triton's users also have clients
//! with certificates that violate those rules but that OpenSSL accepts:
//!
//! - version 1 certificates, which `openssl x509 -req` creates by default
//! - self-signed certificates that are themselves listed among the roots
//!
//! This module verifies both kinds, with the same cryptography.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};

use super::certificate::{Certificate, key_parts};

/// Creates a verifier that trusts certificates signed by `roots`, and the roots themselves. The
/// error is the reason why the roots can't be used.
pub(super) fn new(
    roots: Vec<CertificateDer<'static>>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut store = RootCertStore::empty();
    for root in &roots {
        store.add(root.clone()).map_err(|error| format!("has an unusable certificate: {error}"))?;
    }
    // Only webpki checks name constraints, so roots that have them are left to it.
    let signing = roots.iter().zip(&store.roots);
    let signing = signing.filter(|(_, anchor)| anchor.name_constraints.is_none());
    let signing = signing.map(|(root, _)| root.clone()).collect();
    let webpki = WebPkiClientVerifier::builder_with_provider(Arc::new(store), provider.clone());
    let webpki = webpki.build().map_err(|error| match error {
        VerifierBuilderError::NoRootAnchors => String::from("has no certificate"),
        error => error.to_string(),
    })?;
    let algorithms = provider.signature_verification_algorithms;
    Ok(Arc::new(ClientVerifier { webpki, roots, signing, algorithms }))
}

#[derive(Debug)]
struct ClientVerifier {
    webpki: Arc<dyn ClientCertVerifier>,
    roots: Vec<CertificateDer<'static>>,
    /// The roots that may sign version 1 certificates.
    signing: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientVerifier {
    /// Returns true if a certificate that webpki refuses is trusted nevertheless.
    fn trusts(&self, der: &CertificateDer<'_>, certificate: &Certificate<'_>) -> bool {
        let is_root = self.roots.iter().any(|root| root == der);
        is_root || (certificate.is_version_1 && self.is_signed(certificate))
    }

    /// Returns true if a root has signed the certificate directly.
    fn is_signed(&self, certificate: &Certificate<'_>) -> bool {
        self.signing.iter().filter_map(|root| Certificate::parse(root)).any(|root| {
            let algorithms = self.algorithms.all.iter().copied().filter(|algorithm| {
                algorithm.signature_alg_id().as_ref() == certificate.signature_algorithm
            });
            root.subject == certificate.issuer
                && verify(root.public_key, algorithms, certificate.signed, certificate.signature)
        })
    }
}

/// Returns true if one of the algorithms matches the key and accepts the signature.
fn verify<'a>(
    public_key: &[u8],
    algorithms: impl IntoIterator<Item = &'a dyn SignatureVerificationAlgorithm>,
    message: &[u8],
    signature: &[u8],
) -> bool {
    let Some((key_algorithm, key)) = key_parts(public_key) else { return false };
    algorithms.into_iter().any(|algorithm| {
        algorithm.public_key_alg_id().as_ref() == key_algorithm
            && algorithm.verify_signature(key, message, signature).is_ok()
    })
}

/// Returns the certificate if it has version 1.
fn version_1<'d>(der: &'d CertificateDer<'_>) -> Option<Certificate<'d>> {
    Certificate::parse(der).filter(|certificate| certificate.is_version_1)
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.webpki.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let error = match self.webpki.verify_client_cert(end_entity, intermediates, now) {
            Ok(verified) => return Ok(verified),
            Err(error) => error,
        };
        let Some(certificate) = Certificate::parse(end_entity) else { return Err(error) };
        if !self.trusts(end_entity, &certificate) {
            return Err(error);
        }
        if !certificate.validity.contains(Duration::from_secs(now.as_secs())) {
            return Err(CertificateError::Expired.into());
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let Some(version_1) = version_1(certificate) else {
            return self.webpki.verify_tls12_signature(message, certificate, signature);
        };
        let algorithms = self.algorithms.mapping.iter();
        let algorithms = algorithms.filter(|(scheme, _)| *scheme == signature.scheme);
        let algorithms = algorithms.flat_map(|(_, algorithms)| algorithms.iter().copied());
        if verify(version_1.public_key, algorithms, message, signature.signature()) {
            Ok(HandshakeSignatureValid::assertion())
        } else {
            Err(CertificateError::BadSignature.into())
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let Some(version_1) = version_1(certificate) else {
            return self.webpki.verify_tls13_signature(message, certificate, signature);
        };
        let key = SubjectPublicKeyInfoDer::from(version_1.public_key);
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rustls::crypto::ring;
    use rustls::pki_types::pem::PemObject;

    use super::super::test_certificates as files;
    use super::*;

    fn certificate(text: &[u8]) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(text).unwrap()
    }

    /// Returns true if a client with this certificate is admitted.
    fn lets_in(roots: &[&[u8]], client: &[u8]) -> Result<(), Error> {
        let roots = roots.iter().map(|root| certificate(root)).collect();
        let verifier = new(roots, &Arc::new(ring::default_provider())).unwrap();
        verifier.verify_client_cert(&certificate(client), &[], UnixTime::now()).map(|_| ())
    }

    #[test]
    fn what_the_roots_have_signed_is_trusted() {
        lets_in(&[files::ROOTS], files::CLIENT).unwrap();
        lets_in(&[files::ROOTS], files::CLIENT_VERSION_1).unwrap();
        lets_in(&[files::CLIENT_SELF_SIGNED, files::ROOTS], files::CLIENT_VERSION_1).unwrap();
    }

    #[test]
    fn a_listed_certificate_is_trusted() {
        lets_in(&[files::ROOTS, files::CLIENT_SELF_SIGNED], files::CLIENT_SELF_SIGNED).unwrap();
    }

    #[test]
    fn nothing_else_is_trusted() {
        let roots = &[files::ROOTS];
        for client in [files::CLIENT_SELF_SIGNED, files::CLIENT_FORGED] {
            assert!(lets_in(roots, client).is_err());
        }
        for client in [files::CLIENT, files::CLIENT_VERSION_1] {
            assert!(lets_in(&[files::CLIENT_SELF_SIGNED], client).is_err());
        }
        let expired = lets_in(roots, files::CLIENT_EXPIRED).unwrap_err();
        assert_eq!(expired, CertificateError::Expired.into());
        let mut changed = certificate(files::CLIENT_VERSION_1).to_vec();
        let serial = changed.iter().position(|byte| *byte == 7).unwrap();
        changed[serial] = 8;
        let verifier =
            new(vec![certificate(files::ROOTS)], &Arc::new(ring::default_provider())).unwrap();
        let changed = CertificateDer::from(changed);
        assert!(verifier.verify_client_cert(&changed, &[], UnixTime::now()).is_err());
    }
}
