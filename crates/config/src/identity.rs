//! What a model is called and which backend executes it, as far as its
//! directory tells.

use galatea_protocol::inference::ModelConfig;

use crate::diagnostic::Diagnostic;

/// How a backend is known, and what it goes by when nothing else is said.
struct KnownBackend {
    backend: &'static str,
    /// Platforms that mean this backend; the first one is filled in.
    platforms: &'static [&'static str],
    fills_platform: bool,
    filename: &'static str,
}

/// In the order in which they are tried: a directory may hold the files of
/// several.
const KNOWN_BACKENDS: [KnownBackend; 8] = [
    KnownBackend {
        backend: TENSORFLOW,
        platforms: &["tensorflow_savedmodel"],
        fills_platform: true,
        filename: "model.savedmodel",
    },
    KnownBackend {
        backend: TENSORFLOW,
        platforms: &["tensorflow_graphdef"],
        fills_platform: true,
        filename: "model.graphdef",
    },
    KnownBackend {
        backend: "tensorrt",
        platforms: &["tensorrt_plan"],
        fills_platform: true,
        filename: "model.plan",
    },
    KnownBackend {
        backend: "onnxruntime",
        platforms: &["onnxruntime_onnx"],
        fills_platform: true,
        filename: "model.onnx",
    },
    KnownBackend {
        backend: "openvino",
        platforms: &[],
        fills_platform: false,
        filename: "model.xml",
    },
    KnownBackend {
        backend: "pytorch",
        platforms: &["pytorch_libtorch", "libtorch"],
        fills_platform: true,
        filename: "model.pt",
    },
    KnownBackend {
        backend: "pytorch",
        platforms: &["torch_aoti"],
        fills_platform: true,
        filename: "model.pt2",
    },
    KnownBackend { backend: "python", platforms: &[], fills_platform: false, filename: "model.py" },
];

const TENSORFLOW: &str = "tensorflow";
const ENSEMBLE: &str = "ensemble";

pub(crate) fn resolve(
    message: &mut ModelConfig,
    directory_name: &str,
    version_files: &[String],
) -> Vec<Diagnostic> {
    if message.name.is_empty() {
        directory_name.clone_into(&mut message.name);
    } else if message.name != directory_name {
        let text = format!(
            "unexpected directory name '{directory_name}' for model '{}', directory name must \
             equal model name",
            message.name
        );
        return vec![Diagnostic::about("name", text)];
    }
    match find_backend(message, version_files) {
        Some(known) => {
            fill_in(message, known);
            Vec::new()
        }
        None => infer_from_name(message, directory_name, version_files),
    }
}

fn find_backend(message: &ModelConfig, version_files: &[String]) -> Option<&'static KnownBackend> {
    let by_platform = |one: &&KnownBackend| one.platforms.contains(&message.platform.as_str());
    let by_file = |one: &&KnownBackend| {
        if message.default_model_filename.is_empty() {
            version_files.iter().any(|file| file == one.filename)
        } else {
            message.default_model_filename == one.filename
        }
    };
    let mut backends = KNOWN_BACKENDS.iter();
    if message.backend.is_empty() {
        return if message.platform.is_empty() {
            backends.find(by_file)
        } else {
            backends.find(by_platform)
        };
    }
    let mut same = backends.filter(|one| one.backend == message.backend);
    if message.platform.is_empty() && message.backend == TENSORFLOW {
        // Two formats without a preference: only the file can tell.
        return same.find(by_file);
    }
    if message.platform.is_empty() {
        return same.next();
    }
    same.find(|one| one.platforms.is_empty() || by_platform(one))
}

fn fill_in(message: &mut ModelConfig, known: &KnownBackend) {
    if message.backend.is_empty() {
        known.backend.clone_into(&mut message.backend);
    }
    if message.platform.is_empty()
        && known.fills_platform
        && let Some(platform) = known.platforms.first()
    {
        (*platform).clone_into(&mut message.platform);
    }
    if message.default_model_filename.is_empty() {
        known.filename.clone_into(&mut message.default_model_filename);
    }
}

/// A model called `x.BACKEND` belongs to that backend, if nothing else says
/// which.
fn infer_from_name(
    message: &mut ModelConfig,
    directory_name: &str,
    version_files: &[String],
) -> Vec<Diagnostic> {
    let says_nothing = message.backend.is_empty()
        && message.platform.is_empty()
        && message.default_model_filename.is_empty();
    if !says_nothing {
        return Vec::new();
    }
    let Some((_, backend)) = directory_name.split_once('.') else {
        let hint = match version_files {
            [] => " Its newest version is empty.",
            [..] => "",
        };
        let text = format!(
            "Invalid model name: Could not determine backend for model '{directory_name}' with no \
             backend in model configuration. Expected model name of the form \
             'model.<backend_name>'.{hint}"
        );
        return vec![Diagnostic::about("backend", text)];
    };
    backend.clone_into(&mut message.backend);
    message.default_model_filename = format!("model.{backend}");
    Vec::new()
}

/// The backend that a platform belongs to, if it is one that Triton
/// knows.
pub(crate) fn backend_of_platform(platform: &str) -> Option<&'static str> {
    let known = KNOWN_BACKENDS.iter().find(|one| one.platforms.contains(&platform));
    known.map(|one| one.backend)
}

/// Whether this backend must come with one of its own platforms.
pub(crate) fn backend_has_platforms(backend: &str) -> bool {
    KNOWN_BACKENDS.iter().any(|one| one.backend == backend && !one.platforms.is_empty())
}

/// Whether this platform is the one of pipelines of other models.
pub(crate) fn is_ensemble(platform: &str) -> bool {
    platform == ENSEMBLE
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resolves `backend platform filename` (`-` for empty) and returns the
    /// same three afterwards.
    fn check(name: &str, before: &str, files: &[&str], after: &str) {
        let mut given = before.split(' ').map(|word| word.trim_matches('-').to_owned());
        let mut message = ModelConfig {
            backend: given.next().unwrap(),
            platform: given.next().unwrap(),
            default_model_filename: given.next().unwrap(),
            ..ModelConfig::default()
        };
        let files: Vec<String> = files.iter().map(|&file| file.to_owned()).collect();
        let diagnostics = resolve(&mut message, name, &files);
        let shown = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
        let actual = format!(
            "{} {} {}",
            shown(&message.backend),
            shown(&message.platform),
            shown(&message.default_model_filename)
        );
        assert_eq!((actual.as_str(), diagnostics.len()), (after, 0), "{before} with {files:?}");
        assert_eq!(message.name, name);
    }

    #[test]
    fn the_files_of_a_version_tell_the_backend() {
        check("m", "- - -", &["model.onnx"], "onnxruntime onnxruntime_onnx model.onnx");
        check("m", "- - -", &["x", "model.plan"], "tensorrt tensorrt_plan model.plan");
        check("m", "- - -", &["model.xml"], "openvino - model.xml");
        check("m", "- - -", &["model.pt"], "pytorch pytorch_libtorch model.pt");
        check("m", "- - -", &["model.pt2"], "pytorch torch_aoti model.pt2");
        check("m", "- - -", &["model.py", "helper.py"], "python - model.py");
        check("m", "- - -", &["model.graphdef"], "tensorflow tensorflow_graphdef model.graphdef");
        check("m", "- - -", &["model.py", "model.onnx"], "onnxruntime onnxruntime_onnx model.onnx");
    }

    #[test]
    fn what_is_given_stays() {
        check("m", "onnxruntime - -", &["model.py"], "onnxruntime onnxruntime_onnx model.onnx");
        check("m", "onnxruntime - other.onnx", &[], "onnxruntime onnxruntime_onnx other.onnx");
        check("m", "- onnxruntime_onnx -", &[], "onnxruntime onnxruntime_onnx model.onnx");
        check("m", "- onnxruntime_onnx x.onnx", &[], "onnxruntime onnxruntime_onnx x.onnx");
        check("m", "- - model.onnx", &[], "onnxruntime onnxruntime_onnx model.onnx");
        check("m", "- - other.onnx", &["model.onnx"], "- - other.onnx");
        check("m", "python custom -", &[], "python custom model.py");
        check("m", "identity - -", &["model.onnx"], "identity - -");
        check("m", "tensorflow - -", &[], "tensorflow - -");
        check("m", "- ensemble -", &[], "- ensemble -");
    }

    #[test]
    fn a_name_with_a_dot_names_the_backend() {
        check("model.identity", "- - -", &[], "identity - model.identity");
    }

    #[test]
    fn without_any_hint_there_is_no_backend() {
        let message = |files: &[String]| {
            let diagnostics = resolve(&mut ModelConfig::default(), "plain", files);
            diagnostics.into_iter().next().unwrap().message
        };
        let empty = message(&[]);
        assert!(empty.contains("Could not determine backend for model 'plain'"));
        assert!(empty.ends_with("Its newest version is empty."));
        assert!(!message(&["notes".to_owned()]).contains("empty"));
    }

    #[test]
    fn the_name_must_be_the_directorys() {
        let mut message = ModelConfig { name: "a".to_owned(), ..ModelConfig::default() };
        let diagnostics = resolve(&mut message, "b", &[]);
        assert_eq!(
            diagnostics[0].message,
            "unexpected directory name 'b' for model 'a', directory name must equal model name"
        );
    }
}
