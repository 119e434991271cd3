//! Simulates the decisions of a model's scheduler under a load, using the real scheduler on a
//! virtual clock.
//!
//! [`simulate_open_loop`] takes request arrivals and a function for execution durations, and
//! returns a [`Report`]. This crate makes no decisions of its own: as in the server,
//! `galatea-policy` makes all of them. Simulating a minute of load takes milliseconds.
//!
//! Time passes in a [`SimulationWorld`], which the checks of `galatea-sim` also use.
//!
//! [`ExecutionTimeSampler`] learns durations from recorded executions, [`arrivals_from_traffic`]
//! turns a recording into a load, and [`recorded_report`] reports what the recorded server did.
//!
//! # Example
//!
//! ```
//! use galatea_policy::{DynamicBatcherSpec, SchedulingMode, SchedulingSpec};
//! use galatea_simulate::{Arrival, simulate_open_loop};
//!
//! let spec = SchedulingSpec {
//!     max_batch_size: 8,
//!     mode: SchedulingMode::Dynamic(DynamicBatcherSpec::default()),
//!     hold_until_queued: 0,
//!     hold_until_backlogged: 0,
//! };
//! let arrivals: Vec<Arrival> = (0..100).map(|number| Arrival::at(number * 1_000_000)).collect();
//! let report = simulate_open_loop(&spec, 1, &arrivals, |batch| 5_000_000 + 100_000 * u64::from(batch.rows));
//! assert_eq!(report.answered(), 100);
//! ```
#![forbid(unsafe_code)]

mod clients;
mod costs;
mod load;
mod report;
mod timed;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::convert::Infallible;

use galatea_policy::{
    Batch, FailReason, InstanceId, RequestInfo, RequestKey, SchedulerAction, SchedulerEvent,
    SchedulingSpec, ShapeClassId, Time,
};

pub use self::clients::ClosedLoopClients;
pub use self::costs::ExecutionTimeSampler;
pub use self::load::{TrafficReplayOptions, arrivals_from_traffic, recorded_report};
pub use self::report::Report;
pub use self::timed::{SchedulerSimulation, SimulationEvent, SimulationWorld};

/// A request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// The arrival time, in nanoseconds.
    pub at_ns: u64,
    /// The time after arrival within which a response is useful; `u64::MAX` means no limit.
    pub deadline_ns: u64,
    /// Number of rows in the first dimension.
    pub rows: u32,
    /// The length, whose meaning is known only to the duration function.
    pub length: u32,
    /// The length that the scheduler uses for padding, if it pads the request.
    pub padded_length: Option<u32>,
    /// The shape. Requests of different shapes don't share a batch.
    pub shape: u32,
    /// The priority level; 0 means the default.
    pub priority: u64,
    /// The request's own timeout in the queue; 0 means none.
    pub timeout_ns: u64,
}

impl Arrival {
    /// A request of one row without a deadline.
    pub const fn at(at_ns: u64) -> Arrival {
        Arrival {
            at_ns,
            deadline_ns: u64::MAX,
            rows: 1,
            length: 0,
            padded_length: None,
            shape: 0,
            priority: 0,
            timeout_ns: 0,
        }
    }
}

/// A batch that begins executing.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Execution {
    /// Total number of rows of its requests.
    pub rows: u32,
    /// The largest length among its requests.
    pub length: u32,
    /// Number of instances executing at that time, including this one.
    pub busy: u32,
}

/// Simulates a load, with arrivals in order of their times, until the last request has completed or
/// been refused. `duration_ns` returns the duration of an execution.
pub fn simulate_open_loop(
    spec: &SchedulingSpec,
    instances: u32,
    arrivals: &[Arrival],
    duration_ns: impl FnMut(Execution) -> u64,
) -> Report {
    let arrivals = arrivals.to_vec();
    let due = (0..arrivals.len()).map(|index| Reverse((arrivals[index].at_ns, index))).collect();
    run(spec, instances, PlayedLoad { arrivals, due, clients: None }, duration_ns)
}

/// Simulates closed-loop clients, each of which sends its next request after a response or a
/// refusal. The arrival times are ignored, but the order of arrivals is kept.
pub fn simulate_clients(
    spec: &SchedulingSpec,
    instances: u32,
    arrivals: &[Arrival],
    clients: &ClosedLoopClients,
    duration_ns: impl FnMut(Execution) -> u64,
) -> Report {
    let mut load = PlayedLoad {
        arrivals: arrivals.to_vec(),
        due: BinaryHeap::new(),
        clients: Some(SendingClients { clients: clients.clone(), next: 0 }),
    };
    for _ in 0..clients.count {
        load.send_next(0);
    }
    run(spec, instances, load, duration_ns)
}

fn run(
    spec: &SchedulingSpec,
    instances: u32,
    load: PlayedLoad,
    duration_ns: impl FnMut(Execution) -> u64,
) -> Report {
    let mut run = SimulatedRun {
        timed: SchedulerSimulation::new(spec.clone()),
        load,
        duration_ns,
        running: BTreeMap::new(),
        report: Report::default(),
    };
    for _ in 0..instances {
        let Ok(()) = run.add_instance();
    }
    run.play();
    run.report.finish();
    run.report
}

/// The requests and their arrival times.
struct PlayedLoad {
    arrivals: Vec<Arrival>,
    /// The times and indices of requests whose arrival is already known.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    clients: Option<SendingClients>,
}

/// The clients, with the index of the next request to send.
struct SendingClients {
    clients: ClosedLoopClients,
    next: usize,
}

impl PlayedLoad {
    /// Sends the next request of a client that has received its response.
    fn send_next(&mut self, now: u64) {
        let Some(sending) = &mut self.clients else { return };
        let Some(arrival) = self.arrivals.get_mut(sending.next) else { return };
        arrival.at_ns = now.saturating_add(sending.clients.pause_ns(sending.next));
        self.due.push(Reverse((arrival.at_ns, sending.next)));
        sending.next += 1;
    }
}

struct SimulatedRun<D> {
    timed: SchedulerSimulation,
    load: PlayedLoad,
    duration_ns: D,
    /// The request indices of each execution.
    running: BTreeMap<InstanceId, Vec<usize>>,
    report: Report,
}

impl<D: FnMut(Execution) -> u64> SimulatedRun<D> {
    /// Plays the load. At equal times, executions end first, then requests arrive, and then the
    /// scheduler wakes.
    fn play(&mut self) {
        loop {
            let arrival =
                self.load.due.peek().map(|Reverse((at_ns, index))| (Time(*at_ns), *index));
            let next = self.timed.peek_next_event();
            let is_before = |(time, moment): &(Time, SimulationEvent), arrival: Time| match moment {
                SimulationEvent::End(_) => *time <= arrival,
                SimulationEvent::Wakeup => *time < arrival,
            };
            let Ok(()) = match (next, arrival) {
                (Some(next), None) => self.pass(next),
                (Some(next), Some((time, _))) if is_before(&next, time) => self.pass(next),
                (_, Some((time, index))) => {
                    self.load.due.pop();
                    self.timed.now = time;
                    self.step(SchedulerEvent::Enqueue(self.describe(index)))
                }
                (None, None) => return,
            };
        }
    }

    fn describe(&self, index: usize) -> RequestInfo {
        let arrival = &self.load.arrivals[index];
        RequestInfo {
            key: RequestKey(index as u64),
            batch_size: arrival.rows,
            shape_class: ShapeClassId(arrival.shape),
            priority: arrival.priority,
            timeout_ns: arrival.timeout_ns,
            deadline: Time(arrival.at_ns).saturating_add(arrival.deadline_ns),
            length: arrival.padded_length.unwrap_or(arrival.length),
            sequence: None,
        }
    }
}

impl<D: FnMut(Execution) -> u64> SimulationWorld for SimulatedRun<D> {
    type Broken = Infallible;

    fn timed(&mut self) -> &mut SchedulerSimulation {
        &mut self.timed
    }

    fn begin(&mut self, instance: InstanceId, batch: &Batch) -> Result<u64, Infallible> {
        let index = |key: RequestKey| usize::try_from(key.0).expect("keys are indices");
        let requests: Vec<usize> =
            batch.entries().iter().filter_map(|entry| entry.request().map(index)).collect();
        let busy = u32::try_from(self.timed.busy_count()).unwrap_or(u32::MAX).saturating_add(1);
        let lengths = requests.iter().map(|index| self.load.arrivals[*index].length);
        let (rows, length) = (batch.batch_size(), lengths.max().unwrap_or(0));
        let takes_ns = (self.duration_ns)(Execution { rows, length, busy });
        self.running.insert(instance, requests);
        self.report.execute(rows, batch.close_reason().name(), takes_ns);
        Ok(takes_ns)
    }

    fn end(&mut self, instance: InstanceId) {
        let now = self.timed.now.0;
        for index in self.running.remove(&instance).unwrap_or_default() {
            let arrival = &self.load.arrivals[index];
            self.report.answer(now, now - arrival.at_ns, arrival.deadline_ns);
            self.load.send_next(now);
        }
    }

    fn fail(
        &mut self,
        event: &SchedulerEvent,
        key: RequestKey,
        reason: FailReason,
    ) -> Result<(), Infallible> {
        self.report.refuse(reason.name());
        let is_new = matches!(event, SchedulerEvent::Enqueue(info) if info.key == key);
        self.report.refused_at_once += u64::from(is_new);
        self.load.send_next(self.timed.now.0);
        Ok(())
    }

    /// Ignores the action, because there are no permits, no sequences and no driver to notify.
    fn notice(&mut self, _: &SchedulerAction) -> Result<(), Infallible> {
        Ok(())
    }

    fn settle(&mut self, _: &SchedulerEvent) -> Result<(), Infallible> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use galatea_policy::{DeadlineBatcherSpec, DynamicBatcherSpec, SchedulingMode};

    use super::*;

    fn spec(max_batch_size: u32, mode: SchedulingMode) -> SchedulingSpec {
        SchedulingSpec { max_batch_size, mode, hold_until_queued: 0, hold_until_backlogged: 0 }
    }

    #[test]
    fn a_batch_takes_what_waits_and_the_report_adds_up() {
        let dynamic = spec(8, SchedulingMode::Dynamic(DynamicBatcherSpec::default()));
        let mut arrivals = vec![Arrival::at(0); 10];
        arrivals[9].deadline_ns = 150;
        let report =
            simulate_open_loop(&dynamic, 1, &arrivals, |batch| 100 * u64::from(batch.busy));
        assert_eq!(report.batches, BTreeMap::from([(1, 2), (8, 1)]));
        assert_eq!((report.in_time, report.late, report.refused), (9, 1, 0));
        assert_eq!((report.quantile_ns(0.5), report.quantile_ns(1.0)), (200, 300));
        assert_eq!(report.ended_ns, 300);
    }

    #[test]
    fn clients_wait_for_their_answers() {
        let single = spec(1, SchedulingMode::Default);
        let clients = ClosedLoopClients::new(3, vec![10]);
        // All requests seem to arrive at once, which isn't possible with three clients.
        let report = simulate_clients(&single, 1, &[Arrival::at(0); 300], &clients, |_| 100);
        assert_eq!((report.answered(), report.executions()), (300, 300));
        assert!(report.quantile_ns(1.0) <= 300, "{report:?}");
        assert_eq!(report.ended_ns, 10 + 300 * 100);
        let none = simulate_clients(&single, 1, &[], &clients, |_| 100);
        assert_eq!(none.answered(), 0);
    }

    #[test]
    fn what_would_be_late_is_refused() {
        let objective_ns = 250;
        let queue = DynamicBatcherSpec::default();
        let deadline =
            spec(1, SchedulingMode::Deadline(DeadlineBatcherSpec { objective_ns, queue }));
        let arrivals: Vec<Arrival> = (0..1000)
            .map(|number| Arrival { deadline_ns: 250, ..Arrival::at(number * 50) })
            .collect();
        let report = simulate_open_loop(&deadline, 1, &arrivals, |_| 100);
        assert_eq!(report.late, 0, "{report:?}");
        assert!((495..=503).contains(&report.in_time), "{report:?}");
    }
}
