//! Delivery of replies in request order.
//!
//! [`ReplyReorderBuffer`] decides under the dispatcher's lock which reply may be sent next. It is
//! delivered without the lock, by the thread that has taken the driver slot: that thread delivers
//! until no more replies may be sent, and a thread that finds the slot taken only adds its reply.
//! As a result, sinks are called in order and by one thread at a time.
//!
//! A reply waits only for requests that are certain to be executed. A request whose sequence has no
//! slot yet may never run until a client acts, and the client may act only after it has received
//! its replies.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use galatea_backend::LogLevel;
use galatea_infer::{Reply, ResponseSender, ResponseSink, Status};
use galatea_policy::{ArrivalNumber, ReplyFinality, ReplyReorderBuffer};
use galatea_stdx::{DriverSlot, Lock};

use super::Dispatcher;

/// Numbers requests in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct ReplyNumbers(AtomicU64);

impl ReplyNumbers {
    pub(super) fn next_number(&self) -> ArrivalNumber {
        ArrivalNumber(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// The replies waiting for their turn, guarded by the dispatcher's lock.
#[derive(Debug)]
pub(super) struct OrderedReplies {
    pub(super) order: ReplyReorderBuffer<AddressedReply>,
    /// The driver slot, taken by the delivering thread.
    slot: DriverSlot<()>,
}

impl Default for OrderedReplies {
    fn default() -> Self {
        Self { order: ReplyReorderBuffer::default(), slot: DriverSlot::Idle(()) }
    }
}

impl Drop for OrderedReplies {
    /// Sends the waiting replies on drop. A model may be destroyed before its backend has replied
    /// to every request, so these replies no longer wait for the missing ones.
    fn drop(&mut self) {
        self.order.take_all().into_iter().for_each(AddressedReply::deliver);
    }
}

/// A reply and its sink.
pub(super) struct AddressedReply {
    sink: SharedSink,
    reply: Reply,
}

/// A request's sink. It is taken out of the cell during a call, so that no lock is held.
type SharedSink = Arc<Lock<Option<Box<dyn ResponseSink>>>>;

impl AddressedReply {
    fn deliver(self) {
        let Some(mut sink) = self.sink.lock("take the sink").take() else { return };
        let is_final = self.reply.is_final();
        sink.deliver(self.reply);
        if !is_final {
            *self.sink.lock("put the sink back") = Some(sink);
        }
    }
}

impl std::fmt::Debug for AddressedReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AddressedReply")
    }
}

/// Adds a request's replies to the order.
struct OrderedSink {
    dispatcher: Weak<Dispatcher>,
    number: ArrivalNumber,
    sink: SharedSink,
}

impl ResponseSink for OrderedSink {
    fn deliver(&mut self, reply: Reply) {
        let addressed = AddressedReply { sink: self.sink.clone(), reply };
        match self.dispatcher.upgrade() {
            Some(dispatcher) => dispatcher.deliver_in_order(self.number, addressed),
            // The model has been destroyed, and with it all earlier replies.
            None => addressed.deliver(),
        }
    }

    /// Delivers a refusal, which neither waits for earlier replies nor delays later ones.
    fn refuse(&mut self, status: Status) {
        let sink = self.sink.lock("take the sink").take();
        self.deliver(Reply::Finished);
        if let Some(mut sink) = sink {
            sink.refuse(status);
        }
    }
}

/// A sender whose replies are delivered in the order of the request numbers.
pub(super) fn order(
    sender: ResponseSender,
    number: ArrivalNumber,
    dispatcher: Weak<Dispatcher>,
) -> ResponseSender {
    sender.wrap(|sink| {
        let sink = Arc::new(Lock::new(Some(sink)));
        Box::new(OrderedSink { dispatcher, number, sink })
    })
}

impl Dispatcher {
    fn deliver_in_order(&self, number: ArrivalNumber, addressed: AddressedReply) {
        let kind =
            if addressed.reply.is_final() { ReplyFinality::Last } else { ReplyFinality::More };
        let mut state = self.lock("add a reply");
        let passed = match &mut state.replies {
            Some(replies) => replies.order.add_reply(number, addressed, kind),
            None => Some(addressed),
        };
        drop(state);
        match passed {
            Some(addressed) => addressed.deliver(),
            None => self.deliver_ordered_replies(),
        }
    }

    /// Delivers the replies that may be sent, unless another thread is already doing so.
    pub(super) fn deliver_ordered_replies(&self) {
        if self.reply_numbers.is_none() || !self.take_driver_slot() {
            return;
        }
        while let Some(addressed) = self.next_reply() {
            // A panicking sink must not delay other replies.
            if catch_unwind(AssertUnwindSafe(|| addressed.deliver())).is_err() {
                self.log.write(LogLevel::Error, "a front end panicked on a reply; it is lost");
            }
        }
    }

    fn take_driver_slot(&self) -> bool {
        let mut state = self.lock("take the driver slot");
        state.replies.as_mut().is_some_and(|replies| replies.slot.take().is_some())
    }

    /// The next reply to send. If none is ready, the driver slot is released under the same lock,
    /// so a thread that adds a reply later finds it free.
    fn next_reply(&self) -> Option<AddressedReply> {
        let mut state = self.lock("find the next reply");
        let replies = state.replies.as_mut()?;
        let next = replies.order.next_reply();
        replies.slot.next_or_release((), next).map(|((), addressed)| addressed)
    }
}
