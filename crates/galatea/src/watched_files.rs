//! The files that are checked for changes while the server runs.

use std::convert::Infallible;
use std::time::Duration;

use galatea_telemetry::Logger;

use crate::certificates::Certificates;
use crate::tenants::TenantsFile;

/// The interval between checks of the files. A changed certificate takes effect at the second check
/// that sees it.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// The files that are checked for changes.
#[derive(Default)]
pub(crate) struct WatchedFiles {
    pub(crate) certificates: Vec<Certificates>,
    pub(crate) tenants: Option<TenantsFile>,
}

impl WatchedFiles {
    fn look(&mut self) {
        self.certificates.iter_mut().for_each(Certificates::look);
        self.tenants.iter_mut().for_each(TenantsFile::look);
    }
}

/// Watches the files for changes.
pub(crate) async fn reload_changed(mut files: WatchedFiles, logger: Logger) -> Infallible {
    if files.certificates.is_empty() && files.tenants.is_none() {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        // A file may be on an unresponsive disk; signals must not wait for it.
        let looking = tokio::task::spawn_blocking(move || {
            files.look();
            files
        });
        let Ok(looked_at) = looking.await else {
            logger.error(
                "changes of certificates and tenants are not followed any more: a look at them \
                 failed",
            );
            return std::future::pending().await;
        };
        files = looked_at;
    }
}
