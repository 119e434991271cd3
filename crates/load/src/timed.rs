//! Requests at specified times, regardless of the responses to earlier requests.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::LocalSet;

use crate::closed_loop::Target;
use crate::connection::http::HttpConnection;
use crate::sample::SampleRequest;

/// The time after which a request without a response has failed.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);

/// The results of requests at specified times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenLoopMeasurement {
    /// The times from the moment a request was due to its response, ascending; only responses
    /// without an error count.
    pub latencies: Vec<Duration>,
    /// Failed requests by reason.
    pub failures: BTreeMap<String, u64>,
    /// The time from the first request to the last response.
    pub elapsed: Duration,
}

impl OpenLoopMeasurement {
    /// The latency that this fraction of the responses doesn't exceed.
    #[must_use]
    pub fn latency_quantile(&self, share: f64) -> Option<Duration> {
        let last = self.latencies.len().checked_sub(1)?;
        let index = (share.clamp(0.0, 1.0) * self.latencies.len() as f64) as usize;
        self.latencies.get(index.min(last)).copied()
    }

    /// The number of failed requests.
    #[must_use]
    pub fn failure_count(&self) -> u64 {
        self.failures.values().sum()
    }

    /// The number of responses within this time.
    #[must_use]
    pub fn responses_within(&self, time: Duration) -> usize {
        self.latencies.partition_point(|latency| *latency <= time)
    }
}

/// The times of a Poisson process with this rate per second, over this duration.
#[must_use]
pub fn poisson_arrivals(rate: f64, duration: Duration, seed: u64) -> Vec<Duration> {
    let mut state = seed;
    let mut times = Vec::new();
    let mut next = Duration::ZERO;
    loop {
        // Never 0, whose logarithm is infinite.
        let uniform = ((number(&mut state) >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        next += Duration::from_secs_f64((-uniform.ln() / rate).min(1e9));
        if next >= duration {
            return times;
        }
        times.push(next);
    }
}

/// A random number from splitmix64.
const fn number(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Sends a request over HTTP at each of these times, on at most `connections` connections. If all
/// connections are in use, a request waits, and the wait is part of its latency.
///
/// # Errors
///
/// Returns an error if the requests can't be sent at all.
pub fn run_open_loop(
    target: &Target,
    sample: &SampleRequest,
    times: Vec<Duration>,
    connections: usize,
) -> Result<OpenLoopMeasurement, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let request = sample.to_http_request(&target.address, 1);
    let shared = Rc::new(TimedRun {
        address: target.address.clone(),
        request,
        free: Semaphore::new(connections),
        idle: RefCell::default(),
        measured: RefCell::default(),
    });
    let begin = Instant::now();
    let (sender, mut due) = unbounded_channel();
    // A dedicated thread, because the runtime's timers have millisecond resolution.
    let clock = std::thread::spawn(move || {
        for time in times {
            let at = begin + time;
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            if sender.send(at).is_err() {
                return;
            }
        }
    });
    let tasks = LocalSet::new();
    let sending = shared.clone();
    tasks.spawn_local(async move {
        while let Some(at) = due.recv().await {
            let shared = sending.clone();
            tokio::task::spawn_local(async move { shared.send(at).await });
        }
    });
    runtime.block_on(tasks);
    let _ = clock.join();
    let mut measured = shared.measured.take();
    measured.elapsed = begin.elapsed();
    measured.latencies.sort_unstable();
    Ok(measured)
}

struct TimedRun {
    address: String,
    request: Bytes,
    free: Semaphore,
    idle: RefCell<Vec<HttpConnection>>,
    measured: RefCell<OpenLoopMeasurement>,
}

impl TimedRun {
    async fn send(&self, due: Instant) {
        let Ok(_permit) = self.free.acquire().await else { return };
        let idle = self.idle.borrow_mut().pop();
        let exchange = tokio::time::timeout(REQUEST_TIME_MAX, self.exchange(idle)).await;
        let latency = due.elapsed();
        let mut measured = self.measured.borrow_mut();
        match exchange.unwrap_or_else(|_| Err(String::from("no response in 30 s"))) {
            Ok((connection, 200)) => {
                measured.latencies.push(latency);
                self.idle.borrow_mut().push(connection);
            }
            Ok((connection, status)) => {
                *measured.failures.entry(format!("status {status}")).or_default() += 1;
                self.idle.borrow_mut().push(connection);
            }
            Err(reason) => *measured.failures.entry(reason).or_default() += 1,
        }
    }

    async fn exchange(
        &self,
        idle: Option<HttpConnection>,
    ) -> Result<(HttpConnection, u16), String> {
        let mut connection = match idle {
            Some(connection) => connection,
            None => HttpConnection::connect(&self.address).await?,
        };
        let reply = connection.exchange(&self.request).await?;
        Ok((connection, reply.status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_a_rate_and_the_same_for_a_seed() {
        let times = poisson_arrivals(1000.0, Duration::from_secs(10), 7);
        assert!((9_500..10_500).contains(&times.len()), "{}", times.len());
        assert!(times.is_sorted());
        assert_eq!(times, poisson_arrivals(1000.0, Duration::from_secs(10), 7));
    }

    #[test]
    fn a_measurement_says_what_was_in_time() {
        let ms = Duration::from_millis;
        let latencies = (1..=100).map(ms).collect();
        let measured = OpenLoopMeasurement { latencies, ..OpenLoopMeasurement::default() };
        assert_eq!(
            (measured.responses_within(ms(20)), measured.latency_quantile(0.5)),
            (20, Some(ms(51)))
        );
        assert_eq!(OpenLoopMeasurement::default().latency_quantile(0.5), None);
    }
}
