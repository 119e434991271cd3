//! The textual form of a scheduler's events and actions, for tests.

use crate::*;

/// Parses one event: `add 0`, `remove 0`, `free 0`, `grant 0`, `delay 0`, `request 1`, `cancel 1`,
/// `done 1`, `again 1`, `drain` or `tick`. A request may have the settings `rows=`, `length=`,
/// `key=`, `priority=`, `timeout=` and `deadline=`, and, in a sequence, `of=`, `start` and `end`.
fn parse_event(words: &[&str]) -> SchedulerEvent {
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let id = |text: &str| InstanceId(text.parse().expect("an id"));
    match words {
        ["add", instance] => SchedulerEvent::AddInstance(id(instance)),
        ["remove", instance] => SchedulerEvent::RemoveInstance(id(instance)),
        ["free", instance] => SchedulerEvent::LaneFree(id(instance)),
        ["cancel", key] => SchedulerEvent::Cancel(RequestKey(number(key))),
        ["done", key] => {
            SchedulerEvent::Released { key: RequestKey(number(key)), release: RequestRelease::Done }
        }
        ["again", key] => SchedulerEvent::Released {
            key: RequestKey(number(key)),
            release: RequestRelease::Reschedule,
        },
        ["grant", instance] => SchedulerEvent::PermitGranted(id(instance)),
        ["delay", instance] => SchedulerEvent::PermitDelayed(id(instance)),
        ["drain"] => SchedulerEvent::Drain,
        ["tick"] => SchedulerEvent::Tick,
        ["request", key, settings @ ..] => {
            let key = RequestKey(number(key));
            let mut request = RequestInfo {
                key,
                batch_size: 1,
                shape_class: ShapeClassId(0),
                priority: 0,
                deadline: Time::MAX,
                length: 0,
                timeout_ns: 0,
                sequence: None,
            };
            for setting in settings {
                match setting.split_once('=').unwrap_or((setting, "")) {
                    ("of", sequence) => {
                        let sequence = SequenceKey(number(sequence));
                        request.sequence =
                            Some(SequencePosition { sequence, start: false, end: false });
                    }
                    ("start", _) => request.sequence.as_mut().expect("of=").start = true,
                    ("end", _) => request.sequence.as_mut().expect("of=").end = true,
                    ("length", length) => request.length = length.parse().expect("a length"),
                    ("rows", rows) => request.batch_size = rows.parse().expect("rows"),
                    ("key", key) => request.shape_class = ShapeClassId(key.parse().expect("a key")),
                    ("priority", priority) => request.priority = number(priority),
                    ("timeout", timeout) => request.timeout_ns = number(timeout),
                    ("deadline", deadline) => request.deadline = Time(number(deadline)),
                    (name, _) => panic!("unknown setting {name}"),
                }
            }
            SchedulerEvent::Enqueue(request)
        }
        other => panic!("unknown event {other:?}"),
    }
}

fn render(action: SchedulerAction) -> String {
    match action {
        SchedulerAction::Dispatch { instance, batch } => {
            let rows: Vec<String> = batch.entries().iter().map(row).collect();
            format!("run {} on {}", rows.join("+"), instance.0)
        }
        SchedulerAction::Fail { key, reason } => format!("fail {} {reason:?}", key.0),
        SchedulerAction::InstanceRemoved(id) => format!("removed {}", id.0),
        SchedulerAction::RequestPermit(id) => format!("ask {}", id.0),
        SchedulerAction::ReturnPermit { instance, used: true } => format!("used {}", instance.0),
        SchedulerAction::ReturnPermit { instance, used: false } => format!("unused {}", instance.0),
        SchedulerAction::WithdrawPermit(id) => format!("withdraw {}", id.0),
        SchedulerAction::Drained => "drained".to_owned(),
        SchedulerAction::SequenceClosed(sequence) => format!("closed {}", sequence.0),
        SchedulerAction::SequenceEnded(sequence) => format!("ended {}", sequence.0),
    }
}

/// Renders a row: the first step of a sequence is `^1`, the last one `1$`, and padding `_`.
fn row(entry: &BatchEntry) -> String {
    match entry {
        BatchEntry::Request(key) => key.0.to_string(),
        BatchEntry::Step(step) => {
            let start = if step.start { "^" } else { "" };
            let end = if step.end { "$" } else { "" };
            format!("{start}{}{end}", step.key.0)
        }
        BatchEntry::Padding => "_".to_owned(),
    }
}

/// Runs a script line by line. Each line has the form `TIME EVENT -> ACTIONS; WAKEUP`. The wake-up
/// is optional.
#[track_caller]
pub(crate) fn check(spec: SchedulingSpec, script: &str) -> Scheduler {
    play(Scheduler::new(spec), script)
}

/// Does the same as [`check`] with an existing scheduler.
#[track_caller]
pub(crate) fn play<S: BatchStrategy>(mut scheduler: Scheduler<S>, script: &str) -> Scheduler<S> {
    let mut actions = SchedulerActions::default();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (input, expected) = line.split_once("->").expect("event -> actions");
        let (expected, wakeup) = match expected.split_once(';') {
            Some((expected, wakeup)) => (expected, Some(wakeup.trim())),
            None => (expected, None),
        };
        let input: Vec<&str> = input.split_whitespace().collect();
        let now = Time(input[0].parse().expect("a time"));
        scheduler.step(now, parse_event(&input[1..]), &mut actions);
        let done: Vec<String> = actions.drain().map(render).collect();
        assert_eq!(done.join(", "), expected.trim(), "in line {line:?}");
        if let Some(wakeup) = wakeup {
            let next =
                scheduler.next_wakeup().map_or("never".to_owned(), |time| time.0.to_string());
            assert_eq!(next, wakeup, "wake-up after line {line:?}");
        }
    }
    scheduler
}
