//! Request deadlines.

use std::time::{Duration, Instant};

/// The time by which the client needs the response. Only models that are batched by deadline use
/// it; other models propagate it to the requests that they make.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Deadline {
    /// No deadline.
    #[default]
    None,
    /// The response must arrive by this instant.
    At(Instant),
    /// The value of the request header with this name can't be parsed.
    Unreadable(&'static str),
}

impl Deadline {
    /// The instant `time` after `start`; `None` if clocks can't represent it.
    #[must_use]
    pub fn within(start: Instant, time: Duration) -> Self {
        start.checked_add(time).map_or(Self::None, Self::At)
    }

    /// The earlier of the two deadlines. An unreadable deadline takes precedence.
    #[must_use]
    pub fn earliest(self, other: Self) -> Self {
        match (self, other) {
            (Self::At(one), Self::At(other)) => Self::At(one.min(other)),
            (Self::Unreadable(_), _) | (_, Self::None) => self,
            (_, Self::Unreadable(_)) | (Self::None, Self::At(_)) => other,
        }
    }

    /// The deadline's instant; `None` unless it is [`Deadline::At`].
    #[must_use]
    pub const fn instant(self) -> Option<Instant> {
        match self {
            Self::At(time) => Some(time),
            Self::None | Self::Unreadable(_) => None,
        }
    }
}

/// The request headers that state how long the client waits. If a header repeats, the first one
/// counts.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TimeoutHeaders<'a> {
    /// The value of [`TimeoutHeaders::ENVOY`].
    pub envoy: Option<&'a [u8]>,
    /// The value of [`TimeoutHeaders::REQUEST`].
    pub request: Option<&'a [u8]>,
}

impl TimeoutHeaders<'_> {
    /// The header that proxies send: a whole number of milliseconds.
    pub const ENVOY: &'static str = "x-envoy-expected-rq-timeout-ms";
    /// The header that clients send: a number of seconds, possibly with a fraction.
    pub const REQUEST: &'static str = "request-timeout";

    /// The deadline of a request that arrives now. Reads the clock only if a header specifies one.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        if self.envoy.is_none() && self.request.is_none() {
            return Deadline::None;
        }
        let now = Instant::now();
        let of = |value: Option<&[u8]>, parse: fn(&[u8]) -> Option<Duration>, name| match value {
            None => Deadline::None,
            Some(value) => match parse(value.trim_ascii()) {
                Some(time) => Deadline::within(now, time),
                None => Deadline::Unreadable(name),
            },
        };
        let of_envoy = of(self.envoy, milliseconds, Self::ENVOY);
        of_envoy.earliest(of(self.request, seconds, Self::REQUEST))
    }
}

fn milliseconds(text: &[u8]) -> Option<Duration> {
    whole(text).map(Duration::from_millis)
}

/// Parses a number of seconds with at most nine decimal places.
fn seconds(text: &[u8]) -> Option<Duration> {
    const DIGITS: usize = 9;
    let point = text.iter().position(|byte| *byte == b'.');
    let (before, behind) = text.split_at_checked(point.unwrap_or(text.len()))?;
    let seconds = Duration::from_secs(whole(before)?);
    let Some(behind) = behind.get(1..) else { return Some(seconds) };
    let scale = 10_u64.pow(u32::try_from(DIGITS.checked_sub(behind.len())?).ok()?);
    let fraction = Duration::from_nanos(whole(behind)?.checked_mul(scale)?);
    Some(seconds.saturating_add(fraction))
}

/// Parses a string of decimal digits. A number that exceeds 64 bits is clamped to `u64::MAX`.
fn whole(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(std::str::from_utf8(text).ok()?.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time that the headers allow, or `Err` with the name of a header that can't be
    /// parsed.
    fn allowed(
        envoy: Option<&str>,
        request: Option<&str>,
    ) -> Result<Option<Duration>, &'static str> {
        let headers =
            TimeoutHeaders { envoy: envoy.map(str::as_bytes), request: request.map(str::as_bytes) };
        let before = Instant::now();
        match headers.deadline() {
            Deadline::None => Ok(None),
            Deadline::At(time) => {
                let late = Instant::now() - before;
                let allowed = time - before;
                // The clock was read at most `late` after `before`.
                Ok(Some(allowed.saturating_sub(late)))
            }
            Deadline::Unreadable(name) => Err(name),
        }
    }

    #[track_caller]
    fn check(envoy: Option<&str>, request: Option<&str>, expected_ms: u64) {
        let allowed = allowed(envoy, request).unwrap().unwrap();
        let expected = Duration::from_millis(expected_ms);
        assert!(allowed <= expected, "{envoy:?} {request:?}: {allowed:?}");
        assert!(allowed + Duration::from_secs(60) > expected, "{envoy:?} {request:?}: {allowed:?}");
    }

    #[test]
    fn the_earliest_of_the_headers_counts() {
        assert_eq!(allowed(None, None), Ok(None));
        check(Some("3600000"), None, 3_600_000);
        check(None, Some("3600"), 3_600_000);
        check(Some(" 7200000 "), Some("3600"), 3_600_000);
        check(Some("3600000"), Some("7200.5"), 3_600_000);
        // Longer than clocks can represent.
        assert_eq!(allowed(None, Some("99999999999999999999999")), Ok(None));
    }

    #[test]
    fn seconds_may_have_a_fraction() {
        let ns = |text: &str| seconds(text.as_bytes()).map(|time| time.as_nanos());
        assert_eq!(ns("0.25"), Some(250_000_000));
        assert_eq!(ns("1.000000001"), Some(1_000_000_001));
        assert_eq!(ns("2"), Some(2_000_000_000));
        for refused in ["", ".", "1.", ".5", "-1", "+1", "1e3", "1,5", "1.0000000001", "1.2.3", "x"]
        {
            assert_eq!(ns(refused), None, "{refused}");
        }
    }

    #[test]
    fn a_header_that_cannot_be_read_is_named() {
        assert_eq!(allowed(Some("1.5"), None), Err(TimeoutHeaders::ENVOY));
        assert_eq!(allowed(None, Some("soon")), Err(TimeoutHeaders::REQUEST));
        assert_eq!(allowed(Some("5"), Some("soon")), Err(TimeoutHeaders::REQUEST));
        let unreadable = Deadline::Unreadable("x");
        for other in [Deadline::None, Deadline::At(Instant::now())] {
            assert_eq!(unreadable.earliest(other), unreadable);
            assert_eq!(other.earliest(unreadable), unreadable);
        }
    }
}
