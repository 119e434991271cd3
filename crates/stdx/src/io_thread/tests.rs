//! Tests of thread state. The state outlives a test, so each test runs on its own thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use super::wake_batch::defer_wake;
use super::{InlineBudget, IoThreadGuard, WakeBatch, run_foreign_code};

#[derive(Default)]
struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Three wakers and their wake-up counts.
#[derive(Default)]
struct Three([Arc<Count>; 3]);

impl Three {
    fn wake_all(&self) {
        self.0.iter().for_each(|count| defer_wake(Waker::from(count.clone())));
    }

    #[track_caller]
    fn check(&self, expected: u32) {
        let woken = self.0.each_ref().map(|count| count.0.load(Ordering::Relaxed));
        assert_eq!(woken, [expected; 3]);
    }
}

const LONG: Duration = Duration::from_secs(3600);

fn on_a_thread(test: impl FnOnce() + Send + 'static) {
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn without_a_wake_batch_wakers_are_woken_at_once() {
    on_a_thread(|| {
        let three = Three::default();
        three.wake_all();
        three.check(1);
    });
}

#[test]
fn each_waker_is_woken_once_at_the_end_of_the_outermost_wake_batch() {
    on_a_thread(|| {
        let three = Three::default();
        let outer = WakeBatch::begin();
        three.wake_all();
        let inner = WakeBatch::begin();
        three.wake_all();
        drop(inner);
        three.check(0);
        drop(outer);
        three.check(1);
        three.wake_all();
        three.check(2);
    });
}

#[test]
fn a_task_of_an_io_thread_issues_its_wake_ups() {
    on_a_thread(|| {
        let (three, flusher) = (Three::default(), Arc::<Count>::default());
        let flush = || IoThreadGuard::flush_wakes(&Waker::from(flusher.clone()));
        let flusher_woken = || flusher.0.load(Ordering::Relaxed);
        let io_thread = IoThreadGuard::enter(LONG);
        flush();
        three.wake_all();
        three.wake_all();
        three.check(0);
        assert_eq!(flusher_woken(), 1);
        flush();
        three.check(1);
        // A nested wake batch issues its own wake-ups.
        let batch = WakeBatch::begin();
        three.wake_all();
        drop(batch);
        three.check(2);
        assert_eq!(flusher_woken(), 1);
        three.wake_all();
        drop(io_thread);
        three.check(3);
        three.wake_all();
        three.check(4);
    });
}

#[test]
fn foreign_code_runs_outside_the_wake_batch() {
    on_a_thread(|| {
        let (three, flusher) = (Three::default(), Arc::<Count>::default());
        let _io_thread = IoThreadGuard::enter(LONG);
        IoThreadGuard::flush_wakes(&Waker::from(flusher.clone()));
        let batch = WakeBatch::begin();
        three.wake_all();
        run_foreign_code(|| {
            three.check(1);
            three.wake_all();
            three.check(2);
            let inner = WakeBatch::begin();
            three.wake_all();
            three.check(2);
            drop(inner);
            three.check(3);
        });
        three.wake_all();
        three.check(3);
        drop(batch);
        three.check(4);
        three.wake_all();
        three.check(4);
        assert_eq!(flusher.0.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_waker_may_wake_others() {
    struct Domino(Arc<Count>);
    impl Wake for Domino {
        fn wake(self: Arc<Self>) {
            let _batch = WakeBatch::begin();
            defer_wake(Waker::from(self.0.clone()));
        }
    }
    on_a_thread(|| {
        let count = Arc::<Count>::default();
        let batch = WakeBatch::begin();
        defer_wake(Waker::from(Arc::new(Domino(count.clone()))));
        drop(batch);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_thread_has_an_inline_budget_only_as_an_io_thread() {
    on_a_thread(|| {
        IoThreadGuard::refill_inline_budget();
        assert!(InlineBudget::take().is_none());
        let io_thread = IoThreadGuard::enter(LONG);
        assert!(InlineBudget::take().is_none());
        IoThreadGuard::refill_inline_budget();
        assert!(InlineBudget::take().is_some());
        assert!(InlineBudget::take().is_some());
        drop(io_thread);
        assert!(InlineBudget::take().is_none());
    });
}

#[test]
fn inline_work_uses_the_budget_up() {
    on_a_thread(|| {
        let _io_thread = IoThreadGuard::enter(Duration::from_nanos(2));
        IoThreadGuard::refill_inline_budget();
        for time in [1, 0, 5] {
            InlineBudget::take().unwrap().charge(Duration::from_nanos(time));
        }
        assert!(InlineBudget::take().is_none());
        IoThreadGuard::refill_inline_budget();
        assert!(InlineBudget::take().is_some());
    });
}

#[test]
fn the_inline_budget_is_used_once_at_a_time() {
    on_a_thread(|| {
        let _io_thread = IoThreadGuard::enter(LONG);
        IoThreadGuard::refill_inline_budget();
        let budget = InlineBudget::take();
        assert!(budget.is_some());
        assert!(InlineBudget::take().is_none());
        drop(budget);
        assert!(InlineBudget::take().is_some());
    });
}

#[test]
fn foreign_code_has_no_inline_budget() {
    on_a_thread(|| {
        let _io_thread = IoThreadGuard::enter(LONG);
        IoThreadGuard::refill_inline_budget();
        assert!(run_foreign_code(InlineBudget::take).is_none());
        assert!(InlineBudget::take().is_some());
    });
}

#[test]
fn a_budget_can_be_lent_to_a_thread_that_has_none() {
    on_a_thread(|| {
        InlineBudget::run_with_budget(LONG, || {
            let budget = InlineBudget::take().unwrap();
            assert!(InlineBudget::take().is_none(), "it is in use");
            InlineBudget::run_with_budget(LONG, || ());
            drop(budget);
        });
        assert!(InlineBudget::take().is_none(), "it was taken back");
        let _io_thread = IoThreadGuard::enter(LONG);
        InlineBudget::run_with_budget(LONG, || {
            assert!(InlineBudget::take().is_none(), "it has its own")
        });
        IoThreadGuard::refill_inline_budget();
        InlineBudget::run_with_budget(LONG, || ());
        assert!(InlineBudget::take().is_some());
    });
}
