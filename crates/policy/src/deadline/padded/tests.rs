use crate::event::{FailReason, SchedulerAction, SchedulerActions, SchedulerEvent};
use crate::ids::{InstanceId, RequestInfo, RequestKey, ShapeClassId};
use crate::scheduler::Scheduler;
use crate::spec::{
    DeadlineBatcherSpec, DynamicBatcherSpec, PaddingSpec, SchedulingMode, SchedulingSpec,
};
use crate::time::Time;

/// Returns the duration of an execution: a fixed part plus a part for each padded element.
fn takes_ns(rows: u32, length: u32) -> u64 {
    100_000 + 1_000 * u64::from(rows) * u64::from(length)
}

/// A batch that an instance is executing.
#[derive(Clone, Debug)]
struct Running {
    keys: Vec<u64>,
    ends: Time,
}

/// A scheduler with instances and requests numbered from 1.
struct World {
    scheduler: Scheduler,
    now: Time,
    /// The lengths by key, from 1.
    lengths: Vec<u32>,
    running: Vec<Option<Running>>,
    refused: Vec<u64>,
}

impl World {
    fn new(instances: u32) -> Self {
        let padding = Some(PaddingSpec { budget: u64::MAX });
        let queue = DynamicBatcherSpec { padding, ..DynamicBatcherSpec::default() };
        let scheduler = Scheduler::new(SchedulingSpec {
            max_batch_size: 16,
            mode: SchedulingMode::Deadline(DeadlineBatcherSpec { objective_ns: u64::MAX, queue }),
            hold_until_queued: 0,
            hold_until_backlogged: 0,
        });
        let running = vec![None; instances as usize];
        let (lengths, refused) = (vec![0], Vec::new());
        let mut world = World { scheduler, now: Time(0), lengths, running, refused };
        (0..instances).for_each(|id| world.step(SchedulerEvent::AddInstance(InstanceId(id))));
        world
    }

    /// Creates a scheduler with known execution costs. Its first instance is busy with request 1
    /// for 164 µs, and each further instance is busy for another 10 µs.
    fn experienced(instances: u32) -> Self {
        let mut world = World::new(instances);
        for length in [4, 8, 16, 32, 64, 128, 256, 512, 1024] {
            for _ in 0..4 {
                world.arrive(length, None);
                world.finish();
            }
        }
        world.lengths.truncate(1);
        (0..instances).for_each(|id| world.arrive(64 + 10 * id, None));
        world
    }

    fn step(&mut self, event: SchedulerEvent) {
        let mut out = SchedulerActions::default();
        self.scheduler.step(self.now, event, &mut out);
        for action in out.drain() {
            match action {
                SchedulerAction::Dispatch { instance, batch } => {
                    let requests = batch.entries().iter().filter_map(|one| one.request());
                    let keys: Vec<u64> = requests.map(|key| key.0).collect();
                    let length = keys.iter().map(|key| self.lengths[*key as usize]).max().unwrap();
                    let ends = self.now.saturating_add(takes_ns(batch.batch_size(), length));
                    self.running[instance.0 as usize] = Some(Running { keys, ends });
                }
                SchedulerAction::Fail { key, reason: FailReason::TooLate { .. } } => {
                    self.refused.push(key.0);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Adds a request of this length, with a deadline this many microseconds from now.
    fn arrive(&mut self, length: u32, within_us: Option<u64>) {
        let key = RequestKey(self.lengths.len() as u64);
        self.lengths.push(length);
        let deadline = within_us.map_or(Time::MAX, |us| self.now.saturating_add(us * 1_000));
        self.step(SchedulerEvent::Enqueue(RequestInfo {
            key,
            batch_size: 1,
            shape_class: ShapeClassId(0),
            priority: 0,
            timeout_ns: 0,
            deadline,
            length,
            sequence: None,
        }));
    }

    /// Ends the next execution to finish and returns its requests.
    fn finish(&mut self) -> Option<Vec<u64>> {
        let ends = |(id, one): (usize, &Option<Running>)| Some((one.as_ref()?.ends, id));
        let (end, id) = self.running.iter().enumerate().filter_map(ends).min()?;
        self.now = end;
        let ended = self.running[id].take()?;
        self.step(SchedulerEvent::LaneFree(InstanceId(id as u32)));
        Some(ended.keys)
    }

    /// Returns the batches in the order in which they end.
    fn batches(&mut self) -> Vec<Vec<u64>> {
        std::iter::from_fn(|| self.finish()).collect()
    }
}

#[test]
fn the_earliest_deadline_is_served_first_with_companions_of_its_length() {
    let mut world = World::experienced(1);
    for (length, within_us) in
        [(10, 90_000), (200, 60_000), (11, 50_000), (190, 70_000), (12, 80_000)]
    {
        world.arrive(length, Some(within_us));
    }
    assert_eq!(world.batches(), [vec![1], vec![4, 6, 2], vec![3, 5]]);
    assert_eq!(world.refused, []);
}

/// The instance is free after 164 µs, and the request takes 300 µs.
#[test]
fn what_would_be_answered_too_late_is_refused_on_arrival() {
    let mut world = World::experienced(1);
    world.arrive(200, Some(420));
    assert_eq!(world.refused, [2]);
    world.arrive(200, Some(510));
    assert_eq!(world.refused, [2]);
    // The deadlines of longer requests are later.
    world.arrive(1000, Some(800));
    assert_eq!(world.refused, [2, 4]);
    assert_eq!(world.batches(), [[1], [3]]);
}

/// Seven rows of length 60 take 520 µs. Until more is known, executions may take a quarter longer.
#[test]
fn a_batch_ends_before_the_earliest_deadline_in_it() {
    let mut world = World::experienced(1);
    world.arrive(60, Some(164 + 710));
    (0..9).for_each(|_| world.arrive(60, Some(50_000)));
    let sizes: Vec<usize> = world.batches().iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, 7, 3]);
    assert_eq!(world.refused, []);
}

/// Without request 3, all ten rows of length 60 share a batch, which takes 700 µs.
#[test]
fn a_batch_leaves_a_request_of_another_length_its_time() {
    for (within_us, sizes) in [(1_250, vec![1, 5, 1, 5]), (50_000, vec![1, 10, 1])] {
        let mut world = World::experienced(1);
        world.arrive(60, Some(164 + 1_000));
        world.arrive(512, Some(164 + within_us));
        (0..9).for_each(|_| world.arrive(60, Some(50_000)));
        let batches = world.batches();
        assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), sizes);
        assert_eq!((&batches[2][..], &world.refused[..]), (&[3][..], &[][..]));
    }
}

#[test]
fn a_batch_is_not_cut_for_a_request_that_another_instance_has_time_for() {
    let mut world = World::experienced(2);
    world.arrive(60, Some(164 + 1_000));
    world.arrive(512, Some(164 + 1_250));
    (0..9).for_each(|_| world.arrive(60, Some(50_000)));
    let sizes: Vec<usize> = world.batches().iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, 1, 1, 10]);
    assert_eq!(world.refused, []);
}

/// Request 2 has no deadline. Whenever a batch ends, another request with a deadline arrives.
#[test]
fn a_request_without_a_deadline_is_passed_over_16_times() {
    let mut world = World::experienced(1);
    world.arrive(1024, None);
    let mut batches = Vec::new();
    while !batches.contains(&vec![2]) {
        assert!(batches.len() < 20, "{batches:?}");
        world.arrive(8, Some(2_000));
        batches.extend(world.finish());
    }
    assert_eq!(batches.len(), 1 + 16 + 1);
    assert_eq!(world.refused, []);
}
