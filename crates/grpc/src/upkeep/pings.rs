//! Pings from a client.

use std::time::Duration;

use tokio::time::Instant;

use crate::options::KeepaliveOptions;

/// The minimum time between two pings from a client without calls, equal to TCP's default keepalive
/// interval.
const IDLE_INTERVAL: Duration = Duration::from_hours(2);

/// Decides whether a client pings too often.
///
/// A ping that arrives too early is a strike. Sending data to the client clears all strikes,
/// because clients ping to measure how fast data arrives.
#[derive(Debug)]
pub(crate) struct PingPolice {
    interval: Duration,
    idle_interval: Duration,
    strikes_max: u32,
    last: Option<Instant>,
    strikes: u32,
}

/// The verdict on a client that pinged.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum PingVerdict {
    /// The connection may continue.
    Tolerated,
    /// The connection ends.
    TooManyPings,
}

impl PingPolice {
    pub(crate) const fn new(options: &KeepaliveOptions) -> Self {
        let interval = options.ping_interval_min;
        let idle_interval = if options.permit_without_calls { interval } else { IDLE_INTERVAL };
        let strikes_max = options.ping_strikes_max;
        Self { interval, idle_interval, strikes_max, last: None, strikes: 0 }
    }

    /// Notes that the client was sent headers, data or a larger window.
    pub(crate) const fn data_sent(&mut self) {
        self.last = None;
        self.strikes = 0;
    }

    /// Processes pings that arrived at the same time.
    pub(crate) fn pings_received(
        &mut self,
        now: Instant,
        count: u32,
        has_calls: bool,
    ) -> PingVerdict {
        let interval = if has_calls { self.interval } else { self.idle_interval };
        let is_early = |last: Instant| now.saturating_duration_since(last) < interval;
        let first = u32::from(count > 0 && self.last.is_some_and(is_early));
        // The pings after the first have no interval.
        let others = if interval.is_zero() { 0 } else { count.saturating_sub(1) };
        self.strikes = self.strikes.saturating_add(first).saturating_add(others);
        if count > 0 {
            self.last = Some(now);
        }
        if self.strikes > self.strikes_max && self.strikes_max > 0 {
            PingVerdict::TooManyPings
        } else {
            PingVerdict::Tolerated
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a script of steps in virtual time. The connection must end at the last ping, or not at
    /// all. Steps: `pN` receives N pings at once, `d` sends data, and `+N` lets N milliseconds
    /// pass. `c` and `i` set whether the client has calls from now on.
    fn check(options: &KeepaliveOptions, script: &str, is_sent_away: bool) {
        let mut police = PingPolice::new(options);
        let (mut now, mut has_calls) = (Instant::now(), true);
        let mut verdicts = Vec::new();
        for step in script.split(' ') {
            let (kind, number) = step.split_at(1);
            let number = number.parse::<u32>().unwrap_or(0);
            match kind {
                "p" => verdicts.push(police.pings_received(now, number, has_calls)),
                "d" => police.data_sent(),
                "+" => now = now.checked_add(Duration::from_millis(number.into())).unwrap(),
                "c" => has_calls = true,
                "i" => has_calls = false,
                _ => panic!("{step}"),
            }
        }
        let last = verdicts.pop();
        assert!(verdicts.iter().all(|verdict| *verdict == PingVerdict::Tolerated), "{script}");
        assert_eq!(last == Some(PingVerdict::TooManyPings), is_sent_away, "{script}");
    }

    fn options() -> KeepaliveOptions {
        KeepaliveOptions {
            ping_interval_min: Duration::from_secs(10),
            ping_strikes_max: 2,
            ..KeepaliveOptions::default()
        }
    }

    #[test]
    fn the_ping_after_the_last_strike_is_too_many() {
        check(&options(), "p1 +1 p1 +1 p1", false);
        check(&options(), "p1 +1 p1 +1 p1 +1 p1", true);
        check(&options(), "p3", false);
        check(&options(), "p4", true);
        check(&options(), "p200", true);
        check(&options(), "p0 p0 p0 p0 p0", false);
    }

    #[test]
    fn pings_at_their_interval_are_no_strikes_and_forgive_none() {
        check(&options(), "p1 +10000 p1 +10000 p1 +10000 p1 +10000 p1", false);
        check(&options(), "p1 +9999 p1 +9999 p1 +9999 p1", true);
        check(&options(), "p3 +10000 p1 +10000 p1 +1 p1", true);
    }

    #[test]
    fn data_for_the_client_forgives_strikes() {
        check(&options(), "p3 d p3 d p3 d p3", false);
        check(&options(), "p3 d p4", true);
    }

    #[test]
    fn a_client_without_calls_leaves_two_hours() {
        check(&options(), "i p1 +10000 p1 +10000 p1", false);
        check(&options(), "i p1 +10000 p1 +10000 p1 +10000 p1", true);
        check(&options(), "i p1 +7200000 p1 +7200000 p1 +7200000 p1", false);
        check(&options(), "i p1 +10000 c p1 +10000 p1 +10000 p1", false);
        let permitted = KeepaliveOptions { permit_without_calls: true, ..options() };
        check(&permitted, "i p1 +10000 p1 +10000 p1 +10000 p1", false);
        check(&permitted, "i p4", true);
    }

    #[test]
    fn zero_means_no_limit() {
        check(&KeepaliveOptions { ping_strikes_max: 0, ..options() }, "p200 p200", false);
        let always = KeepaliveOptions { ping_interval_min: Duration::ZERO, ..options() };
        check(&always, "p200 p200", false);
        check(&always, "i p4", true);
    }
}
