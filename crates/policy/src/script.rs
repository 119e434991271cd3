//! For tests: what happens to a scheduler and what it does, as text.

use crate::*;

/// One event as `TIME WORD ARGUMENT`: `add 0`, `remove 0`, `free 0`, `grant 0`,
/// `request 1`, `cancel 1`, `done 1`, `again 1`, `drain`, `tick`. A request may go on
/// with `rows=`, `key=`, `priority=`, `timeout=`, and, as part of a sequence,
/// with `of=`, `start` and `end`.
fn event(words: &[&str]) -> Event {
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let id = |text: &str| InstanceId(text.parse().expect("an id"));
    match words {
        ["add", instance] => Event::AddInstance(id(instance)),
        ["remove", instance] => Event::RemoveInstance(id(instance)),
        ["free", instance] => Event::LaneFree(id(instance)),
        ["cancel", key] => Event::Cancel(RequestKey(number(key))),
        ["done", key] => Event::Released { key: RequestKey(number(key)), release: Release::Done },
        ["again", key] => {
            Event::Released { key: RequestKey(number(key)), release: Release::Reschedule }
        }
        ["grant", instance] => Event::PermitGranted(id(instance)),
        ["delay", instance] => Event::PermitDelayed(id(instance)),
        ["drain"] => Event::Drain,
        ["tick"] => Event::Tick,
        ["request", key, settings @ ..] => {
            let key = RequestKey(number(key));
            let mut ticket = RequestInfo {
                key,
                batch_size: 1,
                batch_key: BatchKey(0),
                priority: 0,
                timeout_ns: 0,
                sequence: None,
            };
            for setting in settings {
                match setting.split_once('=').unwrap_or((setting, "")) {
                    ("of", sequence) => {
                        let sequence = SequenceKey(number(sequence));
                        ticket.sequence =
                            Some(SequencePosition { sequence, start: false, end: false });
                    }
                    ("start", _) => ticket.sequence.as_mut().expect("of=").start = true,
                    ("end", _) => ticket.sequence.as_mut().expect("of=").end = true,
                    ("rows", rows) => ticket.batch_size = rows.parse().expect("rows"),
                    ("key", key) => ticket.batch_key = BatchKey(key.parse().expect("a key")),
                    ("priority", priority) => ticket.priority = number(priority),
                    ("timeout", timeout) => ticket.timeout_ns = number(timeout),
                    (name, _) => panic!("unknown setting {name}"),
                }
            }
            Event::Enqueue(ticket)
        }
        other => panic!("unknown event {other:?}"),
    }
}

fn words(action: Action) -> String {
    match action {
        Action::Dispatch { instance, batch } => {
            let rows: Vec<String> = batch.entries().iter().map(row).collect();
            format!("run {} on {}", rows.join("+"), instance.0)
        }
        Action::Fail { key, reason } => format!("fail {} {reason:?}", key.0),
        Action::InstanceRemoved(id) => format!("removed {}", id.0),
        Action::RequestPermit(id) => format!("ask {}", id.0),
        Action::ReturnPermit { instance, used: true } => format!("used {}", instance.0),
        Action::ReturnPermit { instance, used: false } => format!("unused {}", instance.0),
        Action::WithdrawPermit(id) => format!("withdraw {}", id.0),
        Action::Drained => "drained".to_owned(),
        Action::SequenceClosed(sequence) => format!("closed {}", sequence.0),
        Action::SequenceEnded(sequence) => format!("ended {}", sequence.0),
    }
}

/// A step's start is written `^1`, its end `1$`, padding `_`.
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

/// Plays `TIME EVENT -> ACTIONS; WAKEUP` line by line, the wake-up only where
/// the line has one.
#[track_caller]
pub(crate) fn check(spec: SchedulingSpec, script: &str) -> Scheduler {
    play(Scheduler::new(spec), script)
}

/// As [`check`], with a scheduler that is there already.
#[track_caller]
pub(crate) fn play<S: BatchStrategy>(mut scheduler: Scheduler<S>, script: &str) -> Scheduler<S> {
    let mut actions = Actions::default();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (input, expected) = line.split_once("->").expect("event -> actions");
        let (expected, wakeup) = match expected.split_once(';') {
            Some((expected, wakeup)) => (expected, Some(wakeup.trim())),
            None => (expected, None),
        };
        let input: Vec<&str> = input.split_whitespace().collect();
        let now = Time(input[0].parse().expect("a time"));
        scheduler.step(now, event(&input[1..]), &mut actions);
        let done: Vec<String> = actions.drain().map(words).collect();
        assert_eq!(done.join(", "), expected.trim(), "in line {line:?}");
        if let Some(wakeup) = wakeup {
            let next =
                scheduler.next_wakeup().map_or("never".to_owned(), |time| time.0.to_string());
            assert_eq!(next, wakeup, "wake-up after line {line:?}");
        }
    }
    scheduler
}
