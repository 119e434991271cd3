//! Model archives that SageMaker places on disk.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use galatea_control::{ModelArchiveClassifier, ModelArchiveKind};
use galatea_infer::{AccessPass, api};
use galatea_pbtxt::CONFIG_TEXT_BYTES_MAX;

/// The file name of a model's configuration.
const CONFIGURATION: &str = "config.pbtxt";

/// A reader of archive layouts. The paths have already been checked.
#[derive(Debug)]
pub(crate) struct DiskArchives;

impl ModelArchiveClassifier for DiskArchives {
    fn layout(&self, _: AccessPass<api::ModelRepository>, path: &str) -> ModelArchiveKind {
        layout(Path::new(path))
    }
}

/// Determines the layout of an archive. As in Triton, an archive with a configuration is a model.
/// Otherwise the intended model is the archive's ensemble, or else the last of the other models.
/// Entries are sorted by name, because directory order is arbitrary.
fn layout(archive: &Path) -> ModelArchiveKind {
    if archive.join(CONFIGURATION).exists() {
        return ModelArchiveKind::Model;
    }
    let Ok(entries) = std::fs::read_dir(archive) else {
        return ModelArchiveKind::Repository(String::new());
    };
    let is_directory =
        |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let entries = entries.filter_map(Result::ok).filter(is_directory);
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    let is_ensemble = |name: &&String| is_ensemble(&archive.join(name).join(CONFIGURATION));
    let ensemble = names.iter().rfind(is_ensemble).cloned();
    ModelArchiveKind::Repository(ensemble.or_else(|| names.pop()).unwrap_or_default())
}

/// Returns true if a configuration specifies the ensemble platform, in Triton's spelling.
fn is_ensemble(path: &Path) -> bool {
    // Opening a pipe would block.
    if !path.is_file() {
        return false;
    }
    let limit = u64::try_from(CONFIG_TEXT_BYTES_MAX).unwrap_or(u64::MAX);
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(limit).read_to_end(&mut text));
    read.is_ok() && names_ensemble(&String::from_utf8_lossy(&text))
}

fn names_ensemble(config: &str) -> bool {
    let mut values = config.split("platform:").skip(1);
    values.any(|value| value.trim_ascii_start().starts_with("\"ensemble\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ensembles_are_known_by_their_platform() {
        for config in [
            "platform: \"ensemble\"",
            "name: \"a\"\nplatform:\"ensemble\"",
            "platform: \"x\" platform:\n\t \"ensemble\"",
        ] {
            assert!(names_ensemble(config), "{config}");
        }
        for config in
            ["", "platform: 'ensemble'", "platform : \"ensemble\"", "platform: \"ensembles"]
        {
            assert!(!names_ensemble(config), "{config}");
        }
    }
}
