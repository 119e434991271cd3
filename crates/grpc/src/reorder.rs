//! Orders a stream's responses by request.

use std::collections::VecDeque;

use galatea_infer::CancelToken;
use galatea_stdx::len64;
use slab::Slab;

/// The order in which a request's responses are sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReplyMode {
    /// Responses are sent after those to every earlier ordered request.
    Ordered,
    /// Responses are sent as soon as they are created.
    Immediate,
}

/// A request's slot within its stream.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReplySlot {
    /// The number of an ordered request, counted from the beginning of the stream.
    Ordered(u64),
    /// An index, which is reused once the request has its final reply.
    Immediate(usize),
}

/// The in-flight requests of a stream, and the responses that wait for responses to earlier
/// requests. `R` is the response type.
pub(crate) struct ReorderBuffer<R> {
    ordered: VecDeque<OrderedRequest<R>>,
    /// The number of the first request in `ordered`.
    first: u64,
    immediate: Slab<ReorderedRequest>,
    in_progress: usize,
    bytes: usize,
}

struct OrderedRequest<R> {
    /// The request; `None` after the final reply.
    request: Option<ReorderedRequest>,
    response: Option<R>,
}

struct ReorderedRequest {
    cancel: CancelToken,
    bytes: usize,
}

impl<R> ReorderBuffer<R> {
    pub(crate) fn new() -> Self {
        let (ordered, immediate) = (VecDeque::new(), Slab::new());
        Self { ordered, first: 0, immediate, in_progress: 0, bytes: 0 }
    }

    /// Begins a request with this many bytes.
    pub(crate) fn begin(
        &mut self,
        mode: ReplyMode,
        cancel: CancelToken,
        bytes: usize,
    ) -> ReplySlot {
        self.in_progress = self.in_progress.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        let request = ReorderedRequest { cancel, bytes };
        match mode {
            ReplyMode::Immediate => ReplySlot::Immediate(self.immediate.insert(request)),
            ReplyMode::Ordered => {
                let number = self.first.saturating_add(len64(self.ordered.len()));
                self.ordered.push_back(OrderedRequest { request: Some(request), response: None });
                ReplySlot::Ordered(number)
            }
        }
    }

    /// Processes a reply, which may have no response. Returns the first response that may now be
    /// sent; [`ReorderBuffer::next`] returns the rest.
    pub(crate) fn reply(
        &mut self,
        slot: ReplySlot,
        response: Option<R>,
        is_final: bool,
    ) -> Option<R> {
        match slot {
            ReplySlot::Immediate(index) => {
                if is_final && let Some(request) = self.immediate.try_remove(index) {
                    self.forget(&request);
                }
                response
            }
            ReplySlot::Ordered(number) => {
                let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
                let ordered = self.ordered.get_mut(index)?;
                ordered.response = response;
                if let Some(request) = ordered.request.take() {
                    self.forget(&request);
                }
                self.next()
            }
        }
    }

    /// Returns the next ordered response, if it has arrived.
    pub(crate) fn next(&mut self) -> Option<R> {
        self.ordered.front()?.response.as_ref()?;
        self.first = self.first.saturating_add(1);
        self.ordered.pop_front()?.response
    }

    fn forget(&mut self, request: &ReorderedRequest) {
        self.in_progress = self.in_progress.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(request.bytes);
    }

    /// The number of requests that don't have a final reply yet.
    pub(crate) const fn in_progress(&self) -> usize {
        self.in_progress
    }

    /// The total size of the requests that don't have a final reply yet.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if every request has its final reply and every response has been sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.in_progress == 0 && self.ordered.is_empty()
    }

    /// Cancels all requests in progress.
    pub(crate) fn cancel(&self) {
        let ordered = self.ordered.iter().filter_map(|ordered| ordered.request.as_ref());
        let immediate = self.immediate.iter().map(|(_, request)| request);
        for request in ordered.chain(immediate) {
            request.cancel.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins requests and replies to them. Requests `a` to `z` are ordered, and `A` to `Z` are
    /// immediate. A reply is one of these letters and a sign: `.` marks the final response, `+` a
    /// response that others follow, and `!` a final reply without a response.
    fn check(script: &str, expected: &str) {
        let mut buffer = ReorderBuffer::new();
        let (mut slots, mut left) = (Vec::new(), String::new());
        for step in script.split(' ') {
            let mut characters = step.chars();
            let name = characters.next().unwrap();
            let Some(sign) = characters.next() else {
                let mode =
                    if name.is_lowercase() { ReplyMode::Ordered } else { ReplyMode::Immediate };
                slots.push((name, buffer.begin(mode, CancelToken::new(), 10)));
                continue;
            };
            let slot = slots.iter().rev().find(|slot| slot.0 == name).unwrap().1;
            let response = (sign != '!').then_some(name);
            let mut next = buffer.reply(slot, response, sign != '+');
            while let Some(response) = next {
                left.push(response);
                next = buffer.next();
            }
        }
        assert_eq!(left, expected, "{script}");
        assert!(buffer.is_empty() && buffer.in_progress() == 0, "{script}");
        assert_eq!(buffer.bytes(), 0, "{script}");
    }

    #[test]
    fn responses_leave_in_order_or_immediately() {
        check("a a.", "a");
        check("a b c c. b. a.", "abc");
        check("a b b. c a. c.", "abc");
        check("A B B+ A+ B. A+ A!", "BABA");
        check("a A b A+ b. A! a.", "Aab");
        check("A A! A A. B B!", "A");
    }

    #[test]
    fn requests_in_progress_are_counted_and_cancelled() {
        let mut buffer = ReorderBuffer::new();
        let tokens: [CancelToken; 4] = std::array::from_fn(|_| CancelToken::new());
        let modes =
            [ReplyMode::Ordered, ReplyMode::Immediate, ReplyMode::Ordered, ReplyMode::Immediate];
        let slots: Vec<ReplySlot> = tokens
            .iter()
            .zip(modes)
            .map(|(token, mode)| buffer.begin(mode, token.clone(), 7))
            .collect();
        assert_eq!((buffer.in_progress(), buffer.bytes()), (4, 28));
        assert_eq!(buffer.reply(slots[2], Some('x'), true), None);
        assert_eq!(buffer.reply(slots[3], None, true), None);
        assert_eq!((buffer.in_progress(), buffer.bytes()), (2, 14));
        buffer.cancel();
        let cancelled = tokens.map(|token| token.is_cancelled());
        assert_eq!(cancelled, [true, true, false, false]);
        // An ordered response is still waiting.
        assert_eq!(buffer.reply(slots[1], None, true), None);
        assert!(!buffer.is_empty());
    }

    #[test]
    fn replies_without_a_request_change_nothing() {
        let mut buffer = ReorderBuffer::new();
        let slot = buffer.begin(ReplyMode::Ordered, CancelToken::new(), 1);
        assert_eq!(buffer.reply(ReplySlot::Ordered(5), Some(1), true), None);
        assert_eq!(buffer.reply(slot, Some(2), true), Some(2));
        assert_eq!(buffer.reply(slot, Some(3), true), None);
        assert!(buffer.is_empty());
    }
}
