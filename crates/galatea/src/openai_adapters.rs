//! The adapters of models, which the OpenAI endpoint reads from the models' directories.

use std::fs;
use std::path::{Path, PathBuf};

use galatea_http::{AdapterList, RequestFormat};

/// The maximum length of a file. Longer files count as malformed.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads the adapters of a model from the directory of its newest version, as Triton's frontend
/// does. `format` overrides the convention of the model's backend.
pub(crate) fn adapters(
    repositories: &[PathBuf],
    model: &str,
    format: Option<RequestFormat>,
) -> AdapterList {
    // A name from a client must not lead out of the repository.
    if Path::new(model).components().count() != 1 || model.contains(['/', '\\']) || model == ".." {
        return AdapterList::Unknown;
    }
    let mut folders = repositories.iter().map(|repository| repository.join(model));
    let Some(version) = folders.find_map(|folder| newest_version(&folder)) else {
        return AdapterList::Unknown;
    };
    let (model, list) = (read(&version.join("model.json")), read(&version.join("multi_lora.json")));
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
        let names = |model: &str, format| adapters(&repositories, model, format).names().to_vec();
        assert_eq!(names("m", None), ["new"]);
        assert_eq!(names("m", Some(RequestFormat::TensorRtLlm)), ["new"]);
        assert_eq!(names("n", None), ["other"]);
        assert_eq!(adapters(&repositories, "n", Some(RequestFormat::Vllm)), AdapterList::Unknown);
        for model in ["o", "..", "a/m", "../a/m", ""] {
            assert_eq!(adapters(&repositories, model, None), AdapterList::Unknown, "{model}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
