//! Threads for sessions, which share one budget for the process.
//!
//! The terms are those of ONNX Runtime and TensorFlow: a library has an environment, which may have
//! a thread pool for all sessions. A session computes on the thread that runs it and on the threads
//! of a pool. If each session had its own pool with a thread for each processor, a server with many
//! models would have many more runnable threads than processors. Therefore, all sessions share the
//! environment's pool, which has as many threads as there are processors available to the process.
//! A session gets its own pool in three cases: its configuration requests something that the shared
//! pool can't provide, it is bound to certain processors, or its instances by themselves keep all
//! processors busy. This module makes the decision without the library.

/// The source of the sessions' threads.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ThreadPoolSource {
    /// The environment has a pool for sessions whose configuration allows sharing.
    Shared {
        /// The processors that the process may use.
        processors: usize,
    },
    /// Each session has its own pool. By default, a model's instances together keep `processors`
    /// threads busy.
    Session {
        /// The processors that the process may use.
        processors: usize,
    },
    /// The environment has pools for all sessions. The models' thread settings are ignored.
    Environment,
}

/// A session's thread pool.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ThreadPoolChoice {
    /// The environment's pool.
    Environment,
    /// The session's own pool. The calling thread counts as one of its threads.
    Own {
        /// The number of threads.
        intra_op_threads: i32,
    },
}

/// The threads that a model requests.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadDemand {
    /// The number of instances that share the session.
    pub instances: u32,
    /// The number of threads per execution; `None` leaves the decision to the server.
    pub intra_op_threads: Option<i32>,
    /// True if the model requests something that the shared pool can't provide: threads for running
    /// several operators concurrently, or spinning threads.
    pub needs_own_pool: bool,
}

impl ThreadPoolSource {
    /// The pool for a session. `bound_to` is the number of processors that its instances' threads
    /// may use. The shared pool's threads are not bound.
    #[must_use]
    pub fn pool(self, demand: ThreadDemand, bound_to: usize) -> ThreadPoolChoice {
        let own = |processors: usize| ThreadPoolChoice::Own {
            intra_op_threads: demand.own_threads(processors.min(bound_to)),
        };
        match self {
            Self::Environment => ThreadPoolChoice::Environment,
            Self::Session { processors } => own(processors),
            Self::Shared { processors } => {
                let is_bound = bound_to < processors;
                // The instances' own threads keep all processors busy.
                let has_enough = demand.instances() >= processors;
                if demand.intra_op_threads.is_some()
                    || demand.needs_own_pool
                    || is_bound
                    || has_enough
                {
                    return own(processors);
                }
                ThreadPoolChoice::Environment
            }
        }
    }

    /// The number of threads that a model may keep busy, if its configuration requests more threads
    /// than there are processors.
    #[must_use]
    pub fn oversubscription(self, demand: ThreadDemand) -> Option<Oversubscription> {
        let (Self::Shared { processors } | Self::Session { processors }) = self else {
            return None;
        };
        let each =
            demand.intra_op_threads.map_or(1, |threads| usize::try_from(threads).unwrap_or(1));
        let threads = demand.instances().saturating_mul(each);
        // The default is two instances, even on a single processor.
        let is_default = demand.intra_op_threads.is_none() && demand.instances <= 2;
        (threads > processors && !is_default).then_some(Oversubscription { threads, processors })
    }
}

/// More threads than processors.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Oversubscription {
    /// The number of threads.
    pub threads: usize,
    /// The number of processors.
    pub processors: usize,
}

impl ThreadDemand {
    fn instances(self) -> usize {
        usize::try_from(self.instances).unwrap_or(usize::MAX).max(1)
    }

    /// The size of the pool for a shared session.
    ///
    /// One session serves all of a model's instances on a device, so that its weights are in memory
    /// only once. Triton creates a session for each instance. The library counts the calling thread
    /// as part of the pool, and overlapping runs share the other threads. With `n` instances and
    /// `k` threads each, a pool with `n * (k - 1)` threads in addition to the callers keeps `n * k`
    /// threads busy, just like `n` sessions with `k` threads each.
    fn own_threads(self, processors: usize) -> i32 {
        let callers = i32::try_from(self.instances.max(1)).unwrap_or(i32::MAX);
        match self.intra_op_threads {
            Some(threads) => callers.saturating_mul(threads.saturating_sub(1)).saturating_add(1),
            None => {
                let busy = i32::try_from(processors).unwrap_or(i32::MAX);
                busy.saturating_sub(callers).saturating_add(1).max(1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: usize = 8;

    fn demand(instances: u32, threads: i32) -> ThreadDemand {
        let intra_op_threads = Some(threads).filter(|&threads| threads > 0);
        ThreadDemand { instances, intra_op_threads, needs_own_pool: false }
    }

    #[test]
    fn an_own_pool_keeps_as_many_threads_busy_as_a_session_per_instance() {
        let check = |threads: i32, instances: u32, pool: i32| {
            let source = ThreadPoolSource::Session { processors: MACHINE };
            let expected = ThreadPoolChoice::Own { intra_op_threads: pool };
            let demand = demand(instances, threads);
            assert_eq!(source.pool(demand, MACHINE), expected, "{threads} by {instances}");
        };
        check(1, 4, 1);
        check(3, 1, 3);
        check(3, 4, 9);
        // If no number is given, eight threads are kept busy.
        check(0, 1, 8);
        check(0, 4, 5);
        check(0, 8, 1);
        check(0, 9, 1);
        let none = ThreadPoolSource::Session { processors: 0 }.pool(demand(1, 0), 0);
        assert_eq!(none, ThreadPoolChoice::Own { intra_op_threads: 1 });
    }

    #[test]
    fn sessions_share_a_pool_unless_they_need_their_own() {
        let own = |threads| ThreadPoolChoice::Own { intra_op_threads: threads };
        let check = |demand: ThreadDemand, bound_to: usize, expected: ThreadPoolChoice| {
            let source = ThreadPoolSource::Shared { processors: MACHINE };
            assert_eq!(source.pool(demand, bound_to), expected, "{demand:?}");
        };
        check(demand(1, 0), MACHINE, ThreadPoolChoice::Environment);
        check(demand(2, 0), MACHINE, ThreadPoolChoice::Environment);
        check(demand(7, 0), MACHINE, ThreadPoolChoice::Environment);
        check(demand(8, 0), MACHINE, own(1));
        check(demand(100, 0), MACHINE, own(1));
        check(demand(2, 3), MACHINE, own(5));
        check(demand(1, 1), MACHINE, own(1));
        check(ThreadDemand { needs_own_pool: true, ..demand(2, 0) }, MACHINE, own(7));
        // A session that is bound to three processors needs its own threads.
        check(demand(1, 0), 3, own(3));
        check(demand(2, 0), 3, own(2));
        check(demand(5, 0), 3, own(1));
    }

    #[test]
    fn the_environments_pools_serve_all_sessions() {
        let mut demand = demand(9, 9);
        demand.needs_own_pool = true;
        assert_eq!(ThreadPoolSource::Environment.pool(demand, 1), ThreadPoolChoice::Environment);
        assert_eq!(ThreadPoolSource::Environment.oversubscription(demand), None);
    }

    #[test]
    fn more_threads_than_processors_are_reported() {
        let check = |instances, threads, processors, expected: Option<usize>| {
            let source = ThreadPoolSource::Shared { processors };
            let found =
                source.oversubscription(demand(instances, threads)).map(|excess| excess.threads);
            assert_eq!(found, expected, "{instances} by {threads} on {processors}");
        };
        check(2, 4, 8, None);
        check(2, 5, 8, Some(10));
        check(1, 9, 8, Some(9));
        check(8, 0, 8, None);
        check(9, 0, 8, Some(9));
        // The default isn't reported on a small machine.
        check(2, 0, 1, None);
        check(2, 1, 1, Some(2));
        check(3, 0, 2, Some(3));
        check(u32::MAX, i32::MAX, 1, Some(usize::try_from(u32::MAX).unwrap() * 0x7fff_ffff));
    }
}
