//! Language models in GGUF files. A large model may be split into several files, of which the first
//! stands for all.

use std::ffi::OsStr;
use std::path::Path;

/// The name of a model's file in a version directory.
pub(super) const USUAL: &str = "model.gguf";

/// Returns true if the file has the format's extension.
pub(super) fn is_gguf(path: &Path) -> bool {
    path.extension() == Some(OsStr::new("gguf"))
}

/// Returns true if a file in a directory of other files is a model: either a whole model or the
/// first part of one. A projector (`mmproj-…`) is not a model of its own.
pub(super) fn is_served(path: &Path) -> bool {
    let stem = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
    let is_first = number(path).is_none_or(|number| number == 1);
    is_gguf(path) && is_first && !stem.starts_with("mmproj")
}

/// Returns true if the file is a part of a model, which llama.cpp finds by the parts' names.
pub(super) fn is_part(path: &Path) -> bool {
    number(path).is_some()
}

/// The number of a part, whose name ends with `-00001-of-00003.gguf`.
fn number(path: &Path) -> Option<u32> {
    let stem = path.file_stem()?.to_str()?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (_, number) = rest.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|one| one.is_ascii_digit());
    if is_number(count) && is_number(number) { number.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_part_stands_for_a_split_model() {
        for (name, is_model, is_split) in [
            ("a.gguf", true, false),
            ("a-00001-of-00003.gguf", true, true),
            ("a-00002-of-00003.gguf", false, true),
            ("a-1-of-3.gguf", true, false),
            ("mmproj-a.gguf", false, false),
            ("a-00001-of-00003.bin", false, true),
        ] {
            let path = Path::new(name);
            assert_eq!((is_served(path), is_part(path)), (is_model, is_split), "{name}");
        }
    }
}
