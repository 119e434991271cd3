use super::*;
use crate::ids::ShapeClassId;

fn request(key: u64, priority: u64, timeout_ns: u64) -> RequestInfo {
    RequestInfo {
        key: RequestKey(key),
        batch_size: 1,
        shape_class: ShapeClassId(0),
        priority,
        deadline: Time::MAX,
        length: 0,
        timeout_ns,
        sequence: None,
    }
}

fn policy(timeout_action: TimeoutAction, default_timeout_ns: u64) -> QueuePolicy {
    QueuePolicy {
        timeout_action,
        default_timeout_ns,
        allow_timeout_override: true,
        max_queue_size: 0,
    }
}

fn levels(count: u64, default_queue_policy: QueuePolicy) -> PolicyQueue {
    PolicyQueue::new(&DynamicBatcherSpec {
        priority_levels: count,
        default_priority_level: 2.min(count),
        default_queue_policy,
        ..DynamicBatcherSpec::default()
    })
}

/// Keys in service order, as returned by `first` and `after`.
fn order(queue: &PolicyQueue) -> Vec<u64> {
    let mut keys = Vec::new();
    let mut next = queue.first();
    while let Some(index) = next {
        keys.push(queue.get(index).key.0);
        next = queue.next_after(index);
    }
    assert_eq!(keys.len(), queue.len());
    keys
}

fn rejected(queue: &mut PolicyQueue, now: u64) -> Vec<u64> {
    let mut rejected = Vec::new();
    while let Some(index) = queue.next_expired(Time(now)) {
        rejected.push(queue.take(index).key.0);
    }
    rejected
}

#[test]
fn levels_are_served_strictly_and_each_in_order_of_arrival() {
    let mut queue = levels(3, QueuePolicy::default());
    // Requests of level 0 and of out-of-range levels wait at the default level, 2.
    for (key, priority) in [(1, 3), (2, 2), (3, 1), (4, 0), (5, 4), (6, 1), (7, u64::MAX)] {
        queue.enqueue(request(key, priority, 0), Time(key)).unwrap();
    }
    assert_eq!(order(&queue), [3, 6, 2, 4, 5, 7, 1]);
}

#[test]
fn without_levels_priority_has_no_effect() {
    let mut queue = levels(0, QueuePolicy::default());
    for (key, priority) in [(1, 3), (2, 0), (3, 1)] {
        queue.enqueue(request(key, priority, 0), Time(key)).unwrap();
    }
    assert_eq!(order(&queue), [1, 2, 3]);
}

#[test]
fn a_request_can_be_removed_from_any_position() {
    for leaver in 1..=4 {
        let mut queue = levels(2, QueuePolicy::default());
        for key in 1..=4 {
            queue.enqueue(request(key, 1, 0), Time(key)).unwrap();
        }
        let index = queue.find(RequestKey(leaver)).unwrap();
        queue.take(index);
        assert_eq!(queue.find(RequestKey(leaver)), None);
        queue.enqueue(request(5, 1, 0), Time(5)).unwrap();
        let expected: Vec<u64> = (1..=5).filter(|key| *key != leaver).collect();
        assert_eq!(order(&queue), expected);
    }
}

#[test]
fn the_size_of_a_level_is_limited_by_its_policy() {
    let full = QueuePolicy { max_queue_size: 1, ..policy(TimeoutAction::Delay, 5) };
    let mut queue = PolicyQueue::new(&DynamicBatcherSpec {
        priority_levels: 2,
        default_priority_level: 2,
        default_queue_policy: QueuePolicy { max_queue_size: 2, ..QueuePolicy::default() },
        priority_queue_policies: BTreeMap::from([(1, full)]),
        ..DynamicBatcherSpec::default()
    });
    queue.enqueue(request(1, 1, 0), Time(0)).unwrap();
    assert_eq!(queue.enqueue(request(2, 1, 0), Time(0)), Err(QueueFull));
    queue.enqueue(request(2, 0, 0), Time(0)).unwrap();
    queue.enqueue(request(3, 2, 0), Time(0)).unwrap();
    assert_eq!(queue.enqueue(request(4, 2, 0), Time(0)), Err(QueueFull));
    // A delayed request is still waiting, so it counts.
    queue.move_delayed(Time(5));
    assert_eq!(queue.enqueue(request(5, 1, 0), Time(5)), Err(QueueFull));
    assert_eq!(order(&queue), [1, 2, 3]);
}

#[test]
fn rejection_is_by_deadline_and_an_own_timeout_only_shortens() {
    let mut queue = levels(0, policy(TimeoutAction::Reject, 10));
    for (key, timeout_ns) in [(1, 0), (2, 4), (3, 50), (4, 10)] {
        queue.enqueue(request(key, 0, timeout_ns), Time(0)).unwrap();
    }
    assert_eq!(queue.next_rejection(), Some(Time(4)));
    assert_eq!(rejected(&mut queue, 3), []);
    assert_eq!(rejected(&mut queue, 4), [2]);
    assert_eq!(rejected(&mut queue, 10), [1, 3, 4]);
    assert_eq!(queue.next_rejection(), None);
}

#[test]
// row: DYN-13
fn an_own_timeout_has_no_effect_without_a_default_or_permission() {
    let forbidden =
        QueuePolicy { allow_timeout_override: false, ..policy(TimeoutAction::Reject, 10) };
    for (policy, expected) in
        [(policy(TimeoutAction::Reject, 0), None), (forbidden, Some(Time(10)))]
    {
        let mut queue = levels(0, policy);
        queue.enqueue(request(1, 0, 4), Time(0)).unwrap();
        assert_eq!(queue.next_rejection(), expected);
    }
}

#[test]
fn delayed_requests_follow_their_level_and_precede_the_next() {
    let mut queue = levels(2, policy(TimeoutAction::Delay, 10));
    queue.enqueue(request(1, 1, 0), Time(0)).unwrap();
    queue.enqueue(request(2, 1, 5), Time(1)).unwrap();
    queue.enqueue(request(3, 2, 0), Time(5)).unwrap();
    queue.enqueue(request(4, 1, 0), Time(5)).unwrap();
    assert_eq!(queue.next_delay(), Some(Time(6)));
    queue.move_delayed(Time(10));
    // Request 2 was due first, then request 1.
    assert_eq!(order(&queue), [4, 2, 1, 3]);
    queue.enqueue(request(5, 1, 0), Time(10)).unwrap();
    assert_eq!(order(&queue), [4, 5, 2, 1, 3]);
    assert_eq!(queue.next_rejection(), None);
    let oldest: Vec<Time> =
        queue.statuses(QueueWaitReason::Lane).map(|level| level.oldest).collect();
    assert_eq!(oldest, [Time(0), Time(5)]);
}

#[test]
fn a_deadline_beyond_the_end_of_time_is_none() {
    let mut queue = levels(0, policy(TimeoutAction::Reject, u64::MAX - 3));
    queue.enqueue(request(1, 0, 0), Time(2)).unwrap();
    queue.enqueue(request(2, 0, 0), Time(3)).unwrap();
    assert_eq!(queue.next_rejection(), Some(Time(u64::MAX - 1)));
    assert_eq!(rejected(&mut queue, u64::MAX - 1), [1]);
    assert_eq!(queue.next_rejection(), None);
}

#[test]
fn only_joining_at_the_end_keeps_the_revision() {
    let mut queue = levels(2, policy(TimeoutAction::Delay, 10));
    queue.enqueue(request(1, 1, 0), Time(0)).unwrap();
    queue.enqueue(request(2, 2, 0), Time(0)).unwrap();
    assert_eq!(queue.revision(), 0);
    queue.enqueue(request(3, 1, 0), Time(1)).unwrap();
    assert_eq!(queue.revision(), 1, "it joined before 2");
    queue.move_delayed(Time(10));
    let moved = queue.revision();
    assert!(moved > 1, "requests moved back");
    queue.enqueue(request(4, 2, 0), Time(10)).unwrap();
    assert!(queue.revision() > moved, "it joined before 2, which was moved back");
}

#[test]
#[should_panic(expected = "queued already")]
fn a_key_is_queued_once() {
    let mut queue = PolicyQueue::unlimited();
    queue.enqueue(request(1, 0, 0), Time(0)).unwrap();
    let _ = queue.enqueue(request(1, 0, 0), Time(0));
}

#[test]
fn empty_levels_are_deleted() {
    let mut queue = levels(u64::MAX, QueuePolicy::default());
    for key in 1..=100 {
        queue.enqueue(request(key, key * 1000, 0), Time(0)).unwrap();
        let index = queue.find(RequestKey(key)).unwrap();
        queue.take(index);
    }
    assert!(queue.levels.len() <= 1);
}
