//! The adapters of models, which the OpenAI endpoint reads from the models' directories.

use std::env::current_dir;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use galatea_http::{AdapterFiles, AdapterList, RequestFormat};
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
    let folders = repositories.iter().map(|repository| (repository, repository.join(model)));
    let folders = folders.filter(|(_, folder)| is_allowed(folder));
    let mut versions =
        folders.filter_map(|(repository, folder)| Some((repository, newest_version(&folder)?)));
    let Some((repository, version)) = versions.next().filter(|(_, path)| is_allowed(path)) else {
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
        let folder_of = |name: &str, path: &str| tensor_folder(repository, symlinks, name, path);
        AdapterList::of_others(list.as_deref(), folder_of)
    }
}

/// Returns the directory with an adapter's tensors, or the reason why it can't be used. Returns
/// `None` for a path that is absolute or leads out of the repository, which makes the whole list
/// malformed, as in Triton.
///
/// Triton checks that the directory exists in the repository, and reads it in the directory in
/// which the server was started. Here, a directory in either place can be used.
fn tensor_folder(
    repository: &Path,
    symlinks: SymlinkPolicy,
    name: &str,
    path: &str,
) -> Option<Result<PathBuf, String>> {
    if Path::new(path).is_absolute() {
        return None;
    }
    let missing =
        || Err(format!("LoRA directory '{path}' not found for '{name}' in its model repository"));
    let Ok(repository) = repository.canonicalize() else { return Some(missing()) };
    let started = current_dir().and_then(|folder| folder.canonicalize()).ok();
    for parent in [Some(&repository), started.as_ref()].into_iter().flatten() {
        let Ok(folder) = parent.join(path).canonicalize() else { continue };
        let is_inside = folder.starts_with(&repository);
        let has_links = folder != without_dots(&parent.join(path));
        match (is_inside, has_links && symlinks == SymlinkPolicy::Forbidden) {
            (true, false) => return Some(Ok(folder)),
            (true, true) => return Some(missing()),
            (false, _) if parent == &repository => return None,
            (false, _) => {}
        }
    }
    without_dots(&repository.join(path)).starts_with(&repository).then(missing)
}

/// Resolves `.` and `..` in a path without reading links.
fn without_dots(path: &Path) -> PathBuf {
    let mut resolved = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                resolved.pop();
            }
            Component::CurDir => {}
            other => resolved.push(other),
        }
    }
    resolved
}

/// The files with an adapter's tensors: the weights and the configuration.
const TENSOR_FILES: [&str; 2] = ["model.lora_weights.npy", "model.lora_config.npy"];

/// Opens the files with the tensors of an adapter, or returns the reason why they can't be read.
pub(crate) fn open_tensors(
    symlinks: SymlinkPolicy,
    name: &str,
    folder: &Path,
) -> Result<AdapterFiles, String> {
    let open = |file: &str| {
        let missing =
            || format!("LoRA file '{file}' not found for '{name}' in its model repository");
        let path = folder.join(file);
        let is_allowed = symlinks != SymlinkPolicy::Forbidden || !path.is_symlink();
        // Opening anything other than a file may block.
        if !is_allowed || !path.is_file() {
            return Err(missing());
        }
        let unreadable = |error| format!("LoRA file '{file}' of '{name}' can't be read: {error}");
        let opened = File::open(&path).map_err(unreadable)?;
        let length = opened.metadata().map_err(unreadable)?.len();
        Ok((opened, length))
    };
    let [weights, config] = TENSOR_FILES;
    let files = [open(weights)?, open(config)?];
    let length = files.iter().fold(0_u64, |sum, (_, length)| sum.saturating_add(*length));
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let read = move || {
        let [weights, config] = files.map(|(file, length)| read_at_most(file, length));
        Ok([weights?, config?])
    };
    Ok(AdapterFiles { length, read: Box::new(read) })
}

/// Reads a file up to a length, beyond which it may have grown.
fn read_at_most(file: File, length: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    file.take(length).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
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
        fs::create_dir_all(folder.join("a/x")).unwrap();
        write("a/m/1/multi_lora.json", r#"{"old": "x"}"#);
        write("a/m/10/model.json", r#"{"enable_lora": true}"#);
        write("a/m/10/multi_lora.json", r#"{"new": "x"}"#);
        write("b/n/1/multi_lora.json", r#"{"other": "x"}"#);
        let repositories = [folder.join("a"), folder.join("b")];
        let adapters =
            |model: &str, format| adapters(&repositories, SymlinkPolicy::Followed, model, format);
        let names = |model: &str, format| {
            adapters(model, format).names().map(str::to_owned).collect::<Vec<_>>()
        };
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
            let names = |symlinks| adapters(&repositories, symlinks, model, None).names().count();
            assert_eq!(names(SymlinkPolicy::Followed), 1, "{model}");
            let expected = usize::from(model == "plain");
            assert_eq!(names(SymlinkPolicy::Forbidden), expected, "{model}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn tensors_are_in_the_repository() {
        let root = std::env::temp_dir().join(format!("galatea-tensors-{}", std::process::id()));
        let repository = root.join("models");
        let folder = repository.join("m/1/a");
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir_all(root.join("outside")).unwrap();
        std::os::unix::fs::symlink(&folder, repository.join("link")).unwrap();
        std::os::unix::fs::symlink(root.join("outside"), repository.join("out")).unwrap();
        let find = |path: &str, symlinks| tensor_folder(&repository, symlinks, "a", path);
        let followed = |path: &str| find(path, SymlinkPolicy::Followed);
        let folder = folder.canonicalize().unwrap();
        let missing = |path: &str| {
            Some(Err(format!("LoRA directory '{path}' not found for 'a' in its model repository")))
        };
        assert_eq!(followed("m/1/a"), Some(Ok(folder.clone())));
        assert_eq!(followed("m/1//../1/./a"), Some(Ok(folder.clone())));
        assert_eq!(followed("link"), Some(Ok(folder.clone())));
        assert_eq!(find("link", SymlinkPolicy::Forbidden), missing("link"));
        assert_eq!(find("m/1/a", SymlinkPolicy::Forbidden), Some(Ok(folder.clone())));
        assert_eq!(followed("m/1/b"), missing("m/1/b"));
        for outside in [folder.to_str().unwrap(), "../outside", "m/../../x", "out", "/etc/passwd"] {
            assert_eq!(followed(outside), None, "{outside}");
        }

        let open = || open_tensors(SymlinkPolicy::Forbidden, "a", &folder);
        let lacks = |file| format!("LoRA file '{file}' not found for 'a' in its model repository");
        let [weights, config] = TENSOR_FILES;
        assert_eq!(open().unwrap_err(), lacks(weights));
        fs::write(folder.join(weights), "12").unwrap();
        std::os::unix::fs::symlink(folder.join(weights), folder.join(config)).unwrap();
        assert_eq!(open().unwrap_err(), lacks(config));
        let linked = open_tensors(SymlinkPolicy::Followed, "a", &folder).unwrap();
        assert_eq!(linked.length, 4);
        assert_eq!((linked.read)().unwrap(), [b"12".to_vec(), b"12".to_vec()]);
        fs::remove_dir_all(&root).unwrap();
    }
}
