//! Conversion of times to C, where they are nanoseconds of the system's monotonic clock.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use galatea_infer::{ExecutionReadings, ExecutionTimes};

/// A reference point that was read from both clocks.
#[derive(Copy, Clone, Debug)]
pub struct ClockConverter {
    instant: Instant,
    ns: u64,
}

impl ClockConverter {
    /// The process-wide converter. A time that is passed to C and back doesn't change.
    pub fn shared() -> &'static Self {
        static CLOCK: OnceLock<ClockConverter> = OnceLock::new();
        CLOCK.get_or_init(Self::now)
    }

    fn now() -> Self {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the argument is valid for a write. Every Linux system has this clock; if it were
        // missing, times would be wrong, but nothing else would be affected.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let rest = u64::try_from(now.tv_nsec).unwrap_or(0);
        Self { instant: Instant::now(), ns: seconds.saturating_mul(1_000_000_000) + rest }
    }

    /// Converts an instant to nanoseconds.
    #[must_use]
    pub fn ns(&self, at: Instant) -> u64 {
        let count = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        match at.checked_duration_since(self.instant) {
            Some(later) => self.ns.saturating_add(count(later)),
            None => self.ns.saturating_sub(count(self.instant.saturating_duration_since(at))),
        }
    }

    /// Converts nanoseconds to an instant, or to the nearest representable one.
    #[must_use]
    pub fn instant(&self, ns: u64) -> Instant {
        let found = match ns.checked_sub(self.ns) {
            Some(later) => self.instant.checked_add(Duration::from_nanos(later)),
            None => self.instant.checked_sub(Duration::from_nanos(self.ns - ns)),
        };
        found.unwrap_or(self.instant)
    }

    /// Converts the execution times that C reports.
    #[must_use]
    pub fn to_execution_times(&self, times: [u64; 4]) -> ExecutionTimes {
        let [start, compute_start, compute_end, end] = times.map(|ns| self.instant(ns));
        ExecutionTimes::from(ExecutionReadings { start, compute_start, compute_end, end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_are_converted_to_instants_and_back() {
        let clock = ClockConverter::now();
        let later = clock.instant(clock.ns + 5_000);
        assert_eq!(later.duration_since(clock.instant), Duration::from_nanos(5_000));
        let earlier = clock.instant(clock.ns - 7);
        assert_eq!(clock.instant.duration_since(earlier), Duration::from_nanos(7));
        assert_eq!((clock.ns(later), clock.ns(earlier)), (clock.ns + 5_000, clock.ns - 7));
        let times = clock.to_execution_times([0, u64::MAX, clock.ns, clock.ns]);
        assert_eq!(times.readings().compute_end, clock.instant);
    }
}
