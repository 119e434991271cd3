//! Random orders of replies: requests start, reply, and end or are withdrawn. The replies that pass
//! are compared with the expected ones.

use std::collections::BTreeMap;
use std::fmt::Write;

use galatea_policy::{ArrivalNumber, ReplyFinality, ReplyReorderBuffer};

use crate::check::{Check, ensure};
use crate::random::Random;

/// A reply, identified by the number of its request and its own number within the request.
type Reply = (u64, u64);

/// The state of a request.
#[derive(Clone, Debug, Default)]
struct RequestProgress {
    started: bool,
    /// The number of replies that the backend sent before the request was started.
    sent_before: u64,
    /// The number of replies that the backend sent.
    sent: u64,
    /// The number of replies that passed.
    passed: u64,
    ended: bool,
}

impl RequestProgress {
    /// Returns true if the request was started and some of its replies are missing.
    fn delays_others(&self) -> bool {
        self.started && !(self.ended && self.passed == self.sent)
    }
}

struct Replies {
    order: ReplyReorderBuffer<Reply>,
    requests: BTreeMap<u64, RequestProgress>,
    /// The operations so far, for error messages.
    log: String,
}

/// Runs the random reply operations of a seed.
pub(crate) fn check_replies(seed: u64) -> Check {
    let mut random = Random::new(seed);
    let requests =
        (0..random.between(1, 8)).map(|number| (number, RequestProgress::default())).collect();
    let mut replies =
        Replies { order: ReplyReorderBuffer::default(), requests, log: String::new() };
    for _ in 0..30 {
        replies.act(&mut random).map_err(|message| replies.describe(&message))?;
    }
    let end = if random.percent(50) { Replies::finish } else { Replies::take_all };
    end(&mut replies).map_err(|message| replies.describe(&message))
}

impl Replies {
    fn describe(&self, message: &str) -> String {
        format!("replies: {message}, after{}", self.log)
    }

    fn act(&mut self, random: &mut Random) -> Check {
        let last = u64::try_from(self.requests.len() - 1).expect("few requests");
        let number = random.between(0, last);
        let request = &self.requests[&number];
        match random.between(1, 10) {
            1..=4 if !request.started && !request.ended => self.start(number),
            5 if request.started => self.withdraw(number),
            6..=7 if !request.ended => self.reply(number, ReplyFinality::More),
            8..=10 if !request.ended => self.reply(number, ReplyFinality::Last),
            _ => Ok(()),
        }
    }

    fn request(&mut self, number: u64) -> &mut RequestProgress {
        self.requests.get_mut(&number).expect("the request is known")
    }

    fn start(&mut self, number: u64) -> Check {
        let _ = write!(self.log, " start {number}");
        self.order.start_request(ArrivalNumber(number));
        let request = self.request(number);
        request.started = true;
        request.sent_before = request.sent;
        self.check_passed()
    }

    fn withdraw(&mut self, number: u64) -> Check {
        let _ = write!(self.log, " withdraw {number}");
        self.order.withdraw(ArrivalNumber(number));
        let request = self.request(number);
        // A request with replies keeps its position.
        request.started = request.sent > request.sent_before;
        self.check_passed()
    }

    fn reply(&mut self, number: u64, kind: ReplyFinality) -> Check {
        let _ = write!(self.log, " {kind:?} {number}");
        let request = self.request(number);
        let reply = (number, request.sent);
        request.sent += 1;
        request.ended = kind == ReplyFinality::Last;
        let passes = !request.started;
        let returned = self.order.add_reply(ArrivalNumber(number), reply, kind);
        ensure!(returned.is_some() == passes, "{returned:?} was returned at once");
        if passes {
            self.request(number).passed += 1;
        }
        self.check_passed()
    }

    /// Checks that exactly the next replies in order pass.
    fn check_passed(&mut self) -> Check {
        while let Some(expected) = self.next() {
            let next = self.order.next_reply();
            ensure!(next == Some(expected), "{next:?} passed in place of {expected:?}");
            self.request(expected.0).passed += 1;
        }
        let next = self.order.next_reply();
        ensure!(next.is_none(), "{next:?} passed too early");
        let held = self.requests.values().filter(|request| request.delays_others()).count();
        let waiting = self.order.unfinished_request_count();
        ensure!(waiting == held, "{waiting} wait, not {held}");
        Ok(())
    }

    /// Returns the next reply of the first request that delays others.
    fn next(&self) -> Option<Reply> {
        let mut requests = self.requests.iter();
        let (number, first) = requests.find(|(_, request)| request.delays_others())?;
        (first.passed < first.sent).then_some((*number, first.passed))
    }

    /// Takes and compares all held replies, as when a model ends.
    fn take_all(&mut self) -> Check {
        let _ = write!(self.log, " take all");
        let held = self.requests.iter().flat_map(|(number, request)| {
            (request.passed..request.sent).map(|reply| (*number, reply))
        });
        let expected: Vec<Reply> = held.collect();
        let taken = self.order.take_all();
        ensure!(taken == expected, "{taken:?} were held at the end, not {expected:?}");
        let waiting = self.order.unfinished_request_count();
        ensure!(waiting == 0, "{waiting} wait after the end");
        Ok(())
    }

    /// Ends all requests, after which no replies may remain.
    fn finish(&mut self) -> Check {
        let numbers: Vec<u64> = self.requests.keys().copied().collect();
        for number in numbers.into_iter().rev() {
            if !self.requests[&number].ended {
                self.reply(number, ReplyFinality::Last)?;
            }
        }
        let stuck = self.requests.values().filter(|request| request.passed < request.sent).count();
        ensure!(stuck == 0, "{stuck} requests have replies that never passed");
        Ok(())
    }
}
