//! Telling clients that there is no place for them.
//!
//! A socket that is closed while its client is still sending is reset, and the client may
//! not see what was sent before. So the socket is closed for sending, and read until the
//! client has closed it or some time has passed. Few refused connections are treated so at
//! once, because they need descriptors; those beyond are only closed.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// How many clients are told at once.
const REFUSED_MAX: usize = 64;

/// How long a client has to read the refusal.
const TIME_MAX: Duration = Duration::from_secs(1);

/// The connections that are being refused.
pub(crate) struct Refusals(Arc<Semaphore>);

impl Default for Refusals {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(REFUSED_MAX)))
    }
}

impl Refusals {
    /// Sends `text` and closes the connection, in a task of the current runtime.
    pub(crate) fn refuse(&self, stream: TcpStream, text: &'static [u8]) {
        if text.is_empty() {
            return;
        }
        let Ok(permit) = self.0.clone().try_acquire_owned() else { return };
        tokio::spawn(async move {
            let _permit = permit;
            // A client that is gone, or takes too long, misses the refusal.
            let _ = tokio::time::timeout(TIME_MAX, tell(stream, text)).await;
        });
    }
}

async fn tell(mut stream: TcpStream, text: &[u8]) {
    let told = async {
        stream.write_all(text).await?;
        stream.shutdown().await?;
        let mut ignored = [0; 1 << 10];
        while stream.read(&mut ignored).await? > 0 {}
        Ok::<(), std::io::Error>(())
    };
    let _ = told.await;
}
