//! A thread's turn: what it has at hand, and behind that, whom to wake.
//!
//! Waking a thread costs a system call, and a thread that is woken early may take
//! the core from the one that woke it, find one thing to do, and sleep again. So a
//! thread that does several things in a row wakes others behind the last one: each
//! once, however much there is for them.
//!
//! A turn is a matter of one thread, which is why its state is in a thread-local:
//! the alternative is an argument through every layer between whoever knows that
//! more is to come and whoever wakes.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;

use crate::errand;

#[derive(Default)]
struct State {
    /// How many [`Turn`]s are open.
    open: u32,
    /// The task that ends this thread's turns, if it is a thread of tasks.
    ender: Option<Waker>,
    held: SmallVec<[Waker; 4]>,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

/// Wakes `waker`: at once, or at the end of this thread's turn.
pub fn wake(waker: Waker) {
    // A thread that ends has no turns any more.
    let held = STATE.try_with(|state| state.borrow_mut().hold(&waker));
    match held {
        Ok(Held::Yes) => {}
        Ok(Held::First(ender)) => ender.wake(),
        Ok(Held::No) | Err(_) => waker.wake(),
    }
}

/// Makes this thread one of tasks: what is woken on it is woken when the task with
/// the waker `ender` calls this again, which it is woken to do. Wakes what is held.
pub fn end_with(ender: &Waker) {
    let held = STATE.with(|state| {
        let mut state = state.borrow_mut();
        state.ender = Some(ender.clone());
        std::mem::take(&mut state.held)
    });
    held.into_iter().for_each(Waker::wake);
}

/// The task that ended this thread's turns runs no more: wakes what is held, and from
/// now on at once.
pub fn end_tasks() {
    let held = STATE.with(|state| {
        let mut state = state.borrow_mut();
        state.ender = None;
        std::mem::take(&mut state.held)
    });
    held.into_iter().for_each(Waker::wake);
}

/// Runs `foreign`, which may wait for anybody, outside of this thread's turn: those
/// who are held are woken first, and others meanwhile at once. The thread runs no
/// [errands](crate::Errand) meanwhile.
///
/// For code that isn't ours: a callback may wait for the answer to another request,
/// whose thread must not be one that this thread has yet to wake.
pub fn outside<R>(foreign: impl FnOnce() -> R) -> R {
    let _interrupted = Interrupted::begin();
    foreign()
}

/// A turn that is interrupted, and goes on when this is dropped.
struct Interrupted {
    open: u32,
    ender: Option<Waker>,
    allowance: Duration,
}

impl Interrupted {
    fn begin() -> Self {
        let before = STATE.try_with(|state| std::mem::take(&mut *state.borrow_mut()));
        let State { open, ender, held } = before.unwrap_or_default();
        let allowance = errand::suspend();
        held.into_iter().for_each(Waker::wake);
        Self { open, ender, allowance }
    }
}

impl Drop for Interrupted {
    fn drop(&mut self) {
        // Nothing is held: every turn that began meanwhile is over.
        let _ended = STATE.try_with(|state| {
            let mut state = state.borrow_mut();
            state.open = self.open;
            state.ender = self.ender.take();
        });
        errand::allow(self.allowance);
    }
}

/// What became of a wake-up.
enum Held {
    Yes,
    /// It is the first, so the task that ends the turn must be woken.
    First(Waker),
    No,
}

impl State {
    fn hold(&mut self, waker: &Waker) -> Held {
        if self.open == 0 && self.ender.is_none() {
            return Held::No;
        }
        if self.held.iter().any(|other| other.will_wake(waker)) {
            return Held::Yes;
        }
        self.held.push(waker.clone());
        match &self.ender {
            Some(ender) if self.open == 0 && self.held.len() == 1 => Held::First(ender.clone()),
            Some(_) | None => Held::Yes,
        }
    }
}

/// While this exists, its thread wakes nobody; they are woken when it is dropped.
///
/// Where turns are within turns, the outermost counts.
#[derive(Debug)]
#[must_use = "a turn ends when this is dropped"]
pub struct Turn {
    /// It belongs to its thread.
    here: PhantomData<*const ()>,
}

impl Turn {
    /// Begins a turn.
    pub fn begin() -> Self {
        STATE.with(|state| {
            let mut state = state.borrow_mut();
            state.open = state.open.saturating_add(1);
        });
        Self { here: PhantomData }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // What is woken may begin a turn, so nothing is borrowed meanwhile.
        let held = STATE.try_with(|state| {
            let mut state = state.borrow_mut();
            state.open = state.open.saturating_sub(1);
            if state.open == 0 { std::mem::take(&mut state.held) } else { SmallVec::new() }
        });
        held.unwrap_or_default().into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Three to be woken, and how often they were.
    #[derive(Default)]
    struct Three([Arc<Count>; 3]);

    impl Three {
        fn wake_all(&self) {
            self.0.iter().for_each(|count| wake(Waker::from(count.clone())));
        }

        fn check(&self, expected: u32) {
            let woken = self.0.each_ref().map(|count| count.0.load(Ordering::Relaxed));
            assert_eq!(woken, [expected; 3]);
        }
    }

    /// Runs on a thread of its own, because a thread's turns outlast a test.
    fn on_a_thread(test: impl FnOnce() + Send + 'static) {
        std::thread::spawn(test).join().unwrap();
    }

    #[test]
    fn without_a_turn_they_are_woken_at_once() {
        on_a_thread(|| {
            let three = Three::default();
            three.wake_all();
            three.check(1);
        });
    }

    #[test]
    fn each_is_woken_once_and_at_the_end_of_the_outermost_turn() {
        on_a_thread(|| {
            let three = Three::default();
            let outer = Turn::begin();
            three.wake_all();
            let inner = Turn::begin();
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
    fn on_a_thread_of_tasks_one_of_them_ends_the_turns() {
        on_a_thread(|| {
            let (three, ender) = (Three::default(), Arc::<Count>::default());
            let end = || end_with(&Waker::from(ender.clone()));
            let asked = || ender.0.load(Ordering::Relaxed);
            end();
            three.wake_all();
            three.wake_all();
            three.check(0);
            assert_eq!(asked(), 1);
            end();
            three.check(1);
            // A turn within ends itself.
            let turn = Turn::begin();
            three.wake_all();
            drop(turn);
            three.check(2);
            assert_eq!(asked(), 1);
            three.wake_all();
            end_tasks();
            three.check(3);
            three.wake_all();
            three.check(4);
        });
    }

    #[test]
    fn foreign_code_is_outside_of_the_turn() {
        on_a_thread(|| {
            let (three, ender) = (Three::default(), Arc::<Count>::default());
            end_with(&Waker::from(ender.clone()));
            let turn = Turn::begin();
            three.wake_all();
            outside(|| {
                three.check(1);
                three.wake_all();
                three.check(2);
                let inner = Turn::begin();
                three.wake_all();
                three.check(2);
                drop(inner);
                three.check(3);
            });
            three.wake_all();
            three.check(3);
            drop(turn);
            three.check(4);
            three.wake_all();
            three.check(4);
            assert_eq!(ender.0.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn whoever_is_woken_may_wake_others() {
        struct Domino(Arc<Count>);
        impl Wake for Domino {
            fn wake(self: Arc<Self>) {
                let _turn = Turn::begin();
                wake(Waker::from(self.0.clone()));
            }
        }
        on_a_thread(|| {
            let count = Arc::<Count>::default();
            let turn = Turn::begin();
            wake(Waker::from(Arc::new(Domino(count.clone()))));
            drop(turn);
            assert_eq!(count.0.load(Ordering::Relaxed), 1);
        });
    }
}
