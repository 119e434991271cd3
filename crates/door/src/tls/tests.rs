//! Handshakes between a door and rustls's own client.

use std::sync::{Arc, mpsc};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

use super::test_certificates as files;
use super::{
    ApplicationProtocol, ClientAuthentication, HandshakeFailureKind, SharedTlsAcceptor, TlsConfig,
    TlsFileContents,
};
use crate::connections::Connections;
use crate::phase::{DoorPhase, PhaseSender};

const PLAIN_REPLY: &[u8] = b"speak TLS";

/// Returns a door's TLS, and the reasons for its failed handshakes.
fn server(
    clients: ClientAuthentication,
) -> (SharedTlsAcceptor, mpsc::Receiver<HandshakeFailureKind>) {
    let files = TlsFileContents {
        certificate: files::SERVER.to_vec(),
        key: files::SERVER_KEY.to_vec(),
        roots: Some(files::ROOTS.to_vec()),
    };
    let config = TlsConfig::new(&files, clients, ApplicationProtocol::Http2).unwrap();
    let (sender, failures) = mpsc::channel();
    let tls = SharedTlsAcceptor::new(config, move |failure| {
        let _ = sender.send(failure.kind);
    });
    (tls, failures)
}

/// Returns a client that presents this certificate and signs with this key.
fn client(
    version: &'static SupportedProtocolVersion,
    identity: Option<(&[u8], &[u8])>,
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(files::ROOTS).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(key).unwrap();
            let key = ring::sign::any_supported_type(&key).unwrap();
            let shown = SingleCertAndKey::from(CertifiedKey::new(chain, key));
            builder.with_client_cert_resolver(Arc::new(shown))
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

/// Returns the two ends of a connection, the client's first.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (client, listener.accept().await.unwrap().0)
}

/// Returns true if an echo comes back through TLS.
async fn echoes(tls: &SharedTlsAcceptor, config: ClientConfig) -> bool {
    let (client, server) = pair().await;
    let phase = PhaseSender::new();
    let serve = async {
        let accepted = tls.accept(server, &mut phase.watch(), &mut None, PLAIN_REPLY).await;
        let Some(mut stream) = accepted else { return };
        let mut text = [0; 5];
        stream.read_exact(&mut text).await.unwrap();
        stream.write_all(&text).await.unwrap();
        stream.shutdown().await.unwrap();
    };
    let ask = async {
        let name = ServerName::try_from("localhost").unwrap();
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, client);
        let Ok(mut stream) = connecting.await else { return false };
        let mut text = Vec::new();
        stream.write_all(b"hello").await.is_ok()
            && stream.read_to_end(&mut text).await.is_ok()
            && text == b"hello"
    };
    tokio::join!(serve, ask).1
}

#[tokio::test]
async fn clients_are_let_in_by_their_certificate_and_key() {
    let (anonymous, _) = server(ClientAuthentication::Anonymous);
    let (certified, failures) = server(ClientAuthentication::Certified);
    for version in [&TLS12, &TLS13] {
        assert!(echoes(&anonymous, client(version, None)).await);
        for (certificate, key) in [
            (files::CLIENT, files::CLIENT_KEY),
            (files::CLIENT_VERSION_1, files::CLIENT_VERSION_1_KEY),
        ] {
            assert!(echoes(&certified, client(version, Some((certificate, key)))).await);
            // Certificates are not secret; only the key matters.
            let stolen = Some((certificate, files::SERVER_KEY));
            assert!(!echoes(&certified, client(version, stolen)).await);
            assert_eq!(failures.recv(), Ok(HandshakeFailureKind::BadCertificate));
        }
        let forged = Some((files::CLIENT_FORGED, files::CLIENT_VERSION_1_KEY));
        assert!(!echoes(&certified, client(version, forged)).await);
        assert_eq!(failures.recv(), Ok(HandshakeFailureKind::BadCertificate));
        assert!(!echoes(&certified, client(version, None)).await);
        assert_eq!(failures.recv(), Ok(HandshakeFailureKind::NoCertificate));
    }
}

#[tokio::test]
async fn clients_name_the_protocol() {
    let (tls, failures) = server(ClientAuthentication::Anonymous);
    for names in [vec![], vec![b"http/1.1".to_vec()]] {
        let mut config = client(&TLS13, None);
        config.alpn_protocols = names;
        assert!(!echoes(&tls, config).await);
        assert_eq!(failures.recv(), Ok(HandshakeFailureKind::Incompatible));
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stops_is_given_up_in_time() {
    let (tls, failures) = server(ClientAuthentication::Anonymous);
    let (_client, server) = pair().await;
    let phase = PhaseSender::new();
    assert!(tls.accept(server, &mut phase.watch(), &mut None, PLAIN_REPLY).await.is_none());
    assert_eq!(failures.recv(), Ok(HandshakeFailureKind::Timeout));
}

#[tokio::test]
async fn a_drain_does_not_wait_for_a_handshake() {
    let (tls, failures) = server(ClientAuthentication::Anonymous);
    let (_client, server) = pair().await;
    let (phase, connections) = (PhaseSender::new(), Arc::<Connections>::default());
    let (mut watch, mut open) = (phase.watch(), Some(connections.open()));
    let accept = tls.accept(server, &mut watch, &mut open, PLAIN_REPLY);
    let stop = async {
        phase.advance(DoorPhase::Draining);
        connections.drained().await;
        phase.advance(DoorPhase::Closed);
    };
    let (accepted, ()) = tokio::join!(accept, stop);
    assert!(accepted.is_none() && open.is_none());
    // The door closed, so the client is not to blame.
    assert!(failures.try_recv().is_err());
}

#[tokio::test]
async fn plain_text_is_answered_and_closed() {
    let (tls, failures) = server(ClientAuthentication::Anonymous);
    let (mut client, server) = pair().await;
    let phase = PhaseSender::new();
    let (mut watch, mut open) = (phase.watch(), None);
    let accept = tls.accept(server, &mut watch, &mut open, PLAIN_REPLY);
    let ask = async {
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut reply = Vec::new();
        client.read_to_end(&mut reply).await.unwrap();
        drop(client);
        reply
    };
    let (accepted, reply) = tokio::join!(accept, ask);
    assert!(accepted.is_none());
    assert_eq!(reply, PLAIN_REPLY);
    assert_eq!(failures.recv(), Ok(HandshakeFailureKind::NotTls));
}
