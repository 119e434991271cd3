use super::*;
use crate::batch_strategy::{BatchInclusion, BatchStrategy};
use crate::ids::ShapeClassId;
use crate::script::{check, play};
use crate::spec::{DynamicBatcherSpec, QueuePolicy, TimeoutAction};
use crate::status::{InstanceStatus, PriorityLevelStatus, QueueWaitReason};

fn dynamic(max_batch_size: u32, dynamic: DynamicBatcherSpec) -> SchedulingSpec {
    SchedulingSpec {
        max_batch_size,
        mode: SchedulingMode::Dynamic(dynamic),
        hold_until_queued: 0,
        hold_until_backlogged: 0,
    }
}

fn reject_after(default_timeout_ns: u64) -> QueuePolicy {
    QueuePolicy { default_timeout_ns, ..QueuePolicy::default() }
}

#[test]
fn the_default_scheduler_never_merges() {
    let spec = SchedulingSpec {
        max_batch_size: 8,
        mode: SchedulingMode::Default,
        hold_until_queued: 0,
        hold_until_backlogged: 0,
    };
    check(
        spec,
        "0 request 1 rows=8 priority=3 timeout=1 -> ; never
         0 request 2 rows=1 priority=1 -> ; never
         5 add 0 -> run 1 on 0
         6 request 3 -> ; never
         7 free 0 -> run 2 on 0
         8 free 0 -> run 3 on 0",
    );
}

#[test]
fn a_preferred_size_is_dispatched_within_the_delay_and_the_rest_after_it() {
    let settings = DynamicBatcherSpec {
        preferred_batch_sizes: vec![2],
        max_queue_delay_ns: 100,
        ..DynamicBatcherSpec::default()
    };
    check(
        dynamic(4, settings),
        "0 add 0 -> ; never
         0 add 1 -> ; never
         10 request 1 -> ; 110
         20 request 2 -> run 1+2 on 1; never
         30 request 3 -> ; 130
         129 tick -> ; 130
         130 tick -> run 3 on 0; never",
    );
}

#[test]
// row: DYN-21
fn a_batch_closes_when_a_lane_is_free_with_all_requests_until_then() {
    check(
        dynamic(4, DynamicBatcherSpec::default()),
        "0 add 0 -> ; never
         1 request 1 -> run 1 on 0; never
         2 request 2 -> ; never
         3 request 3 -> ; never
         4 request 4 rows=3 -> ; never
         5 request 5 key=7 -> ; never
         6 free 0 -> run 2+3 on 0
         7 free 0 -> run 4 on 0
         8 free 0 -> run 5 on 0",
    );
}

#[test]
// row: DYN-21
fn one_step_fills_all_free_lanes() {
    let settings = DynamicBatcherSpec { max_queue_delay_ns: 100, ..DynamicBatcherSpec::default() };
    check(
        SchedulingSpec { hold_until_queued: 5, ..dynamic(2, settings) },
        "0 add 0 -> ; never
         0 add 1 -> ; never
         0 add 2 -> ; never
         1 request 1 -> ; never
         2 request 2 -> ; never
         3 request 3 -> ; never
         4 request 4 -> ; never
         5 request 5 -> run 1+2 on 2, run 3+4 on 1; 105
         105 tick -> run 5 on 0",
    );
}

#[test]
fn an_expired_request_is_rejected_at_once_even_without_a_lane() {
    let settings = DynamicBatcherSpec {
        default_queue_policy: reject_after(10),
        ..DynamicBatcherSpec::default()
    };
    check(
        dynamic(4, settings),
        "0 request 1 -> ; 10
         3 request 2 -> ; 10
         9 tick -> ; 10
         10 tick -> fail 1 TimeoutExpired; 13
         13 add 0 -> fail 2 TimeoutExpired; never",
    );
}

#[test]
fn a_rejection_precedes_the_end_of_a_delay_at_the_same_time() {
    let settings = DynamicBatcherSpec {
        max_queue_delay_ns: 10,
        default_queue_policy: reject_after(10),
        ..DynamicBatcherSpec::default()
    };
    check(
        dynamic(4, settings),
        "0 add 0 -> \n 0 request 1 -> ; 10 \n 10 tick -> fail 1 TimeoutExpired; never",
    );
}

/// No preferred size is reached if 1 row precedes 2, but one is in the reverse order.
#[test]
fn moving_back_sets_a_wake_up_only_when_a_lane_is_free() {
    let policy = QueuePolicy { timeout_action: TimeoutAction::Delay, ..reject_after(10) };
    let settings = DynamicBatcherSpec {
        preferred_batch_sizes: vec![2, 8],
        max_queue_delay_ns: 50,
        default_queue_policy: policy,
        ..DynamicBatcherSpec::default()
    };
    check(
        dynamic(8, settings.clone()),
        "0 add 0 ->
         0 request 1 -> ; 10
         5 request 2 rows=2 -> ; 10
         10 tick -> run 2 on 0; never",
    );
    check(
        dynamic(8, settings),
        "0 request 1 -> ; never
         5 request 2 rows=2 -> ; never
         10 add 0 -> run 2 on 0; never
         11 request 3 -> ; never
         12 free 0 -> run 3+1 on 0; never",
    );
}

#[test]
fn an_expired_request_makes_room_in_a_full_queue() {
    let policy = QueuePolicy { max_queue_size: 1, ..reject_after(10) };
    check(
        dynamic(
            4,
            DynamicBatcherSpec { default_queue_policy: policy, ..DynamicBatcherSpec::default() },
        ),
        "0 request 1 -> ; 10
         9 request 2 -> fail 2 QueueFull
         10 request 3 -> fail 1 TimeoutExpired; 20
         11 add 0 -> run 3 on 0",
    );
}

#[test]
fn cancellation_works_while_queued_and_is_ignored_later() {
    let settings = DynamicBatcherSpec { max_queue_delay_ns: 100, ..DynamicBatcherSpec::default() };
    check(
        dynamic(2, settings),
        "0 add 0 -> ; never
         1 request 1 -> ; 101
         2 cancel 1 -> fail 1 Cancelled; never
         3 cancel 1 -> ; never
         4 request 1 -> ; 104
         5 request 2 -> run 1+2 on 0
         6 cancel 2 -> ; never",
    );
}

#[test]
fn requests_around_a_cancelled_one_may_form_a_batch() {
    let settings = DynamicBatcherSpec {
        max_queue_delay_ns: 100,
        preferred_batch_sizes: vec![2, 8],
        ..DynamicBatcherSpec::default()
    };
    check(
        dynamic(8, settings),
        "0 request 1 -> 
         0 request 2 key=1 ->
         0 request 3 ->
         0 cancel 2 -> fail 2 Cancelled
         1 add 0 -> run 1+3 on 0",
    );
}

#[test]
fn draining_runs_queued_requests_refuses_new_ones_and_ends_once() {
    let settings = DynamicBatcherSpec { max_queue_delay_ns: 100, ..DynamicBatcherSpec::default() };
    check(
        dynamic(2, settings),
        "0 add 0 -> 
         1 request 1 -> ; 101
         2 drain -> run 1 on 0; never
         3 request 2 -> fail 2 Draining
         3 drain ->
         4 free 0 -> drained
         5 request 3 -> fail 3 Draining
         6 remove 0 -> removed 0
         7 drain -> ",
    );
    check(dynamic(2, DynamicBatcherSpec::default()), "0 drain -> drained");
}

#[test]
fn draining_waits_for_requests_without_a_lane() {
    check(
        SchedulingSpec { hold_until_queued: 9, ..dynamic(1, DynamicBatcherSpec::default()) },
        "0 request 1 -> 
         0 request 2 ->
         0 drain ->
         1 add 0 -> run 1 on 0
         2 remove 0 ->
         3 free 0 -> removed 0
         4 cancel 2 -> fail 2 Cancelled, drained",
    );
}

/// The hook counts arrivals, so that a rejected request doesn't make the others wait forever.
#[test]
// row: DYN-22
fn the_test_hook_holds_until_enough_requests_arrived() {
    let settings = DynamicBatcherSpec {
        default_queue_policy: reject_after(10),
        ..DynamicBatcherSpec::default()
    };
    let held = check(
        SchedulingSpec { hold_until_queued: 3, ..dynamic(4, settings) },
        "0 add 0 -> 
         0 request 1 -> ; 10
         5 request 2 -> ; 10
         10 tick -> fail 1 TimeoutExpired; 15",
    );
    assert_eq!(held.status().queues[0].waits_for, QueueWaitReason::Hold { missing: 1 });
    let settings = DynamicBatcherSpec {
        default_queue_policy: reject_after(10),
        ..DynamicBatcherSpec::default()
    };
    check(
        SchedulingSpec { hold_until_queued: 3, ..dynamic(4, settings) },
        "0 add 0 -> 
         0 request 1 ->
         5 request 2 ->
         10 tick -> fail 1 TimeoutExpired
         11 request 3 -> run 2+3 on 0
         12 free 0 ->
         13 request 4 -> run 4 on 0",
    );
}

#[test]
fn the_test_hook_does_not_count_refused_requests() {
    let policy = QueuePolicy { max_queue_size: 1, ..QueuePolicy::default() };
    let settings =
        DynamicBatcherSpec { default_queue_policy: policy, ..DynamicBatcherSpec::default() };
    check(
        SchedulingSpec { hold_until_queued: 2, ..dynamic(4, settings) },
        "0 add 0 ->
         0 request 1 ->
         0 request 2 -> fail 2 QueueFull
         1 cancel 1 -> fail 1 Cancelled
         2 request 3 -> run 3 on 0",
    );
}

#[test]
fn a_batch_has_the_sum_of_rows() {
    let spec = |mode| SchedulingSpec {
        max_batch_size: 8,
        mode,
        hold_until_queued: 0,
        hold_until_backlogged: 0,
    };
    let settings = DynamicBatcherSpec::default();
    for (mode, expected) in [(SchedulingMode::Default, 1), (SchedulingMode::Dynamic(settings), 4)] {
        let mut scheduler = Scheduler::new(spec(mode));
        let mut actions = SchedulerActions::default();
        for (key, batch_size) in [(1, 0), (2, 3)] {
            let request = RequestInfo { key: RequestKey(key), batch_size, ..TICKET };
            scheduler.step(Time(0), SchedulerEvent::Enqueue(request), &mut actions);
        }
        scheduler.step(Time(0), SchedulerEvent::AddInstance(InstanceId(0)), &mut actions);
        let Some(SchedulerAction::Dispatch { batch, .. }) = actions.drain().next() else {
            panic!("a batch")
        };
        assert_eq!(batch.batch_size(), expected);
    }
}

#[test]
fn without_a_lane_there_is_no_wake_up() {
    let settings = DynamicBatcherSpec { max_queue_delay_ns: 100, ..DynamicBatcherSpec::default() };
    check(
        dynamic(2, settings),
        "0 add 0 ->
         0 request 1 -> ; 100
         1 remove 0 -> removed 0; never
         200 add 1 -> run 1 on 1; never",
    );
}

#[test]
fn higher_levels_are_first_and_share_batches_with_lower_ones() {
    let settings = DynamicBatcherSpec {
        priority_levels: 3,
        default_priority_level: 2,
        ..DynamicBatcherSpec::default()
    };
    check(
        dynamic(2, settings),
        "0 request 1 priority=3 -> 
         1 request 2 ->
         2 request 3 priority=1 ->
         3 add 0 -> run 3+2 on 0
         4 free 0 -> run 1 on 0",
    );
}

#[test]
fn time_never_goes_back() {
    let settings = DynamicBatcherSpec { max_queue_delay_ns: 10, ..DynamicBatcherSpec::default() };
    check(
        dynamic(4, settings),
        "0 add 0 -> \n 20 tick -> \n 15 request 1 -> ; 30 \n 29 tick -> ; 30 \n 30 tick -> run 1 on 0",
    );
}

#[test]
fn the_status_shows_what_requests_and_lanes_wait_for() {
    let settings = DynamicBatcherSpec {
        max_queue_delay_ns: 100,
        preferred_batch_sizes: vec![3],
        priority_levels: 2,
        default_priority_level: 1,
        ..DynamicBatcherSpec::default()
    };
    let mut scheduler =
        check(dynamic(4, settings), "0 add 0 -> \n 1 request 1 -> \n 2 request 2 priority=2 ->");
    let status = scheduler.status();
    let reason = QueueWaitReason::BatchDelay {
        pending_batch_size: 2,
        next_preferred_batch_size: 3,
        until: Some(Time(101)),
    };
    let queue = |priority, oldest, waits_for| PriorityLevelStatus {
        priority,
        waiting: 1,
        delayed: 0,
        oldest,
        waits_for,
    };
    assert_eq!(status.queues, [queue(1, Time(1), reason), queue(2, Time(2), reason)]);
    assert_eq!(status.lanes, [InstanceStatus::Free { instance: InstanceId(0), since: Time(0) }]);
    let mut actions = SchedulerActions::default();
    scheduler.step(Time(101), SchedulerEvent::Tick, &mut actions);
    scheduler.step(
        Time(102),
        SchedulerEvent::Enqueue(RequestInfo { key: RequestKey(3), ..TICKET }),
        &mut actions,
    );
    let status = scheduler.status();
    assert_eq!(status.queues, [queue(1, Time(102), QueueWaitReason::Lane)]);
    assert_eq!(status.lanes, [InstanceStatus::Busy { instance: InstanceId(0), since: Time(101) }]);
    assert_eq!(scheduler.queued(), 1);
}

#[test]
fn with_permits_a_batch_closes_when_its_permit_is_granted() {
    let scheduler = Scheduler::new(dynamic(2, DynamicBatcherSpec::default())).with_permits();
    play(
        scheduler,
        "0 add 0 -> ; never
         1 request 1 -> ask 0; never
         2 request 2 -> ; never
         3 request 3 -> ; never
         4 grant 0 -> run 1+2 on 0; never
         5 free 0 -> used 0, ask 0; never
         6 cancel 3 -> fail 3 Cancelled, withdraw 0; never
         7 grant 0 -> unused 0; never
         8 request 4 -> ask 0; never
         9 grant 0 -> run 4 on 0; never
         10 free 0 -> used 0; never",
    );
}

#[test]
fn permits_are_requested_for_the_number_of_waiting_requests() {
    let scheduler = Scheduler::new(dynamic(1, DynamicBatcherSpec::default())).with_permits();
    play(
        scheduler,
        "0 add 0 -> ; never
         0 add 1 -> ; never
         0 add 2 -> ; never
         1 request 1 -> ask 2; never
         2 request 2 -> ask 1; never
         3 grant 1 -> run 1 on 1; never
         4 request 3 -> ask 0; never
         5 grant 0 -> run 2 on 0; never
         6 grant 2 -> run 3 on 2; never",
    );
}

#[test]
fn another_instance_requests_in_place_of_a_delayed_one() {
    let scheduler = Scheduler::new(dynamic(1, DynamicBatcherSpec::default())).with_permits();
    play(
        scheduler,
        "0 add 0 -> ; never
         0 add 1 -> ; never
         0 add 2 -> ; never
         1 request 1 -> ask 2; never
         1 delay 2 -> ask 1; never
         2 grant 1 -> run 1 on 1, withdraw 2; never
         3 request 2 -> ask 2; never
         3 delay 2 -> ask 0; never
         3 delay 0 -> ; never
         4 free 1 -> used 1, ask 1; never
         5 grant 0 -> run 2 on 0, withdraw 1, withdraw 2; never
         6 grant 1 -> unused 1; never
         7 request 3 -> ask 1; never
         8 request 4 -> ask 2; never
         9 cancel 3 -> fail 3 Cancelled; never
         10 grant 2 -> run 4 on 2, withdraw 1; never",
    );
}

#[test]
fn a_permit_granted_before_its_withdrawal_may_be_used() {
    let scheduler = Scheduler::new(dynamic(1, DynamicBatcherSpec::default())).with_permits();
    play(
        scheduler,
        "0 add 0 -> ; never
         0 add 1 -> ; never
         1 request 1 -> ask 1; never
         2 cancel 1 -> fail 1 Cancelled, withdraw 1; never
         3 request 2 -> ask 1; never
         4 cancel 2 -> fail 2 Cancelled, withdraw 1; never
         5 add 2 -> ; never
         6 request 3 -> ask 2; never
         7 grant 1 -> run 3 on 1, withdraw 2; never",
    );
}

#[test]
fn no_permit_is_held_while_a_batch_waits_to_grow() {
    let settings = DynamicBatcherSpec { max_queue_delay_ns: 100, ..DynamicBatcherSpec::default() };
    let scheduler = Scheduler::new(dynamic(2, settings)).with_permits();
    play(
        scheduler,
        "0 add 0 -> ; never
         1 request 1 -> ; 101
         2 request 2 -> ask 0; never
         3 cancel 1 -> fail 1 Cancelled, withdraw 0; 102
         4 grant 0 -> unused 0; 102
         102 tick -> ask 0; never
         103 grant 0 -> run 2 on 0; never",
    );
}

#[test]
fn a_removed_instance_withdraws_its_request() {
    let scheduler = Scheduler::new(dynamic(1, DynamicBatcherSpec::default())).with_permits();
    let scheduler = play(
        scheduler,
        "0 add 0 -> ; never
         1 request 1 -> ask 0; never
         2 remove 0 -> withdraw 0, removed 0; never
         3 grant 0 -> unused 0; never
         4 add 1 -> ask 1; never
         5 drain -> ; never",
    );
    assert_eq!(scheduler.status().queues[0].waits_for, QueueWaitReason::Permit);
    play(
        scheduler,
        "6 grant 1 -> run 1 on 1; never
         7 remove 1 -> ; never
         8 free 1 -> used 1, removed 1, drained; never",
    );
}

#[test]
#[should_panic(expected = "asked for no permit")]
fn a_permit_without_a_request_is_a_broken_driver() {
    let scheduler = Scheduler::new(dynamic(4, DynamicBatcherSpec::default())).with_permits();
    play(scheduler, "0 add 0 -> \n 1 grant 0 ->");
}

const TICKET: RequestInfo = RequestInfo {
    key: RequestKey(0),
    batch_size: 1,
    shape_class: ShapeClassId(0),
    priority: 0,
    deadline: Time::MAX,
    length: 0,
    timeout_ns: 0,
    sequence: None,
};

#[test]
#[should_panic(expected = "is not known")]
fn an_unknown_instance_is_a_broken_driver() {
    check(dynamic(4, DynamicBatcherSpec::default()), "0 free 3 ->");
}

/// Closes a batch before each request whose key is in the list, and records the calls.
#[expect(clippy::disallowed_types, reason = "the test reads the recorded calls")]
#[derive(Clone, Debug, Default)]
struct ClosesBefore {
    keys: Vec<u64>,
    log: std::sync::Arc<std::sync::Mutex<Vec<String>>>,
}

impl BatchStrategy for ClosesBefore {
    fn open(&mut self) {
        self.log.lock().unwrap().push("open".to_owned());
    }

    fn include(&mut self, request: RequestKey) -> BatchInclusion {
        self.log.lock().unwrap().push(format!("include {}", request.0));
        if self.keys.contains(&request.0) {
            BatchInclusion::CloseBefore
        } else {
            BatchInclusion::Include
        }
    }

    fn close(&mut self) {
        self.log.lock().unwrap().push("close".to_owned());
    }
}

#[test]
fn a_strategy_closes_batches_before_requests_but_never_before_the_first() {
    let strategy = ClosesBefore { keys: vec![1, 3], ..ClosesBefore::default() };
    let log = strategy.log.clone();
    let settings = DynamicBatcherSpec { max_queue_delay_ns: 100, ..DynamicBatcherSpec::default() };
    let scheduler = Scheduler::with_batch_strategy(dynamic(8, settings), Some(strategy));
    play(
        scheduler,
        "0 request 1 -> ; never
         1 request 2 -> ; never
         2 add 0 -> ; 100
         3 request 3 -> run 1+2 on 0; never
         4 free 0 -> ; 103
         5 request 4 -> ; 103
         6 cancel 3 -> fail 3 Cancelled; 105
         105 tick -> run 4 on 0; never",
    );
    let calls = "open, include 1, include 2, include 3, close, open, include 3, include 4, close, \
                 open, include 4, close";
    assert_eq!(log.lock().unwrap().join(", "), calls);
}
