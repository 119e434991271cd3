//! Determines a model's name and backend from its directory.

use galatea_protocol::inference::ModelConfig;

use galatea_config_message::{BoundedText, Diagnostic, bounded};

/// A backend that can be recognized by platform or model file, and its defaults.
struct KnownBackend {
    backend: &'static str,
    /// The backend's platforms; the first is the default.
    platforms: &'static [&'static str],
    fills_platform: bool,
    filename: &'static str,
}

/// The known backends, in order of preference: a directory may contain files for several.
const KNOWN_BACKENDS: [KnownBackend; 9] = [
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
    KnownBackend {
        backend: "llamacpp",
        platforms: &[],
        fills_platform: false,
        filename: "model.gguf",
    },
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
        let text = bounded!(
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
    // As in Triton, a backend's usual file selects the backend even if a platform is set. The pair
    // is refused later if they don't match.
    let has_usual_filename = |one: &&KnownBackend| {
        one.backend != TENSORFLOW && message.default_model_filename == one.filename
    };
    let mut backends = KNOWN_BACKENDS.iter();
    if message.backend.is_empty() {
        return if message.platform.is_empty() {
            backends.find(by_file)
        } else {
            backends.find(|one| by_platform(one) || has_usual_filename(one))
        };
    }
    let mut same = backends.filter(|one| one.backend == message.backend);
    if message.platform.is_empty() && message.backend == TENSORFLOW {
        // There is no preference between two formats: only the file decides.
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

/// The advice for a version that lacks the expected file but has another file of that kind.
/// `version_files` contains the names in its directory.
#[must_use]
pub fn misnamed_file_hint(version_files: &[String], expected: &str) -> Option<BoundedText> {
    let (_, kind) = expected.rsplit_once('.')?;
    let is_of_kind = |file: &&String| file.rsplit_once('.').is_some_and(|(_, end)| end == kind);
    let found = version_files.iter().find(is_of_kind).filter(|found| *found != expected)?;
    let found = found.escape_debug();
    Some(bounded!("found {found}, expected {expected}, or set default_model_filename"))
}

/// Infers the backend from a model name such as `x.BACKEND`, if the configuration doesn't specify
/// one.
fn infer_from_name(
    message: &mut ModelConfig,
    directory_name: &str,
    version_files: &[String],
) -> Vec<Diagnostic> {
    let is_unspecified = message.backend.is_empty()
        && message.platform.is_empty()
        && message.default_model_filename.is_empty();
    if !is_unspecified {
        return Vec::new();
    }
    let Some((_, backend)) = directory_name.split_once('.') else {
        let misnamed =
            KNOWN_BACKENDS.iter().find_map(|one| misnamed_file_hint(version_files, one.filename));
        let hint = match (version_files, misnamed) {
            ([], _) => BoundedText::from(" Its newest version is empty."),
            (_, Some(found)) => bounded!(" ({found} and backend)"),
            (_, None) => BoundedText::default(),
        };
        let text = bounded!(
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

/// The backend of a platform, if Triton knows the platform.
pub(crate) fn backend_of_platform(platform: &str) -> Option<&'static str> {
    let known = KNOWN_BACKENDS.iter().find(|one| one.platforms.contains(&platform));
    known.map(|one| one.backend)
}

/// Returns true if this backend requires one of its own platforms.
pub(crate) fn backend_has_platforms(backend: &str) -> bool {
    KNOWN_BACKENDS.iter().any(|one| one.backend == backend && !one.platforms.is_empty())
}

/// Returns true if this is the platform for ensembles.
pub(crate) fn is_ensemble(platform: &str) -> bool {
    platform == ENSEMBLE
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resolves `backend platform filename` (`-` for empty) and compares the result in the same
    /// form.
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
    // row: MR-04 CFG-24 BE-05
    fn the_files_of_a_version_determine_the_backend() {
        check("m", "- - -", &["model.onnx"], "onnxruntime onnxruntime_onnx model.onnx");
        check("m", "- - -", &["x", "model.plan"], "tensorrt tensorrt_plan model.plan");
        check("m", "- - -", &["model.xml"], "openvino - model.xml");
        check("m", "- - -", &["model.pt"], "pytorch pytorch_libtorch model.pt");
        check("m", "- - -", &["model.pt2"], "pytorch torch_aoti model.pt2");
        check("m", "- - -", &["model.py", "helper.py"], "python - model.py");
        check("m", "- - -", &["model.gguf"], "llamacpp - model.gguf");
        check("m", "- - -", &["model.graphdef"], "tensorflow tensorflow_graphdef model.graphdef");
        check("m", "- - -", &["model.py", "model.onnx"], "onnxruntime onnxruntime_onnx model.onnx");
    }

    #[test]
    fn configured_values_are_kept() {
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
    // row: MR-04
    fn the_usual_file_of_a_backend_stands_for_it_beside_any_platform() {
        check("m", "- onnxruntim model.onnx", &[], "onnxruntime onnxruntim model.onnx");
        check("m", "- onnxruntim other.onnx", &["model.onnx"], "- onnxruntim other.onnx");
        check("m", "- onnxruntime_onnx model.plan", &[], "tensorrt onnxruntime_onnx model.plan");
        check("m", "- tensorrt_plan model.onnx", &[], "tensorrt tensorrt_plan model.onnx");
        check("m", "- custom model.graphdef", &[], "- custom model.graphdef");
        check("m", "- ensemble model.onnx", &[], "onnxruntime ensemble model.onnx");
    }

    #[test]
    // row: CFG-24
    fn a_name_with_a_dot_names_the_backend() {
        check("model.identity", "- - -", &[], "identity - model.identity");
    }

    #[test]
    fn an_unknown_backend_is_an_error() {
        let message = |files: &[String]| {
            let diagnostics = resolve(&mut ModelConfig::default(), "plain", files);
            diagnostics.into_iter().next().unwrap().message
        };
        let empty = message(&[]);
        assert!(empty.contains("Could not determine backend for model 'plain'"));
        assert!(empty.ends_with("Its newest version is empty."));
        assert!(!message(&["notes".to_owned()]).contains("empty"));
        let misnamed = message(&["notes".to_owned(), "scale.onnx".to_owned()]);
        let hint = "'model.<backend_name>'. (found scale.onnx, expected model.onnx, or set \
                    default_model_filename and backend)";
        assert!(misnamed.ends_with(hint), "{misnamed}");
    }

    #[test]
    fn a_file_of_another_kind_is_not_misnamed() {
        let check = |files: &[&str], expected: &str, is_found: bool| {
            let files: Vec<String> = files.iter().map(|&file| file.to_owned()).collect();
            assert_eq!(misnamed_file_hint(&files, expected).is_some(), is_found, "{files:?}");
        };
        check(&["a.py", "b"], "model.onnx", false);
        check(&["a.py"], "model.py", true);
        check(&["model.py"], "model.py", false);
        check(&["a"], "model", false);
    }

    #[test]
    // row: MR-05
    fn the_name_must_equal_the_directory() {
        let mut message = ModelConfig { name: "a".to_owned(), ..ModelConfig::default() };
        let diagnostics = resolve(&mut message, "b", &[]);
        assert_eq!(
            diagnostics[0].message,
            "unexpected directory name 'b' for model 'a', directory name must equal model name"
        );
    }
}
