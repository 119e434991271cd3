//! Cancellation of requests.

use std::sync::Arc;

use galatea_stdx::Lock;
use galatea_stdx::sync::atomic::{AtomicBool, Ordering};
use smallvec::SmallVec;

type Hook = Box<dyn FnOnce() + Send>;

/// A flag that a door sets when its client cancels a request. Holders of the
/// request read it or register a hook.
///
/// The default token can't be cancelled and costs no allocation.
#[derive(Clone, Default)]
pub struct CancelToken {
    shared: Option<Arc<Shared>>,
}

#[derive(Default)]
struct Shared {
    cancelled: AtomicBool,
    hooks: Lock<SmallVec<[Hook; 1]>>,
}

impl CancelToken {
    /// A token that can be cancelled.
    #[must_use]
    pub fn new() -> Self {
        Self { shared: Some(Arc::default()) }
    }

    /// Returns true if the request can ever be cancelled.
    #[must_use]
    pub const fn can_be_cancelled(&self) -> bool {
        self.shared.is_some()
    }

    /// Returns true if the request is cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.cancelled.load(Ordering::Acquire))
    }

    /// Cancels the request and runs the hooks; further calls do nothing.
    pub fn cancel(&self) {
        let Some(shared) = &self.shared else { return };
        let hooks = {
            let mut hooks = shared.hooks.lock("cancel");
            shared.cancelled.store(true, Ordering::Release);
            std::mem::take(&mut *hooks)
        };
        for hook in hooks {
            hook();
        }
    }

    /// Runs `hook` when the token is cancelled, or at once if it already is.
    pub fn on_cancel(&self, hook: impl FnOnce() + Send + 'static) {
        let Some(shared) = &self.shared else { return };
        {
            let mut hooks = shared.hooks.lock("add a hook");
            if !shared.cancelled.load(Ordering::Acquire) {
                hooks.push(Box::new(hook));
                return;
            }
        }
        hook();
    }

    /// Drops the hooks, which frees what they captured.
    pub fn clear_hooks(&self) {
        let Some(shared) = &self.shared else { return };
        let hooks = std::mem::take(&mut *shared.hooks.lock("clear the hooks"));
        // Not under the lock: dropping a hook may use this token.
        drop(hooks);
    }
}

impl std::fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CancelToken(cancelled: {})", self.is_cancelled())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn hooks_run_once_whether_set_before_or_after() {
        let runs = Arc::new(AtomicU32::new(0));
        let count = |token: &CancelToken| {
            let runs = runs.clone();
            token.on_cancel(move || {
                runs.fetch_add(1, Ordering::Relaxed);
            });
        };
        let early = CancelToken::new();
        count(&early);
        count(&early);
        early.cancel();
        early.cancel();
        assert!(early.is_cancelled());
        let late = CancelToken::new();
        late.cancel();
        count(&late);
        assert_eq!(runs.load(Ordering::Relaxed), 3);
        let cleared = CancelToken::new();
        count(&cleared);
        cleared.clear_hooks();
        cleared.cancel();
        assert!(cleared.can_be_cancelled());
        let never = CancelToken::default();
        never.cancel();
        assert!(!never.can_be_cancelled() && !never.is_cancelled());
        assert_eq!(runs.load(Ordering::Relaxed), 3);
    }
}
