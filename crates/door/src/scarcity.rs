//! Accepts connections when the process has run out of file descriptors.
//!
//! Models may have taken all descriptors. Idle connections are then closed to make room for new
//! ones. If none is idle for a while, clients are refused, so that they don't wait for a connection
//! that never comes. One descriptor is reserved for this purpose and is given up while a client is
//! refused.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;

use crate::limit::ConnectionLimit;
use crate::refusal::{read_what_is_there, send_refusal};

/// The pause that lets an evicted connection close.
const CLOSING_PAUSE: Duration = Duration::from_millis(2);

/// The pause if no connection is idle and descriptors become free only when connections close on
/// their own.
const PAUSE: Duration = Duration::from_millis(20);

/// The time that new clients wait before they are refused.
const PATIENCE: Duration = Duration::from_millis(500);

/// The state of a listener that may lack descriptors.
pub(crate) struct DescriptorShortage {
    spare: Option<File>,
    since: Option<Instant>,
}

impl DescriptorShortage {
    pub(crate) fn new() -> Self {
        Self { spare: spare(), since: None }
    }

    /// Notes that a connection was accepted.
    pub(crate) fn is_over(&mut self) {
        self.since = None;
        if self.spare.is_none() {
            self.spare = spare();
        }
    }

    /// Handles a failure to accept by making room or refusing a client with `text`.
    pub(crate) async fn relieve(
        &mut self,
        listener: &TcpListener,
        limits: &[Arc<ConnectionLimit>],
        text: &[u8],
    ) {
        let now = Instant::now();
        if limits.iter().any(|limit| limit.make_room(now)) {
            self.since = None;
            return tokio::time::sleep(CLOSING_PAUSE).await;
        }
        let since = *self.since.get_or_insert(now);
        let has_waited = now.saturating_duration_since(since) >= PATIENCE;
        // Clients that can't receive a refusal keep waiting.
        if text.is_empty() || !has_waited || self.spare.take().is_none() {
            tokio::time::sleep(PAUSE).await;
            self.spare = self.spare.take().or_else(spare);
            return;
        }
        // Another thread may take the descriptor first.
        if let Ok(Ok((stream, _))) = tokio::time::timeout(PAUSE, listener.accept()).await
            && send_refusal(&stream, text)
        {
            tokio::time::sleep(PAUSE).await;
            read_what_is_there(&stream);
        }
        self.spare = spare();
    }
}

fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}
