//! The network in a model's file: its layers, the connections between them, and the layouts of
//! tensors.
//!
//! OpenVINO's intermediate representation is XML. The library's C interface exposes only part of
//! its content. Each layer has ports; an edge leads from an output port of one layer to an input
//! port of another. A tensor's layout is an attribute of the port that produces the tensor:
//! `<attribute name="layout" version="0" layout="[N,C,H,W]" />`.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// The maximum size of files that are read.
const FILE_SIZE_MAX: u64 = 64 << 20;

/// The text of a file in the intermediate representation; `None` for other files and for large
/// ones.
pub(crate) fn read_network(path: &Path) -> Option<String> {
    if path.extension().is_none_or(|extension| extension != "xml") {
        return None;
    }
    let mut text = String::new();
    let file = std::fs::File::open(path).ok()?;
    if file.metadata().ok()?.len() > FILE_SIZE_MAX {
        return None;
    }
    file.take(FILE_SIZE_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// A layer and one of its ports, by their identifiers.
pub(crate) type Place<'a> = (&'a str, &'a str);

/// A network's layers, except those inside loops and conditions.
#[derive(Default)]
pub(crate) struct Network<'a> {
    /// The layers' identifiers and types, in file order: each layer comes after those that it
    /// reads.
    pub(crate) layers: Vec<(&'a str, &'a str)>,
    /// The source of each connected place.
    pub(crate) sources: BTreeMap<Place<'a>, Place<'a>>,
    /// The layouts of tensors, by the places that produce the tensors.
    pub(crate) layouts: BTreeMap<Place<'a>, &'a str>,
    /// True if the text is complete; otherwise layers may be missing.
    pub(crate) is_whole: bool,
}

/// The elements that contain the layers of a loop or condition.
const BODIES: [&str; 3] = ["body", "then_body", "else_body"];

/// The tags of a text, without comments, character data and processing instructions.
struct Tags<'a> {
    rest: &'a str,
    /// False if something ended prematurely, or is none of these.
    is_whole: bool,
}

impl<'a> Iterator for Tags<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        loop {
            let (_, rest) = self.rest.split_once('<')?;
            let skipped = [("!--", "-->"), ("![CDATA[", "]]>"), ("?", "?>")];
            let skipped =
                skipped.iter().find_map(|(start, end)| Some((rest.strip_prefix(start)?, end)));
            if let Some((inside, end)) = skipped {
                self.rest = self.known(inside.split_once(end))?.1;
                continue;
            }
            let end = if rest.starts_with('!') { None } else { end_of_tag(rest) };
            let (tag, rest) = self.known(end.and_then(|end| rest.split_at_checked(end)))?;
            self.rest = rest;
            return Some(tag);
        }
    }
}

impl Tags<'_> {
    fn known<T>(&mut self, found: Option<T>) -> Option<T> {
        self.is_whole &= found.is_some();
        found
    }
}

/// The position of the character that ends a tag; such a character may also occur in an attribute's
/// value.
fn end_of_tag(text: &str) -> Option<usize> {
    let mut quote = None;
    for (place, byte) in text.bytes().enumerate() {
        match (byte, quote) {
            (b'<', _) => return None,
            (b'>', None) => return Some(place),
            (b'"' | b'\'', None) => quote = Some(byte),
            (_, Some(open)) if open == byte => quote = None,
            _ => {}
        }
    }
    None
}

impl<'a> Network<'a> {
    pub(crate) fn parse(text: &'a str) -> Self {
        let mut network = Self::default();
        // The bodies of loops and conditions have their own layers.
        let mut bodies = 0_usize;
        let mut place = ("", "");
        let mut tags = Tags { rest: text, is_whole: true };
        while let Some(tag) = tags.next() {
            let name = tag.split([' ', '\t', '\n', '\r', '/']).next().unwrap_or_default();
            if tag.strip_prefix('/').is_some_and(|name| BODIES.contains(&name.trim_end())) {
                tags.is_whole &= bodies > 0;
                bodies = bodies.saturating_sub(1);
            } else if BODIES.contains(&name) {
                bodies = bodies.saturating_add(usize::from(!tag.ends_with('/')));
            } else if bodies == 0 {
                network.add(name, tag, &mut place);
            }
        }
        network.is_whole = tags.is_whole && bodies == 0;
        network
    }

    /// Adds the content of a tag. `place` is the layer and port that contain the tag.
    fn add(&mut self, name: &str, tag: &'a str, place: &mut Place<'a>) {
        let value = |name: &str| attribute(tag, name).unwrap_or_default();
        match name {
            "layer" => {
                *place = (value("id"), "");
                self.layers.push((place.0, value("type")));
            }
            "port" => place.1 = value("id"),
            "attribute" if value("name") == "layout" => {
                self.layouts.insert(*place, value("layout"));
            }
            "edge" => {
                let source = (value("from-layer"), value("from-port"));
                self.sources.insert((value("to-layer"), value("to-port")), source);
            }
            _ => {}
        }
    }

    /// The layer's ports that have layouts.
    pub(crate) fn ports_with_layouts(
        &self,
        layer: &'a str,
    ) -> impl Iterator<Item = Place<'a>> + '_ {
        let from = self.layouts.range((layer, "")..).map(|(place, _)| *place);
        from.take_while(move |place| place.0 == layer)
    }

    /// The places that lead to a layer's ports, with the ports' identifiers.
    pub(crate) fn inputs_of(
        &self,
        layer: &'a str,
    ) -> impl Iterator<Item = (&'a str, Place<'a>)> + '_ {
        let of_layer = self.sources.range((layer, "")..).take_while(move |(to, _)| to.0 == layer);
        of_layer.map(|(to, from)| (to.1, *from))
    }
}

/// The value of a tag's attribute.
fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = tag;
    loop {
        let (before, after) = rest.split_once('=')?;
        let after = after.trim_start();
        let quote = after.chars().next().filter(|first| matches!(first, '"' | '\''))?;
        let (value, behind) = after.strip_prefix(quote)?.split_once(quote)?;
        if before.split_ascii_whitespace().next_back() == Some(name) {
            return Some(value);
        }
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_read_without_the_bodies_of_its_layers() {
        let text = "<net><layers><layer id=\"0\" type=\"Parameter\"><output><port id=\"1\">\
            <rt_info><attribute name=\"layout\" layout=\"[N]\"/></rt_info></port></output></layer>\
            <layer id=\"1\" type=\"If\"><then_body><layers><layer id=\"0\" type=\"Add\"/></layers>\
            <edges><edge from-layer=\"7\" from-port=\"0\" to-layer=\"1\" to-port=\"0\"/></edges>\
            </then_body></layer></layers><edges>\
            <edge from-layer=\"0\" from-port=\"1\" to-layer=\"1\" to-port=\"2\"/></edges></net>";
        let network = Network::parse(text);
        assert_eq!(network.layers, [("0", "Parameter"), ("1", "If")]);
        assert_eq!(network.layouts, BTreeMap::from([(("0", "1"), "[N]")]));
        assert_eq!(network.inputs_of("1").collect::<Vec<_>>(), [("2", ("0", "1"))]);
        assert_eq!(network.inputs_of("0").count(), 0);
    }

    #[test]
    fn attributes_have_either_quotes() {
        let tag = "layer a=' type=\"Add\"' id = \"7\"\ntype='NonZero' id=\"8\"";
        assert_eq!(attribute(tag, "type"), Some("NonZero"));
        assert_eq!(attribute(tag, "id"), Some("7"));
        for tag in ["layer type=Add", "layer type=\"Add", "layer type=", "layer type", "layertype"]
        {
            assert_eq!(attribute(tag, "type"), None, "{tag}");
        }
    }

    #[test]
    fn no_layer_is_hidden() {
        let layer = "<layer id=\"0\" type=\"NonZero\"/>";
        for (before, is_whole) in [
            ("", true),
            ("<!-- <body> -->", true),
            ("<![CDATA[<body>]]>", true),
            ("<?xml <body> ?>", true),
            ("<body/>", true),
            ("<body />", true),
            ("<antibody>", true),
            ("<rt a=\"<body>\"/>", false),
            ("<rt a=\">\"/>", true),
            ("<rt a='\"'/>", true),
            ("</body>", false),
            ("<!-- ", false),
            ("<!DOCTYPE net>", false),
            ("<body>", false),
            ("<then_body>", false),
        ] {
            let text = format!("{before}{layer}");
            let network = Network::parse(&text);
            assert_eq!(network.is_whole, is_whole, "{text}");
            assert!(!is_whole || network.layers == [("0", "NonZero")], "{text}");
        }
    }

    #[test]
    fn damaged_text_is_read_to_its_end() {
        let layer = |id: u32, kind: &str| {
            format!("<layer id=\"{id}\" type=\"{kind}\"><port id=\"0\"/></layer>")
        };
        let edge = "<edge from-layer=\"0\" from-port=\"0\" to-layer=\"1\" to-port=\"0\"/>";
        let whole = [&layer(0, "Parameter"), "<body>", &layer(1, "Add"), "</body>", edge].concat();
        for length in 0..whole.len() {
            for damage in ["", "<", ">", "\"", "=\"", "</body>"] {
                let text = format!("{}{damage}{}", &whole[..length], &whole[length..]);
                let network = Network::parse(&text);
                assert!(network.layers.len() <= 4 && network.sources.len() <= 2, "{text}");
                assert!(Network::parse(&whole[..length]).layers.len() <= 1);
            }
        }
    }

    #[test]
    fn other_text_is_an_empty_network() {
        for text in ["", "<", "<layer", "a<b>c", "<layer id=", "</body></body><edge/>"] {
            let network = Network::parse(text);
            assert!(network.layouts.is_empty(), "{text}");
        }
    }
}
