//! A limited number of tasks in progress, such as handshakes and refusals.
//!
//! A client that begins a handshake and then stops uses memory until the time limit. If new
//! handshakes were refused when there are many, such clients could keep all others out. Instead,
//! the oldest handshake makes room: one that progresses takes milliseconds and is never the oldest
//! of a thousand.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use galatea_stdx::Lock;
use tokio::sync::oneshot;

/// The tasks in progress.
#[derive(Debug)]
pub(crate) struct TaskTracker {
    count_max: usize,
    open: Lock<OpenTasks>,
}

#[derive(Debug, Default)]
struct OpenTasks {
    /// The number of entries begun so far.
    begun: u64,
    /// The entries by number. Dropping the sender ends an entry.
    in_progress: BTreeMap<u64, oneshot::Sender<Infallible>>,
}

/// An entry, which is in progress until this value is dropped.
pub(crate) struct TaskEntry {
    all: Arc<TaskTracker>,
    number: u64,
    given_up: oneshot::Receiver<Infallible>,
}

impl TaskTracker {
    pub(crate) fn new(count_max: usize) -> Self {
        Self { count_max, open: Lock::default() }
    }

    /// Begins an entry. If there are too many entries, the oldest one is given up.
    pub(crate) fn track(self: &Arc<Self>) -> TaskEntry {
        let (sender, given_up) = oneshot::channel();
        let mut open = self.open.lock("begin another");
        let number = open.begun;
        open.begun = number.wrapping_add(1);
        open.in_progress.insert(number, sender);
        if open.in_progress.len() > self.count_max {
            drop(open.in_progress.pop_first());
        }
        TaskEntry { all: self.clone(), number, given_up }
    }
}

impl TaskEntry {
    /// Waits until this entry has to make room.
    pub(crate) async fn given_up(&mut self) {
        let _ = (&mut self.given_up).await;
    }
}

impl Drop for TaskEntry {
    fn drop(&mut self) {
        self.all.open.lock("end one").in_progress.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn is_given_up(handshake: &mut TaskEntry) -> bool {
        pin!(handshake.given_up()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn the_oldest_makes_room() {
        let all = Arc::new(TaskTracker::new(2));
        let mut first = all.track();
        let mut second = all.track();
        assert!(!is_given_up(&mut first) && !is_given_up(&mut second));
        let mut third = all.track();
        assert!(is_given_up(&mut first));
        assert!(!is_given_up(&mut second) && !is_given_up(&mut third));
        drop(second);
        let mut fourth = all.track();
        assert!(!is_given_up(&mut third) && !is_given_up(&mut fourth));
        drop((first, third, fourth));
        assert!(all.open.lock("check").in_progress.is_empty());
    }
}
