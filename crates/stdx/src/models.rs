//! Loom models of the threads that share an inbox or a driver slot, over all interleavings.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Wake, Waker};

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::thread;
use crate::{DriverSlot, Inbox, InboxClosed, Lock, WakeBatch};

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    // More than three preemptions reveal no further kinds of mistakes, but cost minutes.
    model.preemption_bound = Some(3);
    model.check(run);
}

#[test]
fn a_thread_receives_each_item_once_and_the_end() {
    model(|| {
        let inbox = Arc::new(Inbox::new());
        let senders = [1, 2].map(|item| {
            let inbox = inbox.clone();
            thread::spawn(move || inbox.push(item).unwrap())
        });
        let reader = thread::spawn({
            let inbox = inbox.clone();
            move || std::iter::from_fn(|| inbox.recv()).sum::<u32>()
        });
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        inbox.close();
        assert_eq!(reader.join().unwrap(), 3);
    });
}

/// A task's thread, which is parked until the task is woken.
struct Task {
    wake_ups: AtomicU32,
    thread: thread::Thread,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_ups.fetch_add(1, Ordering::Relaxed);
        self.thread.unpark();
    }
}

/// Reads like a task until `count` items have arrived; returns the number of wake-ups.
fn read_as_task(inbox: &Arc<Inbox<u32>>, count: usize) -> u32 {
    let task = Arc::new(Task { wake_ups: AtomicU32::new(0), thread: thread::current() });
    let waker = Waker::from(task.clone());
    let (mut items, mut seen) = (VecDeque::new(), 0);
    while seen < count {
        inbox.register_reader(&waker);
        inbox.drain_into(&mut items);
        seen += items.drain(..).count();
        if seen < count && inbox.try_sleep() {
            thread::park();
        }
    }
    task.wake_ups.load(Ordering::Relaxed)
}

#[test]
fn a_task_misses_no_wake_up() {
    model(|| {
        let inbox = Arc::new(Inbox::new());
        let senders = [1, 2].map(|item| {
            let inbox = inbox.clone();
            thread::spawn(move || inbox.push(item).unwrap())
        });
        assert!(read_as_task(&inbox, 2) <= 2);
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

#[test]
fn a_deferred_wake_up_and_another_senders_lose_nothing() {
    model(|| {
        let inbox = Arc::new(Inbox::new());
        let deferring = thread::spawn({
            let inbox = inbox.clone();
            move || {
                let batch = WakeBatch::begin();
                inbox.push(1).unwrap();
                inbox.push(2).unwrap();
                drop(batch);
            }
        });
        let other = thread::spawn({
            let inbox = inbox.clone();
            move || inbox.push_and_wake(3).unwrap()
        });
        assert!(read_as_task(&inbox, 3) <= 3);
        deferring.join().unwrap();
        other.join().unwrap();
    });
}

#[test]
fn an_item_is_taken_or_comes_back_from_a_closed_inbox() {
    model(|| {
        let inbox = Arc::new(Inbox::new());
        let sender = thread::spawn({
            let inbox = inbox.clone();
            move || inbox.push(7)
        });
        let closer = thread::spawn({
            let inbox = inbox.clone();
            move || inbox.close()
        });
        let received: Vec<u32> = std::iter::from_fn(|| inbox.recv()).collect();
        closer.join().unwrap();
        match sender.join().unwrap() {
            Ok(()) => assert_eq!(received, [7]),
            Err(InboxClosed(item)) => assert_eq!((item, received), (7, vec![])),
        }
    });
}

/// A queue with its driver, arranged as in real machine drivers.
#[derive(Default)]
struct Driven {
    state: Lock<(VecDeque<u32>, DriverSlot<Vec<u32>>)>,
}

impl Driven {
    fn add(&self, item: u32) {
        let taken = {
            let mut state = self.state.lock("add");
            state.0.push_back(item);
            state.1.take()
        };
        if let Some(driver) = taken {
            self.drive(driver);
        }
    }

    fn drive(&self, mut driver: Vec<u32>) {
        loop {
            let mut state = self.state.lock("proceed");
            let next = state.0.pop_front();
            let Some((mut driving, item)) = state.1.next_or_release(driver, next) else { return };
            drop(state);
            driving.push(item);
            driver = driving;
        }
    }
}

#[test]
fn one_thread_drives_and_no_item_stays() {
    model(|| {
        let driven = Arc::new(Driven::default());
        driven.state.lock("begin").1 = DriverSlot::Idle(Vec::new());
        let others = [10, 20].map(|item| {
            let driven = driven.clone();
            thread::spawn(move || {
                driven.add(item);
                driven.add(item + 1);
            })
        });
        driven.add(1);
        others.into_iter().for_each(|other| other.join().unwrap());
        let mut state = driven.state.lock("look");
        let mut done = state.1.take().expect("all have returned, so no thread drives");
        assert!(state.0.is_empty());
        let position = |item| done.iter().position(|done| *done == item);
        assert!(position(10) < position(11) && position(20) < position(21), "{done:?}");
        done.sort_unstable();
        assert_eq!(done, [1, 10, 11, 20, 21]);
    });
}
