//! Replies that leave in the order of their requests.
//!
//! Which reply may leave is decided by [`ReplyOrder`], under the dispatcher's
//! lock. Delivering happens without it, by whichever thread has the *turn*: it
//! delivers until nothing may leave, and a thread that finds the turn taken only
//! adds its reply. So no two threads deliver at once, and none overtakes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use galatea_backend::LogLevel;
use galatea_infer::{Reply, ResponseSender, ResponseSink};
use galatea_policy::{ReplyKind, ReplyNumber, ReplyOrder};

use super::Dispatcher;

/// Numbers requests as they come.
#[derive(Debug, Default)]
pub(super) struct Numbers(AtomicU64);

impl Numbers {
    pub(super) fn next_number(&self) -> ReplyNumber {
        ReplyNumber(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// What the dispatcher's lock guards of the replies.
#[derive(Debug, Default)]
pub(super) struct Replies {
    pub(super) order: ReplyOrder<Delivery>,
    turn: Turn,
}

impl Drop for Replies {
    /// A model may be gone before its backend has answered everything. What waits
    /// for such an answer leaves without it.
    fn drop(&mut self) {
        self.order.take_all().into_iter().for_each(Delivery::deliver);
    }
}

/// Whether a thread delivers.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum Turn {
    #[default]
    Free,
    Taken,
}

/// A reply with where it goes.
pub(super) struct Delivery {
    sink: SharedSink,
    reply: Reply,
}

/// A request's sink, out of its place while it is called: nothing is locked then.
type SharedSink = Arc<Mutex<Option<Box<dyn ResponseSink>>>>;

impl Delivery {
    fn deliver(self) {
        let Some(mut sink) = locked(&self.sink).take() else { return };
        let is_final = self.reply.is_final();
        sink.deliver(self.reply);
        if !is_final {
            *locked(&self.sink) = Some(sink);
        }
    }
}

fn locked(sink: &SharedSink) -> MutexGuard<'_, Option<Box<dyn ResponseSink>>> {
    sink.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Delivery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Delivery")
    }
}

/// Where a request's replies line up.
struct OrderedSink {
    dispatcher: Weak<Dispatcher>,
    number: ReplyNumber,
    sink: SharedSink,
}

impl ResponseSink for OrderedSink {
    fn deliver(&mut self, reply: Reply) {
        let delivery = Delivery { sink: self.sink.clone(), reply };
        match self.dispatcher.upgrade() {
            Some(dispatcher) => dispatcher.reply(self.number, delivery),
            // The model is gone, and with it whoever could be before this one.
            None => delivery.deliver(),
        }
    }
}

/// Puts a request's replies in line.
pub(super) fn order(
    sender: ResponseSender,
    number: ReplyNumber,
    dispatcher: Weak<Dispatcher>,
) -> (ResponseSender, ReplyNumber) {
    let sender = sender.wrap(|sink| {
        let sink = Arc::new(Mutex::new(Some(sink)));
        Box::new(OrderedSink { dispatcher, number, sink })
    });
    (sender, number)
}

impl Dispatcher {
    fn reply(&self, number: ReplyNumber, delivery: Delivery) {
        let kind = if delivery.reply.is_final() { ReplyKind::Last } else { ReplyKind::More };
        let mut state = self.lock();
        let passed = match &mut state.replies {
            Some(replies) => replies.order.reply(number, delivery, kind),
            None => Some(delivery),
        };
        drop(state);
        match passed {
            Some(delivery) => delivery.deliver(),
            None => self.send_ordered(),
        }
    }

    /// Delivers what may leave, unless another thread does already.
    pub(super) fn send_ordered(&self) {
        if self.numbers.is_none() || !self.take_turn() {
            return;
        }
        while let Some(delivery) = self.next_delivery() {
            // A sink that panics must not keep the others' replies.
            if catch_unwind(AssertUnwindSafe(|| delivery.deliver())).is_err() {
                self.log.write(LogLevel::Error, "a front end panicked on a reply; it is lost");
            }
        }
    }

    fn take_turn(&self) -> bool {
        let mut state = self.lock();
        let turn = state.replies.as_mut().map(|replies| &mut replies.turn);
        turn.is_some_and(|turn| std::mem::replace(turn, Turn::Taken) == Turn::Free)
    }

    /// The reply that leaves next. Without one the turn is given back, under the
    /// same lock: whoever adds a reply after that finds it free.
    fn next_delivery(&self) -> Option<Delivery> {
        let mut state = self.lock();
        let replies = state.replies.as_mut()?;
        let next = replies.order.next_reply();
        if next.is_none() {
            replies.turn = Turn::Free;
        }
        next
    }
}
