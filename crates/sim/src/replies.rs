//! Reply ordering at random: requests start, are answered in parts and at last,
//! or are withdrawn, and what leaves is compared with what must.

use std::collections::BTreeMap;
use std::fmt::Write;

use galatea_policy::{ReplyKind, ReplyNumber, ReplyOrder};

use crate::check::{Check, ensure};
use crate::random::Random;

/// A reply: whose, and how many came before it.
type Reply = (u64, u64);

/// What a request has come to.
#[derive(Clone, Debug, Default)]
struct Progress {
    started: bool,
    /// Of those that its backend gave, how many came before it was started.
    given_before: u64,
    /// How many replies its backend gave.
    given: u64,
    /// How many of these left.
    left: u64,
    ended: bool,
}

impl Progress {
    /// It was started, and not all of its replies have left.
    fn holds_back_others(&self) -> bool {
        self.started && !(self.ended && self.left == self.given)
    }
}

struct Replies {
    order: ReplyOrder<Reply>,
    requests: BTreeMap<u64, Progress>,
    /// What was done, for whoever must understand a failure.
    story: String,
}

/// Lives through the replies of a seed.
pub(crate) fn check_replies(seed: u64) -> Check {
    let mut random = Random::new(seed);
    let requests = (0..random.between(1, 8)).map(|number| (number, Progress::default())).collect();
    let mut replies = Replies { order: ReplyOrder::default(), requests, story: String::new() };
    for _ in 0..30 {
        replies.act(&mut random).map_err(|message| replies.told(&message))?;
    }
    let end = if random.percent(50) { Replies::finish } else { Replies::take_all };
    end(&mut replies).map_err(|message| replies.told(&message))
}

impl Replies {
    fn told(&self, message: &str) -> String {
        format!("replies: {message}, after{}", self.story)
    }

    fn act(&mut self, random: &mut Random) -> Check {
        let last = u64::try_from(self.requests.len() - 1).expect("few requests");
        let number = random.between(0, last);
        let request = &self.requests[&number];
        match random.between(1, 10) {
            1..=4 if !request.started && !request.ended => self.start(number),
            5 if request.started => self.withdraw(number),
            6..=7 if !request.ended => self.reply(number, ReplyKind::More),
            8..=10 if !request.ended => self.reply(number, ReplyKind::Last),
            _ => Ok(()),
        }
    }

    fn request(&mut self, number: u64) -> &mut Progress {
        self.requests.get_mut(&number).expect("it was made up")
    }

    fn start(&mut self, number: u64) -> Check {
        let _ = write!(self.story, " start {number}");
        self.order.start(ReplyNumber(number));
        let request = self.request(number);
        request.started = true;
        request.given_before = request.given;
        self.look()
    }

    fn withdraw(&mut self, number: u64) -> Check {
        let _ = write!(self.story, " withdraw {number}");
        self.order.withdraw(ReplyNumber(number));
        let request = self.request(number);
        // What was answered in part keeps its turn.
        request.started = request.given > request.given_before;
        self.look()
    }

    fn reply(&mut self, number: u64, kind: ReplyKind) -> Check {
        let _ = write!(self.story, " {kind:?} {number}");
        let request = self.request(number);
        let reply = (number, request.given);
        request.given += 1;
        request.ended = kind == ReplyKind::Last;
        let passes = !request.started;
        let returned = self.order.reply(ReplyNumber(number), reply, kind);
        ensure!(returned.is_some() == passes, "{returned:?} came back at once");
        if passes {
            self.request(number).left += 1;
        }
        self.look()
    }

    /// Whatever may leave does, in order, and nothing else.
    fn look(&mut self) -> Check {
        while let Some(expected) = self.next() {
            let next = self.order.next_reply();
            ensure!(next == Some(expected), "{next:?} left, it was {expected:?}'s turn");
            self.request(expected.0).left += 1;
        }
        let next = self.order.next_reply();
        ensure!(next.is_none(), "{next:?} left, it was nobody's turn");
        let held = self.requests.values().filter(|request| request.holds_back_others()).count();
        let waiting = self.order.waiting();
        ensure!(waiting == held, "{waiting} wait, not {held}");
        Ok(())
    }

    /// The next reply of the first request that still holds others back.
    fn next(&self) -> Option<Reply> {
        let mut requests = self.requests.iter();
        let (number, first) = requests.find(|(_, request)| request.holds_back_others())?;
        (first.left < first.given).then_some((*number, first.left))
    }

    /// The model goes: whatever is held leaves, in order.
    fn take_all(&mut self) -> Check {
        let _ = write!(self.story, " take all");
        let held = self.requests.iter().flat_map(|(number, request)| {
            (request.left..request.given).map(|reply| (*number, reply))
        });
        let expected: Vec<Reply> = held.collect();
        let taken = self.order.take_all();
        ensure!(taken == expected, "{taken:?} left at the end, not {expected:?}");
        let waiting = self.order.waiting();
        ensure!(waiting == 0, "{waiting} wait after the end");
        Ok(())
    }

    /// Everybody gets an end; then nothing is left.
    fn finish(&mut self) -> Check {
        let numbers: Vec<u64> = self.requests.keys().copied().collect();
        for number in numbers.into_iter().rev() {
            if !self.requests[&number].ended {
                self.reply(number, ReplyKind::Last)?;
            }
        }
        let stuck = self.requests.values().filter(|request| request.left < request.given).count();
        ensure!(stuck == 0, "{stuck} requests have replies that never left");
        Ok(())
    }
}
