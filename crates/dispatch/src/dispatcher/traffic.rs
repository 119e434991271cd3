//! Recording of a dispatcher's traffic for a client.

use std::collections::BTreeMap;

use galatea_policy::InstanceId;

use super::Dispatcher;
use super::observation::{Recorder, TakenTraffic, VariableDims};

impl Dispatcher {
    /// Records requests and executions from now on, until [`Dispatcher::end_traffic_recording`].
    /// Returns false if another client is already recording them.
    pub(crate) fn begin_traffic_recording(&self, variable: VariableDims) -> bool {
        let now = self.now();
        let mut state = self.lock("begin to record traffic");
        let is_first = state.views.get::<Recorder>().is_none();
        state.views.get_or_begin(|| Recorder::new(now, variable));
        is_first
    }

    /// Takes the traffic recorded since the last call; `None` if nothing is being recorded.
    pub(crate) fn take_traffic(&self) -> Option<TakenTraffic> {
        let names = self.instance_names();
        let mut state = self.lock("take recorded traffic");
        let taken = state.views.get::<Recorder>()?.take();
        drop(state);
        Some(TakenTraffic::new(taken, names))
    }

    /// Stops recording.
    pub(crate) fn end_traffic_recording(&self) {
        let recorder = self.lock("end recorded traffic").views.end_view::<Recorder>();
        drop(recorder);
    }

    pub(crate) fn instance_names(&self) -> BTreeMap<InstanceId, String> {
        self.lanes.names()
    }
}
