//! The layouts in a model's file, which say if it takes batches.
//!
//! The library's C interface does not tell a tensor's layout. In the intermediate representation,
//! which is XML, it is an attribute of the layers of inputs and results:
//! `<attribute name="layout" version="0" layout="[N,C,H,W]" />`.

use std::io::Read;
use std::path::Path;

use galatea_runtime::Batching;

/// The size beyond which files are not read.
const FILE_SIZE_MAX: u64 = 64 << 20;

/// The possibility of batches by the layouts in the file: possible if every input and result has a
/// layout with a batch dimension; otherwise the file says nothing about it.
pub(crate) fn batching(path: &Path) -> Batching {
    if path.extension().is_none_or(|extension| extension != "xml") {
        return Batching::NotStated;
    }
    let mut text = String::new();
    let file = std::fs::File::open(path);
    let read = file.and_then(|file| file.take(FILE_SIZE_MAX).read_to_string(&mut text));
    if read.is_ok() && have_batches(&text) { Batching::Possible } else { Batching::NotStated }
}

fn have_batches(model: &str) -> bool {
    let layers = model
        .split("<layer ")
        .skip(1)
        .map(|layer| layer.split_once("</layer>").map_or(layer, |(layer, _)| layer));
    let mut edges = layers.filter(|layer| {
        let tag = layer.split('>').next().unwrap_or_default();
        matches!(attribute(tag, "type"), Some("Parameter" | "Result"))
    });
    let mut any = false;
    let all = edges.all(|layer| {
        any = true;
        layout(layer).is_some_and(|layout| layout.contains('N'))
    });
    any && all
}

/// The layout of a layer, if it has one.
fn layout(layer: &str) -> Option<&str> {
    let tags = layer.split("<attribute ").skip(1);
    let mut tags = tags.map(|tag| tag.split('>').next().unwrap_or_default());
    let tag = tags.find(|tag| attribute(tag, "name") == Some("layout"))?;
    attribute(tag, "layout")
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

    fn layer(kind: &str, layout: &str) -> String {
        let attribute = match layout {
            "" => String::new(),
            layout => format!("<attribute name=\"layout\" version=\"0\" layout=\"{layout}\" />"),
        };
        format!(
            "<layer id=\"0\" name=\"x\" type=\"{kind}\" version=\"opset1\"><data shape=\"1\"/>\
             <rt_info>{attribute}</rt_info></layer>"
        )
    }

    #[test]
    fn every_input_and_result_needs_a_batch_dimension() {
        let batched = |layers: &[String]| have_batches(&layers.concat());
        let (input, result) = (layer("Parameter", "[N,C,H,W]"), layer("Result", "[N,...]"));
        assert!(batched(&[input.clone(), layer("Relu", ""), result.clone()]));
        assert!(!batched(&[input.clone(), layer("Result", "")]));
        assert!(!batched(&[layer("Parameter", "[C,H]"), result]));
        assert!(!batched(&[layer("Relu", "[N,C]")]));
        assert!(!have_batches(""));
    }
}
