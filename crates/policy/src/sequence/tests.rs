use crate::script::{check, play};
use crate::{
    DynamicBatcherSpec, InstanceId, RequestInfo, RequestKey, Scheduler, SchedulerActions,
    SchedulerEvent, SchedulingMode, SchedulingSpec, SequenceBatcherSpec, SequenceKey,
    SequencePosition, SequenceSlotStatus, SequenceSlotWaitReason, SequenceStrategy, ShapeClassId,
    Time, WaitingSequenceStatus,
};

fn spec(max_batch_size: u32, strategy: SequenceStrategy) -> SchedulingSpec {
    let sequence = SequenceBatcherSpec { strategy, max_sequence_idle_ns: 0, iterative: false };
    SchedulingSpec {
        max_batch_size,
        mode: SchedulingMode::Sequence(sequence),
        hold_until_queued: 0,
        hold_until_backlogged: 0,
    }
}

fn direct(max_batch_size: u32) -> SchedulingSpec {
    spec(max_batch_size, SequenceStrategy::Direct { max_queue_delay_ns: 0, minimum_ready_slots: 0 })
}

fn oldest(max_batch_size: u32, max_candidate_sequences: u32) -> SchedulingSpec {
    let DynamicBatcherSpec { preferred_batch_sizes, max_queue_delay_ns, .. } =
        DynamicBatcherSpec::default();
    let strategy = SequenceStrategy::Oldest {
        max_candidate_sequences,
        preferred_batch_sizes,
        max_queue_delay_ns,
    };
    spec(max_batch_size, strategy)
}

fn idle(spec: SchedulingSpec, max_sequence_idle_ns: u64) -> SchedulingSpec {
    let SchedulingMode::Sequence(sequence) = spec.mode else { panic!("a sequence batcher") };
    let mode = SchedulingMode::Sequence(SequenceBatcherSpec { max_sequence_idle_ns, ..sequence });
    SchedulingSpec { mode, ..spec }
}

fn iterative(spec: SchedulingSpec) -> SchedulingSpec {
    let SchedulingMode::Sequence(sequence) = spec.mode else { panic!("a sequence batcher") };
    SchedulingSpec {
        mode: SchedulingMode::Sequence(SequenceBatcherSpec { iterative: true, ..sequence }),
        ..spec
    }
}

#[test]
fn a_sequence_keeps_its_slot_and_runs_in_order() {
    check(
        direct(2),
        "0 add 0 -> ; never
         1 request 1 of=7 start -> run ^1 on 0; never
         2 request 2 of=8 start -> ; never
         3 request 3 of=7 -> ; never
         4 free 0 -> run _+^2 on 0; never
         5 done 1 -> ; never
         6 request 4 of=7 -> ; never
         7 done 2 -> ; never
         8 free 0 -> run 3 on 0; never
         9 request 5 of=8 end -> closed 8; never
         9 done 3 -> ; never
         10 free 0 -> run 4+5$ on 0, ended 8; never",
    );
}

#[test]
fn a_freed_slot_goes_to_the_backlog_in_the_same_step() {
    check(
        direct(1),
        "0 add 0 -> ; never
         1 request 1 of=7 start -> run ^1 on 0; never
         2 request 2 of=8 start -> ; never
         3 request 3 of=9 start -> ; never
         4 request 4 of=8 -> ; never
         5 request 5 of=7 end -> closed 7; never
         6 done 1 -> ; never
         6 free 0 -> run 5$ on 0, ended 7; never
         7 done 5 -> ; never
         7 free 0 -> run ^2 on 0; never
         8 done 2 -> ; never
         8 free 0 -> run 4 on 0; never
         9 done 4 -> ; never
         9 free 0 -> ; never
         9 request 6 of=8 end -> closed 8, run 6$ on 0, ended 8; never
         10 free 0 -> run ^3 on 0; never",
    );
}

#[test]
fn idle_time_counts_from_the_last_arrival_whatever_executes() {
    check(
        idle(direct(1), 100),
        "0 add 0 -> ; never
         1 request 1 of=7 start -> run ^1 on 0; 101
         2 request 2 of=8 start -> ; 101
         50 request 3 of=7 -> ; 150
         60 done 1 -> ; 150
         60 free 0 -> run 3 on 0; 150
         150 tick -> closed 7, ended 7; 250
         151 done 3 -> ; 250
         152 free 0 -> run ^2 on 0; 250
         250 tick -> closed 8, ended 8; never",
    );
}

#[test]
fn what_waits_in_a_sequence_whose_idle_time_is_over_still_executes() {
    check(
        idle(direct(1), 100),
        "0 add 0 -> ; never
         1 request 1 of=7 start -> run ^1 on 0; 101
         2 request 2 of=7 -> ; 102
         102 tick -> closed 7; never
         103 done 1 -> ; never
         103 free 0 -> run 2 on 0, ended 7; never",
    );
}

#[test]
fn a_slot_that_comes_late_leaves_its_sequence_a_moment() {
    const SECOND: u64 = 1_000_000_000;
    check(
        idle(direct(1), SECOND),
        "0 add 0 -> ; never
         0 request 1 of=7 start -> run ^1 on 0; 1000000000
         10 request 2 of=8 start -> ; 1000000000
         1000000000 tick -> closed 7, ended 7; 1050000000
         1010000000 done 1 -> ; 1050000000
         1010000000 free 0 -> run ^2 on 0; 1050000000
         1040000000 request 3 of=8 -> ; 2040000000",
    );
}

#[test]
fn the_idle_time_of_an_iteration_counts_from_its_rescheduling() {
    const SECOND: u64 = 1_000_000_000;
    check(
        idle(iterative(direct(1)), SECOND),
        "0 add 0 -> ; never
         0 request 1 of=1 start -> closed 1, run ^1 on 0; 1000000000
         400000000 again 1 -> ; 1400000000",
    );
}

#[test]
fn an_iteration_after_the_idle_time_fails() {
    check(
        idle(iterative(direct(1)), 100),
        "0 add 0 -> ; never
         1 request 1 of=1 start -> closed 1, run ^1 on 0; 101
         2 request 2 of=2 start -> closed 2; 101
         50 again 1 -> ; 150
         50 free 0 -> run 1 on 0; 150
         150 tick -> ; never
         151 again 1 -> fail 1 RescheduledTooLate, ended 1; 251
         151 free 0 -> run ^2 on 0; 251
         260 done 2 -> ended 2; never",
    );
}

#[test]
fn a_request_needs_a_sequence_and_the_first_one_start() {
    check(
        direct(1),
        "0 request 1 -> fail 1 NoSequence
         1 request 2 of=7 -> fail 2 MissingStart, closed 7, ended 7
         2 request 3 of=7 start -> ; never
         3 request 4 of=7 start end -> closed 7; never
         4 add 0 -> run ^3 on 0; never
         5 done 3 -> ; never
         6 free 0 -> run ^4$ on 0, ended 7; never
         7 request 5 of=7 -> fail 5 MissingStart, closed 7, ended 7",
    );
}

#[test]
fn oldest_batches_the_next_requests_of_its_candidates() {
    check(
        oldest(2, 3),
        "0 add 0 -> ; never
         1 request 1 of=1 start -> run ^1 on 0; never
         2 request 2 of=2 start -> ; never
         3 request 3 of=3 start -> ; never
         3 request 4 of=4 start -> ; never
         4 request 5 of=2 -> ; never
         5 done 1 -> ; never
         5 free 0 -> run ^2+^3 on 0; never
         6 request 6 of=1 end -> closed 1; never
         7 done 2 -> ; never
         7 done 3 -> ; never
         7 free 0 -> run 6$+5 on 0, ended 1; never
         8 done 6 -> ; never
         8 done 5 -> ; never
         8 free 0 -> run ^4 on 0; never",
    );
}

#[test]
fn a_late_release_delays_only_its_sequence() {
    check(
        oldest(2, 2),
        "0 add 0 -> ; never
         1 request 1 of=1 start -> run ^1 on 0; never
         2 request 2 of=1 -> ; never
         2 request 3 of=2 start -> ; never
         3 free 0 -> run ^3 on 0; never
         4 free 0 -> ; never
         5 done 1 -> run 2 on 0; never
         6 done 3 -> ; never",
    );
}

#[test]
fn a_slot_waits_for_others_only_within_the_delay() {
    let strategy = SequenceStrategy::Direct { max_queue_delay_ns: 50, minimum_ready_slots: 2 };
    check(
        spec(3, strategy),
        "0 add 0 -> ; never
         1 request 1 of=1 start -> ; 51
         2 request 2 of=2 start -> run ^1+^2 on 0; never
         3 request 3 of=3 start -> ; never
         4 done 1 -> ; never
         4 done 2 -> ; never
         5 free 0 -> ; 53
         53 tick -> run _+_+^3 on 0; never",
    );
}

#[test]
fn requests_that_do_not_fit_run_in_a_later_batch() {
    check(
        direct(3),
        "1 request 1 of=1 start key=1 -> ; never
         2 request 2 of=2 start key=2 -> ; never
         3 request 3 of=3 start key=1 -> ; never
         4 add 0 -> run ^1+_+^3 on 0; never
         5 free 0 -> run _+^2 on 0; never",
    );
}

#[test]
fn a_sequence_in_the_backlog_fails_at_its_earliest_deadline() {
    check(
        direct(1),
        "1 request 1 of=1 start timeout=5 -> ; 6
         2 request 2 of=1 timeout=2 -> ; 4
         3 request 3 of=2 start timeout=50 -> ; 4
         4 tick -> fail 1 SequenceTimeoutExpired, fail 2 SequenceTimeoutExpired, closed 1, ended 1; 53
         5 add 0 -> run ^3 on 0; never
         60 done 3 -> ; never",
    );
}

#[test]
fn cancellation_fails_the_rest_of_the_sequence() {
    check(
        direct(1),
        "0 add 0 -> ; never
         1 request 1 of=1 start -> run ^1 on 0; never
         2 request 2 of=1 -> ; never
         2 request 3 of=1 -> ; never
         2 request 4 of=1 -> ; never
         2 request 5 of=2 start -> ; never
         3 cancel 1 -> ; never
         3 cancel 3 -> fail 3 Cancelled, fail 4 Cancelled, closed 1; never
         4 request 6 of=3 -> fail 6 MissingStart, closed 3, ended 3
         5 done 1 -> ; never
         5 free 0 -> run 2 on 0, ended 1; never
         6 cancel 5 -> fail 5 Cancelled, closed 2, ended 2; never
         7 done 2 -> ; never
         7 free 0 -> ; never",
    );
}

#[test]
fn cancellation_of_all_requests_frees_the_slot_at_once() {
    check(
        direct(1),
        "0 add 0 -> ; never
         1 request 1 of=1 start -> run ^1 on 0; never
         2 request 2 of=1 -> ; never
         3 request 3 of=2 start -> ; never
         4 cancel 2 -> fail 2 Cancelled, closed 1, ended 1; never
         5 free 0 -> run ^3 on 0; never
         6 done 1 -> ; never
         7 done 3 -> ; never",
    );
}

#[test]
fn iterations_share_batches_with_new_requests() {
    check(
        iterative(direct(2)),
        "0 add 0 -> ; never
         1 request 1 of=1 start -> closed 1, run ^1 on 0; never
         2 request 2 of=2 start -> closed 2; never
         3 request 3 of=3 start -> closed 3; never
         4 again 1 -> ; never
         4 free 0 -> run 1+^2 on 0; never
         5 done 1 -> ended 1; never
         5 again 2 -> ; never
         5 free 0 -> run ^3+2 on 0; never
         6 cancel 3 -> ; never
         7 again 3 -> fail 3 Cancelled, ended 3; never
         8 done 2 -> ended 2; never
         8 free 0 -> ; never",
    );
}

#[test]
fn a_waiting_iteration_can_be_cancelled() {
    check(
        iterative(oldest(2, 2)),
        "0 add 0 -> ; never
         1 request 1 of=1 start -> closed 1, run ^1 on 0; never
         2 again 1 -> ; never
         3 cancel 1 -> fail 1 Cancelled, ended 1; never
         4 free 0 -> ; never",
    );
}

#[test]
fn draining_runs_queued_requests_and_refuses_new_ones() {
    check(
        direct(1),
        "0 add 0 -> ; never
         1 request 1 of=1 start -> run ^1 on 0; never
         2 request 2 of=2 start -> ; never
         3 request 3 of=1 -> ; never
         4 drain -> closed 1, closed 2; never
         4 request 4 of=3 start -> fail 4 Draining, closed 3, ended 3; never
         5 request 5 of=3 -> fail 5 Draining, closed 3, ended 3; never
         6 done 1 -> ; never
         6 free 0 -> run 3 on 0, ended 1; never
         7 done 3 -> ; never
         7 free 0 -> run ^2 on 0, ended 2; never
         8 free 0 -> ; never
         9 done 2 -> drained; never
         9 request 6 of=2 -> fail 6 Draining, closed 2, ended 2; never
         9 remove 0 -> removed 0; never",
    );
}

#[test]
fn draining_ends_idle_sequences_for_the_backlog() {
    check(
        direct(1),
        "0 add 0 -> ; never
         1 request 1 of=1 start -> run ^1 on 0; never
         2 done 1 -> ; never
         2 free 0 -> ; never
         3 request 2 of=2 start -> ; never
         4 drain -> closed 1, ended 1, closed 2, run ^2 on 0, ended 2; never
         5 done 2 -> ; never
         5 free 0 -> drained; never",
    );
}

#[test]
fn an_instance_is_removed_when_its_last_sequence_has_ended() {
    check(
        direct(1),
        "0 add 0 -> ; never
         1 request 1 of=1 start -> run ^1 on 0; never
         2 remove 0 -> ; never
         3 request 2 of=2 start -> ; never
         4 request 3 of=1 end -> closed 1; never
         5 done 1 -> ; never
         5 free 0 -> run 3$ on 0, ended 1; never
         6 free 0 -> removed 0; never
         7 done 3 -> ; never
         8 add 1 -> run ^2 on 1; never
         9 done 2 -> ; never
         9 free 1 -> ; never
         10 remove 1 -> ; never
         11 request 4 of=2 end -> closed 2, run 4$ on 1, ended 2; never
         12 free 1 -> removed 1; never",
    );
}

#[test]
// row: DYN-22
fn sequences_are_held_until_slots_and_backlog_have_enough() {
    let held = SchedulingSpec { hold_until_queued: 2, hold_until_backlogged: 1, ..direct(2) };
    check(
        held,
        "0 add 0 -> ; never
         1 request 1 of=1 start -> ; never
         2 request 2 of=2 start -> ; never
         3 request 3 of=3 start -> run ^1+^2 on 0; never
         4 done 1 -> ; never
         4 free 0 -> ; never
         5 request 4 of=1 -> run 4 on 0; never",
    );
}

#[test]
fn the_status_shows_what_each_slot_waits_for() {
    let scheduler = check(
        direct(2),
        "0 add 3 -> ; never
         1 request 1 of=1 start -> run ^1 on 3; never
         2 request 2 of=1 -> ; never
         3 request 3 of=2 start -> ; never
         4 request 4 of=4 start timeout=6 -> ; 10
         4 done 1 -> ; 10",
    );
    let status = scheduler.status().sequences.unwrap();
    let slot = |slot, sequence, waits_for| SequenceSlotStatus {
        instance: InstanceId(3),
        slot,
        sequence: SequenceKey(sequence),
        waiting: 1,
        waits_for,
    };
    assert_eq!(
        status.slots,
        [slot(0, 1, SequenceSlotWaitReason::Lane), slot(1, 2, SequenceSlotWaitReason::Lane)]
    );
    let fails_at = Some(Time(10));
    assert_eq!(
        status.backlog,
        [WaitingSequenceStatus { sequence: SequenceKey(4), waiting: 1, fails_at }]
    );
    assert_eq!(status.free_slots, 0);
    assert_eq!(scheduler.queued(), 3);
}

#[test]
fn each_instance_requests_permits_for_its_own_sequences() {
    let scheduler = Scheduler::new(direct(1)).with_permits();
    let scheduler = play(
        scheduler,
        "0 add 0 -> ; never
         0 add 1 -> ; never
         1 request 1 of=1 start -> ask 0; never
         2 request 2 of=2 start -> ask 1; never
         3 request 3 of=1 -> ; never
         4 grant 1 -> run ^2 on 1; never
         5 done 2 -> ; never
         5 free 1 -> used 1; never",
    );
    let slots = scheduler.status().sequences.unwrap().slots;
    assert_eq!(slots[0].waits_for, SequenceSlotWaitReason::Permit);
    play(
        scheduler,
        "6 cancel 1 -> fail 1 Cancelled, fail 3 Cancelled, closed 1, ended 1, withdraw 0; never
         7 grant 0 -> unused 0; never
         8 request 4 of=3 start -> ask 0; never
         9 remove 0 -> ; never
         10 cancel 4 -> fail 4 Cancelled, closed 3, ended 3, withdraw 0, removed 0; never
         11 grant 0 -> unused 0; never",
    );
}

#[test]
fn the_status_lists_rows_up_to_the_maximum_and_counts_the_others() {
    let mut scheduler = check(direct(1200), "0 add 0 ->");
    let mut out = SchedulerActions::default();
    for index in 0..2500 {
        let position = SequencePosition { sequence: SequenceKey(index), start: true, end: false };
        let request = RequestInfo {
            key: RequestKey(index),
            batch_size: 1,
            shape_class: ShapeClassId(0),
            priority: 0,
            deadline: Time::MAX,
            length: 0,
            timeout_ns: 0,
            sequence: Some(position),
        };
        scheduler.step(Time(1), SchedulerEvent::Enqueue(request), &mut out);
    }
    let sequences = scheduler.status().sequences.unwrap();
    assert_eq!((sequences.taken_slots, sequences.backlogged), (1200, 1300));
    let slots: Vec<u32> = sequences.slots.iter().map(|slot| slot.slot).collect();
    assert_eq!(slots, (0..1000).collect::<Vec<u32>>());
    let backlog: Vec<u64> = sequences.backlog.iter().map(|one| one.sequence.0).collect();
    assert_eq!(backlog, (1200..2200).collect::<Vec<u64>>());
}
