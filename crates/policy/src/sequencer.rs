//! Stage one: when does a request become eligible, and is it bound to a lane?

use crate::ids::Ticket;

/// Who holds requests back before they may be queued.
#[derive(Clone, Debug)]
pub(crate) enum Sequencer {
    /// Nobody: requests are independent, so each is eligible on arrival.
    None,
}

impl Sequencer {
    /// Takes in a new request and returns the one that became eligible by it.
    pub(crate) fn admit(&mut self, ticket: Ticket) -> Ticket {
        match self {
            Sequencer::None => ticket,
        }
    }
}
