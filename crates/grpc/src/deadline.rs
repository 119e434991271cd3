//! The `grpc-timeout` header, and the timer that each connection has.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// The maximum timeout. A longer timeout counts as none, because timers are limited too.
const TIMEOUT_MAX: Duration = Duration::from_hours(24 * 365);

/// The timeout of a call.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Timeout {
    /// The call must end within this time.
    Within(Duration),
    /// The timeout is too long to matter.
    Never,
}

/// Parses up to eight digits and a unit; returns `None` for anything else.
pub(crate) fn parse_timeout(text: &[u8]) -> Option<Timeout> {
    let (&unit, digits) = text.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let amount: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let timeout = match unit {
        b'n' => Duration::from_nanos(amount),
        b'u' => Duration::from_micros(amount),
        b'm' => Duration::from_millis(amount),
        b'S' => Duration::from_secs(amount),
        b'M' => Duration::from_secs(amount.saturating_mul(60)),
        b'H' => Duration::from_secs(amount.saturating_mul(3600)),
        _ => return None,
    };
    Some(if timeout > TIMEOUT_MAX { Timeout::Never } else { Timeout::Within(timeout) })
}

/// The timer for all deadlines of a connection.
///
/// The timer is set for the earliest deadline. It stays unchanged when that call ends in time, as
/// nearly all calls do: setting a timer costs more than one needless expiry.
#[derive(Debug, Default)]
pub(crate) struct DeadlineTimer {
    sleep: Option<Pin<Box<Sleep>>>,
    is_set: bool,
    /// True if the timer wakes the connection when it expires.
    has_waker: bool,
}

impl DeadlineTimer {
    /// Ensures that the timer expires no later than `deadline`.
    pub(crate) fn set(&mut self, deadline: Instant) {
        match &mut self.sleep {
            None => self.sleep = Some(Box::pin(sleep_until(deadline))),
            Some(sleep) if !self.is_set || deadline < sleep.deadline() => {
                sleep.as_mut().reset(deadline);
                self.has_waker = false;
            }
            Some(_) => {}
        }
        self.is_set = true;
    }

    /// Returns true if the timer has expired; it must then be set again. Every call must pass the
    /// same waker.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(sleep) = self.sleep.as_mut().filter(|_| self.is_set) else { return false };
        if self.has_waker && !sleep.is_elapsed() {
            return false;
        }
        self.has_waker = true;
        self.is_set = sleep.as_mut().poll(cx).is_pending();
        !self.is_set
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::*;

    fn check(text: &str, expected: Option<Timeout>) {
        assert_eq!(parse_timeout(text.as_bytes()), expected, "{text}");
    }

    #[test]
    fn timeouts_have_up_to_eight_digits_and_a_unit() {
        let within = |duration| Some(Timeout::Within(duration));
        check("1n", within(Duration::from_nanos(1)));
        check("20u", within(Duration::from_micros(20)));
        check("00000300m", within(Duration::from_millis(300)));
        check("4S", within(Duration::from_secs(4)));
        check("5M", within(Duration::from_mins(5)));
        check("6H", within(Duration::from_hours(6)));
        check("0S", within(Duration::ZERO));
        check("99999999H", Some(Timeout::Never));
        for refused in ["", "S", "5", "5s", "-5S", "+5S", "5 S", "123456789S", "1e3S", "５S"] {
            check(refused, None);
        }
    }

    #[tokio::test]
    async fn the_timer_wakes_for_each_deadline() {
        let mut timer = DeadlineTimer::default();
        for _ in 0..2 {
            let now = Instant::now();
            timer.set(now + Duration::from_hours(1));
            assert!(!poll_fn(|cx| Poll::Ready(timer.poll(cx))).await);
            timer.set(now + Duration::from_millis(1));
            // The second poll has nothing new to register.
            let expired = |cx: &mut Context<'_>| timer.poll(cx) || timer.poll(cx);
            wait_until(expired).await;
            assert!(!poll_fn(|cx| Poll::Ready(timer.poll(cx))).await);
        }
    }

    async fn wait_until(mut is_over: impl FnMut(&mut Context<'_>) -> bool) {
        poll_fn(|cx| if is_over(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}
