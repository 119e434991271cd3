//! Conversion of a recording to a load, and to a report of what the recorded server did.

use std::collections::BTreeMap;

use galatea_traffic::{RecordedRequest, RecordedTraffic};

use crate::{Arrival, Report};

/// The options for converting a recording to a load.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct TrafficReplayOptions {
    /// The factor by which requests arrive faster than recorded.
    pub load: f64,
    /// The number of times that the recording is played.
    pub repeat: u32,
    /// The deadline of requests that have none or a later one; `u64::MAX` means none.
    pub deadline_ns: u64,
}

impl Default for TrafficReplayOptions {
    fn default() -> Self {
        Self { load: 1.0, repeat: 1, deadline_ns: u64::MAX }
    }
}

/// The arrivals of a recording's requests. The first request arrives at 0. The scheduler pads the
/// request `dims` at the indices in `padded`.
pub fn arrivals_from_traffic(
    traffic: &RecordedTraffic,
    options: &TrafficReplayOptions,
    padded: &[usize],
) -> Vec<Arrival> {
    let requests = &traffic.requests;
    let (Some(first), Some(last)) = (requests.first(), requests.last()) else {
        return Vec::new();
    };
    // The gap between two repetitions equals the mean time between requests.
    let span_ns = last.at_ns - first.at_ns;
    let gap_ns = span_ns / u64::try_from(requests.len()).unwrap_or(u64::MAX).max(1);
    let mut shapes: BTreeMap<(Vec<u32>, bool), u32> = BTreeMap::new();
    let sized: Vec<RequestShape> = (requests.iter())
        .map(|request| {
            let padded = UnpaddedSizes::new(request, padded);
            let next = u32::try_from(shapes.len()).unwrap_or(u32::MAX);
            let shape = *shapes.entry((padded.dims, padded.shares)).or_insert(next);
            RequestShape { shape, padded_length: padded.length }
        })
        .collect();
    let mut arrivals = Vec::new();
    for round in 0..u64::from(options.repeat) {
        let shift_ns = round.saturating_mul(span_ns.saturating_add(gap_ns));
        for (request, sized) in requests.iter().zip(&sized) {
            let at_ns = (request.at_ns - first.at_ns).saturating_add(shift_ns);
            arrivals.push(Arrival {
                at_ns: (at_ns as f64 / options.load) as u64,
                deadline_ns: deadline(request, options.deadline_ns),
                rows: request.rows,
                length: request.length,
                padded_length: sized.padded_length,
                shape: sized.shape,
                priority: request.priority,
                timeout_ns: request.timeout_ns,
            });
        }
    }
    arrivals
}

/// The shape of a request as the scheduler sees it.
struct RequestShape {
    shape: u32,
    padded_length: Option<u32>,
}

/// A request's sizes without the padded dimensions.
struct UnpaddedSizes {
    dims: Vec<u32>,
    /// True if requests of other lengths may share the request's batches, because the request's own
    /// lengths are equal.
    shares: bool,
    /// The longest of the request's lengths; `None` if nothing is padded.
    length: Option<u32>,
}

impl UnpaddedSizes {
    fn new(request: &RecordedRequest, places: &[usize]) -> Self {
        let mut dims = request.dims.clone();
        let lengths = places.iter().filter_map(|place| request.dims.get(*place).copied());
        let (shortest, longest) = (lengths.clone().min(), lengths.max());
        let shares = longest.is_some() && shortest == longest;
        if shares {
            let sizes = dims.iter_mut().enumerate();
            sizes.filter(|(place, _)| places.contains(place)).for_each(|(_, size)| *size = 0);
        }
        Self { dims, shares, length: longest }
    }
}

/// The report of the recorded server. Cancelled requests count as refused, and backend errors as
/// responses.
pub fn recorded_report(traffic: &RecordedTraffic, deadline_ns: u64) -> Report {
    let mut report = Report::default();
    let begin = traffic.requests.first().map_or(0, |first| first.at_ns);
    for request in &traffic.requests {
        match &request.executed {
            Some(executed) => {
                let latency_ns = request.queue_ns.saturating_add(executed.compute_ns);
                let now = (request.at_ns - begin).saturating_add(latency_ns);
                report.answer(now, latency_ns, deadline(request, deadline_ns));
            }
            None => {
                report.refuse(request.status.clone());
                report.refused_at_once += u64::from(request.queue_ns == 0);
            }
        }
    }
    for one in &traffic.executions {
        report.execute(one.rows, one.close.clone(), one.duration_ns);
    }
    report.finish();
    report
}

fn deadline(request: &RecordedRequest, at_most_ns: u64) -> u64 {
    request.deadline_ns.unwrap_or(u64::MAX).min(at_most_ns)
}

#[cfg(test)]
mod tests {
    use galatea_traffic::{RecordedExecution, RequestExecution};

    use super::*;

    fn request(at_ns: u64, dims: &[u32]) -> RecordedRequest {
        RecordedRequest { at_ns, rows: 1, dims: dims.to_vec(), ..RecordedRequest::default() }
    }

    #[test]
    fn a_load_is_faster_and_repeated() {
        let requests = vec![request(100, &[3]), request(200, &[4]), request(400, &[3])];
        let traffic = RecordedTraffic { requests, ..RecordedTraffic::default() };
        let options = TrafficReplayOptions { load: 2.0, repeat: 2, deadline_ns: 7 };
        let load = arrivals_from_traffic(&traffic, &options, &[]);
        let times: Vec<u64> = load.iter().map(|one| one.at_ns).collect();
        assert_eq!(times, [0, 50, 150, 200, 250, 350]);
        let shapes: Vec<u32> = load.iter().map(|one| one.shape).collect();
        assert_eq!(shapes, [0, 1, 0, 0, 1, 0]);
        assert!(load.iter().all(|one| one.deadline_ns == 7));
        assert!(arrivals_from_traffic(&RecordedTraffic::default(), &options, &[]).is_empty());
    }

    #[test]
    fn requests_of_unequal_lengths_share_batches_if_they_are_padded() {
        let dims = [&[3, 3, 9][..], &[5, 5, 9], &[5, 5, 8], &[4, 5, 9]];
        let requests = (0..).zip(dims).map(|(at_ns, dims)| request(at_ns, dims)).collect();
        let traffic = RecordedTraffic { requests, ..RecordedTraffic::default() };
        let load = arrivals_from_traffic(&traffic, &TrafficReplayOptions::default(), &[0, 1]);
        let shapes: Vec<u32> = load.iter().map(|one| one.shape).collect();
        // The first two inputs are padded, but the third isn't.
        assert_eq!(shapes, [0, 0, 1, 2]);
        let lengths: Vec<Option<u32>> = load.iter().map(|one| one.padded_length).collect();
        assert_eq!(lengths, [3, 5, 5, 5].map(Some));
    }

    #[test]
    fn what_was_recorded_is_reported() {
        let executed = RequestExecution { compute_ns: 50, batch: 1, ..RequestExecution::default() };
        let mut answered = RecordedRequest { queue_ns: 10, ..request(100, &[]) };
        answered.executed = Some(executed);
        let refused = RecordedRequest { status: "queue_full".into(), ..request(130, &[]) };
        let execution = RecordedExecution {
            rows: 1,
            duration_ns: 50,
            close: "delay".into(),
            ..RecordedExecution::default()
        };
        let traffic = RecordedTraffic {
            requests: vec![answered, refused],
            executions: vec![execution],
            ..RecordedTraffic::default()
        };
        let report = recorded_report(&traffic, 55);
        assert_eq!((report.in_time, report.late, report.refused), (0, 1, 1));
        assert_eq!((report.ended_ns, report.busy_ns, report.quantile_ns(0.5)), (60, 50, 60));
        assert_eq!((report.refusals["queue_full"], report.closed["delay"]), (1, 1));
    }
}
