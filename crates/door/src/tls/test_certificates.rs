//! The files that `tests/certificates/make.sh` generates.

pub(super) const ROOTS: &[u8] = include_bytes!("../../tests/certificates/roots.pem");
pub(super) const SERVER: &[u8] = include_bytes!("../../tests/certificates/server.pem");
pub(super) const SERVER_KEY: &[u8] = include_bytes!("../../tests/certificates/server.key");
pub(super) const SERVER_KEY_ENCRYPTED: &[u8] =
    include_bytes!("../../tests/certificates/server_encrypted.key");
pub(super) const SERVER_KEY_ENCRYPTED_SEC1: &[u8] =
    include_bytes!("../../tests/certificates/server_encrypted_sec1.key");
pub(super) const CLIENT: &[u8] = include_bytes!("../../tests/certificates/client.pem");
pub(super) const CLIENT_KEY: &[u8] = include_bytes!("../../tests/certificates/client.key");
pub(super) const CLIENT_VERSION_1: &[u8] =
    include_bytes!("../../tests/certificates/client_version_1.pem");
pub(super) const CLIENT_VERSION_1_KEY: &[u8] =
    include_bytes!("../../tests/certificates/client_version_1.key");
pub(super) const CLIENT_SELF_SIGNED: &[u8] =
    include_bytes!("../../tests/certificates/client_self_signed.pem");
/// A version 1 certificate that was valid only in the past.
pub(super) const CLIENT_EXPIRED: &[u8] =
    include_bytes!("../../tests/certificates/client_expired.pem");
/// A certificate whose issuer has the same name as the roots but a different key.
pub(super) const CLIENT_FORGED: &[u8] =
    include_bytes!("../../tests/certificates/client_forged.pem");
