//! Code that comes with a load request, which an operator may forbid.
//!
//! The rule is an allowlist of backends whose models are data and can't be code. A load with files
//! may specify only these backends. A load with only a configuration may also specify the backend
//! from the repository's configuration, with the same file and parameters, because that code is the
//! operator's.

use std::fmt;

use galatea_config::{ConfigDraft, ConfigErrors, Diagnostic};
use galatea_engine::LoadOverride;
use galatea_infer::Status;

/// The flag, without its dashes.
pub(crate) const FLAG: &str = "allow-model-code-from-loads";

/// Backends whose models are data. Ensembles have no backend.
const DATA: [&str; 5] = ["fil", "identity", "onnxruntime", "openvino", "token_counter"];
const ENSEMBLE: &str = "ensemble";
/// File extensions that denote code.
const ENDINGS: [&str; 5] = [".py", ".pyc", ".pyd", ".sh", ".so"];

/// The permission for load requests to bring code.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ModelCodePermission {
    /// Load requests may bring code, as in Triton.
    #[default]
    Allowed,
    /// Only users who can write to the repositories may bring code.
    Refused,
}

/// A load that may not bring code, with the repository's configuration.
pub(crate) struct LoadWithoutCode {
    /// The repository's configuration; `None` if the load brings files, because the repository's
    /// contents are then irrelevant.
    own: Option<ConfigDraft>,
}

impl ModelCodePermission {
    /// The check for a load; `None` if the load may bring code or replaces nothing.
    pub(crate) fn check_of(
        self,
        overrides: LoadOverride,
        repository_config: impl FnOnce() -> Option<ConfigDraft>,
    ) -> Option<LoadWithoutCode> {
        match (self, overrides) {
            (Self::Allowed, _) | (Self::Refused, LoadOverride::None) => None,
            (Self::Refused, LoadOverride::Files) => Some(LoadWithoutCode { own: None }),
            (Self::Refused, LoadOverride::Configuration) => {
                let own = repository_config().unwrap_or_else(ConfigDraft::empty);
                Some(LoadWithoutCode { own: Some(own) })
            }
        }
    }

    /// Refuses files whose names denote code.
    pub(crate) fn check_files(self, files: &[(String, Vec<u8>)]) -> Result<(), Status> {
        let is_code = |path: &str| {
            let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
            ENDINGS.iter().any(|ending| name.ends_with(ending)) || name.contains(".so.")
        };
        match files.iter().find(|(path, _)| self == Self::Refused && is_code(path)) {
            None => Ok(()),
            Some((path, _)) => Err(Status::invalid_argument(format!(
                "file '{}' is code, which --{FLAG}=false keeps out",
                path.escape_debug()
            ))),
        }
    }
}

impl LoadWithoutCode {
    /// Refuses code that this configuration names but the repository's configuration doesn't.
    pub(crate) fn check_named(&self, draft: &ConfigDraft) -> Result<(), ConfigErrors> {
        let known = self.own.as_ref().map(ConfigDraft::code_references).unwrap_or_default();
        let named = draft.code_references();
        match named.iter().find(|code| !known.contains(code)) {
            None => Ok(()),
            Some(code) => {
                Err(refusal(code.field, format_args!("'{}' is", code.value.escape_debug())))
            }
        }
    }

    /// Refuses a backend that may execute code, unless the repository's configuration specifies the
    /// same backend and the same code. The draft's name and backend are resolved; `files` are the
    /// files of one version.
    pub(crate) fn check_backend(
        &self,
        draft: &ConfigDraft,
        files: &[String],
    ) -> Result<(), ConfigErrors> {
        let backend = draft.backend();
        if draft.platform() == ENSEMBLE || backend.is_empty() || DATA.contains(&backend) {
            return Ok(());
        }
        let unlike =
            || refusal("backend", format_args!("models of '{}' may be", backend.escape_debug()));
        let mut own = self.own.clone().ok_or_else(unlike)?;
        own.rename(draft.name());
        own.resolve_name_and_backend(draft.name(), files).map_err(|_| unlike())?;
        if own.backend() != backend {
            return Err(unlike());
        }
        let (message, own) = (draft.message(), own.message());
        let files_of = "default_model_filename";
        if message.default_model_filename != own.default_model_filename {
            return Err(refusal(
                files_of,
                format_args!("another file than the repository's may be"),
            ));
        }
        if message.cc_model_filenames != own.cc_model_filenames {
            return Err(refusal(
                "cc_model_filenames",
                format_args!("other files than the repository's may be"),
            ));
        }
        let keys = message.parameters.keys().chain(own.parameters.keys());
        let mut keys = keys.filter(|key| message.parameters.get(*key) != own.parameters.get(*key));
        match keys.next() {
            None => Ok(()),
            Some(key) => Err(refusal(
                "parameters",
                format_args!("another '{}' than the repository's may name", key.escape_debug()),
            )),
        }
    }
}

fn refusal(field: &'static str, what: fmt::Arguments<'_>) -> ConfigErrors {
    let text = format_args!("{what} code, which --{FLAG}=false keeps out of loads");
    Diagnostic::about(field, text).into()
}

#[cfg(test)]
mod tests {
    use galatea_pbtxt::parse_config_draft;

    use super::*;

    const PYTHON: &str = "backend: 'python' \
        parameters { key: 'GALATEA_SANDBOX' value { string_value: 'true' } }";

    fn draft(text: &str) -> ConfigDraft {
        let mut draft = parse_config_draft("f", text).unwrap();
        draft.rename("m");
        draft.resolve_name_and_backend("m", &[]).unwrap();
        draft
    }

    /// Returns the refused field of a load over a configuration in the repository, or of a load
    /// with files.
    fn refused(text: &str, own: Option<&str>) -> Option<String> {
        let overrides =
            if own.is_some() { LoadOverride::Configuration } else { LoadOverride::Files };
        let own = || own.map(|text| parse_config_draft("f", text).unwrap());
        let load = ModelCodePermission::Refused.check_of(overrides, own).unwrap();
        let draft = draft(text);
        let checked = load.check_named(&draft).and_then(|()| load.check_backend(&draft, &[]));
        checked.err().map(|errors| errors.diagnostics[0].path.to_string())
    }

    #[test]
    fn data_may_come_and_code_of_the_repository_may_stay() {
        for backend in DATA {
            assert_eq!(refused(&format!("backend: '{backend}'"), None), None);
            assert_eq!(refused(&format!("backend: '{backend}'"), Some(PYTHON)), None);
        }
        let other = format!("{PYTHON} max_batch_size: 8 instance_group {{ count: 2 }}");
        assert_eq!(refused(&other, Some(PYTHON)), None);
        let libraries = "backend: 'onnxruntime' model_operations { op_library_filename: 'a.so' }";
        assert_eq!(refused(libraries, Some(libraries)), None);
    }

    #[test]
    fn code_is_refused_by_name() {
        let with = |more: &str| format!("{PYTHON} {more}");
        let environment =
            "parameters { key: 'EXECUTION_ENV_PATH' value { string_value: '/a.tar.gz' } }";
        for (text, own, field) in [
            ("backend: 'python'", None, "backend"),
            ("backend: 'unknown'", None, "backend"),
            ("default_model_filename: 'model.py'", None, "backend"),
            ("backend: 'python'", Some("backend: 'onnxruntime'"), "backend"),
            ("backend: 'pytorch'", Some(PYTHON), "backend"),
            ("backend: 'python'", Some(PYTHON), "parameters"),
            (&with(environment), Some(PYTHON), "parameters"),
            (&with("default_model_filename: 'other.py'"), Some(PYTHON), "default_model_filename"),
            (&with("runtime: 'other.so'"), Some(PYTHON), "runtime"),
            (
                "backend: 'onnxruntime' parameters { key: 'TRITON_BATCH_STRATEGY_PATH' \
                 value { string_value: 'b.so' } }",
                Some("backend: 'onnxruntime'"),
                "parameters.TRITON_BATCH_STRATEGY_PATH",
            ),
            (
                "backend: 'identity' model_repository_agents { agents { name: 'sum' } }",
                Some("backend: 'identity'"),
                "model_repository_agents",
            ),
        ] {
            assert_eq!(refused(text, own).as_deref(), Some(field), "{text}");
        }
    }

    #[test]
    fn files_are_refused_by_their_names_unless_code_is_allowed() {
        let refused = |code: ModelCodePermission, path: &str| {
            code.check_files(&[(String::from(path), Vec::new())]).is_err()
        };
        for path in ["1/model.py", "/1/Model.PY", "libtriton_x.so", "1/batchstrategy.so.1"] {
            assert!(refused(ModelCodePermission::Refused, path), "{path}");
            assert!(!refused(ModelCodePermission::Allowed, path), "{path}");
        }
        for path in ["1/model.onnx", "warmup/so", "labels.txt"] {
            assert!(!refused(ModelCodePermission::Refused, path), "{path}");
        }
        assert!(ModelCodePermission::Allowed.check_of(LoadOverride::Files, || None).is_none());
        assert!(ModelCodePermission::Refused.check_of(LoadOverride::None, || None).is_none());
    }
}
