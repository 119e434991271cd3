//! The adapters of models, which the OpenAI endpoint reads from the models' directories.

use std::fs;
use std::path::{Path, PathBuf};

use galatea_http::{AdapterList, RequestFormat};
use galatea_repository::SymlinkPolicy;

/// The maximum length of a file. Longer files count as malformed.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads the adapters of a model from the directory of its newest version, as Triton's frontend
/// does. As there, a model in a bucket has none. `format` overrides the convention of the model's
/// backend.
pub(crate) fn adapters(
    repositories: &[PathBuf],
    symlinks: SymlinkPolicy,
    model: &str,
    format: Option<RequestFormat>,
) -> AdapterList {
    // A name from a client must not lead out of the repository.
    if Path::new(model).components().count() != 1 || model.contains(['/', '\\']) || model == ".." {
        return AdapterList::Unknown;
    }
    let is_allowed = |path: &PathBuf| symlinks != SymlinkPolicy::Forbidden || !path.is_symlink();
    let folders = repositories.iter().map(|repository| repository.join(model));
    let mut versions = folders.filter(is_allowed).filter_map(|folder| newest_version(&folder));
    let Some(version) = versions.next().filter(is_allowed) else {
        return AdapterList::Unknown;
    };
    let read = |name| Some(version.join(name)).filter(is_allowed).and_then(|file| read(&file));
    let (model, list) = (read("model.json"), read("multi_lora.json"));
    let is_vllm = match format {
        Some(format) => format == RequestFormat::Vllm,
        // The file is that of the vLLM backend.
        None => model.is_some(),
    };
    if is_vllm {
        AdapterList::of_vllm(model.as_deref(), list.as_deref())
    } else {
        AdapterList::of_others(list.as_deref())
    }
}

fn read(file: &Path) -> Option<String> {
    let length = fs::metadata(file).ok()?.len();
    if length > FILE_BYTES_MAX { None } else { fs::read_to_string(file).ok() }
}

/// Returns the version directory with the highest number.
fn newest_version(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let numbered = entries.filter_map(|entry| {
        let name = entry.file_name();
        let number = name.to_str()?.parse::<u64>().ok().filter(|number| *number > 0)?;
        Some((number, entry.path()))
    });
    numbered.max_by_key(|(number, _)| *number).map(|(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_come_from_the_newest_version() {
        let folder = std::env::temp_dir().join(format!("galatea-adapters-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            let file = folder.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        write("a/m/1/multi_lora.json", r#"{"old": "x"}"#);
        write("a/m/10/model.json", r#"{"enable_lora": true}"#);
        write("a/m/10/multi_lora.json", r#"{"new": "x"}"#);
        write("b/n/1/multi_lora.json", r#"{"other": "x"}"#);
        let repositories = [folder.join("a"), folder.join("b")];
        let adapters =
            |model: &str, format| adapters(&repositories, SymlinkPolicy::Followed, model, format);
        let names = |model: &str, format| adapters(model, format).names().to_vec();
        assert_eq!(names("m", None), ["new"]);
        assert_eq!(names("m", Some(RequestFormat::TensorRtLlm)), ["new"]);
        assert_eq!(names("n", None), ["other"]);
        assert_eq!(adapters("n", Some(RequestFormat::Vllm)), AdapterList::Unknown);
        for model in ["o", "..", "a/m", "../a/m", ""] {
            assert_eq!(adapters(model, None), AdapterList::Unknown, "{model}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn links_are_followed_only_if_they_are_allowed() {
        let folder = std::env::temp_dir().join(format!("galatea-links-{}", std::process::id()));
        fs::create_dir_all(folder.join("target/1")).unwrap();
        let file = folder.join("target/1/multi_lora.json");
        fs::write(&file, r#"{"a": "x"}"#).unwrap();
        let link = |target: &Path, path: &str| {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(target, path).unwrap();
        };
        link(&folder.join("target"), "r/model");
        link(&folder.join("target/1"), "r/version/1");
        link(&file, "r/file/1/multi_lora.json");
        // Links in the path of the repository are allowed.
        link(&folder.join("r"), "linked");
        fs::create_dir_all(folder.join("r/plain/1")).unwrap();
        fs::copy(&file, folder.join("r/plain/1/multi_lora.json")).unwrap();
        let repositories = [folder.join("linked")];
        for model in ["model", "version", "file", "plain"] {
            let names = |symlinks| adapters(&repositories, symlinks, model, None).names().len();
            assert_eq!(names(SymlinkPolicy::Followed), 1, "{model}");
            let expected = usize::from(model == "plain");
            assert_eq!(names(SymlinkPolicy::Forbidden), expected, "{model}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
