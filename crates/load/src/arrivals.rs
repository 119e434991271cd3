//! Arrivals of independent requests: a Poisson process, or specified times.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::mix::Mix;

/// The delay beyond which the process is assumed to have been suspended.
const SUSPENDED: Duration = Duration::from_secs(1);

/// Arrivals at a mean rate per second, from now until `end`. Each instant is sent when it is
/// reached.
///
/// A dedicated thread sleeps until each instant. The runtime's timers have millisecond resolution
/// and would turn many separate requests into bursts.
pub(crate) fn begin(rate: f64, seed: u64, end: Instant) -> UnboundedReceiver<Instant> {
    let (sender, receiver) = unbounded_channel();
    std::thread::spawn(move || {
        let mut mix = Mix::new(seed, 0, 0);
        let mut next = Instant::now();
        loop {
            next += gap(&mut mix, rate);
            if next >= end {
                return;
            }
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            let now = Instant::now();
            if now.saturating_duration_since(next) > SUSPENDED {
                // After a suspension, missed arrivals are not made up for with a burst.
                next = now;
                continue;
            }
            if sender.send(next).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Arrivals at these times from now. Each instant is sent when it is reached.
pub(crate) fn replay(times: Vec<Duration>) -> UnboundedReceiver<Instant> {
    let (sender, receiver) = unbounded_channel();
    std::thread::spawn(move || {
        let start = Instant::now();
        for time in times {
            let next = start + time;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            if sender.send(next).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Reads times in nanoseconds, one per line, ascending.
pub(crate) fn read_times(path: &Path) -> Result<Vec<Duration>, String> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| format!("can't read '{}': {error}", path.display()))?;
    let mut times = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let time = line.trim().parse().map(Duration::from_nanos).ok();
        let time = time.filter(|time| times.last() <= Some(time));
        let wrong = || format!("'{}', line {}: no ascending time", path.display(), index + 1);
        times.push(time.ok_or_else(wrong)?);
    }
    Ok(times)
}

/// The time between two arrivals, with an exponential distribution.
fn gap(mix: &mut Mix, rate: f64) -> Duration {
    // A float has 53 bits of precision; the result is never 0, whose logarithm is infinite.
    let uniform = ((mix.number() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    Duration::from_secs_f64(-uniform.ln() / rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_those_of_a_poisson_process() {
        let mut mix = Mix::new(3, 0, 0);
        let gaps: Vec<f64> = (0..100_000).map(|_| gap(&mut mix, 50.0).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let square = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 0.02).abs() < 0.0005, "{mean}");
        assert!((square.sqrt() - mean).abs() < 0.0005, "{square}");
    }

    #[test]
    fn arrivals_end() {
        let end = Instant::now() + Duration::from_millis(20);
        let mut arrivals = begin(10_000.0, 1, end);
        let mut last = None;
        while let Some(arrival) = arrivals.blocking_recv() {
            assert!(arrival < end);
            assert!(last < Some(arrival));
            last = Some(arrival);
        }
        assert!(last.is_some());
    }
    #[test]
    fn times_are_read_and_come_when_they_are() {
        let file = std::env::temp_dir().join(format!("times-{}", std::process::id()));
        std::fs::write(&file, "0\n1000000\n1000000\n").unwrap();
        let times = read_times(&file).unwrap();
        assert_eq!(times, [0, 1, 1].map(Duration::from_millis));
        let start = Instant::now();
        let mut arrivals = replay(times);
        let came: Vec<Instant> = std::iter::from_fn(|| arrivals.blocking_recv()).collect();
        assert_eq!(came.len(), 3);
        assert!(came[1] >= start + Duration::from_millis(1));
        assert_eq!(came[1], came[2]);
        for (text, line) in [("5\n4\n", "line 2"), ("x\n", "line 1"), ("1\n\n", "line 2")] {
            std::fs::write(&file, text).unwrap();
            assert!(read_times(&file).unwrap_err().contains(line), "{text}");
        }
        std::fs::remove_file(&file).unwrap();
        assert!(read_times(&file).unwrap_err().contains("can't read"));
    }
}
