//! Reply ordering: responses leave in the order in which their requests came.
//!
//! A value beside the scheduler, not a part of it: the scheduler decides when
//! requests run, this decides when their replies may leave. Its driver numbers
//! requests as they arrive, says which of them are sure to run, and hands every
//! reply through.
//!
//! # Bounds
//!
//! There is one entry for each request that was started and has not ended: at
//! most as many as run or wait. A request with one response holds back at most
//! that one; a decoupled request holds back what its backend sends before its
//! turn comes, which only the backend bounds.

use std::collections::{BTreeMap, VecDeque};

/// A request's number in the order of arrival.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ReplyNumber(pub u64);

/// Whether a request's reply is its last.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ReplyKind {
    /// Others may follow.
    More,
    /// None follows.
    Last,
}

/// Lets replies out in the order of their requests' numbers.
///
/// Only a request that was started keeps others waiting: one that was not may
/// never run, or only after somebody else did something. Replies to it, which
/// are refusals, pass at once.
///
/// ```
/// use galatea_policy::{ReplyKind, ReplyNumber, ReplyOrder};
///
/// let mut order = ReplyOrder::default();
/// order.start(ReplyNumber(1));
/// order.start(ReplyNumber(2));
/// assert_eq!(order.reply(ReplyNumber(2), "second", ReplyKind::Last), None);
/// assert_eq!(order.next_reply(), None);
/// assert_eq!(order.reply(ReplyNumber(1), "first", ReplyKind::Last), None);
/// assert_eq!(order.next_reply(), Some("first"));
/// assert_eq!(order.next_reply(), Some("second"));
/// assert_eq!(order.reply(ReplyNumber(3), "refused", ReplyKind::Last), Some("refused"));
/// ```
#[derive(Clone, Debug)]
pub struct ReplyOrder<T> {
    started: BTreeMap<ReplyNumber, Replies<T>>,
}

/// What a started request was answered and could not leave yet.
#[derive(Clone, Debug)]
struct Replies<T> {
    held: VecDeque<T>,
    progress: Progress,
}

/// Silent → Replied → Ended, or from Silent to Ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Progress {
    Silent,
    Replied,
    Ended,
}

impl<T> Default for ReplyOrder<T> {
    fn default() -> Self {
        ReplyOrder { started: BTreeMap::new() }
    }
}

impl<T> ReplyOrder<T> {
    /// The request is sure to run and to be answered, whatever clients do: from
    /// now on replies with higher numbers wait for its last one.
    ///
    /// # Panics
    ///
    /// If it was started before.
    pub fn start(&mut self, number: ReplyNumber) {
        let replies = Replies { held: VecDeque::new(), progress: Progress::Silent };
        let previous = self.started.insert(number, replies);
        assert!(previous.is_none(), "{number:?} was started twice");
    }

    /// A started request will not run after all. Unless it has been answered in
    /// part, its refusal passes at once; [`next_reply`](Self::next_reply) may
    /// have something then.
    pub fn withdraw(&mut self, number: ReplyNumber) {
        let is_silent = |replies: &mut Replies<T>| matches!(replies.progress, Progress::Silent);
        if self.started.get_mut(&number).is_some_and(is_silent) {
            self.started.remove(&number);
        }
    }

    /// Takes a reply in. It comes back at once if its request was not started;
    /// otherwise it leaves by [`next_reply`](Self::next_reply).
    ///
    /// # Panics
    ///
    /// If it follows its request's last reply.
    #[must_use = "a reply that comes back leaves at once"]
    pub fn reply(&mut self, number: ReplyNumber, reply: T, kind: ReplyKind) -> Option<T> {
        let Some(replies) = self.started.get_mut(&number) else { return Some(reply) };
        assert!(replies.progress != Progress::Ended, "{number:?} was answered after its end");
        replies.progress = match kind {
            ReplyKind::More => Progress::Replied,
            ReplyKind::Last => Progress::Ended,
        };
        replies.held.push_back(reply);
        None
    }

    /// The reply that leaves next, if there is one that may.
    pub fn next_reply(&mut self) -> Option<T> {
        while let Some(mut first) = self.started.first_entry() {
            if let Some(reply) = first.get_mut().held.pop_front() {
                return Some(reply);
            }
            if first.get().progress != Progress::Ended {
                return None;
            }
            first.remove();
        }
        None
    }

    /// Everything that was held back, in order, whatever is missing between: for
    /// the end, when nobody would let it out any more.
    pub fn take_all(&mut self) -> Vec<T> {
        let started = std::mem::take(&mut self.started);
        started.into_values().flat_map(|replies| replies.held).collect()
    }

    /// Requests that were started and whose last reply has not left.
    pub fn waiting(&self) -> usize {
        self.started.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a line of deeds: `s1` starts, `w1` withdraws, `r1` is a reply that
    /// others follow, `l1` the last. What leaves is compared deed by deed.
    fn check(deeds: &str, expected: &str) {
        let mut order = ReplyOrder::default();
        let mut left = Vec::new();
        for deed in deeds.split(' ') {
            let number = ReplyNumber(deed[1..].parse().unwrap());
            let mut now: Vec<&str> = match &deed[..1] {
                "s" => {
                    order.start(number);
                    Vec::new()
                }
                "w" => {
                    order.withdraw(number);
                    Vec::new()
                }
                "r" => order.reply(number, deed, ReplyKind::More).into_iter().collect(),
                _ => order.reply(number, deed, ReplyKind::Last).into_iter().collect(),
            };
            now.extend(std::iter::from_fn(|| order.next_reply()));
            left.push(if now.is_empty() { String::from("-") } else { now.join(",") });
        }
        assert_eq!(left.join(" "), expected, "{deeds}");
    }

    #[test]
    fn replies_leave_in_the_order_of_numbers() {
        check("s1 s2 s3 l3 l2 l1", "- - - - - l1,l2,l3");
        check("s1 s2 l1 l2", "- - l1 l2");
    }

    #[test]
    fn the_first_streams_and_the_others_hold_theirs() {
        check("s1 s2 r1 r2 r2 r1 l2 l1", "- - r1 - - r1 - l1,r2,r2,l2");
        check("s1 s2 r2 l1 r2 l2", "- - - l1,r2 r2 l2");
    }

    #[test]
    fn what_never_ran_leaves_at_once_and_keeps_nobody_waiting() {
        check("s1 l3 s4 l4 l1", "- l3 - - l1,l4");
        check("s1 s2 l2 w1 l1", "- - - l2 l1");
        check("s1 s2 s3 w2 l2 l3 l1", "- - - - l2 - l1,l3");
    }

    #[test]
    fn what_was_answered_in_part_keeps_its_turn() {
        check("s1 s2 r2 w2 l2 l1", "- - - - - l1,r2,l2");
        check("s1 s2 r1 w1 l2 l1", "- - r1 - - l1,l2");
        check("s1 s2 l2 w2 l1", "- - - - l1,l2");
    }

    #[test]
    fn a_late_start_takes_its_place() {
        check("s2 s3 r2 s1 r2 l3 l1 l2", "- - r2 - - - l1,r2 l2,l3");
        check("s2 l2 s1 l1", "- l2 - l1");
    }

    #[test]
    fn at_the_end_everything_leaves() {
        let mut order = ReplyOrder::default();
        for number in 0..3 {
            order.start(ReplyNumber(number));
        }
        for (number, reply) in [(2, "d"), (1, "a"), (1, "b"), (1, "c")] {
            assert_eq!(order.reply(ReplyNumber(number), reply, ReplyKind::More), None);
        }
        assert_eq!(order.take_all(), ["a", "b", "c", "d"]);
        assert_eq!(order.reply(ReplyNumber(0), "late", ReplyKind::Last), Some("late"));
    }

    #[test]
    fn nothing_is_kept_of_what_left() {
        let mut order = ReplyOrder::default();
        for number in 0..4 {
            order.start(ReplyNumber(number));
        }
        for number in (0..4).rev() {
            assert_eq!(order.reply(ReplyNumber(number), number, ReplyKind::Last), None);
        }
        assert_eq!(std::iter::from_fn(|| order.next_reply()).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(order.waiting(), 0);
    }

    #[test]
    #[should_panic(expected = "answered after its end")]
    fn nothing_follows_the_last_reply() {
        let mut order = ReplyOrder::default();
        order.start(ReplyNumber(0));
        order.start(ReplyNumber(1));
        let _ = order.reply(ReplyNumber(1), (), ReplyKind::Last);
        let _ = order.reply(ReplyNumber(1), (), ReplyKind::Last);
    }
}
