//! Accepting when the process has no file descriptors left.
//!
//! Models may have taken them. Idle connections are closed for new ones then. If none is idle for
//! a while, clients are refused, instead of waiting for a connection that never comes: a
//! descriptor that is kept for this is given up while a client is told.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;

use crate::limit::ConnectionLimit;
use crate::refusal::{read_what_is_there, tell};

/// The pause in which a connection that makes room is closed.
const CLOSING_PAUSE: Duration = Duration::from_millis(2);

/// The pause if no connection is idle: only connections that close help then.
const PAUSE: Duration = Duration::from_millis(20);

/// The time for which new clients wait before they are refused.
const PATIENCE: Duration = Duration::from_millis(500);

/// The state of a listener that may lack descriptors.
pub(crate) struct Scarcity {
    spare: Option<File>,
    since: Option<Instant>,
}

impl Scarcity {
    pub(crate) fn new() -> Self {
        Self { spare: spare(), since: None }
    }

    /// A connection was accepted.
    pub(crate) fn is_over(&mut self) {
        self.since = None;
        if self.spare.is_none() {
            self.spare = spare();
        }
    }

    /// No connection could be accepted. Makes room, or refuses a client with `text`.
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
        // Clients that can't be told go on waiting.
        if text.is_empty() || !has_waited || self.spare.take().is_none() {
            tokio::time::sleep(PAUSE).await;
            self.spare = self.spare.take().or_else(spare);
            return;
        }
        // Another thread may take the descriptor first.
        if let Ok(Ok((stream, _))) = tokio::time::timeout(PAUSE, listener.accept()).await
            && tell(&stream, text)
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
