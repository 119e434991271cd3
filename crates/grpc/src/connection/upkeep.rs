//! Pings, and the end of connections that their clients would otherwise keep open.

use std::hash::{BuildHasher as _, RandomState};
use std::task::{Context, Poll};
use std::time::Duration;

use galatea_door::AwaitedClientStep;
use h2::{Ping, PingPong, Reason};
use tokio::time::Instant;

use super::{ConnectionClosed, ConnectionTask};
use crate::buffers::FrameCounts;
use crate::options::KeepaliveOptions;
use crate::upkeep::{Observed, PingPolice, PingVerdict, Upkeep, UpkeepAction};

/// The text sent to a client that pinged too often. gRPC clients then ping less often.
const TOO_MANY_PINGS: &[u8] = b"too_many_pings";
/// The text sent to a client whose idle connection had to make room.
const MAKES_ROOM: &[u8] = b"too_many_connections";
/// The random variation in the maximum age of connections, in thousandths. The variation keeps
/// connections that were opened together from ending together.
const AGE_JITTER: u64 = 100;

/// The state of a connection's pings and age.
pub(super) struct UpkeepState {
    pub(super) upkeep: Upkeep,
    pub(super) police: PingPolice,
    pub(super) frames: FrameCounts,
    /// The handle that sends pings. It is created with the first ping, because `h2` checks for
    /// pings from then on.
    pings: Option<PingPong>,
}

impl UpkeepState {
    pub(super) fn new(options: &KeepaliveOptions, frames: FrameCounts) -> Self {
        let age_max = options.connection_age_max.map(jittered);
        Self {
            upkeep: Upkeep::new(Instant::now(), options, age_max),
            police: PingPolice::new(options),
            frames,
            pings: None,
        }
    }
}

impl ConnectionTask {
    /// Ends the connection if its client pings too often.
    pub(super) fn police_pings(&mut self) -> Result<(), ConnectionClosed> {
        let state = &mut self.state;
        let pings = state.frames.take_pings();
        if pings == 0 {
            return Ok(());
        }
        if state.frames.take_sent_data() {
            state.police.data_sent();
        }
        match state.police.pings_received(Instant::now(), pings, !self.calls.is_empty()) {
            PingVerdict::Tolerated => Ok(()),
            PingVerdict::TooManyPings => {
                self.flusher.push_goaway(Reason::ENHANCE_YOUR_CALM, TOO_MANY_PINGS);
                // Bytes that the socket doesn't accept immediately are lost with the connection.
                let _ = self.flusher.poll_flush(&mut Context::from_waker(&self.waker));
                Err(ConnectionClosed)
            }
        }
    }

    /// Does the work that is due. `is_due` is true if the timer has expired; otherwise, there is
    /// work only if the connection is about to end or a ping was sent. `is_flushed` is true if the
    /// socket has accepted all output.
    pub(super) fn keep_up(
        &mut self,
        is_due: bool,
        is_flushed: bool,
    ) -> Result<(), ConnectionClosed> {
        let upkeep = &self.state.upkeep;
        if !is_due && !upkeep.ends_when_idle() && !upkeep.is_pinging() {
            return Ok(());
        }
        let was_pinging = upkeep.is_pinging();
        let now = Instant::now();
        while let Some(action) = self.state.upkeep.step(now, self.observe(is_flushed)) {
            match action {
                UpkeepAction::Ping => self.send_ping(),
                UpkeepAction::GoAway => self.begin_goaway(),
                UpkeepAction::Close => return Err(ConnectionClosed),
            }
        }
        self.plan_upkeep();
        if was_pinging && !self.state.upkeep.is_pinging() {
            // Polling the timer again registers the waker.
            self.waker.wake_by_ref();
        }
        Ok(())
    }

    /// Sets the timer for the next work that is due.
    pub(super) fn plan_upkeep(&mut self) {
        if let Some(wakeup) = self.state.upkeep.wakeup() {
            self.timer.set(wakeup);
        }
    }

    fn observe(&self, is_flushed: bool) -> Observed {
        Observed {
            has_read: self.state.frames.take_read(),
            has_calls: !self.calls.is_empty(),
            is_writing: !is_flushed || self.budget.unwritten_bytes() > 0,
        }
    }

    fn send_ping(&mut self) {
        if self.state.pings.is_none() {
            self.state.pings = self.h2.ping_pong();
        }
        if let Some(pings) = &mut self.state.pings {
            // Received bytes already show whether the last ping was acknowledged, but `h2` sends
            // another ping only after this poll.
            let _: Poll<_> = pings.poll_pong(&mut Context::from_waker(&self.waker));
            let _ = pings.send_ping(Ping::opaque());
        }
        // `h2` sends the ping when it is polled.
        self.waker.wake_by_ref();
    }

    /// Notes that the task is about to sleep. A connection without calls or unwritten responses is
    /// idle.
    pub(super) fn begin_idleness(&self) {
        if self.calls.is_empty() && self.is_flushed && self.budget.unwritten_bytes() == 0 {
            self.activity.begin_wait(AwaitedClientStep::Idle, self.activity.now());
        }
    }

    /// Notes that the task has woken. If another connection has taken this one's place, this one
    /// ends, and the client is asked to reconnect for its next call.
    pub(super) fn end_idleness(&mut self) -> Result<(), ConnectionClosed> {
        if self.activity.end_wait().is_ok() {
            return Ok(());
        }
        self.flusher.push_goaway(Reason::NO_ERROR, MAKES_ROOM);
        // Bytes that the socket doesn't accept immediately are lost with the connection.
        let _ = self.flusher.poll_flush(&mut Context::from_waker(&self.waker));
        Err(ConnectionClosed)
    }

    /// Asks the client to begin no more calls.
    pub(super) fn begin_goaway(&mut self) {
        self.h2.graceful_shutdown();
        self.state.upkeep.goaway_sent(Instant::now());
        self.plan_upkeep();
        // `h2` sends GOAWAY when polled but doesn't ask to be polled. In the middle of a round, the
        // next round must poll it.
        self.waker.wake_by_ref();
    }
}

fn jittered(age: Duration) -> Duration {
    let random = RandomState::new().hash_one(0_u8);
    let span = AGE_JITTER.saturating_mul(2).saturating_add(1);
    let thousandths = random
        .checked_rem(span)
        .unwrap_or_default()
        .saturating_add(1000_u64.saturating_sub(AGE_JITTER));
    let factor = u32::try_from(thousandths).unwrap_or(1000);
    age.checked_mul(factor).and_then(|product| product.checked_div(1000)).unwrap_or(age)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_differ_by_a_tenth() {
        let ages: Vec<u128> =
            (0..2000).map(|_| jittered(Duration::from_secs(10)).as_millis()).collect();
        let (least, most) = (ages.iter().min().unwrap(), ages.iter().max().unwrap());
        assert!((9000..9100).contains(least), "{least}");
        assert!((10_900..=11_000).contains(most), "{most}");
    }
}
