//! Which threads compute: one budget for all sessions of the process.
//!
//! A session computes on the thread of whoever runs it, and on those of a pool.
//! If each had a pool of its own as large as the machine, a server with many
//! models would have many times more threads that want to run than processors.
//! So sessions share the environment's pool, which is as large as the machine,
//! unless their configuration asks for something else.

/// Who provides the threads of sessions.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum ThreadSource {
    /// The environment has a pool for the sessions that ask for nothing else.
    Shared {
        /// The processors that the process may use.
        processors: usize,
    },
    /// Each session has its own pool. Unless a model says otherwise, its
    /// instances together keep so many threads busy.
    Session {
        /// The processors that the process may use.
        processors: usize,
    },
    /// The environment has pools for all sessions, and what models say about
    /// threads does not count.
    Environment,
}

/// Where a session's threads come from.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pool {
    /// From the environment's pool.
    Environment,
    /// From one of its own; a caller's thread counts as one of these.
    Own { intra_op_threads: i32 },
}

/// What a model asks of its threads.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    /// Instances that share the session.
    pub(crate) instances: u32,
    /// Threads for each execution; `None` if it doesn't matter.
    pub(crate) intra_op_threads: Option<i32>,
    /// Whether it asks for what a shared pool can't give: threads for several
    /// operators at once, or threads that spin.
    pub(crate) wants_its_own: bool,
}

impl ThreadSource {
    /// The pool of a session. `bound_to` is the number of processors that the
    /// threads of its instances may use: threads of a shared pool are not bound.
    pub(crate) fn pool(self, wish: Wish, bound_to: usize) -> Pool {
        let own = |processors: usize| Pool::Own {
            intra_op_threads: wish.own_threads(processors.min(bound_to)),
        };
        match self {
            Self::Environment => Pool::Environment,
            Self::Session { processors } => own(processors),
            Self::Shared { processors } => {
                let is_bound = bound_to < processors;
                // The instances' own threads keep the machine busy.
                let has_enough = wish.instances() >= processors;
                if wish.intra_op_threads.is_some() || wish.wants_its_own || is_bound || has_enough {
                    return own(processors);
                }
                Pool::Environment
            }
        }
    }

    /// How many threads a model may keep busy, if that is more than there are
    /// processors and somebody asked for it.
    pub(crate) fn excess(self, wish: Wish) -> Option<Excess> {
        let (Self::Shared { processors } | Self::Session { processors }) = self else {
            return None;
        };
        let each = wish.intra_op_threads.map_or(1, |threads| usize::try_from(threads).unwrap_or(1));
        let threads = wish.instances().saturating_mul(each);
        // Two instances are the default, also on one processor.
        let unasked = wish.intra_op_threads.is_none() && wish.instances <= 2;
        (threads > processors && !unasked).then_some(Excess { threads, processors })
    }
}

/// More threads than processors.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    pub(crate) threads: usize,
    pub(crate) processors: usize,
}

impl Wish {
    fn instances(self) -> usize {
        usize::try_from(self.instances).unwrap_or(usize::MAX).max(1)
    }

    /// The size of the pool that a shared session needs.
    ///
    /// One session serves all instances of a model on a device, so that its
    /// weights are in memory once; Triton makes a session per instance. The
    /// library counts the calling thread as one of the pool's, and runs that
    /// overlap share the others: `n` instances of which each may use `k`
    /// threads keep `n * k` threads busy if the pool has `n * (k - 1)` besides
    /// the callers, as many as `n` sessions with `k` threads each would have.
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

    fn wish(instances: u32, threads: i32) -> Wish {
        let intra_op_threads = Some(threads).filter(|&threads| threads > 0);
        Wish { instances, intra_op_threads, wants_its_own: false }
    }

    #[test]
    fn a_pool_of_its_own_keeps_as_many_threads_busy_as_sessions_of_their_own() {
        let check = |threads: i32, instances: u32, pool: i32| {
            let source = ThreadSource::Session { processors: MACHINE };
            let expected = Pool::Own { intra_op_threads: pool };
            let wish = wish(instances, threads);
            assert_eq!(source.pool(wish, MACHINE), expected, "{threads} by {instances}");
        };
        check(1, 4, 1);
        check(3, 1, 3);
        check(3, 4, 9);
        // Without a number, eight threads are busy.
        check(0, 1, 8);
        check(0, 4, 5);
        check(0, 8, 1);
        check(0, 9, 1);
        let none = ThreadSource::Session { processors: 0 }.pool(wish(1, 0), 0);
        assert_eq!(none, Pool::Own { intra_op_threads: 1 });
    }

    #[test]
    fn sessions_share_a_pool_unless_they_ask_for_something_else() {
        let own = |threads| Pool::Own { intra_op_threads: threads };
        let check = |wish: Wish, bound_to: usize, expected: Pool| {
            let source = ThreadSource::Shared { processors: MACHINE };
            assert_eq!(source.pool(wish, bound_to), expected, "{wish:?}");
        };
        check(wish(1, 0), MACHINE, Pool::Environment);
        check(wish(2, 0), MACHINE, Pool::Environment);
        check(wish(7, 0), MACHINE, Pool::Environment);
        check(wish(8, 0), MACHINE, own(1));
        check(wish(100, 0), MACHINE, own(1));
        check(wish(2, 3), MACHINE, own(5));
        check(wish(1, 1), MACHINE, own(1));
        check(Wish { wants_its_own: true, ..wish(2, 0) }, MACHINE, own(7));
        // Bound to three processors, its threads must be its own.
        check(wish(1, 0), 3, own(3));
        check(wish(2, 0), 3, own(2));
        check(wish(5, 0), 3, own(1));
    }

    #[test]
    fn the_environments_pools_serve_whoever_asks_for_whatever() {
        let mut wish = wish(9, 9);
        wish.wants_its_own = true;
        assert_eq!(ThreadSource::Environment.pool(wish, 1), Pool::Environment);
        assert_eq!(ThreadSource::Environment.excess(wish), None);
    }

    #[test]
    fn what_is_more_than_the_machine_has_is_found() {
        let check = |instances, threads, processors, expected: Option<usize>| {
            let source = ThreadSource::Shared { processors };
            let found = source.excess(wish(instances, threads)).map(|excess| excess.threads);
            assert_eq!(found, expected, "{instances} by {threads} on {processors}");
        };
        check(2, 4, 8, None);
        check(2, 5, 8, Some(10));
        check(1, 9, 8, Some(9));
        check(8, 0, 8, None);
        check(9, 0, 8, Some(9));
        // The default on a small machine is nobody's mistake.
        check(2, 0, 1, None);
        check(2, 1, 1, Some(2));
        check(3, 0, 2, Some(3));
        check(u32::MAX, i32::MAX, 1, Some(usize::try_from(u32::MAX).unwrap() * 0x7fff_ffff));
    }
}
