//! A bound on the threads that wait for backends, or compute for long.
//!
//! Some requests of clients, such as readiness checks of models, call a backend, which may
//! block. That happens on threads for blocking work, of which a door uses a bounded number:
//! a backend that hangs holds up further requests of the kind, and nothing else.

use std::num::NonZero;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The maximum number of calls to load models that a door executes at a time, and the
/// same for unloads. Further calls wait.
///
/// Each takes a thread that waits. This is far above the number of threads that load.
const REPOSITORY_CALLS_MAX: usize = 64;
/// The maximum number of repository indexes that a door makes at a time.
const REPOSITORY_INDEXES_MAX: usize = 8;

/// The number of threads that may wait for backends for a door. Further calls wait for a
/// permit; each connection bounds how many of its calls do.
const THREADS_MAX: usize = 16;

/// Permits to wait for a backend, or to compute.
#[derive(Clone, Debug)]
pub struct BlockingPermits(Arc<Semaphore>);

/// The permit of one thread, until it is dropped.
#[derive(Debug)]
#[must_use = "the permit is given back when this is dropped"]
pub struct BlockingPermit {
    /// `None` if the semaphore was closed, which does not happen.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Default for BlockingPermits {
    fn default() -> Self {
        Self::new(THREADS_MAX)
    }
}

impl BlockingPermits {
    /// Permits for work that computes: one for each processor.
    #[must_use]
    pub fn per_processor() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self::new(processors)
    }

    /// The permit of one thread, for documents that take long to render: clients that ask for
    /// many of them hold up each other, and nothing else.
    #[must_use]
    pub fn single() -> Self {
        Self::new(1)
    }

    fn new(threads_max: usize) -> Self {
        Self(Arc::new(Semaphore::new(threads_max)))
    }

    /// A permit, if one is free.
    #[must_use]
    pub fn try_acquire(&self) -> Option<BlockingPermit> {
        let permit = self.0.clone().try_acquire_owned().ok()?;
        Some(BlockingPermit { _permit: Some(permit) })
    }

    /// Waits for a permit. It moves to the thread that blocks, because that outlasts a
    /// client that goes away.
    pub async fn acquire(&self) -> BlockingPermit {
        BlockingPermit { _permit: self.0.clone().acquire_owned().await.ok() }
    }
}

/// Permits for calls about the repositories. Each kind has its own, so that slow loads hold
/// up neither the unload that ends them nor the index.
#[derive(Clone, Debug)]
pub struct RepositoryPermits {
    /// For loads.
    pub loads: BlockingPermits,
    /// For unloads.
    pub unloads: BlockingPermits,
    /// For indexes.
    pub indexes: BlockingPermits,
}

impl Default for RepositoryPermits {
    fn default() -> Self {
        Self {
            loads: BlockingPermits::new(REPOSITORY_CALLS_MAX),
            unloads: BlockingPermits::new(REPOSITORY_CALLS_MAX),
            indexes: BlockingPermits::new(REPOSITORY_INDEXES_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[tokio::test]
    async fn the_number_of_permits_is_bounded() {
        let permits = BlockingPermits::default();
        let mut held = Vec::new();
        for _ in 0..THREADS_MAX {
            held.push(permits.acquire().await);
        }
        let mut next = pin!(permits.acquire());
        assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        held.pop();
        drop(next.await);
    }
}
