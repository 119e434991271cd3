//! The connections of one I/O thread, and the task that watches them.
//!
//! The task sleeps while there are no connections. Otherwise, it checks all of them once a second:
//! a timer for each connection, reset by each request, would cost more than the rest of the
//! request's bookkeeping.

use std::sync::Arc;
use std::time::{Duration, Instant};

use galatea_stdx::Lock;
use galatea_stdx::sync::atomic::{AtomicU32, Ordering};
use slab::Slab;
use tokio::sync::Notify;

use crate::activity::{ClientTimeouts, ConnectionActivity, UptimeSeconds};
use crate::places::ConnectionSlots;

/// The interval between connection checks.
const INTERVAL: Duration = Duration::from_secs(1);

/// The connections that an I/O thread serves for one door.
pub(crate) struct Watch {
    timeouts: ClientTimeouts,
    /// The start of the clock.
    epoch: Instant,
    now: Arc<AtomicU32>,
    connections: Lock<Slab<WatchedConnection>>,
    /// Notifies its waiter when the first connection opens.
    opened: Notify,
}

/// A connection, as seen by the code that may end it.
#[derive(Clone, Debug)]
pub(crate) struct WatchedConnection {
    pub(crate) activity: Arc<ConnectionActivity>,
    pub(crate) places: Arc<ConnectionSlots>,
}

/// The place of a watched connection, held until this value is dropped.
#[must_use = "the connection's place is free when this is dropped"]
pub struct WatchedConnectionGuard {
    watch: Arc<Watch>,
    key: usize,
    watched: WatchedConnection,
}

impl Watch {
    /// Creates a watch whose clock began at `epoch`. Watches that share limits also share the
    /// epoch.
    pub(crate) fn new(timeouts: ClientTimeouts, epoch: Instant) -> Self {
        Self {
            timeouts,
            epoch,
            now: Arc::default(),
            connections: Lock::default(),
            opened: Notify::new(),
        }
    }

    /// Watches a connection that holds these places.
    pub(crate) fn open(self: &Arc<Self>, places: ConnectionSlots) -> WatchedConnectionGuard {
        // The task may have been asleep until now.
        self.read_clock();
        let activity = Arc::new(ConnectionActivity::new(self.now.clone()));
        let watched = WatchedConnection { activity, places: Arc::new(places) };
        let key = self.connections.lock("watch a connection").insert(watched.clone());
        self.opened.notify_one();
        WatchedConnectionGuard { watch: self.clone(), key, watched }
    }

    fn read_clock(&self) -> UptimeSeconds {
        let seconds = Instant::now().saturating_duration_since(self.epoch).as_secs();
        let seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
        self.now.store(seconds, Ordering::Relaxed);
        UptimeSeconds(seconds)
    }

    /// Watches the connections forever.
    pub(crate) async fn run(&self) {
        loop {
            if self.is_empty() {
                self.opened.notified().await;
                continue;
            }
            self.expire(self.read_clock());
            tokio::time::sleep(INTERVAL).await;
        }
    }

    fn is_empty(&self) -> bool {
        self.connections.lock("look for connections").is_empty()
    }

    /// Ends overdue waits.
    fn expire(&self, now: UptimeSeconds) {
        // Waking a task takes no lock of this crate, so it may happen while this lock is held.
        let connections = self.connections.lock("end waits");
        for (_, watched) in &*connections {
            watched.activity.expire(&self.timeouts, now);
        }
    }

    /// Adds the idle connections to `idle`, each with the time since which it has been idle.
    pub(crate) fn add_idle(&self, idle: &mut Vec<(UptimeSeconds, WatchedConnection)>) {
        let connections = self.connections.lock("look for idle connections");
        idle.extend(
            connections
                .iter()
                .filter_map(|(_, watched)| Some((watched.activity.idle_since()?, watched.clone()))),
        );
    }
}

impl WatchedConnectionGuard {
    /// The connection's activity.
    #[must_use]
    pub fn activity(&self) -> &Arc<ConnectionActivity> {
        &self.watched.activity
    }
}

impl Drop for WatchedConnectionGuard {
    fn drop(&mut self) {
        drop(self.watch.connections.lock("forget a connection").try_remove(self.key));
        self.watched.places.release();
    }
}

impl std::fmt::Debug for WatchedConnectionGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.watched.activity.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use crate::activity::AwaitedClientStep;

    use super::*;

    #[test]
    fn waits_of_open_connections_end_in_time() {
        let timeouts = ClientTimeouts { head: Some(10), ..ClientTimeouts::default() };
        let watch = Arc::new(Watch::new(timeouts, Instant::now()));
        let (slow, idle) =
            (watch.open(ConnectionSlots::default()), watch.open(ConnectionSlots::default()));
        slow.activity().begin_wait(AwaitedClientStep::Head, UptimeSeconds(0));
        idle.activity().begin_wait(AwaitedClientStep::Idle, UptimeSeconds(0));
        watch.expire(UptimeSeconds(10));
        assert!(!slow.activity().has_expired());
        watch.expire(UptimeSeconds(11));
        assert!(slow.activity().has_expired() && !idle.activity().has_expired());
        drop((slow, idle));
        assert!(watch.is_empty());
    }
}
