//! Closed-loop clients, each of which sends its next request once it has the response to the last
//! one.

use galatea_traffic::RecordedTraffic;

/// The minimum number of requests per client. A shorter recording reveals nothing about clients.
const REQUESTS_MIN: usize = 8;

/// The maximum client pause, as a share of the time that clients wait for responses.
const PAUSE_SHARE: f64 = 0.25;

/// All clients arrive within this share of the requests. If requests arrive later than that, the
/// queue is growing.
const BEGINNING_SHARE: f64 = 0.1;

/// Clients that wait for their responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedLoopClients {
    /// Number of concurrent requests.
    pub count: u32,
    /// The times between responses and the next requests, used in rotation.
    pauses_ns: Vec<u64>,
}

impl ClosedLoopClients {
    /// Creates clients with these pauses, or with none.
    pub const fn new(count: u32, pauses_ns: Vec<u64>) -> Self {
        Self { count, pauses_ns }
    }

    /// The clients of a recording if each appears to have waited for its responses: after the
    /// beginning, a request arrives soon after a response and never without one.
    pub fn infer_from(traffic: &RecordedTraffic) -> Option<Self> {
        let requests = &traffic.requests;
        let mut latencies_ns: Vec<u64> = (requests.iter())
            .map(|one| {
                let compute_ns = one.executed.as_ref().map_or(0, |executed| executed.compute_ns);
                one.queue_ns.saturating_add(compute_ns)
            })
            .collect();
        let at = requests.iter().map(|one| one.at_ns);
        let mut answers_ns: Vec<u64> = at
            .zip(&latencies_ns)
            .map(|(at_ns, latency_ns)| at_ns.saturating_add(*latency_ns))
            .collect();
        answers_ns.sort_unstable();
        let mut answers = answers_ns.into_iter().peekable();
        let mut pauses_ns = Vec::new();
        let (mut count, mut last) = (0_usize, 0);
        for (index, request) in requests.iter().enumerate() {
            match answers.next_if(|answer_ns| *answer_ns <= request.at_ns) {
                Some(answer_ns) => pauses_ns.push(request.at_ns - answer_ns),
                None => {
                    count += 1;
                    last = index;
                }
            }
        }
        let is_enough = requests.len() >= REQUESTS_MIN.saturating_mul(count.max(2));
        let beginning = (requests.len() as f64 * BEGINNING_SHARE) as usize;
        let (pause, latency) = (median(&mut pauses_ns.clone())?, median(&mut latencies_ns)?);
        let is_soon = (pause as f64) < latency as f64 * PAUSE_SHARE;
        let is_closed = is_enough && is_soon && last <= beginning.max(count);
        is_closed.then(|| Self { count: u32::try_from(count).unwrap_or(u32::MAX), pauses_ns })
    }

    /// A copy with this number of clients.
    #[must_use]
    pub fn of_count(&self, count: u32) -> Self {
        Self { count, ..self.clone() }
    }

    /// A copy with the number of clients scaled by a factor, and at least one.
    #[must_use]
    pub fn scaled_by(&self, factor: f64) -> Self {
        self.of_count((f64::from(self.count) * factor).round().max(1.0) as u32)
    }

    /// The pause before the request.
    pub(crate) fn pause_ns(&self, index: usize) -> u64 {
        let place = index.checked_rem(self.pauses_ns.len());
        place.and_then(|place| self.pauses_ns.get(place)).copied().unwrap_or(0)
    }
}

fn median(values: &mut [u64]) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use galatea_traffic::{RecordedRequest, RequestExecution};

    use super::*;

    /// Estimates the number of clients from the arrival times and durations of requests.
    fn clients(requests: impl IntoIterator<Item = (u64, u64)>) -> Option<u32> {
        let request = |(at_ns, latency_ns)| RecordedRequest {
            at_ns,
            executed: Some(RequestExecution {
                compute_ns: latency_ns,
                ..RequestExecution::default()
            }),
            ..RecordedRequest::default()
        };
        let requests = requests.into_iter().map(request).collect();
        let traffic = RecordedTraffic { requests, ..RecordedTraffic::default() };
        ClosedLoopClients::infer_from(&traffic).map(|clients| clients.count)
    }

    #[test]
    fn clients_that_wait_are_known_from_those_that_do_not() {
        assert_eq!(clients((0..100).map(|number| (number * 105, 100))), Some(1));
        // Four clients, with one response every 25.
        assert_eq!(clients((0..100).map(|number| (number * 26, 100))), Some(4));
        assert_eq!(clients((0..100).map(|number| (number * 500, 100))), None, "pauses");
        assert_eq!(
            clients((0..100).map(|number| (number * 50, 100 + number * 20))),
            None,
            "a queue"
        );
        assert_eq!(clients((0..100).map(|_| (0, 100))), None, "all at once");
        assert_eq!(clients((0..10).map(|number| (number * 105, 100))), None, "too few");
        assert_eq!(clients([]), None);
    }
}
