//! The layouts in a model's file, which show whether the model supports batches.

use galatea_runtime::BatchingSupport;

use crate::network::{Network, Place};

/// Determines from a network's layouts whether the model supports batches. It does if every input
/// and result has a layout with a batch dimension; otherwise the file says nothing about it.
pub(crate) fn batching(network: Option<&str>) -> BatchingSupport {
    if network.is_some_and(have_batches) {
        BatchingSupport::Possible
    } else {
        BatchingSupport::NotStated
    }
}

fn have_batches(text: &str) -> bool {
    let network = Network::parse(text);
    let is_batched = |place: &Place<'_>| {
        network.layouts.get(place).is_some_and(|layout| {
            let mut names = layout.trim_matches(['[', ']']).split(',');
            names.any(|name| name.trim() == "N")
        })
    };
    let mut ends = network.layers.iter().filter_map(|&(layer, kind)| match kind {
        "Parameter" => Some(network.ports_with_layouts(layer).any(|port| is_batched(&port))),
        "Result" => Some(network.inputs_of(layer).any(|(_, source)| is_batched(&source))),
        _ => None,
    });
    network.is_whole && ends.next() == Some(true) && ends.all(|batched| batched)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model with an input, an operator and a result.
    fn model(input: &str, output: &str) -> String {
        let port = |layout: &str| match layout {
            "" => String::from("<port id=\"1\"><dim>1</dim></port>"),
            layout => {
                format!("<port id=\"1\"><attribute name=\"layout\" layout=\"{layout}\" /></port>")
            }
        };
        let layer = |id: u32, kind: &str, inside: &str| {
            format!("<layer id=\"{id}\" name=\"type\" type=\"{kind}\">{inside}</layer>")
        };
        let layers = [
            layer(0, "Parameter", &port(input)),
            layer(1, "ReLU", &port(output)),
            layer(2, "Result", &port("")),
        ];
        let edge = |from: u32, to: u32| {
            format!(
                "<edge from-layer=\"{from}\" from-port=\"1\" to-layer=\"{to}\" to-port=\"1\" />"
            )
        };
        format!("<layers>{}</layers><edges>{}{}</edges>", layers.concat(), edge(0, 1), edge(1, 2))
    }

    #[test]
    fn every_input_and_result_needs_a_batch_dimension() {
        assert!(have_batches(&model("[N,C,H,W]", "[N,...]")));
        for (input, output) in [("[N,C]", ""), ("", "[N,C]"), ("[C,H]", "[N]"), ("[NAME]", "[N]")] {
            assert!(!have_batches(&model(input, output)), "{input} {output}");
        }
        assert!(!have_batches(""));
    }
}
