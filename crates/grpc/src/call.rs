//! The calls of a connection that are not answered to their end.

use bytes::Bytes;
use galatea_infer::{CancelToken, Parameter, Status};
use h2::RecvStream;
use slab::Slab;
use tokio::time::Instant;

use crate::answer::Responder;
use crate::body::MessageReader;
use crate::in_progress::Arriving;
use crate::route::Method;
use crate::signal::CallKey;
use crate::stream::Stream;

/// A call that is not answered to its end.
pub(crate) struct Call {
    pub(crate) respond: Responder,
    pub(crate) deadline: Option<Instant>,
    pub(crate) phase: Phase,
    /// The call's metadata that becomes parameters of its requests, or why it
    /// can't.
    pub(crate) forwarded: Forwarded,
    serial: u64,
}

/// Parameters made of metadata.
pub(crate) type Forwarded = Result<Vec<Parameter>, Status>;

/// Where a call stands. One with a single request goes from reading to
/// working; a stream is a stream from its beginning to its end.
pub(crate) enum Phase {
    /// The message is arriving.
    Reading(Arrival),
    /// Someone works on it.
    Working(CancelToken),
    /// Requests come and responses go.
    Streaming(Box<Stream>),
}

/// A message that is arriving.
pub(crate) struct Arrival {
    pub(crate) method: Method,
    pub(crate) body: RecvStream,
    pub(crate) reader: MessageReader,
    pub(crate) arriving: Arriving,
}

/// What an arrival leads to.
pub(crate) enum Arrived {
    /// More is to come.
    NotYet,
    /// The message of a call of this method.
    Message(Method, Bytes),
}

/// All calls of a connection.
#[derive(Default)]
pub(crate) struct Calls {
    calls: Slab<Call>,
    next_serial: u64,
}

impl Calls {
    pub(crate) fn insert(
        &mut self,
        respond: Responder,
        deadline: Option<Instant>,
        phase: impl FnOnce(CallKey) -> Phase,
    ) -> CallKey {
        let serial = self.next_serial;
        self.next_serial = serial.wrapping_add(1);
        let entry = self.calls.vacant_entry();
        let key = CallKey { place: entry.key(), serial };
        entry.insert(Call {
            respond,
            deadline,
            phase: phase(key),
            forwarded: Ok(Vec::new()),
            serial,
        });
        key
    }

    pub(crate) fn get_mut(&mut self, key: CallKey) -> Option<&mut Call> {
        self.calls.get_mut(key.place).filter(|call| call.serial == key.serial)
    }

    /// Keeps what a call's metadata says to its requests.
    pub(crate) fn set_forwarded(&mut self, key: CallKey, forwarded: Forwarded) {
        if let Some(call) = self.get_mut(key) {
            call.forwarded = forwarded;
        }
    }

    /// The stream that a call is.
    pub(crate) fn stream(&mut self, key: CallKey) -> Option<&mut Stream> {
        match &mut self.get_mut(key)?.phase {
            Phase::Streaming(stream) => Some(stream),
            Phase::Reading(_) | Phase::Working(_) => None,
        }
    }

    /// Takes a call out; `None` if it is over already.
    pub(crate) fn remove(&mut self, key: CallKey) -> Option<Call> {
        self.get_mut(key)?;
        self.calls.try_remove(key.place)
    }

    /// Every call for which `is_over` says so, with a look at each.
    pub(crate) fn select(&mut self, mut is_over: impl FnMut(&mut Call) -> bool) -> Vec<CallKey> {
        let mut selected = Vec::new();
        for (place, call) in &mut self.calls {
            if is_over(call) {
                selected.push(CallKey { place, serial: call.serial });
            }
        }
        selected
    }

    /// The earliest deadline of all.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.calls.iter().filter_map(|(_, call)| call.deadline).min()
    }
}

impl Call {
    /// Tells whoever works on the call that nobody waits for it any more.
    pub(crate) fn cancel(&self) {
        match &self.phase {
            Phase::Reading(_) => {}
            Phase::Working(cancel) => cancel.cancel(),
            Phase::Streaming(stream) => stream.cancel(),
        }
    }
}

/// The client is gone, so nobody waits for these calls.
impl Drop for Calls {
    fn drop(&mut self) {
        for (_, call) in &self.calls {
            call.cancel();
        }
    }
}
