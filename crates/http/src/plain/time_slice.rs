//! Limits how long a connection may occupy its thread.
//!
//! A client that sends requests faster than they are served never makes its connection wait, so the
//! connection occasionally yields to the thread's other connections. The limit is a duration
//! because some requests cost a thousand times as much as others. The clock is not read for a
//! connection that waits for its client after each request.

use std::time::{Duration, Instant};

/// The maximum time spent serving consecutive requests, measured from the start of the second one.
const SLICE_TIME_MAX: Duration = Duration::from_micros(200);

/// The maximum number of consecutive requests, however short they are.
const SLICE_REQUESTS_MAX: u32 = 16;

/// The requests that a connection has served without waiting.
#[derive(Debug, Default)]
pub(super) struct TimeSlice {
    requests: u32,
    /// The time at which the second request began.
    began: Option<Instant>,
}

impl TimeSlice {
    /// Notes that the connection waits for its client.
    pub(super) fn end(&mut self) {
        if self.requests > 0 {
            *self = Self::default();
        }
    }

    /// Counts a request that is about to be served. Returns true if the thread must serve its other
    /// connections first; the next slice then begins with this request.
    pub(super) fn is_over(&mut self, now: impl FnOnce() -> Instant) -> bool {
        let is_over = match (self.requests, self.began) {
            (0, _) => false,
            (SLICE_REQUESTS_MAX.., _) => true,
            (_, None) => {
                self.began = Some(now());
                false
            }
            (_, Some(began)) => now().duration_since(began) >= SLICE_TIME_MAX,
        };
        if is_over {
            *self = Self::default();
        }
        self.requests = self.requests.saturating_add(1);
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of requests with this duration that are served before other connections
    /// get their turn.
    fn in_a_row(duration: Duration) -> u32 {
        let mut time_slice = TimeSlice::default();
        let begin = Instant::now();
        let now = |requests: u32| begin.checked_add(duration.saturating_mul(requests)).unwrap();
        let served = (0..).take_while(|requests| !time_slice.is_over(|| now(*requests)));
        u32::try_from(served.count()).unwrap()
    }

    #[test]
    fn a_slice_ends_by_time_or_count() {
        assert_eq!(in_a_row(Duration::ZERO), SLICE_REQUESTS_MAX);
        assert_eq!(in_a_row(Duration::from_micros(50)), 5);
        assert_eq!(in_a_row(Duration::from_millis(5)), 2);
    }

    #[test]
    fn a_connection_that_waits_between_requests_reads_no_clock() {
        let mut time_slice = TimeSlice::default();
        for _ in 0..100 {
            assert!(!time_slice.is_over(|| unreachable!("the clock is read")));
            time_slice.end();
        }
    }

    #[test]
    fn the_request_that_waited_for_its_turn_begins_the_next_one() {
        let mut time_slice = TimeSlice::default();
        let now = Instant::now();
        while !time_slice.is_over(|| now) {}
        assert_eq!((1..100).take_while(|_| !time_slice.is_over(|| now)).count(), 15);
    }
}
