//! Tuning objectives.

use std::time::Duration;

/// The metric used to compare configurations.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) enum Objective {
    /// The maximum request rate, regardless of latency.
    Throughput,
    /// The maximum request rate at which this share of requests gets a response within this time.
    Latency { share: f64, limit: Duration },
    /// The maximum rate of responses within this time, under overload.
    Goodput { limit: Duration },
}

impl Objective {
    /// Parses `throughput`, `p99<20ms` or `goodput<20ms`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("'--objective' is throughput, p99<20ms or goodput<20ms, not '{text}'");
        let compact: String = text.chars().filter(|char| !char.is_whitespace()).collect();
        if compact == "throughput" {
            return Ok(Self::Throughput);
        }
        let (what, limit) = compact.split_once('<').ok_or_else(wrong)?;
        let limit = time(limit.trim_start_matches('=')).ok_or_else(wrong)?;
        match what {
            "goodput" => Ok(Self::Goodput { limit }),
            "p50" => Ok(Self::Latency { share: 0.5, limit }),
            "p90" => Ok(Self::Latency { share: 0.9, limit }),
            "p95" => Ok(Self::Latency { share: 0.95, limit }),
            "p99" => Ok(Self::Latency { share: 0.99, limit }),
            _ => Err(wrong()),
        }
    }

    /// The time limit for a response.
    pub(super) const fn limit(self) -> Option<Duration> {
        match self {
            Self::Throughput => None,
            Self::Latency { limit, .. } | Self::Goodput { limit } => Some(limit),
        }
    }

    /// The unit of a configuration's score.
    pub(super) fn unit(self) -> String {
        match self {
            Self::Throughput => String::from("rows per second"),
            Self::Latency { share, limit } => {
                format!("rows per second with p{:.0} within {limit:?}", share * 100.0)
            }
            Self::Goodput { limit } => format!("rows per second within {limit:?}, overloaded"),
        }
    }
}

/// Parses a time with its unit, from one microsecond to one hour.
fn time(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|char: char| char.is_ascii_alphabetic() || char == 'µ');
    let number: f64 = digits.parse().ok()?;
    let unit = match text.strip_prefix(digits)? {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return None,
    };
    let seconds = number * unit;
    (1e-6..=3600.0).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objectives_have_a_measure_and_a_time() {
        let ms = Duration::from_millis;
        assert_eq!(Objective::parse("throughput"), Ok(Objective::Throughput));
        let p99 = Objective::Latency { share: 0.99, limit: ms(20) };
        assert_eq!(Objective::parse("p99<20ms"), Ok(p99));
        assert_eq!(Objective::parse("p99 <= 0.02s"), Ok(p99));
        assert_eq!(Objective::parse("goodput<5000us"), Ok(Objective::Goodput { limit: ms(5) }));
        for wrong in
            ["", "p99", "p98<2ms", "p99<20", "p99<xms", "goodput<0ms", "goodput", "p99>2ms"]
        {
            let error = Objective::parse(wrong).unwrap_err();
            assert!(error.contains("'--objective' is throughput, p99<20ms or"), "{wrong}: {error}");
        }
    }
}
