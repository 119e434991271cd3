//! A mutex whose every use states its purpose.
//!
//! Poisoning is ignored. A thread that panics while it holds a lock leaves the value in a usable
//! state: under a lock, state changes in single steps that don't panic halfway, and foreign code is
//! never called. The panic itself is handled where the thread's work is caught: at a door's
//! request, or around the execution of a batch.
//!
//! Debug builds detect a thread that takes a lock it already holds, which would deadlock: they
//! panic and report both purposes. Release builds store no purpose.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::Duration;

use crate::sync::{self, Mutex, MutexGuard};

/// A mutex; see the [module](self).
#[derive(Default)]
pub struct Lock<T: ?Sized> {
    holder: holder::Holder,
    value: Mutex<T>,
}

impl<T> Lock<T> {
    /// Creates an unlocked lock around `value`.
    #[cfg(not(loom_models))]
    pub const fn new(value: T) -> Self {
        Self { holder: holder::Holder::new(), value: Mutex::new(value) }
    }

    /// Creates an unlocked lock around `value`. Not a `const fn`, because loom registers the lock.
    #[cfg(loom_models)]
    pub fn new(value: T) -> Self {
        Self { holder: holder::Holder::new(), value: Mutex::new(value) }
    }

    /// Consumes the lock and returns the value.
    pub fn into_inner(self) -> T {
        self.value.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Lock<T> {
    /// Locks the value until the guard is dropped. `purpose` briefly states the reason.
    #[track_caller]
    pub fn lock(&self, purpose: &'static str) -> Guard<'_, T> {
        self.holder.check(purpose);
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        self.holder.set(purpose);
        Guard { held: LockHolder { lock: self, purpose }, value }
    }

    /// Returns the value without locking: the exclusive borrow already guards it.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized + std::fmt::Debug> std::fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.value.fmt(f)
    }
}

/// Exclusive access to the value of a [`Lock`], until the guard is dropped.
#[must_use = "the lock is released when this is dropped"]
pub struct Guard<'a, T: ?Sized> {
    // Dropped first, so that the next holder is never mistaken for this one.
    held: LockHolder<'a, T>,
    value: MutexGuard<'a, T>,
}

struct LockHolder<'a, T: ?Sized> {
    lock: &'a Lock<T>,
    purpose: &'static str,
}

impl<T: ?Sized> Drop for LockHolder<'_, T> {
    fn drop(&mut self) {
        self.lock.holder.clear();
    }
}

impl<T: ?Sized> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: ?Sized> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: ?Sized + std::fmt::Debug> std::fmt::Debug for Guard<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

/// A condition variable for a [`Lock`].
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    /// Creates a condition variable that no thread waits for.
    #[cfg(not(loom_models))]
    #[must_use]
    pub const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// Creates a condition variable that no thread waits for.
    #[cfg(loom_models)]
    #[must_use]
    pub fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// Releases the lock, waits for a notification, and locks again. It may return
    /// without a notification.
    pub fn wait<'a, T>(&self, guard: Guard<'a, T>) -> Guard<'a, T> {
        let Guard { held, value } = guard;
        let (lock, purpose) = (held.lock, held.purpose);
        drop(held);
        let value = self.0.wait(value).unwrap_or_else(PoisonError::into_inner);
        lock.holder.set(purpose);
        Guard { held: LockHolder { lock, purpose }, value }
    }

    /// Like [`Condvar::wait`], but for at most `timeout`.
    pub fn wait_timeout<'a, T>(&self, guard: Guard<'a, T>, timeout: Duration) -> Guard<'a, T> {
        let Guard { held, value } = guard;
        let (lock, purpose) = (held.lock, held.purpose);
        drop(held);
        let waited = self.0.wait_timeout(value, timeout);
        let (value, _) = waited.unwrap_or_else(PoisonError::into_inner);
        lock.holder.set(purpose);
        Guard { held: LockHolder { lock, purpose }, value }
    }

    /// Wakes one waiting thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// The holder in debug builds: the thread that has the lock, and its purpose.
#[cfg(debug_assertions)]
mod holder {
    // Models don't interleave threads within these steps, so this mutex is the standard library's.
    use std::sync::{Mutex, PoisonError};

    use crate::sync::thread::{self, ThreadId};

    #[derive(Default)]
    pub(super) struct Holder(Mutex<Option<(ThreadId, &'static str)>>);

    impl Holder {
        pub(super) const fn new() -> Self {
            Self(Mutex::new(None))
        }

        #[track_caller]
        pub(super) fn check(&self, wanted: &str) {
            let holder = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((thread, purpose)) = holder
                && thread == thread::current().id()
            {
                panic!("a thread locks in order to {wanted} what it holds to {purpose}");
            }
        }

        pub(super) fn set(&self, purpose: &'static str) {
            let here = thread::current().id();
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((here, purpose));
        }

        pub(super) fn clear(&self) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

/// The holder in release builds, which records nothing.
#[cfg(not(debug_assertions))]
mod holder {
    #[derive(Default)]
    pub(super) struct Holder;

    impl Holder {
        pub(super) const fn new() -> Self {
            Self
        }

        pub(super) const fn check(&self, _wanted: &str) {}

        pub(super) const fn set(&self, _purpose: &'static str) {}

        pub(super) const fn clear(&self) {}
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_panic_under_a_lock_leaves_it_usable() {
        let lock = Lock::new(1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let mut value = lock.lock("panic");
            *value = 2;
            panic!("on purpose");
        }));
        assert!(panicked.is_err());
        assert_eq!(*lock.lock("read"), 2);
        assert_eq!(lock.into_inner(), 2);
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_thread_that_locks_twice_panics() {
        let lock = Lock::new(());
        let held = lock.lock("hold it");
        let panicked = catch_unwind(AssertUnwindSafe(|| drop(lock.lock("take it")))).unwrap_err();
        let text = panicked.downcast::<String>().unwrap();
        assert_eq!(*text, "a thread locks in order to take it what it holds to hold it");
        drop(held);
        drop(lock.lock("take it"));
    }

    #[test]
    fn a_condition_variable_releases_the_lock_while_it_waits() {
        let shared = Arc::new((Lock::new(false), Condvar::new()));
        let other = shared.clone();
        let mut is_set = shared.0.lock("wait until it is set");
        let setter = std::thread::spawn(move || {
            *other.0.lock("set it") = true;
            other.1.notify_one();
        });
        while !*is_set {
            is_set = shared.1.wait(is_set);
        }
        is_set = shared.1.wait_timeout(is_set, Duration::from_nanos(1));
        assert!(*is_set);
        drop(is_set);
        setter.join().unwrap();
    }
}
