//! The connections that a drain waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Counts connections.
#[derive(Default)]
pub(crate) struct Connections {
    open: AtomicUsize,
    /// Notifies its waiter when the last connection ends.
    emptied: Notify,
}

impl Connections {
    /// Counts a connection.
    pub(crate) fn open(self: &Arc<Self>) -> CountedConnection {
        self.open.fetch_add(1, Ordering::AcqRel);
        CountedConnection(self.clone())
    }

    pub(crate) fn count(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Waits until no connection is counted.
    pub(crate) async fn drained(&self) {
        loop {
            let mut emptied = std::pin::pin!(self.emptied.notified());
            emptied.as_mut().enable();
            if self.count() == 0 {
                return;
            }
            emptied.await;
        }
    }
}

/// A connection that was accepted while its door was serving. It counts until this value is
/// dropped.
#[must_use = "the connection counts until this is dropped"]
pub struct CountedConnection(Arc<Connections>);

impl Drop for CountedConnection {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.emptied.notify_waiters();
        }
    }
}

impl std::fmt::Debug for CountedConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OpenConnection")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_drain_ends_with_the_last_connection() {
        let connections = Arc::<Connections>::default();
        connections.drained().await;
        let (first, second) = (connections.open(), connections.open());
        assert_eq!(connections.count(), 2);
        drop(first);
        let drain = async {
            connections.drained().await;
            assert_eq!(connections.count(), 0);
        };
        let end = async {
            // sleep: `drain` waits meanwhile
            tokio::task::yield_now().await;
            drop(second);
        };
        tokio::join!(drain, end);
    }
}
