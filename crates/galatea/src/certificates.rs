//! TLS files, which are read at startup and checked for changes while the server runs.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use galatea_door::tls::{
    ApplicationProtocol, ClientAuthentication, HandshakeFailure, ReloadStep, SharedTlsAcceptor,
    TlsConfig, TlsConfigError, TlsFileContents, TlsFileRole, TlsReloader,
};
use galatea_infer::LogLevel;
use galatea_telemetry::Logger;
use rustix::fs::OFlags;

use crate::flags::tls::{TlsFlags, TlsSettings};

/// The maximum size of a file. Certificate chains and root bundles are smaller.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The certificates of one endpoint.
pub(crate) struct Certificates {
    source: CertificatePaths,
    tls: SharedTlsAcceptor,
    reload: TlsReloader<TlsFileContents>,
    logger: Logger,
}

/// The file paths and the purpose of the files.
struct CertificatePaths {
    flags: TlsFlags,
    certificate: PathBuf,
    key: PathBuf,
    roots: Option<PathBuf>,
    clients: ClientAuthentication,
    protocol: ApplicationProtocol,
}

/// The first or a later read of a file. Some files, such as pipes, can be read only once.
#[derive(Copy, Clone)]
enum FileReading {
    First,
    Again,
}

impl Certificates {
    /// Reads the files that the settings name. The error names the flag and the file.
    pub(crate) fn open(
        settings: &TlsSettings,
        flags: TlsFlags,
        protocol: ApplicationProtocol,
        logger: &Logger,
    ) -> Result<Self, String> {
        let source = CertificatePaths::new(settings, flags, protocol)?;
        let files = source.read(FileReading::First)?;
        if source.roots.is_some() && files.roots.is_none() {
            let remark = "can't be read. It has no effect: clients need no certificate";
            logger.warning(source.about(TlsFileRole::Roots, remark));
        }
        let config = source.config(&files, logger)?;
        let tls = SharedTlsAcceptor::new(config, reporter(flags, logger.clone()));
        Ok(Self { source, tls, reload: TlsReloader::new(files), logger: logger.clone() })
    }

    /// The TLS configuration that a door uses for handshakes.
    pub(crate) fn tls(&self) -> SharedTlsAcceptor {
        self.tls.clone()
    }

    /// Checks the files and puts their contents into use if they have changed.
    pub(crate) fn look(&mut self) {
        let Self { source, tls, reload, logger } = self;
        let flag = source.flags.certificate;
        match reload.process_files(source.read(FileReading::Again)) {
            ReloadStep::Keep => {}
            ReloadStep::Complain(reason) => {
                logger.error(format_args!("the certificate stays as it is: {reason}"));
            }
            ReloadStep::Judge(files) => match source.config(files, logger) {
                Ok(config) => {
                    tls.replace_config(config);
                    reload.mark_adopted();
                    logger.info(format_args!("the files of {flag} have changed and are in use"));
                }
                Err(reason) => {
                    logger.error(format_args!("the certificate stays as it is: {reason}"));
                }
            },
        }
    }
}

impl CertificatePaths {
    fn new(
        settings: &TlsSettings,
        flags: TlsFlags,
        protocol: ApplicationProtocol,
    ) -> Result<Self, String> {
        let turned_on = if settings.is_mutual { flags.use_ssl_mutual } else { flags.use_ssl };
        let needed = |file: &Option<PathBuf>, flag: &str| {
            file.clone().ok_or_else(|| format!("{turned_on} needs {flag}"))
        };
        let clients = if settings.is_mutual {
            ClientAuthentication::Certified
        } else {
            ClientAuthentication::Anonymous
        };
        if settings.is_mutual {
            needed(&settings.roots, flags.roots)?;
        }
        Ok(Self {
            flags,
            certificate: needed(&settings.certificate, flags.certificate)?,
            key: needed(&settings.key, flags.key)?,
            roots: settings.roots.clone(),
            clients,
            protocol,
        })
    }

    /// Formats a message about a file.
    fn about(&self, file: TlsFileRole, what: &str) -> String {
        let (flag, path) = match file {
            TlsFileRole::Certificate => (self.flags.certificate, Some(&self.certificate)),
            TlsFileRole::Key => (self.flags.key, Some(&self.key)),
            TlsFileRole::Roots => (self.flags.roots, self.roots.as_ref()),
        };
        let path = path.map(|path| path.display().to_string()).unwrap_or_default();
        format!("{flag} '{path}' {what}")
    }

    fn read(&self, reading: FileReading) -> Result<TlsFileContents, String> {
        let one = |file, path: &Path| {
            read(path, reading)
                .map_err(|error| self.about(file, &format!("can't be read: {error}")))
        };
        let roots = match (&self.roots, self.clients) {
            (None, _) => None,
            (Some(roots), ClientAuthentication::Certified) => Some(one(TlsFileRole::Roots, roots)?),
            // As in Triton, a file that isn't needed may be missing.
            (Some(roots), ClientAuthentication::Anonymous) => one(TlsFileRole::Roots, roots).ok(),
        };
        let certificate = one(TlsFileRole::Certificate, &self.certificate)?;
        Ok(TlsFileContents { certificate, key: one(TlsFileRole::Key, &self.key)?, roots })
    }

    fn config(&self, files: &TlsFileContents, logger: &Logger) -> Result<TlsConfig, String> {
        let config = TlsConfig::new(files, self.clients, self.protocol)
            .map_err(|TlsConfigError { file, reason }| self.about(file, &reason))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if let Some(remark) = config.validity_warning(now) {
            logger.warning(self.about(TlsFileRole::Certificate, remark));
        }
        Ok(config)
    }
}

fn read(path: &Path, reading: FileReading) -> io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    options.read(true);
    if matches!(reading, FileReading::Again) {
        // Opening a named pipe would wait for a writer, which would stop the watching permanently.
        options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    }
    let file = options.open(path)?;
    if matches!(reading, FileReading::Again) && !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file, so changes are not followed"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other("it is longer than 4 MiB"));
    }
    Ok(bytes)
}

/// Logs failed handshakes in the verbose log, each kind only once, because clients can cause any
/// number of them.
fn reporter(flags: TlsFlags, logger: Logger) -> impl Fn(&HandshakeFailure) {
    let logged = AtomicU32::new(0);
    move |failure| {
        if !logger.enabled(LogLevel::Verbose(1)) {
            return;
        }
        let kind = 1 << failure.kind as u8;
        if logged.fetch_or(kind, Ordering::Relaxed) & kind == 0 {
            let endpoint = flags.endpoint;
            logger.verbose(
                1,
                format_args!(
                    "{endpoint}: TLS handshake of a client failed: {failure} (later failures of \
                     this kind are not logged)"
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::tls;

    fn settings(is_mutual: bool, files: [&str; 3]) -> TlsSettings {
        let [certificate, key, roots] =
            files.map(|file| (!file.is_empty()).then(|| PathBuf::from(file)));
        let mut settings = TlsSettings::default();
        settings.is_mutual = is_mutual;
        (settings.certificate, settings.key, settings.roots) = (certificate, key, roots);
        settings
    }

    #[track_caller]
    fn check(settings: &TlsSettings, expected: &str) {
        let source = CertificatePaths::new(settings, tls::GRPC, ApplicationProtocol::Http2);
        let error = match source.and_then(|source| source.read(FileReading::First)) {
            Ok(_) => String::new(),
            Err(error) => error,
        };
        assert_eq!(error, expected);
    }

    #[test]
    fn flags_that_are_missing_are_named() {
        check(&settings(false, ["", "", ""]), "--grpc-use-ssl needs --grpc-server-cert");
        check(&settings(false, ["a", "", ""]), "--grpc-use-ssl needs --grpc-server-key");
        check(&settings(true, ["a", "b", ""]), "--grpc-use-ssl-mutual needs --grpc-root-cert");
    }

    #[test]
    fn files_that_cannot_be_read_are_named() {
        let missing = "can't be read: No such file or directory (os error 2)";
        let here = "Cargo.toml";
        check(
            &settings(false, ["/no/c", here, ""]),
            &format!("--grpc-server-cert '/no/c' {missing}"),
        );
        check(
            &settings(false, [here, "/no/k", ""]),
            &format!("--grpc-server-key '/no/k' {missing}"),
        );
        check(
            &settings(true, [here, here, "/no/r"]),
            &format!("--grpc-root-cert '/no/r' {missing}"),
        );
        check(&settings(false, [here, here, "/no/r"]), "");
        let endless = "can't be read: it is longer than 4 MiB";
        check(
            &settings(false, ["/dev/zero", here, ""]),
            &format!("--grpc-server-cert '/dev/zero' {endless}"),
        );
        let device = read(Path::new("/dev/zero"), FileReading::Again).unwrap_err().to_string();
        assert_eq!(device, "it is no regular file, so changes are not followed");
    }
}
