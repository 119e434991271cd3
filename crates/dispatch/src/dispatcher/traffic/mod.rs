//! Requests and executions, while a client records the traffic of the model.
//!
//! A dispatcher has a recorder only then. The scheduler's own events tell it what it needs, with
//! the times that they have anyway, under the lock that each step holds. What is kept has a bound.
//! Lines are made of it without the lock, when the client is sent them.

mod lines;
mod recorder;

use std::collections::BTreeMap;

use galatea_policy::InstanceId;

pub(crate) use self::lines::TakenTraffic;
pub(crate) use self::recorder::VariableDims;
pub(super) use self::recorder::{Begin, Recorder};
use super::Dispatcher;

impl Dispatcher {
    /// Records requests and executions from now on, until [`Dispatcher::end_traffic`]. Returns
    /// false if another client records them.
    pub(crate) fn begin_traffic(&self, variable: VariableDims) -> bool {
        let now = self.now();
        let mut state = self.lock("begin to record traffic");
        let is_first = state.recorder.is_none();
        if is_first {
            state.recorder = Some(Box::new(Recorder::new(now, variable)));
        }
        is_first
    }

    /// What was recorded since the last call; `None` if nothing is recorded.
    pub(crate) fn take_traffic(&self) -> Option<TakenTraffic> {
        let names = self.instance_names();
        let taken = self.lock("take recorded traffic").recorder.as_mut()?.take();
        Some(TakenTraffic::new(taken, names))
    }

    /// Records no more.
    pub(crate) fn end_traffic(&self) {
        let recorder = self.lock("end recorded traffic").recorder.take();
        drop(recorder);
    }

    pub(crate) fn instance_names(&self) -> BTreeMap<InstanceId, String> {
        self.lanes.names()
    }
}
