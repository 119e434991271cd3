//! Model files that the `openvino` backend executes.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The number of bytes to read from the start of an XML file to recognize a model.
const HEAD_BYTES: u64 = 4096;
/// The name of a TensorFlow Lite file within a version.
const LITE: &str = "model.tflite";

/// A file format that `galatea serve` recognizes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(in crate::commands) enum OpenVinoFormat {
    /// OpenVINO's intermediate representation, whose weights are in a second file.
    Xml,
    /// A TensorFlow Lite file.
    Lite,
}

impl OpenVinoFormat {
    /// The name under which the file is linked by itself; `None` if it needs the files next to it.
    pub(super) const fn linked_as(self) -> Option<&'static str> {
        match self {
            Self::Xml => None,
            Self::Lite => Some(LITE),
        }
    }
}

/// The format of a file; `None` if the file is not such a model. XML must contain a network.
pub(super) fn format_of(path: &Path) -> Option<OpenVinoFormat> {
    match path.extension().and_then(OsStr::to_str)? {
        "tflite" => Some(OpenVinoFormat::Lite),
        "xml" if is_network(path) => Some(OpenVinoFormat::Xml),
        _ => None,
    }
}

fn is_network(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
    let head = String::from_utf8_lossy(&head);
    read.is_ok() && head.contains("<net ") && head.contains("<layer")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xml_is_a_model_if_it_has_a_network() {
        let folder = std::env::temp_dir().join(format!("galatea-xml-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for (name, content, format) in [
            (
                "a.xml",
                "<?xml version=\"1.0\"?>\n<net name=\"m\"><layers>",
                Some(OpenVinoFormat::Xml),
            ),
            ("pom.xml", "<?xml version=\"1.0\"?><project>", None),
            ("a.tflite", "", Some(OpenVinoFormat::Lite)),
            ("a.onnx", "<net ><layers>", None),
        ] {
            let path = folder.join(name);
            std::fs::write(&path, content).unwrap();
            assert_eq!(format_of(&path), format, "{name}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
