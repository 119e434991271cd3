//! The layouts in a model's file, which say if it takes batches.
//!
//! The library's C interface does not tell a tensor's layout. In the intermediate representation,
//! which is XML, it is an attribute of the port that produces the tensor:
//! `<attribute name="layout" version="0" layout="[N,C,H,W]" />`. An output is a layer of type
//! `Result`, to which an edge leads from that port.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use galatea_runtime::BatchingSupport;

/// The size beyond which files are not read.
const FILE_SIZE_MAX: u64 = 64 << 20;

/// The possibility of batches by the layouts in the file: possible if every input and result has a
/// layout with a batch dimension; otherwise the file says nothing about it.
pub(crate) fn batching(path: &Path) -> BatchingSupport {
    if path.extension().is_none_or(|extension| extension != "xml") {
        return BatchingSupport::NotStated;
    }
    let mut text = String::new();
    let file = std::fs::File::open(path);
    let read = file.and_then(|file| file.take(FILE_SIZE_MAX).read_to_string(&mut text));
    if read.is_ok() && have_batches(&text) {
        BatchingSupport::Possible
    } else {
        BatchingSupport::NotStated
    }
}

fn have_batches(model: &str) -> bool {
    let layers = Layers::read(model);
    let is_batched = |place: &Place<'_>| {
        layers.layouts.get(place).is_some_and(|layout| {
            let mut names = layout.trim_matches(['[', ']']).split(',');
            names.any(|name| name.trim() == "N")
        })
    };
    !layers.ends.is_empty()
        && layers.ends.iter().all(|(layer, kind)| match kind {
            End::Parameter => layers.layouts.keys().filter(|(id, _)| id == layer).any(is_batched),
            End::Result => layers.sources.get(layer).is_some_and(is_batched),
        })
}

/// A layer and one of its ports, by their identifiers.
type Place<'a> = (&'a str, &'a str);

/// The kind of a layer at an end of the model.
#[derive(Copy, Clone)]
enum End {
    Parameter,
    Result,
}

/// The inputs and results in a model's file, with their layouts.
#[derive(Default)]
struct Layers<'a> {
    ends: Vec<(&'a str, End)>,
    layouts: BTreeMap<Place<'a>, &'a str>,
    /// The port that leads to a layer. Of layers with several, only the last is known.
    sources: BTreeMap<&'a str, Place<'a>>,
}

impl<'a> Layers<'a> {
    fn read(model: &'a str) -> Self {
        let mut layers = Self::default();
        // Bodies of loops and conditions have layers of their own.
        let mut bodies = 0_usize;
        let mut place = ("", "");
        for tag in model.split('<').skip(1) {
            let tag = tag.split('>').next().unwrap_or_default();
            let name = tag.split([' ', '\t', '\n', '\r']).next().unwrap_or_default();
            if name.ends_with("body") {
                let ends = name.starts_with('/');
                bodies = if ends { bodies.saturating_sub(1) } else { bodies.saturating_add(1) };
            } else if bodies == 0 {
                layers.add(name, tag, &mut place);
            }
        }
        layers
    }

    /// Adds what a tag says. `place` is the layer and the port that contain it.
    fn add(&mut self, name: &str, tag: &'a str, place: &mut Place<'a>) {
        let value = |name: &str| attribute(tag, name).unwrap_or_default();
        match name {
            "layer" => {
                *place = (value("id"), "");
                match value("type") {
                    "Parameter" => self.ends.push((place.0, End::Parameter)),
                    "Result" => self.ends.push((place.0, End::Result)),
                    _ => {}
                }
            }
            "port" => place.1 = value("id"),
            "attribute" if value("name") == "layout" => {
                self.layouts.insert(*place, value("layout"));
            }
            "edge" => {
                let source = (value("from-layer"), value("from-port"));
                self.sources.insert(value("to-layer"), source);
            }
            _ => {}
        }
    }
}

/// The value of an attribute in a tag.
fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = tag;
    loop {
        let (before, value) = rest.split_once("=\"")?;
        let (value, behind) = value.split_once('"')?;
        if before.trim_start() == name || before.ends_with(&format!(" {name}")) {
            return Some(value);
        }
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model with an input, an operator and a result.
    fn model(input: &str, operator: &str, output: &str) -> String {
        let port = |layout: &str| {
            let attribute = match layout {
                "" => String::new(),
                layout => {
                    format!("<attribute name=\"layout\" version=\"0\" layout=\"{layout}\" />")
                }
            };
            format!("<port id=\"1\" precision=\"FP32\"><dim>1</dim>{attribute}</port>")
        };
        let layer = |id: u32, kind: &str, inside: &str| {
            format!("<layer id=\"{id}\" name=\"type\" type=\"{kind}\">{inside}</layer>")
        };
        let layers = [
            layer(0, "Parameter", &port(input)),
            layer(1, operator, &port(output)),
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
        assert!(have_batches(&model("[N,C,H,W]", "ReLU", "[N,...]")));
        for (input, output) in [("[N,C]", ""), ("", "[N,C]"), ("[C,H]", "[N]"), ("[NAME]", "[N]")] {
            assert!(!have_batches(&model(input, "ReLU", output)), "{input} {output}");
        }
        assert!(!have_batches(""));
    }

    #[test]
    fn layers_of_bodies_do_not_count() {
        let inner = model("", "ReLU", "");
        let whole = model("[N]", "If", "[N]");
        let whole = whole.replace("<dim>1</dim>", &format!("<then_body>{inner}</then_body>"));
        assert!(have_batches(&whole));
    }
}
