//! Selection of the requests to trace: one in every few, up to a maximum number.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use galatea_stdx::Lock;

/// Decides for each request to the models that share the settings whether to trace it.
///
/// Without a limit on the number of traces, a decision takes one atomic addition. With a limit, it
/// takes a lock until the limit is reached, so that requests and traces are counted together.
#[derive(Debug)]
pub(crate) struct Sampler {
    rate: u32,
    /// The number of requests so far.
    requests: AtomicU64,
    /// The number of remaining traces; -1 means unlimited.
    count: AtomicI32,
    limited: Lock<()>,
}

impl Sampler {
    pub(crate) const fn new(rate: u32, count: i32) -> Self {
        let requests = AtomicU64::new(0);
        Self { rate, requests, count: AtomicI32::new(count), limited: Lock::new(()) }
    }

    pub(crate) const fn rate(&self) -> u32 {
        self.rate
    }

    /// The number of remaining traces; -1 means unlimited.
    pub(crate) fn remaining_traces(&self) -> i32 {
        self.count.load(Ordering::Acquire)
    }

    /// Returns true if all allowed traces have begun and are complete; `collected` is the number of
    /// complete traces. As in Triton, that number is compared with the number of requests, so the
    /// result is never true if only some requests were traced.
    pub(crate) fn are_all_collected(&self, collected: u64) -> bool {
        self.remaining_traces() == 0 && self.requests.load(Ordering::Acquire) == collected
    }

    /// Returns true if the next request is traced, which is always the case if `forced`. Requests
    /// are not counted while the settings are invalid.
    pub(crate) fn is_next_traced(&self, is_valid: bool, forced: bool) -> bool {
        if self.rate == 0 {
            return forced;
        }
        let count = self.remaining_traces();
        if !forced && (!is_valid || count == 0) {
            return false;
        }
        if count < 0 {
            return self.is_next() || forced;
        }
        let _limited = self.limited.lock("count a trace");
        let left = self.remaining_traces();
        if left == 0 && !forced {
            return false;
        }
        let is_hit = self.is_next() && left > 0;
        if is_hit {
            self.count.store(left.saturating_sub(1), Ordering::Release);
        }
        is_hit || forced
    }

    /// Counts a request, and returns true if it should be traced.
    fn is_next(&self) -> bool {
        let number = self.requests.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        number.checked_rem(u64::from(self.rate)) == Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(sampler: &Sampler, requests: usize) -> String {
        let one = |_| if sampler.is_next_traced(true, false) { 'x' } else { '.' };
        (0..requests).map(one).collect()
    }

    #[test]
    fn one_of_so_many_requests_is_traced() {
        assert_eq!(samples(&Sampler::new(1, -1), 3), "xxx");
        assert_eq!(samples(&Sampler::new(3, -1), 7), "..x..x.");
        assert_eq!(samples(&Sampler::new(0, -1), 3), "...");
    }

    #[test]
    fn no_more_are_traced_than_the_count() {
        let sampler = Sampler::new(2, 2);
        assert_eq!(samples(&sampler, 7), ".x.x...");
        assert_eq!(sampler.remaining_traces(), 0);
    }

    #[test]
    fn traces_that_clients_ask_for_need_no_rate_and_take_no_count() {
        let sampler = Sampler::new(0, 1);
        assert!(sampler.is_next_traced(false, true));
        assert_eq!(sampler.remaining_traces(), 1);
        let used_up = Sampler::new(1, 0);
        assert!(used_up.is_next_traced(true, true));
        assert_eq!(used_up.remaining_traces(), 0);
        let rare = Sampler::new(2, -1);
        let forced: Vec<bool> =
            (0..4).map(|number| rare.is_next_traced(true, number == 2)).collect();
        assert_eq!(forced, [false, true, true, true]);
    }

    #[test]
    fn invalid_settings_count_nothing() {
        let sampler = Sampler::new(2, -1);
        assert!(!sampler.is_next_traced(false, false));
        assert_eq!(samples(&sampler, 2), ".x");
    }

    #[test]
    fn all_traces_are_collected_when_each_request_was_traced() {
        let sampler = Sampler::new(1, 2);
        samples(&sampler, 3);
        assert_eq!([1, 2, 3].map(|all| sampler.are_all_collected(all)), [false, true, false]);
        let every_second = Sampler::new(2, 1);
        samples(&every_second, 3);
        assert!(!every_second.are_all_collected(1));
    }

    #[test]
    fn threads_together_trace_no_more_than_the_count() {
        let sampler = Sampler::new(1, 100);
        let traced: usize = std::thread::scope(|scope| {
            let sample = || (0..100).filter(|_| sampler.is_next_traced(true, false)).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(sample)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(traced, 100);
        assert!(sampler.are_all_collected(100));
    }
}
