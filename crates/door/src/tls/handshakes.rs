//! How many handshakes may be in progress.
//!
//! A client that begins a handshake and stops costs memory until the time limit. Refusing new
//! handshakes when there are many would let such clients keep all others out. So the oldest
//! one makes room: one that goes on takes milliseconds, and is never the oldest of a thousand.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use galatea_stdx::Lock;
use tokio::sync::oneshot;

/// The handshakes in progress.
#[derive(Debug)]
pub(super) struct Handshakes {
    count_max: usize,
    open: Lock<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// How many were ever begun.
    begun: u64,
    /// By their numbers; dropping the sender ends one.
    in_progress: BTreeMap<u64, oneshot::Sender<Infallible>>,
}

/// A handshake in progress, until this is dropped.
pub(super) struct Handshake {
    handshakes: Arc<Handshakes>,
    number: u64,
    given_up: oneshot::Receiver<Infallible>,
}

impl Handshakes {
    pub(super) fn new(count_max: usize) -> Self {
        Self { count_max, open: Lock::default() }
    }

    /// Begins a handshake; the oldest one is given up if there are too many.
    pub(super) fn begin(self: &Arc<Self>) -> Handshake {
        let (sender, given_up) = oneshot::channel();
        let mut open = self.open.lock("begin a handshake");
        let number = open.begun;
        open.begun = number.wrapping_add(1);
        open.in_progress.insert(number, sender);
        if open.in_progress.len() > self.count_max {
            drop(open.in_progress.pop_first());
        }
        Handshake { handshakes: self.clone(), number, given_up }
    }
}

impl Handshake {
    /// Waits until this one has to make room.
    pub(super) async fn given_up(&mut self) {
        let _ = (&mut self.given_up).await;
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.handshakes.open.lock("end a handshake").in_progress.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn is_given_up(handshake: &mut Handshake) -> bool {
        pin!(handshake.given_up()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn the_oldest_makes_room() {
        let handshakes = Arc::new(Handshakes::new(2));
        let mut first = handshakes.begin();
        let mut second = handshakes.begin();
        assert!(!is_given_up(&mut first) && !is_given_up(&mut second));
        let mut third = handshakes.begin();
        assert!(is_given_up(&mut first));
        assert!(!is_given_up(&mut second) && !is_given_up(&mut third));
        drop(second);
        let mut fourth = handshakes.begin();
        assert!(!is_given_up(&mut third) && !is_given_up(&mut fourth));
        drop((first, third, fourth));
        assert!(handshakes.open.lock("check").in_progress.is_empty());
    }
}
