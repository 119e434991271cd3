//! Directories of text models, as their makers publish them.

use std::path::Path;

/// The configuration of a text model, whose files contain all the rest.
pub(super) const CONFIG: &str = "backend: \"text\"\n";

/// The file of every tokenizer that the server can read.
const TOKENIZER: &str = "tokenizer.json";
/// The places of a network. Networks in the other places are found when the model is loaded.
const NETWORKS: [&str; 2] = ["model.onnx", "onnx/model.onnx"];
/// The list of modules of a sentence-transformers model. It can name another directory for the
/// tokenizer and the network.
const MODULES: &str = "modules.json";

/// Returns true if a directory is a text model. A directory with a tokenizer but without a network
/// is a model that can't be served, and the load reports the missing file.
pub(super) fn is_text_model(directory: &Path) -> bool {
    let has = |file: &str| directory.join(file).is_file();
    has(MODULES) || has(TOKENIZER) && NETWORKS.iter().any(|file| has(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_known_by_their_files() {
        let folder = std::env::temp_dir().join(format!("galatea-texts-{}", std::process::id()));
        for (name, files, expected) in [
            ("published", &["modules.json", "tokenizer.json"][..], true),
            ("cross-encoder", &["tokenizer.json", "onnx/model.onnx"], true),
            ("flat", &["tokenizer.json", "model.onnx"], true),
            ("tokenizer", &["tokenizer.json"], false),
            ("network", &["model.onnx", "config.json"], false),
        ] {
            for file in files {
                let path = folder.join(name).join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "").unwrap();
            }
            assert_eq!(is_text_model(&folder.join(name)), expected, "{name}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
