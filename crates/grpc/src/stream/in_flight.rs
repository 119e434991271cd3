//! The requests of a stream that have no last reply yet, and the replies that
//! wait for their turn.

use std::collections::VecDeque;

use galatea_infer::CancelToken;
use slab::Slab;

/// When the responses to a request may leave.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Behind the responses to every earlier request that waits for its turn.
    InTurn,
    /// As soon as they are made.
    AtOnce,
}

/// Where a request stands among those of its stream.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The number of its turn, counted from the stream's beginning.
    Turn(u64),
    /// A place that is used again once the request has its last reply.
    Free(usize),
}

/// The unfinished requests of a stream; `A` is an answer.
pub(crate) struct InFlight<A> {
    turns: VecDeque<Turn<A>>,
    /// The number of the first turn in the queue.
    first: u64,
    free: Slab<Request>,
    unanswered: usize,
    bytes: usize,
}

struct Turn<A> {
    /// Gone once it is answered.
    request: Option<Request>,
    answer: Option<A>,
}

struct Request {
    cancel: CancelToken,
    bytes: usize,
}

impl<A> InFlight<A> {
    pub(crate) fn new() -> Self {
        let (turns, free) = (VecDeque::new(), Slab::new());
        Self { turns, first: 0, free, unanswered: 0, bytes: 0 }
    }

    /// Makes room for a request that takes this many bytes.
    pub(crate) fn begin(&mut self, order: Order, cancel: CancelToken, bytes: usize) -> Place {
        self.unanswered = self.unanswered.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        let request = Request { cancel, bytes };
        match order {
            Order::AtOnce => Place::Free(self.free.insert(request)),
            Order::InTurn => {
                let behind = u64::try_from(self.turns.len()).unwrap_or(u64::MAX);
                self.turns.push_back(Turn { request: Some(request), answer: None });
                Place::Turn(self.first.saturating_add(behind))
            }
        }
    }

    /// Takes a reply, which may have no answer in it. Returns the first answer
    /// that may leave now; [`InFlight::next`] has the others.
    pub(crate) fn reply(&mut self, place: Place, answer: Option<A>, is_final: bool) -> Option<A> {
        match place {
            Place::Free(place) => {
                if is_final && let Some(request) = self.free.try_remove(place) {
                    self.forget(&request);
                }
                answer
            }
            Place::Turn(number) => {
                let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
                let turn = self.turns.get_mut(index)?;
                turn.answer = answer;
                if let Some(request) = turn.request.take() {
                    self.forget(&request);
                }
                self.next()
            }
        }
    }

    /// The answer whose turn it is, if it is there.
    pub(crate) fn next(&mut self) -> Option<A> {
        self.turns.front()?.answer.as_ref()?;
        self.first = self.first.saturating_add(1);
        self.turns.pop_front()?.answer
    }

    fn forget(&mut self, request: &Request) {
        self.unanswered = self.unanswered.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(request.bytes);
    }

    /// How many requests have no last reply.
    pub(crate) const fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// What the messages of those requests took.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether every request has its last reply and every answer left.
    pub(crate) fn is_empty(&self) -> bool {
        self.unanswered == 0 && self.turns.is_empty()
    }

    /// Tells everyone who works on a request that nobody waits for it.
    pub(crate) fn cancel(&self) {
        let in_turn = self.turns.iter().filter_map(|turn| turn.request.as_ref());
        let at_once = self.free.iter().map(|(_, request)| request);
        for request in in_turn.chain(at_once) {
            request.cancel.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins requests and replies to them: `a` to `z` begin in turn, `A` to
    /// `Z` at once. A reply is such a letter and a sign: `.` for the last
    /// answer, `+` for one that others follow, `!` for an end without one.
    fn check(script: &str, expected: &str) {
        let mut in_flight = InFlight::new();
        let (mut places, mut left) = (Vec::new(), String::new());
        for step in script.split(' ') {
            let mut characters = step.chars();
            let name = characters.next().unwrap();
            let Some(sign) = characters.next() else {
                let order = if name.is_lowercase() { Order::InTurn } else { Order::AtOnce };
                places.push((name, in_flight.begin(order, CancelToken::new(), 10)));
                continue;
            };
            let place = places.iter().rev().find(|place| place.0 == name).unwrap().1;
            let answer = (sign != '!').then_some(name);
            let mut next = in_flight.reply(place, answer, sign != '+');
            while let Some(answer) = next {
                left.push(answer);
                next = in_flight.next();
            }
        }
        assert_eq!(left, expected, "{script}");
        assert!(in_flight.is_empty() && in_flight.unanswered() == 0, "{script}");
        assert_eq!(in_flight.bytes(), 0, "{script}");
    }

    #[test]
    fn answers_leave_in_turn_or_at_once() {
        check("a a.", "a");
        check("a b c c. b. a.", "abc");
        check("a b b. c a. c.", "abc");
        check("A B B+ A+ B. A+ A!", "BABA");
        check("a A b A+ b. A! a.", "Aab");
        check("A A! A A. B B!", "A");
    }

    #[test]
    fn what_is_unfinished_is_known_and_cancelled() {
        let mut in_flight = InFlight::new();
        let tokens: [CancelToken; 4] = std::array::from_fn(|_| CancelToken::new());
        let orders = [Order::InTurn, Order::AtOnce, Order::InTurn, Order::AtOnce];
        let places: Vec<Place> = tokens
            .iter()
            .zip(orders)
            .map(|(token, order)| in_flight.begin(order, token.clone(), 7))
            .collect();
        assert_eq!((in_flight.unanswered(), in_flight.bytes()), (4, 28));
        assert_eq!(in_flight.reply(places[2], Some('x'), true), None);
        assert_eq!(in_flight.reply(places[3], None, true), None);
        assert_eq!((in_flight.unanswered(), in_flight.bytes()), (2, 14));
        in_flight.cancel();
        let cancelled = tokens.map(|token| token.is_cancelled());
        assert_eq!(cancelled, [true, true, false, false]);
        // An answer waits for its turn still.
        assert_eq!(in_flight.reply(places[1], None, true), None);
        assert!(!in_flight.is_empty());
    }

    #[test]
    fn replies_to_nothing_change_nothing() {
        let mut in_flight = InFlight::new();
        let place = in_flight.begin(Order::InTurn, CancelToken::new(), 1);
        assert_eq!(in_flight.reply(Place::Turn(5), Some(1), true), None);
        assert_eq!(in_flight.reply(place, Some(2), true), Some(2));
        assert_eq!(in_flight.reply(place, Some(3), true), None);
        assert!(in_flight.is_empty());
    }
}
