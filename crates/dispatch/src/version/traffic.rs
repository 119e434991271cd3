//! Recording of a version's traffic for a client.

use std::sync::Arc;

use galatea_config::InputSpec;
use galatea_traffic::{TrafficHeader, TrafficLine};

use super::LoadedModel;
use crate::dispatcher::VariableDims;

impl LoadedModel {
    /// Records requests and executions from now on, until [`LoadedModel::end_traffic_recording`].
    /// Returns the traffic file's header; `None` if another client is already recording them.
    /// `began_ms` is the time since 1970.
    #[must_use]
    pub fn begin_traffic_recording(&self, began_ms: u64, processors: u32) -> Option<String> {
        let first = usize::from(self.spec.max_batch_size > 0);
        let variable: VariableDims =
            self.spec.inputs.iter().filter_map(|input| variable_dims(input, first)).collect();
        if !self.dispatcher.begin_traffic_recording(Arc::clone(&variable)) {
            return None;
        }
        let dims = |(name, places): &(String, Vec<usize>)| {
            places.iter().map(|place| format!("{name}:{}", place - first)).collect::<Vec<_>>()
        };
        let header = TrafficHeader {
            model: self.name.to_string(),
            version: self.version,
            began_ms,
            processors,
            instances: self.dispatcher.instance_names().into_values().collect(),
            variable: variable.iter().flat_map(dims).collect(),
            config: None,
        };
        Some(format!("{}\n", TrafficLine::Header(header)))
    }

    /// The lines recorded since the last call; `None` if nothing is being recorded.
    #[must_use]
    pub fn read_traffic_recording(&self) -> Option<String> {
        self.dispatcher.take_traffic().map(|taken| taken.to_lines())
    }

    /// Stops recording.
    pub fn end_traffic_recording(&self) {
        self.dispatcher.end_traffic_recording();
    }
}

/// The positions of an input's variable dimensions in the shapes that the backend sees, after the
/// batch dimension.
fn variable_dims(input: &InputSpec, first: usize) -> Option<(String, Vec<usize>)> {
    let dims = input.reshape.as_ref().unwrap_or(&input.dims);
    let places: Vec<usize> =
        dims.iter().enumerate().filter(|(_, dim)| **dim < 0).map(|(at, _)| at + first).collect();
    (!places.is_empty()).then(|| (input.name.clone(), places))
}
