//! TLS at an endpoint: the settings, and the parts that the gRPC and HTTP flags share.

use std::path::PathBuf;

/// The TLS settings of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsSettings {
    /// The value of `--…-use-ssl`, or of `--…-use-ssl-mutual` if that comes later.
    uses_ssl: bool,
    /// True if clients must present a certificate.
    pub(crate) is_mutual: bool,
    /// The file with the server's certificate.
    pub(crate) certificate: Option<PathBuf>,
    /// The file with the certificate's key.
    pub(crate) key: Option<PathBuf>,
    /// The file with the CA certificates for client certificates.
    pub(crate) roots: Option<PathBuf>,
}

/// The TLS flags of one endpoint.
#[derive(Copy, Clone, Debug)]
pub(crate) struct TlsFlags {
    /// The endpoint, for the log.
    pub(crate) endpoint: &'static str,
    /// The flag that turns TLS on.
    pub(crate) use_ssl: &'static str,
    /// The flag that requires client certificates.
    pub(crate) use_ssl_mutual: &'static str,
    /// The flag for [`TlsSettings::certificate`].
    pub(crate) certificate: &'static str,
    /// The flag for [`TlsSettings::key`].
    pub(crate) key: &'static str,
    /// The flag for [`TlsSettings::roots`].
    pub(crate) roots: &'static str,
}

/// The gRPC flags.
pub(crate) const GRPC: TlsFlags = TlsFlags {
    endpoint: "GRPC",
    use_ssl: "--grpc-use-ssl",
    use_ssl_mutual: "--grpc-use-ssl-mutual",
    certificate: "--grpc-server-cert",
    key: "--grpc-server-key",
    roots: "--grpc-root-cert",
};

/// The HTTP flags.
pub(crate) const HTTP: TlsFlags = TlsFlags {
    endpoint: "HTTP",
    use_ssl: "--http-use-ssl",
    use_ssl_mutual: "--http-use-ssl-mutual",
    certificate: "--http-server-cert",
    key: "--http-server-key",
    roots: "--http-root-cert",
};

impl TlsSettings {
    /// Returns true if the endpoint uses TLS.
    ///
    /// In Triton, `--grpc-use-ssl=false` after `--grpc-use-ssl-mutual=true` turns TLS off, contrary
    /// to its help, and admits clients without a certificate.
    pub(crate) const fn is_on(&self) -> bool {
        self.uses_ssl || self.is_mutual
    }

    pub(super) const fn set_use_ssl(&mut self, value: bool) {
        self.uses_ssl = value;
    }

    /// Sets mutual TLS. As in Triton, this turns TLS on even if the value is false.
    pub(super) const fn set_use_ssl_mutual(&mut self, value: bool) {
        self.is_mutual = value;
        self.uses_ssl = true;
    }

    /// Returns notes about files that are specified but not read.
    pub(crate) fn remarks(&self, flags: TlsFlags) -> impl Iterator<Item = String> {
        let files = [
            (flags.certificate, &self.certificate),
            (flags.key, &self.key),
            (flags.roots, &self.roots),
        ];
        let unread = files.into_iter().filter(|(_, file)| !self.is_on() && file.is_some());
        unread.map(move |(flag, _)| {
            format!("'{flag}' has no effect: {} does not ask for TLS", flags.use_ssl)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_flag_turns_it_on() {
        let on = |ssl: &[bool], mutual: &[bool]| {
            let mut settings = TlsSettings::default();
            mutual.iter().for_each(|value| settings.set_use_ssl_mutual(*value));
            ssl.iter().for_each(|value| settings.set_use_ssl(*value));
            (settings.is_on(), settings.is_mutual)
        };
        assert_eq!(on(&[], &[]), (false, false));
        assert_eq!(on(&[true], &[]), (true, false));
        assert_eq!(on(&[true, false], &[]), (false, false));
        assert_eq!(on(&[], &[true]), (true, true));
        assert_eq!(on(&[], &[false]), (true, false));
        assert_eq!(on(&[false], &[false]), (false, false));
        // Clients that present no certificate must be rejected.
        assert_eq!(on(&[false], &[true]), (true, true));
    }

    #[test]
    fn files_without_tls_are_remarked_on() {
        let mut settings = TlsSettings { key: Some(PathBuf::from("k")), ..Default::default() };
        let remarks: Vec<String> = settings.remarks(GRPC).collect();
        assert_eq!(
            remarks,
            ["'--grpc-server-key' has no effect: --grpc-use-ssl does not ask for TLS"]
        );
        settings.set_use_ssl(true);
        assert_eq!(settings.remarks(GRPC).count(), 0);
    }
}
