use super::*;
use crate::ids::{RequestKey, ShapeClassId};
use crate::scheduler::Scheduler;
use crate::spec::{SchedulingMode, SchedulingSpec};
use crate::tuned::PASSED_OVER_MAX;
use crate::{
    QueuePolicy, QueueWaitReason, SchedulerAction, SchedulerActions, SchedulerEvent, TimeoutAction,
};

const LANE: InstanceId = InstanceId(0);

/// Returns the duration of an execution: a fixed part plus a part for each padded element.
fn takes_ns(rows: u32, length: u32) -> u64 {
    2_000 + 100 * u64::from(rows) * u64::from(length)
}

/// A scheduler with one instance. Requests are numbered from 1.
struct World {
    scheduler: Scheduler,
    now: Time,
    /// The lengths by key, from 1.
    lengths: Vec<u32>,
    /// The instance's current execution: the request numbers and the end time.
    running: Option<(Vec<u64>, Time)>,
    reason: Option<CloseReason>,
    failed: Vec<u64>,
}

impl World {
    fn new(spec: DynamicBatcherSpec, budget: u64) -> Self {
        let mode = SchedulingMode::Dynamic(DynamicBatcherSpec {
            padding: Some(PaddingSpec { budget }),
            ..spec
        });
        let scheduler = Scheduler::new(SchedulingSpec {
            max_batch_size: 8,
            mode,
            hold_until_queued: 0,
            hold_until_backlogged: 0,
        });
        let (lengths, failed) = (vec![0], Vec::new());
        let mut world =
            World { scheduler, now: Time(0), lengths, running: None, reason: None, failed };
        world.step(SchedulerEvent::AddInstance(LANE));
        world
    }

    /// Creates a scheduler with known execution costs.
    fn experienced(spec: DynamicBatcherSpec, budget: u64) -> Self {
        let mut world = World::new(spec, budget);
        for length in [4, 8, 16, 32, 64, 128, 256, 512, 1024] {
            for _ in 0..4 {
                world.arrive(length);
                world.let_the_delay_pass();
                world.finish();
            }
        }
        world.lengths.truncate(1);
        world
    }

    fn let_the_delay_pass(&mut self) {
        if let (None, Some(until)) = (&self.running, self.scheduler.next_wakeup()) {
            self.now = until;
            self.step(SchedulerEvent::Tick);
        }
    }

    fn step(&mut self, event: SchedulerEvent) {
        let mut out = SchedulerActions::default();
        self.scheduler.step(self.now, event, &mut out);
        for action in out.drain() {
            match action {
                SchedulerAction::Dispatch { batch, .. } => {
                    let keys: Vec<u64> = batch
                        .entries()
                        .iter()
                        .filter_map(|one| one.request())
                        .map(|key| key.0)
                        .collect();
                    let length = keys.iter().map(|key| self.lengths[*key as usize]).max().unwrap();
                    let ends = self.now.saturating_add(takes_ns(batch.batch_size(), length));
                    self.running = Some((keys, ends));
                    self.reason = Some(batch.close_reason());
                }
                SchedulerAction::Fail { key, .. } => self.failed.push(key.0),
                other => panic!("{other:?}"),
            }
        }
    }

    fn arrive_with(&mut self, length: u32, class: u32, priority: u64) {
        let key = RequestKey(self.lengths.len() as u64);
        self.lengths.push(length);
        self.now = self.now.saturating_add(1);
        self.step(SchedulerEvent::Enqueue(RequestInfo {
            key,
            batch_size: 1,
            shape_class: ShapeClassId(class),
            priority,
            timeout_ns: 0,
            deadline: Time::MAX,
            length,
            sequence: None,
        }));
    }

    fn arrive(&mut self, length: u32) {
        self.arrive_with(length, 0, 0);
    }

    /// Ends the execution and returns its requests.
    fn finish(&mut self) -> Vec<u64> {
        let (mut keys, ends) = self.running.take().expect("the instance is busy");
        self.now = self.now.max(ends);
        self.step(SchedulerEvent::LaneFree(LANE));
        keys.sort_unstable();
        keys
    }

    /// Queues requests of these lengths behind one of length 64 and returns the batches in which
    /// they execute.
    fn batches(&mut self, lengths: &[u32]) -> Vec<Vec<u64>> {
        self.arrive(64);
        lengths.iter().for_each(|length| self.arrive(*length));
        self.finish();
        std::iter::from_fn(|| self.running.is_some().then(|| self.finish())).collect()
    }
}

#[test]
fn the_oldest_request_gets_companions_of_its_length() {
    let mut world = World::experienced(DynamicBatcherSpec::default(), u64::MAX);
    // Request 1 occupies the instance.
    let batches = world.batches(&[10, 30, 11, 28, 12]);
    assert_eq!(batches, [vec![2, 4, 6], vec![3, 5]]);
}

/// Batches of such long requests save only 2 % of their time, which doesn't justify making a
/// younger or older request wait.
#[test]
fn without_a_gain_the_order_of_arrival_holds() {
    let mut world = World::experienced(DynamicBatcherSpec::default(), u64::MAX);
    let batches = world.batches(&[500, 900, 510, 890]);
    assert_eq!(batches, [vec![2], vec![3], vec![4], vec![5]]);
    assert_eq!(world.reason, Some(CloseReason::InstanceIdle));
}

#[test]
fn without_experience_requests_execute_alone() {
    let mut world = World::new(DynamicBatcherSpec::default(), u64::MAX);
    assert_eq!(world.batches(&[10, 10, 10]), [vec![2], vec![3], vec![4]]);
    assert_eq!(world.reason, Some(CloseReason::Cost));
}

#[test]
fn batches_stay_within_the_budget_and_the_maximum() {
    let mut world = World::experienced(DynamicBatcherSpec::default(), 30);
    assert_eq!(world.batches(&[10; 5]), [vec![2, 3, 4], vec![5, 6]]);
    let mut world = World::experienced(DynamicBatcherSpec::default(), 9);
    assert_eq!(world.batches(&[10; 2]), [vec![2], vec![3]]);
    let mut world = World::experienced(DynamicBatcherSpec::default(), u64::MAX);
    assert_eq!(world.batches(&[10; 9]), [(2..=9).collect(), vec![10]]);
}

#[test]
fn a_batch_says_why_it_has_no_more_requests() {
    let reason = |lengths: &[u32], budget| {
        let mut world = World::experienced(DynamicBatcherSpec::default(), budget);
        world.arrive(64);
        lengths.iter().for_each(|length| world.arrive(*length));
        world.finish();
        world.reason.unwrap()
    };
    assert_eq!(reason(&[10, 10], u64::MAX), CloseReason::InstanceIdle);
    assert_eq!(reason(&[10; 9], u64::MAX), CloseReason::MaxSize);
    assert_eq!(reason(&[10; 9], 30), CloseReason::Budget);
    assert_eq!(reason(&[10, 200], u64::MAX), CloseReason::Cost);
}

#[test]
fn a_request_is_passed_over_a_limited_number_of_times() {
    let mut world = World::experienced(DynamicBatcherSpec::default(), u64::MAX);
    world.arrive(64);
    // In each pair, the first request is long, and the second fits the first request of the queue.
    for _ in 0..3 {
        world.arrive(10);
    }
    world.arrive(1000);
    let unlucky = world.lengths.len() as u64 - 1;
    let mut passed_over = 0;
    loop {
        // An older, short request is always waiting.
        world.arrive(10);
        world.arrive(10);
        let batch = world.finish();
        if batch.contains(&unlucky) {
            break;
        }
        passed_over += u32::from(batch.iter().any(|key| *key > unlucky));
        assert!(passed_over <= PASSED_OVER_MAX);
    }
}

#[test]
fn shape_classes_and_levels_are_not_mixed() {
    let levels = DynamicBatcherSpec {
        priority_levels: 2,
        default_priority_level: 2,
        ..DynamicBatcherSpec::default()
    };
    let mut world = World::experienced(levels, u64::MAX);
    world.arrive(64);
    for (class, priority) in [(0, 2), (1, 2), (0, 2), (0, 1), (1, 2), (0, 1)] {
        world.arrive_with(10, class, priority);
    }
    world.finish();
    assert_eq!(world.finish(), [5, 7]);
    assert_eq!(world.finish(), [2, 4]);
    assert_eq!(world.reason, Some(CloseReason::InstanceIdle));
    assert_eq!(world.finish(), [3, 6]);
}

#[test]
fn a_batch_that_would_gain_waits_for_the_delay() {
    let spec = DynamicBatcherSpec { max_queue_delay_ns: 500, ..DynamicBatcherSpec::default() };
    let mut world = World::experienced(spec, 30);
    world.arrive(10);
    let arrived = world.now;
    assert!(world.running.is_none());
    assert_eq!(world.scheduler.next_wakeup(), Some(arrived.saturating_add(500)));
    let waits_for = world.scheduler.status().queues[0].waits_for;
    assert!(matches!(waits_for, QueueWaitReason::BatchDelay { pending_batch_size: 1, .. }));
    world.arrive(10);
    assert!(world.running.is_none());
    world.now = arrived.saturating_add(500);
    world.step(SchedulerEvent::Tick);
    assert_eq!(world.finish(), [1, 2]);
    assert_eq!(world.reason, Some(CloseReason::Delay));
    // A third request would exceed the budget, so waiting is pointless.
    world.arrive(15);
    world.arrive(15);
    assert_eq!(world.finish(), [3, 4]);
    assert_eq!(world.reason, Some(CloseReason::Budget));
    world.arrive(10);
    world.step(SchedulerEvent::Drain);
    assert_eq!(world.reason, Some(CloseReason::Unloading));
}

#[test]
fn delayed_requests_are_served_behind_the_others_of_their_level() {
    let default_queue_policy = QueuePolicy {
        timeout_action: TimeoutAction::Delay,
        default_timeout_ns: 5,
        ..QueuePolicy::default()
    };
    let spec = DynamicBatcherSpec { default_queue_policy, ..DynamicBatcherSpec::default() };
    let mut world = World::experienced(spec, u64::MAX);
    world.arrive(64);
    world.arrive(10);
    world.now = world.now.saturating_add(2_000);
    world.arrive(10);
    world.running.as_mut().unwrap().1 = world.now;
    world.finish();
    assert_eq!(world.finish(), [3]);
    assert_eq!(world.finish(), [2]);
}

#[test]
fn extreme_lengths_do_not_overflow() {
    let mut world = World::experienced(DynamicBatcherSpec::default(), u64::MAX);
    world.arrive(64);
    for length in [0, u32::MAX, 0, u32::MAX] {
        world.lengths.push(length);
    }
    world.lengths.truncate(2);
    world.arrive(0);
    world.arrive(0);
    world.finish();
    world.finish();
    assert_eq!(world.failed, []);
}
