//! The reader of OpenVINO's intermediate representation, for fuzz targets.

use crate::layouts::batching;
use crate::network::Network;
use crate::predictable::is_predictable;

/// A layer whose work depends on the values of its inputs.
const UNPREDICTABLE: &str = "<layer id=\"0\" type=\"NonZero\"/>";

/// Parses text as a network.
///
/// # Panics
///
/// Panics if the network has more layers or edges than the text, or if the text hides a layer
/// behind it.
pub fn read_network(text: &str) {
    let network = Network::parse(text);
    assert!(network.layers.len() <= text.matches("<layer").count());
    assert!(network.sources.len() <= text.matches("<edge").count());
    let _ = batching(Some(text));
    if is_predictable(text) {
        assert!(!is_predictable(&format!("{text}{UNPREDICTABLE}")));
    }
}
