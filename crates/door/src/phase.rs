//! The phases of a door.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::watch;

/// The phase of a door: `Serving` → `Draining` → `Closed`. A door never returns to an earlier
/// phase.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DoorPhase {
    /// Connections and requests are served.
    Serving,
    /// Connections are still accepted so that their clients learn why they are not served, but the
    /// drain doesn't wait for them. The protocol decides which requests to refuse and when a
    /// connection ends.
    Draining,
    /// The port is closed, and connections end immediately.
    Closed,
}

/// Advances a door from phase to phase.
pub(crate) struct PhaseSender {
    /// A copy of the phase that is cheap to read, because every request reads it.
    now: Arc<AtomicU8>,
    sender: watch::Sender<DoorPhase>,
}

impl PhaseSender {
    pub(crate) fn new() -> Self {
        let now = Arc::new(AtomicU8::new(DoorPhase::Serving as u8));
        Self { now, sender: watch::Sender::new(DoorPhase::Serving) }
    }

    /// Advances to `phase`. Returns false if the door had already reached it.
    pub(crate) fn advance(&self, phase: DoorPhase) -> bool {
        self.sender.send_if_modified(|now| {
            let moves = *now < phase;
            if moves {
                *now = phase;
                self.now.store(phase as u8, Ordering::Release);
            }
            moves
        })
    }

    pub(crate) fn watch(&self) -> PhaseWatch {
        PhaseWatch { now: self.now.clone(), receiver: self.sender.subscribe() }
    }
}

/// Shows the phase of a door to its connections.
#[derive(Clone, Debug)]
pub struct PhaseWatch {
    now: Arc<AtomicU8>,
    receiver: watch::Receiver<DoorPhase>,
}

impl PhaseWatch {
    /// The door's current phase.
    #[must_use]
    pub fn phase(&self) -> DoorPhase {
        const DRAINING: u8 = DoorPhase::Draining as u8;
        const CLOSED: u8 = DoorPhase::Closed as u8;
        match self.now.load(Ordering::Acquire) {
            DRAINING => DoorPhase::Draining,
            CLOSED => DoorPhase::Closed,
            _ => DoorPhase::Serving,
        }
    }

    /// Returns true if the door is draining or closed.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.phase() != DoorPhase::Serving
    }

    /// Waits until the door is draining or closed.
    pub async fn wait_until_stopping(&mut self) {
        self.after(DoorPhase::Serving).await;
    }

    /// Waits until the door is closed.
    pub async fn closed(&mut self) {
        self.after(DoorPhase::Draining).await;
    }

    /// Waits until the door has left the phase `passed`. A dropped door has passed all phases.
    async fn after(&mut self, passed: DoorPhase) {
        drop(self.receiver.wait_for(|phase| *phase > passed).await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn phases_go_forward() {
        let sender = PhaseSender::new();
        let mut watch = sender.watch();
        assert_eq!(watch.phase(), DoorPhase::Serving);
        assert!(!watch.is_stopping());
        assert!(sender.advance(DoorPhase::Draining));
        assert!(!sender.advance(DoorPhase::Draining));
        assert!(watch.is_stopping());
        watch.wait_until_stopping().await;
        assert!(sender.advance(DoorPhase::Closed));
        assert!(!sender.advance(DoorPhase::Draining));
        assert_eq!(watch.phase(), DoorPhase::Closed);
        watch.closed().await;
    }

    #[tokio::test]
    async fn a_door_that_is_gone_is_closed() {
        let mut watch = PhaseSender::new().watch();
        watch.closed().await;
    }
}
