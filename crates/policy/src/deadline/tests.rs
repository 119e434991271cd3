use crate::event::WarmupMeasurement;
use crate::scheduler::Scheduler;
use crate::script::{check, play};
use crate::spec::{
    DeadlineBatcherSpec, DynamicBatcherSpec, QueuePolicy, SchedulingMode, SchedulingSpec,
};

fn deadlines(max_batch_size: u32, objective_ns: u64, queue: DynamicBatcherSpec) -> SchedulingSpec {
    SchedulingSpec {
        max_batch_size,
        mode: SchedulingMode::Deadline(DeadlineBatcherSpec { objective_ns, queue }),
        hold_until_queued: 0,
        hold_until_backlogged: 0,
    }
}

/// Three executions of one row each, of 100 ns: after them, one row is known to take that long.
const LEARNED: &str = "
    0 add 0 -> ; never
    0 request 90 -> run 90 on 0; never
    100 free 0 -> ; never
    100 request 91 -> run 91 on 0; never
    200 free 0 -> ; never
    200 request 92 -> run 92 on 0; never
    300 free 0 -> ; never";

fn check_learned(spec: SchedulingSpec, script: &str) {
    check(spec, &format!("{LEARNED}\n{script}"));
}

#[test]
fn the_earliest_deadline_is_served_first() {
    check_learned(
        deadlines(1, u64::MAX, DynamicBatcherSpec::default()),
        "300 request 1 -> run 1 on 0; never
         310 request 2 -> ; never
         320 request 3 deadline=900 -> ; 801
         330 request 4 deadline=800 -> ; 701
         400 free 0 -> run 4 on 0; 801
         500 free 0 -> run 3 on 0; never
         600 free 0 -> run 2 on 0; never",
    );
}

#[test]
fn a_level_is_served_before_the_next_whatever_the_deadlines() {
    let queue = DynamicBatcherSpec {
        priority_levels: 2,
        default_priority_level: 2,
        ..DynamicBatcherSpec::default()
    };
    check_learned(
        deadlines(1, u64::MAX, queue),
        "300 request 1 -> run 1 on 0; never
         310 request 2 deadline=900 -> ; 801
         320 request 3 priority=1 -> ; 801
         400 free 0 -> run 3 on 0; 801
         500 free 0 -> run 2 on 0; never",
    );
}

/// The instance is free at 400, and an execution takes 100.
#[test]
fn what_would_be_answered_too_late_is_refused_on_arrival() {
    check_learned(
        deadlines(1, u64::MAX, DynamicBatcherSpec::default()),
        "300 request 1 -> run 1 on 0; never
         310 request 2 deadline=499 -> fail 2 TooLate { retry_after_ns: 1 }; never
         320 request 3 deadline=500 -> ; 401
         330 request 4 deadline=599 -> fail 4 TooLate { retry_after_ns: 1 }; 401
         400 free 0 -> run 3 on 0; never",
    );
}

/// The objective serves as the deadline of requests without an earlier one.
#[test]
fn the_objective_counts_from_the_arrival() {
    check_learned(
        deadlines(1, 250, DynamicBatcherSpec::default()),
        "300 request 1 -> run 1 on 0; never
         310 request 2 -> ; 461
         320 request 3 deadline=900 -> fail 3 TooLate { retry_after_ns: 30 }; 461
         400 free 0 -> run 2 on 0; never",
    );
}

/// The preceding execution takes longer than expected.
#[test]
fn what_can_not_be_answered_in_time_any_more_is_refused_at_once() {
    check_learned(
        deadlines(1, u64::MAX, DynamicBatcherSpec::default()),
        "300 request 1 -> run 1 on 0; never
         310 request 2 deadline=550 -> ; 451
         450 tick -> ; 451
         451 tick -> fail 2 TooLate { retry_after_ns: 1 }; never",
    );
}

/// The cost of two rows is unknown, so it is assumed to be half as much again.
#[test]
fn a_batch_ends_before_the_earliest_deadline_in_it() {
    check_learned(
        deadlines(4, u64::MAX, DynamicBatcherSpec::default()),
        "300 request 1 -> run 1 on 0; never
         310 request 2 deadline=560 -> ; 461
         320 request 3 deadline=900 -> ; 461
         400 free 0 -> run 2 on 0; 801
         500 free 0 -> run 3 on 0; never",
    );
}

#[test]
fn policies_of_the_queue_hold() {
    let default_queue_policy =
        QueuePolicy { default_timeout_ns: 50, max_queue_size: 1, ..QueuePolicy::default() };
    let queue = DynamicBatcherSpec { default_queue_policy, ..DynamicBatcherSpec::default() };
    check_learned(
        deadlines(1, u64::MAX, queue),
        "300 request 1 -> run 1 on 0; never
         310 request 2 -> ; 360
         320 request 3 -> fail 3 QueueFull; 360
         360 tick -> fail 2 TimeoutExpired; never
         361 request 4 -> ; 411
         362 cancel 4 -> fail 4 Cancelled; never",
    );
}

#[test]
fn without_known_costs_everything_is_admitted_and_batched() {
    check(
        deadlines(4, 10, DynamicBatcherSpec::default()),
        "0 request 1 -> ; 11
         1 request 2 -> ; 11
         5 add 0 -> run 1+2 on 0; never",
    );
}

/// Each execution takes 100, and two requests with deadlines arrive during it, so an instance is
/// never idle. Request 1 has no deadline; after 16 other batches it gets its own.
#[test]
fn a_request_without_a_deadline_is_passed_over_16_times() {
    let mut script = String::from(
        "300 request 100 deadline=600 -> run 100 on 0; never
         300 request 1 -> ; never\n",
    );
    for step in 0..16 {
        let (now, deadline) = (310 + step * 100, 600 + step * 100);
        let (key, next) = (101 + step, now + 90);
        script += &format!(
            "{now} request {key} deadline={deadline} -> ; {}
             {next} free 0 -> run {key} on 0; never\n",
            deadline - 99
        );
    }
    script += "1910 request 200 deadline=2300 -> ; 2201
               2000 free 0 -> run 1 on 0; 2201
               2100 free 0 -> run 200 on 0; never";
    check_learned(deadlines(1, u64::MAX, DynamicBatcherSpec::default()), &script);
}

#[test]
fn after_a_warmup_the_first_request_is_judged() {
    let spec = deadlines(4, u64::MAX, DynamicBatcherSpec::default());
    let mut scheduler = Scheduler::new(spec);
    let execution = WarmupMeasurement { rows: 1, length: 0, duration_ns: 100 };
    (0..3).for_each(|_| scheduler.learn(&execution));
    play(
        scheduler,
        "0 add 0 -> ; never
         0 request 1 deadline=99 -> fail 1 TooLate { retry_after_ns: 1 }; never
         0 request 2 deadline=100 -> run 2 on 0; never",
    );
}

/// All known executions took 100 ns, at a time when the machine was busy.
#[test]
fn one_of_many_hopeless_requests_is_tried() {
    let hopeless = |key: u32| {
        format!("300 request {key} deadline=350 -> fail {key} TooLate {{ retry_after_ns: 50 }}\n")
    };
    let refused: String = (1..=32).map(hopeless).collect();
    check_learned(
        deadlines(1, u64::MAX, DynamicBatcherSpec::default()),
        &format!(
            "{refused}
             300 request 9 deadline=350 -> run 9 on 0; never
             320 free 0 -> ; never
             320 request 10 deadline=350 -> run 10 on 0; never
             410 free 0 -> ; never
             410 request 11 deadline=450 -> fail 11 TooLate {{ retry_after_ns: 60 }}; never"
        ),
    );
}

/// Another batch ends before the probe's deadline, but the probe itself is late.
#[test]
fn a_batch_on_another_instance_does_not_decide_a_probe() {
    let hopeless = |key: u32| {
        format!("300 request {key} deadline=350 -> fail {key} TooLate {{ retry_after_ns: 50 }}\n")
    };
    let refused: String = (1..=32).map(hopeless).collect();
    check_learned(
        deadlines(1, u64::MAX, DynamicBatcherSpec::default()),
        &format!(
            "300 add 1 -> ; never
             {refused}
             300 request 40 deadline=350 -> run 40 on 1; never
             310 request 41 deadline=500 -> run 41 on 0; never
             340 free 0 -> ; never
             400 free 1 -> ; never
             400 request 42 deadline=450 -> fail 42 TooLate {{ retry_after_ns: 50 }}; never"
        ),
    );
}
