//! Reply ordering: replies are sent in the order in which their requests arrived.
//!
//! The scheduler decides when requests run; [`ReplyReorderBuffer`], which is independent of it,
//! decides when their replies may be sent. The driver numbers requests as they arrive, reports
//! which of them will certainly run, and passes every reply through.
//!
//! # Bounds
//!
//! There is one entry for each started request without a final reply, so there are as many entries
//! as running and waiting requests. At most one reply is held for a request with a single response.
//! The held responses of a decoupled request are bounded by its backend.

use std::collections::{BTreeMap, VecDeque};

/// A request's number in arrival order.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ArrivalNumber(pub u64);

/// The position of a reply within its request's replies.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ReplyFinality {
    /// Further replies may follow.
    More,
    /// No reply follows.
    Last,
}

/// Releases replies in the order of their requests' numbers.
///
/// Only a started request delays others. A request that hasn't started may never run: if its
/// sequence waits for a slot, it may depend on an action of a client that is itself waiting for
/// replies. Replies to a request that hasn't started are refusals and pass immediately.
///
/// ```
/// use galatea_policy::{ReplyFinality, ArrivalNumber, ReplyReorderBuffer};
///
/// let mut order = ReplyReorderBuffer::default();
/// order.start_request(ArrivalNumber(1));
/// order.start_request(ArrivalNumber(2));
/// assert_eq!(order.add_reply(ArrivalNumber(2), "second", ReplyFinality::Last), None);
/// assert_eq!(order.next_reply(), None);
/// assert_eq!(order.add_reply(ArrivalNumber(1), "first", ReplyFinality::Last), None);
/// assert_eq!(order.next_reply(), Some("first"));
/// assert_eq!(order.next_reply(), Some("second"));
/// assert_eq!(order.add_reply(ArrivalNumber(3), "refused", ReplyFinality::Last), Some("refused"));
/// ```
#[derive(Clone, Debug)]
pub struct ReplyReorderBuffer<T> {
    started: BTreeMap<ArrivalNumber, HeldReplies<T>>,
}

/// The held replies of a started request.
#[derive(Clone, Debug)]
struct HeldReplies<T> {
    held: VecDeque<T>,
    progress: ReplyProgress,
}

/// Silent → Replied → Ended, or Silent → Ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum ReplyProgress {
    Silent,
    Replied,
    Ended,
}

impl<T> Default for ReplyReorderBuffer<T> {
    fn default() -> Self {
        ReplyReorderBuffer { started: BTreeMap::new() }
    }
}

impl<T> ReplyReorderBuffer<T> {
    /// Records that the request will certainly run and reply, even if clients cancel it: from now
    /// on, replies to requests with higher numbers wait for its last reply.
    ///
    /// # Panics
    ///
    /// Panics if the request was already started.
    pub fn start_request(&mut self, number: ArrivalNumber) {
        let replies = HeldReplies { held: VecDeque::new(), progress: ReplyProgress::Silent };
        let previous = self.started.insert(number, replies);
        assert!(previous.is_none(), "{number:?} was started twice");
    }

    /// Records that a started request won't run after all. Unless it has already replied, its
    /// refusal passes immediately, and [`next_reply`](Self::next_reply) may return replies that
    /// waited for it.
    pub fn withdraw(&mut self, number: ArrivalNumber) {
        let is_silent =
            |replies: &mut HeldReplies<T>| matches!(replies.progress, ReplyProgress::Silent);
        if self.started.get_mut(&number).is_some_and(is_silent) {
            self.started.remove(&number);
        }
    }

    /// Adds a reply. If the request wasn't started, the reply is returned immediately; otherwise
    /// [`next_reply`](Self::next_reply) returns it.
    ///
    /// # Panics
    ///
    /// Panics if the reply follows its request's last reply.
    #[must_use = "a returned reply is sent at once"]
    pub fn add_reply(&mut self, number: ArrivalNumber, reply: T, kind: ReplyFinality) -> Option<T> {
        let Some(replies) = self.started.get_mut(&number) else { return Some(reply) };
        assert!(replies.progress != ReplyProgress::Ended, "{number:?} was answered after its end");
        replies.progress = match kind {
            ReplyFinality::More => ReplyProgress::Replied,
            ReplyFinality::Last => ReplyProgress::Ended,
        };
        replies.held.push_back(reply);
        None
    }

    /// Returns the next reply that may be sent, if any.
    pub fn next_reply(&mut self) -> Option<T> {
        while let Some(mut first) = self.started.first_entry() {
            if let Some(reply) = first.get_mut().held.pop_front() {
                return Some(reply);
            }
            if first.get().progress != ReplyProgress::Ended {
                return None;
            }
            first.remove();
        }
        None
    }

    /// Removes and returns all held replies in order, even if earlier ones are missing. Used when
    /// the driver shuts down.
    pub fn take_all(&mut self) -> Vec<T> {
        let started = std::mem::take(&mut self.started);
        started.into_values().flat_map(|replies| replies.held).collect()
    }

    /// Returns the number of started requests whose last reply hasn't been returned.
    pub fn unfinished_request_count(&self) -> usize {
        self.started.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs operations and compares the replies that pass after each one: `s1` starts, `w1`
    /// withdraws, `r1` is a reply that others follow, and `l1` is the last reply.
    fn check(operations: &str, expected: &str) {
        let mut order = ReplyReorderBuffer::default();
        let mut passed = Vec::new();
        for operation in operations.split(' ') {
            let number = ArrivalNumber(operation[1..].parse().unwrap());
            let mut now: Vec<&str> = match &operation[..1] {
                "s" => {
                    order.start_request(number);
                    Vec::new()
                }
                "w" => {
                    order.withdraw(number);
                    Vec::new()
                }
                "r" => {
                    order.add_reply(number, operation, ReplyFinality::More).into_iter().collect()
                }
                _ => order.add_reply(number, operation, ReplyFinality::Last).into_iter().collect(),
            };
            now.extend(std::iter::from_fn(|| order.next_reply()));
            passed.push(if now.is_empty() { String::from("-") } else { now.join(",") });
        }
        assert_eq!(passed.join(" "), expected, "{operations}");
    }

    #[test]
    fn replies_pass_in_the_order_of_numbers() {
        check("s1 s2 s3 l3 l2 l1", "- - - - - l1,l2,l3");
        check("s1 s2 l1 l2", "- - l1 l2");
    }

    #[test]
    fn the_first_request_streams_and_the_others_are_held() {
        check("s1 s2 r1 r2 r2 r1 l2 l1", "- - r1 - - r1 - l1,r2,r2,l2");
        check("s1 s2 r2 l1 r2 l2", "- - - l1,r2 r2 l2");
    }

    #[test]
    fn refusals_pass_at_once_and_delay_no_reply() {
        check("s1 l3 s4 l4 l1", "- l3 - - l1,l4");
        check("s1 s2 l2 w1 l1", "- - - l2 l1");
        check("s1 s2 s3 w2 l2 l3 l1", "- - - - l2 - l1,l3");
    }

    #[test]
    fn a_request_with_replies_keeps_its_position_when_withdrawn() {
        check("s1 s2 r2 w2 l2 l1", "- - - - - l1,r2,l2");
        check("s1 s2 r1 w1 l2 l1", "- - r1 - - l1,l2");
        check("s1 s2 l2 w2 l1", "- - - - l1,l2");
    }

    #[test]
    fn a_late_start_gets_the_position_of_its_number() {
        check("s2 s3 r2 s1 r2 l3 l1 l2", "- - r2 - - - l1,r2 l2,l3");
        check("s2 l2 s1 l1", "- l2 - l1");
    }

    #[test]
    fn take_all_returns_every_held_reply() {
        let mut order = ReplyReorderBuffer::default();
        for number in 0..3 {
            order.start_request(ArrivalNumber(number));
        }
        for (number, reply) in [(2, "d"), (1, "a"), (1, "b"), (1, "c")] {
            assert_eq!(order.add_reply(ArrivalNumber(number), reply, ReplyFinality::More), None);
        }
        assert_eq!(order.take_all(), ["a", "b", "c", "d"]);
        assert_eq!(order.add_reply(ArrivalNumber(0), "late", ReplyFinality::Last), Some("late"));
    }

    #[test]
    fn no_entry_remains_after_the_last_reply() {
        let mut order = ReplyReorderBuffer::default();
        for number in 0..4 {
            order.start_request(ArrivalNumber(number));
        }
        for number in (0..4).rev() {
            assert_eq!(order.add_reply(ArrivalNumber(number), number, ReplyFinality::Last), None);
        }
        assert_eq!(std::iter::from_fn(|| order.next_reply()).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(order.unfinished_request_count(), 0);
    }

    #[test]
    #[should_panic(expected = "answered after its end")]
    fn a_reply_after_the_last_is_refused() {
        let mut order = ReplyReorderBuffer::default();
        order.start_request(ArrivalNumber(0));
        order.start_request(ArrivalNumber(1));
        let _ = order.add_reply(ArrivalNumber(1), (), ReplyFinality::Last);
        let _ = order.add_reply(ArrivalNumber(1), (), ReplyFinality::Last);
    }
}
