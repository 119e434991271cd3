//! `SavedModel` directories, which the `tensorflow` backend executes.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The name of a `SavedModel` within a version.
pub(super) const USUAL: &str = "model.savedmodel";
/// The graph file names. Every `SavedModel` contains one of these files.
const GRAPH_FILES: [&str; 2] = ["saved_model.pb", "saved_model.pbtxt"];
/// Common suffixes of directory names.
const ENDINGS: [&str; 2] = ["savedmodel", "saved_model"];
/// File extensions of graphs without signatures.
const GRAPH_ENDINGS: [&str; 2] = ["graphdef", "pb"];

/// Returns true if a directory is a `SavedModel`.
pub(super) fn is_saved_model(directory: &Path) -> bool {
    GRAPH_FILES.iter().any(|file| directory.join(file).is_file())
}

/// The `SavedModel` to which a file belongs.
pub(super) fn of_file(file: &Path) -> Option<PathBuf> {
    let is_graph = GRAPH_FILES.iter().any(|name| file.file_name() == Some(OsStr::new(name)));
    is_graph.then(|| super::folder(file).to_owned())
}

/// The highest-numbered version among a directory's entries that is itself a `SavedModel`, as in
/// TensorFlow Serving.
pub(super) fn newest_version(entries: &[PathBuf]) -> Option<PathBuf> {
    let number = |path: &&PathBuf| path.file_name()?.to_str()?.parse::<u64>().ok();
    let versions = entries.iter().filter(|path| number(path).is_some() && is_saved_model(path));
    versions.max_by_key(number).cloned()
}

/// The name of the model in a directory, without a common suffix.
pub(super) fn stem(directory: &Path) -> Option<&OsStr> {
    let ending = directory.extension().and_then(OsStr::to_str).unwrap_or_default();
    if ENDINGS.contains(&ending) { directory.file_stem() } else { directory.file_name() }
}

/// Returns true if a file is a bare graph, which doesn't specify its inputs and outputs.
pub(super) fn is_graph(file: &Path) -> bool {
    let ending = file.extension().and_then(OsStr::to_str).unwrap_or_default();
    GRAPH_ENDINGS.contains(&ending)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_known_by_their_graph() {
        let folder = std::env::temp_dir().join(format!("galatea-saved-{}", std::process::id()));
        for directory in ["net/2", "net/10", "net/11", "other"] {
            std::fs::create_dir_all(folder.join(directory)).unwrap();
        }
        for file in ["net/2/saved_model.pb", "net/10/saved_model.pbtxt", "other/model.pb"] {
            std::fs::write(folder.join(file), "").unwrap();
        }
        assert!(is_saved_model(&folder.join("net/2")) && !is_saved_model(&folder.join("other")));
        let entries = ["2", "10", "11"].map(|version| folder.join("net").join(version));
        assert_eq!(newest_version(&entries), Some(folder.join("net/10")));
        assert_eq!(of_file(&folder.join("net/2/saved_model.pb")), Some(folder.join("net/2")));
        assert_eq!(of_file(&folder.join("other/model.pb")), None);
        assert!(is_graph(Path::new("a.pb")) && !is_graph(Path::new("a.onnx")));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn usual_endings_are_no_part_of_the_name() {
        for (name, expected) in
            [("a/net.savedmodel", "net"), ("net.saved_model", "net"), ("net.v2", "net.v2")]
        {
            assert_eq!(stem(Path::new(name)), Some(OsStr::new(expected)));
        }
    }
}
