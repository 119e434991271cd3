//! A queue that wakes its single reader only once, however many items are added.
//!
//! Waking a sleeping reader costs a system call, and items often arrive in bursts, such as a
//! batch's responses. An inbox therefore keeps track of whether its reader is asleep. The first
//! item wakes a sleeping reader; further items don't, until the reader has taken all of them and
//! sleeps again.
//!
//! The reader is either a task or a thread:
//!
//! - A task calls [`Inbox::register_reader`] at the beginning of its poll, [`Inbox::drain_into`]
//!   for the items, and [`Inbox::try_sleep`] at the end, which fails if something has arrived in
//!   the meantime.
//! - A thread calls [`Inbox::recv`], which waits.
//!
//! [`Inbox::push`] defers the wake-up to the end of the thread's [wake batch](crate::WakeBatch).
//! Until it is issued, the reader counts as asleep, so another thread that adds an item wakes it
//! immediately.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Wake, Waker};

use crate::io_thread::wake_batch;
use crate::lock::{Guard, Lock};
use crate::sync::thread::{self, Thread};

/// The queue; see the [module](self).
pub struct Inbox<T> {
    state: Lock<InboxState<T>>,
}

/// The error for an item added to a closed inbox. It contains the item.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct InboxClosed<T>(pub T);

struct InboxState<T> {
    items: VecDeque<T>,
    reader: Reader,
    /// The reader is running or about to run, so it doesn't need to be woken.
    is_awake: bool,
    /// The reader has been woken without an item.
    is_notified: bool,
    is_closed: bool,
}

enum Reader {
    /// The reader has not made its first call yet. It will find the existing items when it does.
    Unknown,
    Task(Waker),
    Thread(Thread),
}

impl Reader {
    fn wake(self) {
        match self {
            Self::Unknown => {}
            Self::Task(waker) => waker.wake(),
            Self::Thread(thread) => thread.unpark(),
        }
    }
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Inbox<T> {
    /// Creates an empty inbox. Its reader has not yet begun to read.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: Lock::new(InboxState {
                items: VecDeque::new(),
                reader: Reader::Unknown,
                is_awake: true,
                is_notified: false,
                is_closed: false,
            }),
        }
    }

    /// Adds an item. A sleeping reader is woken at the end of this thread's wake batch.
    ///
    /// # Errors
    ///
    /// The item if the inbox is closed.
    pub fn push(self: &Arc<Self>, item: T) -> Result<(), InboxClosed<T>>
    where
        T: Send + 'static,
    {
        let state = self.add(item)?;
        let is_awake = state.is_awake;
        drop(state);
        if !is_awake {
            wake_batch::defer_wake(Waker::from(self.clone()));
        }
        Ok(())
    }

    /// Adds an item and wakes a sleeping reader immediately.
    ///
    /// # Errors
    ///
    /// The item if the inbox is closed.
    pub fn push_and_wake(&self, item: T) -> Result<(), InboxClosed<T>> {
        wake(self.add(item)?);
        Ok(())
    }

    fn add(&self, item: T) -> Result<Guard<'_, InboxState<T>>, InboxClosed<T>> {
        let mut state = self.state.lock("add an item");
        if state.is_closed {
            return Err(InboxClosed(item));
        }
        state.items.push_back(item);
        Ok(state)
    }

    /// Wakes the reader immediately, without an item. A running reader does not sleep until it has
    /// called [`Inbox::clear_notifications`].
    pub fn notify(&self) {
        let mut state = self.state.lock("notify the reader");
        state.is_notified = true;
        wake(state);
    }

    /// A waker that [notifies](Self::notify) the reader.
    pub fn waker(self: &Arc<Self>) -> Waker
    where
        T: Send + 'static,
    {
        Waker::from(Arc::new(Notifier(self.clone())))
    }

    /// Closes the inbox: it accepts no further items, and [`Inbox::recv`] returns `None` once the
    /// remaining items have been taken.
    pub fn close(&self) {
        let mut state = self.state.lock("close");
        state.is_closed = true;
        wake(state);
    }

    /// Records that the reader is running, as a task that `waker` wakes.
    pub fn register_reader(&self, waker: &Waker) {
        let mut state = self.state.lock("begin to read");
        state.is_awake = true;
        if !matches!(&state.reader, Reader::Task(known) if known.will_wake(waker)) {
            state.reader = Reader::Task(waker.clone());
        }
    }

    /// Moves all items into `into`, which must be empty.
    pub fn drain_into(&self, into: &mut VecDeque<T>) {
        std::mem::swap(&mut self.state.lock("take all items").items, into);
    }

    /// Clears the notifications so far, because the reader is about to check what they announced.
    /// Items stay.
    pub fn clear_notifications(&self) {
        self.state.lock("forget notifications").is_notified = false;
    }

    /// Marks the reader as asleep, so that the next item or notification wakes it. Returns false if
    /// an item or notification is already pending; the reader must then continue.
    #[must_use]
    pub fn try_sleep(&self) -> bool {
        let mut state = self.state.lock("sleep");
        state.is_awake = state.is_notified || !state.items.is_empty();
        !state.is_awake
    }

    /// Takes the next item, and blocks this thread until there is one. Returns `None` if the inbox
    /// is closed and empty.
    pub fn recv(&self) -> Option<T> {
        loop {
            let mut state = self.state.lock("receive");
            state.is_awake = true;
            if let Some(item) = state.items.pop_front() {
                return Some(item);
            }
            if state.is_closed {
                return None;
            }
            let here = thread::current();
            if !matches!(&state.reader, Reader::Thread(known) if known.id() == here.id()) {
                state.reader = Reader::Thread(here);
            }
            state.is_awake = false;
            drop(state);
            thread::park();
        }
    }
}

fn wake<T>(mut state: Guard<'_, InboxState<T>>) {
    if state.is_awake {
        return;
    }
    state.is_awake = true;
    let reader = match &state.reader {
        Reader::Unknown => Reader::Unknown,
        Reader::Task(waker) => Reader::Task(waker.clone()),
        Reader::Thread(thread) => Reader::Thread(thread.clone()),
    };
    // Released first, because a reader that wakes up to a held lock goes back to sleep.
    drop(state);
    reader.wake();
}

/// Performs a deferred wake-up. In the meantime, another thread may have woken the reader, which
/// may have taken the item.
impl<T: Send + 'static> Wake for Inbox<T> {
    fn wake(self: Arc<Self>) {
        let state = self.state.lock("issue a deferred wake-up");
        if !state.items.is_empty() {
            wake(state);
        }
    }
}

/// The waker that [`Inbox::waker`] returns.
struct Notifier<T>(Arc<Inbox<T>>);

impl<T: Send + 'static> Wake for Notifier<T> {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.notify();
    }
}

impl<T> std::fmt::Debug for Inbox<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Inbox")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::WakeBatch;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// An inbox whose task is asleep, and the task's wake-up count.
    fn resting() -> (Arc<Inbox<u32>>, Arc<Count>) {
        let (inbox, woken) = (Arc::new(Inbox::new()), Arc::<Count>::default());
        inbox.register_reader(&Waker::from(woken.clone()));
        assert!(inbox.try_sleep());
        (inbox, woken)
    }

    fn check_woken(woken: &Count, expected: u32) {
        assert_eq!(woken.0.load(Ordering::Relaxed), expected);
    }

    fn taken(inbox: &Inbox<u32>) -> Vec<u32> {
        let mut items = VecDeque::new();
        inbox.drain_into(&mut items);
        items.into()
    }

    #[test]
    fn a_burst_wakes_once() {
        let (inbox, woken) = resting();
        for item in 0..32 {
            inbox.push(item).unwrap();
        }
        check_woken(&woken, 1);
        assert_eq!(taken(&inbox), Vec::from_iter(0..32));
        assert!(inbox.try_sleep());
        inbox.push_and_wake(32).unwrap();
        inbox.push_and_wake(33).unwrap();
        check_woken(&woken, 2);
    }

    #[test]
    fn a_wake_batch_wakes_at_its_end() {
        let (inbox, woken) = resting();
        let batch = WakeBatch::begin();
        for item in 0..8 {
            inbox.push(item).unwrap();
        }
        check_woken(&woken, 0);
        drop(batch);
        check_woken(&woken, 1);
    }

    #[test]
    fn a_deferred_wake_up_holds_no_other_thread_back() {
        let (inbox, woken) = resting();
        let batch = WakeBatch::begin();
        inbox.push(1).unwrap();
        check_woken(&woken, 0);
        let other = inbox.clone();
        thread::spawn(move || other.push(2)).join().unwrap().unwrap();
        check_woken(&woken, 1);
        assert_eq!(taken(&inbox), [1, 2]);
        assert!(inbox.try_sleep());
        // The item that the deferred wake-up announces has already been taken.
        drop(batch);
        check_woken(&woken, 1);
    }

    #[test]
    fn a_task_that_runs_is_not_woken_and_does_not_rest() {
        let (inbox, woken) = resting();
        inbox.waker().wake_by_ref();
        inbox.notify();
        check_woken(&woken, 1);
        inbox.register_reader(&Waker::from(woken.clone()));
        inbox.notify();
        assert!(!inbox.try_sleep());
        inbox.clear_notifications();
        assert!(inbox.try_sleep());
        check_woken(&woken, 1);
    }

    #[test]
    fn items_outlive_settling() {
        let (inbox, _woken) = resting();
        inbox.register_reader(Waker::noop());
        inbox.push(1).unwrap();
        inbox.clear_notifications();
        assert!(!inbox.try_sleep());
        assert_eq!(taken(&inbox), [1]);
    }

    #[test]
    fn the_latest_waker_counts() {
        let (inbox, old) = resting();
        let new = Arc::<Count>::default();
        inbox.register_reader(&Waker::from(new.clone()));
        assert!(inbox.try_sleep());
        inbox.push(1).unwrap();
        check_woken(&old, 0);
        check_woken(&new, 1);
    }

    #[test]
    fn a_closed_inbox_returns_items() {
        let (inbox, woken) = resting();
        inbox.push(1).unwrap();
        inbox.close();
        assert_eq!(inbox.push(2), Err(InboxClosed(2)));
        assert_eq!(inbox.push_and_wake(3), Err(InboxClosed(3)));
        assert_eq!((inbox.recv(), inbox.recv()), (Some(1), None));
        check_woken(&woken, 1);
    }

    #[test]
    fn a_thread_receives_all_items_and_the_end() {
        let inbox = Arc::new(Inbox::new());
        let reader = inbox.clone();
        let reader =
            thread::spawn(move || std::iter::from_fn(|| reader.recv()).collect::<Vec<u32>>());
        for item in 0..1000 {
            if item % 10 == 0 {
                // sleep: lets the reader find the inbox empty
                thread::yield_now();
            }
            inbox.push(item).unwrap();
        }
        inbox.close();
        assert_eq!(reader.join().unwrap(), Vec::from_iter(0..1000));
    }
}
