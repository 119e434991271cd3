//! Other ways to choose victims, and bounds that know the future.

use super::traces::ModelTrace;

/// A way to choose victims.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// The model leaves whose latest request is the earliest.
    LeastRecent,
    /// The model leaves with the fewest requests since its load.
    LeastFrequent,
    /// GreedyDual-Size-Frequency.
    GreedyDual,
    /// The future is known: the model leaves that saves the least load time for its bytes until its
    /// next request.
    KnownFuture,
}

/// The requests of a trace for one model, so far.
#[derive(Copy, Clone, Debug, Default)]
struct Past {
    is_resident: bool,
    latest: usize,
    frequency: f64,
    greedy: f64,
    next: usize,
}

/// Returns the share of the load time that is saved, and the share of requests that find their
/// model.
pub(crate) fn replay(trace: &ModelTrace, rule: Rule) -> [f64; 2] {
    let next = next_requests(trace);
    let mut pasts = vec![Past::default(); trace.bytes.len()];
    let (mut used, mut inflation) = (0, 0.0);
    let mut saved = Saved::default();
    for (number, model) in trace.requests.iter().copied().enumerate() {
        let density = trace.load_ms[model] as f64 / trace.bytes[model] as f64;
        let past = &mut pasts[model];
        past.latest = number;
        past.frequency += 1.0;
        past.greedy = inflation + past.frequency * density;
        past.next = next[number];
        saved.count(trace.load_ms[model], past.is_resident);
        if past.is_resident {
            continue;
        }
        while used + trace.bytes[model] > trace.budget {
            let worth = |other: &usize| worth(trace, rule, number, *other, &pasts[*other]);
            let resident = (0..pasts.len()).filter(|other| pasts[*other].is_resident);
            let victim = resident.min_by(|one, two| worth(one).total_cmp(&worth(two)));
            let victim = victim.expect("each model fits");
            inflation = f64::max(inflation, pasts[victim].greedy);
            (pasts[victim].is_resident, pasts[victim].frequency) = (false, 0.0);
            used -= trace.bytes[victim];
        }
        pasts[model].is_resident = true;
        used += trace.bytes[model];
    }
    saved.shares()
}

fn worth(trace: &ModelTrace, rule: Rule, number: usize, model: usize, past: &Past) -> f64 {
    match rule {
        Rule::LeastRecent => past.latest as f64,
        Rule::LeastFrequent => past.frequency,
        Rule::GreedyDual => past.greedy,
        Rule::KnownFuture => {
            let density = trace.load_ms[model] as f64 / trace.bytes[model] as f64;
            density / (past.next - number) as f64
        }
    }
}

/// Returns the number of the next request for the same model, for each request.
fn next_requests(trace: &ModelTrace) -> Vec<usize> {
    let never = trace.requests.len() * 4;
    let mut next = vec![never; trace.requests.len()];
    let mut latest = vec![never; trace.bytes.len()];
    for (number, model) in trace.requests.iter().enumerate().rev() {
        next[number] = latest[*model];
        latest[*model] = number;
    }
    next
}

/// Returns a bound on the share of the load time that can be saved: the intervals between two
/// requests for a model are kept that save the most load time for their bytes and length, until the
/// memory of all times is used up.
pub(crate) fn bound(trace: &ModelTrace) -> f64 {
    let mut latest = vec![None; trace.bytes.len()];
    let mut intervals = Vec::new();
    let mut whole = 0.0;
    for (number, model) in trace.requests.iter().copied().enumerate() {
        let load_ms = trace.load_ms[model] as f64;
        whole += load_ms;
        if let Some(earlier) = latest[model].replace(number) {
            let memory = trace.bytes[model] as f64 * (number - earlier) as f64;
            intervals.push((load_ms, memory));
        }
    }
    intervals.sort_by(|one, two| (two.0 / two.1).total_cmp(&(one.0 / one.1)));
    let mut room = trace.budget as f64 * trace.requests.len() as f64;
    let mut saved = 0.0;
    for (load_ms, memory) in intervals {
        saved += load_ms * (room / memory).min(1.0);
        room = f64::max(room - memory, 0.0);
    }
    saved / whole
}

/// The load time and the requests, and those that were saved.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Saved {
    load_ms: [u64; 2],
    requests: [u64; 2],
}

impl Saved {
    pub(crate) fn count(&mut self, load_ms: u64, is_resident: bool) {
        self.load_ms[0] += load_ms;
        self.requests[0] += 1;
        if is_resident {
            self.load_ms[1] += load_ms;
            self.requests[1] += 1;
        }
    }

    pub(crate) fn shares(&self) -> [f64; 2] {
        [self.load_ms, self.requests].map(|[all, saved]| saved as f64 / all as f64)
    }
}
