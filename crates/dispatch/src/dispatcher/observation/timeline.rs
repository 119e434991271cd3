//! The latest executions of each instance, recorded while watchers are present.
//!
//! A dispatcher has a timeline only during that time. The amount of stored data is limited, and its
//! memory is allocated in advance.
//!
//! A fast model executes more often than can be displayed, so an instance's executions that begin
//! and end within [`RESOLUTION_NS`] are merged into one entry.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use galatea_control::{BatchCloseReasons, ExecutionInterval, InstanceActivity};
use galatea_policy::{CloseReason, InstanceId, Time};

use super::{ClosingBatch, Observation, View};

/// The maximum number of executions per instance kept until watchers read them, covering about a
/// second.
const WATCHED_EXECUTIONS_MAX: usize = 1024;

/// The period within which executions are shown as one. A screen shows a few seconds in a thousand
/// columns.
const RESOLUTION_NS: u64 = 2_000_000;

/// The recent executions of a dispatcher's instances.
#[derive(Debug)]
pub(in crate::dispatcher) struct Timeline {
    /// The zero point of execution times, on the dispatcher's clock.
    epoch: Instant,
    rows: BTreeMap<InstanceId, InstanceTimeline>,
}

/// One instance's executions.
#[derive(Debug)]
struct InstanceTimeline {
    current: Option<TimelineEntry>,
    ended: VecDeque<TimelineEntry>,
    lost: u64,
}

/// One execution, or several short ones.
#[derive(Copy, Clone, Debug)]
struct TimelineEntry {
    begin: Time,
    end: Time,
    count: u32,
    batch_size: u32,
    busy_ns: u64,
    waited: Duration,
    reasons: BatchCloseReasons,
}

impl View for Timeline {
    fn observe(&mut self, now: Time, observation: &Observation<'_>) {
        match observation {
            Observation::Closed(closing) => self.begin(now, closing),
            Observation::Freed(instance) => self.end(*instance, now),
            Observation::Queued(_)
            | Observation::Failed(..)
            | Observation::Stepped(_)
            | Observation::Dropped => {}
        }
    }
}

impl Timeline {
    /// A timeline without instances.
    pub(in crate::dispatcher) const fn new(epoch: Instant) -> Self {
        Self { epoch, rows: BTreeMap::new() }
    }

    /// Records the executions of exactly these instances from now on.
    pub(in crate::dispatcher) fn set_instances(
        &mut self,
        instances: impl Iterator<Item = InstanceId>,
    ) {
        let mut left = std::mem::take(&mut self.rows);
        for instance in instances {
            let row = left.remove(&instance).unwrap_or_else(InstanceTimeline::new);
            self.rows.insert(instance, row);
        }
    }

    fn begin(&mut self, now: Time, closing: &ClosingBatch<'_>) {
        let Some(row) = self.rows.get_mut(&closing.instance) else { return };
        let at = self.epoch + Duration::from_nanos(now.0);
        let waited = |queued| at.saturating_duration_since(queued);
        let number = CloseReason::ALL.iter().position(|reason| *reason == closing.reason);
        row.current = Some(TimelineEntry {
            begin: now,
            end: now,
            count: 1,
            batch_size: closing.rows,
            busy_ns: 0,
            waited: closing.oldest.map_or(Duration::ZERO, waited),
            reasons: BatchCloseReasons::only(number.unwrap_or(usize::MAX)),
        });
    }

    fn end(&mut self, instance: InstanceId, now: Time) {
        let Some(row) = self.rows.get_mut(&instance) else { return };
        if let Some(current) = row.current.take() {
            let busy_ns = now.saturating_since(current.begin);
            row.add(TimelineEntry { end: now, busy_ns, ..current });
        }
    }

    /// Takes the executions that have ended, and reports those in progress. Times are relative to
    /// `start`.
    pub(in crate::dispatcher) fn take(
        &mut self,
        start: Instant,
        now: Time,
        names: &BTreeMap<InstanceId, String>,
    ) -> Vec<InstanceActivity> {
        let epoch = self.epoch;
        let shown = |entry: TimelineEntry| entry.shown(epoch, start);
        let instances = names.iter().map(|(instance, name)| {
            let Some(row) = self.rows.get_mut(instance) else {
                return InstanceActivity { name: name.clone(), ..InstanceActivity::default() };
            };
            let going_on = |entry: TimelineEntry| {
                let busy_ns = now.saturating_since(entry.begin);
                shown(TimelineEntry { end: now, busy_ns, ..entry })
            };
            InstanceActivity {
                name: name.clone(),
                current: row.current.map(going_on),
                ended: row.ended.drain(..).map(shown).collect(),
                lost: std::mem::take(&mut row.lost),
            }
        });
        instances.collect()
    }
}

impl InstanceTimeline {
    fn new() -> Self {
        let ended = VecDeque::with_capacity(WATCHED_EXECUTIONS_MAX);
        Self { current: None, ended, lost: 0 }
    }

    fn add(&mut self, entry: TimelineEntry) {
        if let Some(last) = self.ended.back_mut()
            && entry.end.saturating_since(last.begin) <= RESOLUTION_NS
        {
            return last.join(&entry);
        }
        if self.ended.len() >= WATCHED_EXECUTIONS_MAX {
            let oldest = self.ended.pop_front();
            self.lost += oldest.map_or(0, |oldest| u64::from(oldest.count));
        }
        self.ended.push_back(entry);
    }
}

impl TimelineEntry {
    fn join(&mut self, later: &Self) {
        self.end = later.end;
        self.count = self.count.saturating_add(later.count);
        self.batch_size = self.batch_size.saturating_add(later.batch_size);
        self.busy_ns = self.busy_ns.saturating_add(later.busy_ns);
        self.waited = self.waited.max(later.waited);
        self.reasons = self.reasons.union(later.reasons);
    }

    fn shown(self, epoch: Instant, start: Instant) -> ExecutionInterval {
        let at =
            |time: Time| (epoch + Duration::from_nanos(time.0)).saturating_duration_since(start);
        ExecutionInterval {
            begin: at(self.begin),
            end: at(self.end),
            count: self.count,
            batch_size: self.batch_size,
            busy: Duration::from_nanos(self.busy_ns),
            waited: self.waited,
            reasons: self.reasons,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: InstanceId = InstanceId(1);

    fn closing(rows: u32, reason: CloseReason) -> ClosingBatch<'static> {
        ClosingBatch {
            instance: ONE,
            entries: &[],
            rows,
            reason,
            left: 0,
            is_first: false,
            oldest: None,
        }
    }

    fn micros(count: u64) -> Time {
        Time(count * 1_000)
    }

    fn bit(reason: CloseReason) -> u16 {
        1 << CloseReason::ALL.iter().position(|known| *known == reason).unwrap()
    }

    struct Recorded {
        epoch: Instant,
        timeline: Timeline,
        names: BTreeMap<InstanceId, String>,
    }

    impl Recorded {
        fn new() -> Self {
            let epoch = Instant::now();
            let mut timeline = Timeline::new(epoch);
            timeline.set_instances([ONE].into_iter());
            Self { epoch, timeline, names: BTreeMap::from([(ONE, String::from("m_0_1"))]) }
        }

        fn execute(&mut self, begin: u64, end: u64, reason: CloseReason) {
            self.timeline.begin(micros(begin), &closing(2, reason));
            self.timeline.end(ONE, micros(end));
        }

        fn take(&mut self, now: u64) -> InstanceActivity {
            let taken = self.timeline.take(self.epoch, micros(now), &self.names);
            taken.into_iter().next().unwrap()
        }
    }

    #[test]
    fn an_execution_is_taken_once() {
        let mut recorded = Recorded::new();
        recorded.execute(10, 5_000, CloseReason::Delay);
        let taken = recorded.take(6_000);
        let [one] = taken.ended[..] else { panic!("{taken:?}") };
        assert_eq!(one.begin, Duration::from_micros(10));
        assert_eq!(one.end, Duration::from_micros(5_000));
        assert_eq!(one.busy, Duration::from_micros(4_990));
        assert_eq!(
            (one.count, one.batch_size, one.reasons.bits()),
            (1, 2, bit(CloseReason::Delay))
        );
        assert!(recorded.take(7_000).ended.is_empty());
    }

    #[test]
    fn an_execution_that_goes_on_grows() {
        let mut recorded = Recorded::new();
        recorded.timeline.begin(micros(100), &closing(4, CloseReason::MaxSize));
        for now in [200, 300] {
            let taken = recorded.take(now);
            let current = taken.current.unwrap();
            assert_eq!(current.busy, Duration::from_micros(now - 100));
            assert!(taken.ended.is_empty());
        }
        recorded.timeline.end(ONE, micros(400));
        let taken = recorded.take(500);
        assert_eq!((taken.current, taken.ended.len()), (None, 1));
    }

    #[test]
    fn short_executions_become_one_entry() {
        let mut recorded = Recorded::new();
        recorded.execute(0, 100, CloseReason::Delay);
        recorded.execute(500, 2_000, CloseReason::MaxSize);
        recorded.execute(2_000, 2_001, CloseReason::MaxSize);
        let taken = recorded.take(3_000).ended;
        let [first, second] = taken[..] else { panic!("{taken:?}") };
        assert_eq!((first.count, first.batch_size, second.count), (2, 4, 1));
        assert_eq!(first.busy, Duration::from_micros(1_600));
        let bits = bit(CloseReason::Delay) | bit(CloseReason::MaxSize);
        assert_eq!(first.reasons.bits(), bits);
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        let mut recorded = Recorded::new();
        let max = u64::try_from(WATCHED_EXECUTIONS_MAX).unwrap();
        for number in 0..max + 3 {
            recorded.execute(number * 10_000, number * 10_000 + 1, CloseReason::Delay);
        }
        let taken = recorded.take(0);
        assert_eq!((taken.ended.len(), taken.lost), (WATCHED_EXECUTIONS_MAX, 3));
        assert_eq!(taken.ended[0].begin, Duration::from_millis(30));
        assert_eq!(recorded.take(0).lost, 0);
        assert_eq!(recorded.timeline.rows[&ONE].ended.capacity(), WATCHED_EXECUTIONS_MAX);
    }

    #[test]
    fn the_longest_wait_counts() {
        let mut recorded = Recorded::new();
        let queued = recorded.epoch + Duration::from_micros(300);
        let late = ClosingBatch { oldest: Some(queued), ..closing(1, CloseReason::Unbatched) };
        recorded.timeline.begin(micros(1_000), &late);
        recorded.timeline.end(ONE, micros(1_001));
        recorded.execute(1_002, 1_003, CloseReason::Unbatched);
        assert_eq!(recorded.take(2_000).ended[0].waited, Duration::from_micros(700));
    }

    #[test]
    fn other_instances_are_not_recorded() {
        let mut recorded = Recorded::new();
        let other = ClosingBatch { instance: InstanceId(2), ..closing(1, CloseReason::Delay) };
        recorded.timeline.begin(micros(0), &other);
        recorded.timeline.end(InstanceId(2), micros(9_000));
        recorded.names.insert(InstanceId(2), String::from("m_0_2"));
        let taken = recorded.timeline.take(recorded.epoch, micros(1), &recorded.names);
        assert!(taken.iter().all(|instance| instance.ended.is_empty()), "{taken:?}");
        recorded.timeline.set_instances([InstanceId(2)].into_iter());
        assert_eq!(recorded.timeline.rows.len(), 1);
    }
}
