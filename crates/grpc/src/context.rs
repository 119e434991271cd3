//! The state shared by all connections of a door.

use std::sync::Arc;

use galatea_codec::forward::{HeaderForwardPattern, HeaderWhitespace};
use galatea_control::ServerControl;
use galatea_door::{BlockingPermits, DoorPhase, PhaseWatch, RepositoryPermits};
use galatea_infer::{InferenceService, Parameter, Status};
use galatea_stdx::{Inbox, Lock};
use http::HeaderMap;
use slab::Slab;

use crate::budget::MemoryBudget;
use crate::buffers::MessagePool;
use crate::event::ConnectionEvent;
use crate::options::GrpcOptions;

/// The state shared by all connections of a door.
pub(crate) struct DoorContext {
    pub(crate) service: Arc<dyn InferenceService>,
    pub(crate) control: Arc<dyn ServerControl>,
    pub(crate) options: GrpcOptions,
    /// The memory pool for long messages.
    pub(crate) message_pool: Arc<MessagePool>,
    /// Permits for readiness checks that call a backend.
    pub(crate) blocking_permits: BlockingPermits,
    /// Permits for load, unload and index calls.
    pub(crate) repository_permits: RepositoryPermits,
    /// Permits for statistics calls, whose responses take long to render if there are many models.
    pub(crate) statistics_permits: BlockingPermits,
    pub(crate) phase: PhaseWatch,
    pub(crate) connections: Lock<Slab<RegisteredConnection>>,
}

/// A connection to which the door can send events.
#[derive(Clone)]
pub(crate) struct RegisteredConnection {
    pub(crate) inbox: Arc<Inbox<ConnectionEvent>>,
    pub(crate) budget: Arc<MemoryBudget>,
}

/// The phase in which a connection was accepted.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum AcceptPhase {
    /// The connection counts towards the door's connections, and ends when the door drains.
    Serving,
    /// The connection may stay open until the door is closed.
    Draining,
}

/// Parameters derived from a call's metadata, or the reason why that failed.
pub(crate) type ForwardedParameters = Result<Vec<Parameter>, Status>;

impl DoorContext {
    /// Returns true if new inferences are refused.
    pub(crate) fn is_stopping(&self) -> bool {
        self.phase.is_stopping()
    }

    /// Returns an error while new inferences are refused.
    pub(crate) fn refuse_while_stopping(&self) -> Result<(), Status> {
        if self.is_stopping() {
            return Err(Status::unavailable(
                "GRPC server is shutting down and has stopped accepting new requests.",
            ));
        }
        Ok(())
    }

    /// The parameters that a call's metadata adds to its requests.
    pub(crate) fn forwarded(&self, headers: &HeaderMap) -> ForwardedParameters {
        let forwarding: &HeaderForwardPattern = match &self.options.header_forward {
            Some(forwarding) => forwarding,
            None => return Ok(Vec::new()),
        };
        let headers = headers.iter();
        let headers = headers.map(|(name, value)| (name.as_str(), value.as_bytes()));
        forwarding.parameters_from_headers(headers, HeaderWhitespace::Exact)
    }

    /// Announces to every connection that the door has entered `phase`.
    pub(crate) fn announce(&self, phase: DoorPhase) {
        let connections: Vec<_> = {
            let connections = self.connections.lock("announce a phase");
            connections.iter().map(|(_, connection)| connection.inbox.clone()).collect()
        };
        for inbox in connections {
            let event = if phase == DoorPhase::Closed {
                ConnectionEvent::Close
            } else {
                ConnectionEvent::Drain
            };
            let _ = inbox.push(event);
        }
    }

    /// Registers a connection, so that draining and closing affect it.
    pub(crate) fn register(
        self: &Arc<Self>,
        connection: RegisteredConnection,
        accept_phase: AcceptPhase,
    ) -> Registration {
        let inbox = connection.inbox.clone();
        let key = self.connections.lock("register a connection").insert(connection);
        // This connection has missed any phase that was announced earlier.
        let missed = match (self.phase.phase(), accept_phase) {
            (DoorPhase::Closed, _) => Some(ConnectionEvent::Close),
            (DoorPhase::Draining, AcceptPhase::Serving) => Some(ConnectionEvent::Drain),
            (DoorPhase::Draining, AcceptPhase::Draining) | (DoorPhase::Serving, _) => None,
        };
        if let Some(missed) = missed {
            let _ = inbox.push(missed);
        }
        Registration { context: self.clone(), key }
    }

    /// The sum of `bytes` over all connections.
    pub(crate) fn sum_over_connections(&self, bytes: impl Fn(&MemoryBudget) -> usize) -> usize {
        let connections = self.connections.lock("sum up memory");
        let bytes = connections.iter().map(|(_, connection)| bytes(&connection.budget));
        bytes.fold(0, usize::saturating_add)
    }
}

/// The registration of a connection. Dropping it ends the registration.
pub(crate) struct Registration {
    context: Arc<DoorContext>,
    key: usize,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let removed = self.context.connections.lock("forget a connection").try_remove(self.key);
        drop(removed);
    }
}
