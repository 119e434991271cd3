//! Pings to a client, and the end of its connection.

use std::time::Duration;

use tokio::time::Instant;

use crate::options::KeepaliveOptions;

/// The number of checks for received data within the keepalive time. A ping may be late by the time
/// between two checks, because no clock is read in between.
const CHECKS: u32 = 8;
const TIMER_RESOLUTION: Duration = Duration::from_millis(1);
/// The minimum time between pings, as in gRPC's own servers.
const PING_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Decides when a connection is pinged and when it ends.
#[derive(Debug)]
pub(crate) struct Upkeep {
    keepalive_time: Option<Duration>,
    keepalive_timeout: Option<Duration>,
    permits_without_calls: bool,
    goaway_timeout: Duration,
    age_grace: Option<Duration>,
    /// The last time at which a check noticed that data had been read.
    last_read: Instant,
    next_check: Option<Instant>,
    last_ping: Option<Instant>,
    /// The time by which the ping in flight must be acknowledged.
    ping_deadline: Option<Instant>,
    /// The time by which the client must have begun its first call.
    first_call_deadline: Option<Instant>,
    /// The time at which the connection reaches its maximum age.
    age_end: Option<Instant>,
    /// The time at which the remaining calls of a connection past its maximum age are ended.
    grace_end: Option<Instant>,
    goaway: GoAway,
}

/// The state of announcing the connection's end to the client.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum GoAway {
    No,
    /// The announcement was sent. By this time, the client must acknowledge that it begins no more
    /// calls.
    Sent(Instant),
    /// The time limit for the acknowledgement has passed.
    Overdue,
}

/// The observations about a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Observed {
    /// True if data has been read since the last step.
    pub(crate) has_read: bool,
    /// True if a call is in progress.
    pub(crate) has_calls: bool,
    /// True if a response is unwritten.
    pub(crate) is_writing: bool,
}

/// The next step for the connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum UpkeepAction {
    /// Ping the client.
    Ping,
    /// Ask the client to begin no more calls.
    GoAway,
    /// Close the connection.
    Close,
}

impl Upkeep {
    /// Creates the upkeep of a connection that begins `now` and may reach the age `age_max`.
    pub(crate) fn new(now: Instant, options: &KeepaliveOptions, age_max: Option<Duration>) -> Self {
        let mut upkeep = Self {
            keepalive_time: options.time,
            keepalive_timeout: options.timeout,
            permits_without_calls: options.permit_without_calls,
            goaway_timeout: options.goaway_timeout,
            age_grace: options.connection_age_grace,
            last_read: now,
            next_check: None,
            last_ping: None,
            ping_deadline: None,
            first_call_deadline: now.checked_add(options.first_call_timeout),
            age_end: age_max.and_then(|age| now.checked_add(age)),
            grace_end: None,
            goaway: GoAway::No,
        };
        upkeep.plan_check(now);
        upkeep
    }

    /// Notes that the client has begun a call.
    pub(crate) const fn call_begun(&mut self) {
        self.first_call_deadline = None;
    }

    /// Notes that the client is asked `now` to begin no more calls.
    pub(crate) fn goaway_sent(&mut self, now: Instant) {
        if self.goaway == GoAway::No {
            self.goaway =
                now.checked_add(self.goaway_timeout).map_or(GoAway::Overdue, GoAway::Sent);
        }
    }

    /// Returns true if the connection ends as soon as it has no calls and no unwritten responses,
    /// because the client has had time to acknowledge the end.
    pub(crate) fn ends_when_idle(&self) -> bool {
        self.goaway == GoAway::Overdue
    }

    /// Returns true if a ping has not been acknowledged yet.
    pub(crate) const fn is_pinging(&self) -> bool {
        self.ping_deadline.is_some()
    }

    /// The time at which the next step is due.
    pub(crate) fn wakeup(&self) -> Option<Instant> {
        let goaway = match self.goaway {
            GoAway::Sent(deadline) => Some(deadline),
            GoAway::No | GoAway::Overdue => None,
        };
        let others = [self.ping_deadline, self.first_call_deadline, self.age_end, self.grace_end];
        [self.next_check, goaway].into_iter().chain(others).flatten().min()
    }

    /// Processes the observations since the last step and returns the next action. It is called
    /// again until no action is left.
    pub(crate) fn step(&mut self, now: Instant, observed: Observed) -> Option<UpkeepAction> {
        if observed.has_read {
            // Any data shows that the client is alive.
            self.last_read = now;
            self.ping_deadline = None;
        }
        if is_over(self.grace_end, now) || is_over(self.ping_deadline, now) {
            return Some(UpkeepAction::Close);
        }
        if let GoAway::Sent(deadline) = self.goaway
            && deadline <= now
        {
            self.goaway = GoAway::Overdue;
        }
        if self.ends_when_idle() && !observed.has_calls && !observed.is_writing {
            return Some(UpkeepAction::Close);
        }
        if is_over(self.age_end, now) {
            self.age_end = None;
            self.grace_end = self.age_grace.and_then(|grace| now.checked_add(grace));
            return self.go_away(now);
        }
        if is_over(self.first_call_deadline, now) {
            self.first_call_deadline = None;
            return self.go_away(now);
        }
        self.check_silence(now, observed.has_calls)
    }

    fn go_away(&mut self, now: Instant) -> Option<UpkeepAction> {
        let is_first = self.goaway == GoAway::No;
        self.goaway_sent(now);
        is_first.then_some(UpkeepAction::GoAway)
    }

    fn check_silence(&mut self, now: Instant, has_calls: bool) -> Option<UpkeepAction> {
        if self.ping_deadline.is_some() {
            self.next_check = None;
            return None;
        }
        let due = self.ping_due()?;
        if now < due {
            self.plan_check(now);
            return None;
        }
        if !has_calls && !self.permits_without_calls {
            // A client without calls may stay silent.
            self.last_read = now;
            self.plan_check(now);
            return None;
        }
        self.last_ping = Some(now);
        self.ping_deadline = self.keepalive_timeout.and_then(|timeout| now.checked_add(timeout));
        if self.ping_deadline.is_none() {
            // Nothing depends on the acknowledgement any more.
            self.last_read = now;
            self.plan_check(now);
        } else {
            self.next_check = None;
        }
        Some(UpkeepAction::Ping)
    }

    /// The time at which the client is pinged if nothing more is read; `None` means never.
    fn ping_due(&self) -> Option<Instant> {
        let due = self.last_read.checked_add(self.keepalive_time?)?;
        let earliest = self.last_ping.and_then(|ping| ping.checked_add(PING_INTERVAL_MIN));
        Some(earliest.map_or(due, |earliest| due.max(earliest)))
    }

    fn plan_check(&mut self, now: Instant) {
        let part = self.keepalive_time.and_then(|time| time.checked_div(CHECKS));
        let part = part.and_then(|part| now.checked_add(part));
        let next = now.checked_add(TIMER_RESOLUTION).unwrap_or(now);
        self.next_check = self.ping_due().zip(part).map(|(due, part)| due.min(part).max(next));
    }
}

fn is_over(deadline: Option<Instant>, now: Instant) -> bool {
    deadline.is_some_and(|deadline| deadline <= now)
}

#[cfg(test)]
#[path = "lifetime_tests.rs"]
mod tests;
