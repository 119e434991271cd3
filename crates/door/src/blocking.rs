//! Limits on the threads that wait for backends or perform long computations.
//!
//! Some client requests, such as readiness checks of models, call a backend, which may block. These
//! calls run on threads for blocking work, and a door uses a limited number of such threads. A
//! backend that hangs therefore delays only other requests of the same kind.

use std::num::NonZero;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The maximum number of load calls that a door executes at a time; unload calls have the same
/// limit. Additional calls wait.
///
/// Each call occupies a waiting thread. The limit is far above the number of threads that load.
const REPOSITORY_CALLS_MAX: usize = 64;
/// The maximum number of repository indexes that a door builds at a time.
const REPOSITORY_INDEXES_MAX: usize = 8;

/// The maximum number of threads that may wait for backends on behalf of a door. Additional calls
/// wait for a permit; each connection limits the number of its waiting calls.
const THREADS_MAX: usize = 16;

/// Permits to wait for a backend or to compute.
#[derive(Clone, Debug)]
pub struct BlockingPermits(Arc<Semaphore>);

/// The permit of one thread, held until this value is dropped.
#[derive(Debug)]
#[must_use = "the permit is given back when this is dropped"]
pub struct BlockingPermit {
    /// The underlying permit. `None` if the semaphore was closed, which does not happen.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Default for BlockingPermits {
    fn default() -> Self {
        Self::new(THREADS_MAX)
    }
}

impl BlockingPermits {
    /// Creates permits for computations, one per processor.
    #[must_use]
    pub fn per_processor() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self::new(processors)
    }

    /// Creates a limiter with a single permit, for documents that are slow to render. Clients that
    /// request many of them only delay each other.
    #[must_use]
    pub fn single() -> Self {
        Self::new(1)
    }

    fn new(threads_max: usize) -> Self {
        Self(Arc::new(Semaphore::new(threads_max)))
    }

    /// Takes a permit if one is free.
    #[must_use]
    pub fn try_acquire(&self) -> Option<BlockingPermit> {
        let permit = self.0.clone().try_acquire_owned().ok()?;
        Some(BlockingPermit { _permit: Some(permit) })
    }

    /// Waits for a permit. The permit moves to the blocking thread, because the work continues even
    /// if the client disconnects.
    pub async fn acquire(&self) -> BlockingPermit {
        BlockingPermit { _permit: self.0.clone().acquire_owned().await.ok() }
    }
}

/// Permits for repository calls. Each kind has its own permits, so slow loads delay neither the
/// unload that ends them nor the index.
#[derive(Clone, Debug)]
pub struct RepositoryPermits {
    /// Permits for loads.
    pub loads: BlockingPermits,
    /// Permits for unloads.
    pub unloads: BlockingPermits,
    /// Permits for indexes.
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
