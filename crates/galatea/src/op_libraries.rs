//! Custom-operator libraries, and checks of the configurations that name them.
//!
//! A library is code. An operator who can write to a model repository may bring code. A client that
//! can only request loads may not, whether the backend is built in or compiled: when the model is
//! defined, the libraries that a load parameter names are compared with those in the repository's
//! configuration.

use galatea_config::{ConfigDraft, ConfigErrors, Diagnostic};
use galatea_engine::LoadOverride;

/// Refuses libraries that a load parameter names but the repository's configuration doesn't.
/// `repository_config` reads the repository's configuration. A client may therefore send back the
/// configuration that it got from the server with other fields changed.
pub(crate) fn check(
    draft: &ConfigDraft,
    overrides: LoadOverride,
    repository_config: impl FnOnce() -> Option<ConfigDraft>,
) -> Result<(), ConfigErrors> {
    let names = draft.op_library_filenames();
    if names.is_empty() {
        return Ok(());
    }
    let own = match overrides {
        LoadOverride::None => return Ok(()),
        LoadOverride::Configuration => repository_config(),
        // A configuration among these files also comes from the client.
        LoadOverride::Files => return Err(refusal("can't be given with files")),
    };
    let known = own.as_ref().map_or(&[][..], ConfigDraft::op_library_filenames);
    match names.iter().find(|name| !known.contains(name)) {
        None => Ok(()),
        Some(name) => Err(refusal(&format!(
            "'{}' is not among the libraries that the configuration in the model's repository \
             names",
            name.escape_debug()
        ))),
    }
}

fn refusal(reason: &str) -> ConfigErrors {
    let text = format_args!("{reason}: a library is code, which can't come with a request to load");
    Diagnostic::about("model_operations.op_library_filename", text).into()
}

#[cfg(test)]
mod tests {
    use galatea_pbtxt::parse_config_draft;

    use super::*;

    fn draft(libraries: &str) -> ConfigDraft {
        let text = format!("model_operations {{ op_library_filename: [ {libraries} ] }}");
        parse_config_draft("f", &text).unwrap()
    }

    fn refused(
        libraries: &str,
        overrides: LoadOverride,
        operators: Option<&str>,
    ) -> Option<String> {
        let operators = || operators.map(draft);
        check(&draft(libraries), overrides, operators).err().map(|found| found.to_string())
    }

    #[test]
    fn the_configuration_in_the_repository_may_name_any_library() {
        let own = "'/opt/a.so', '../b.so'";
        assert_eq!(refused(own, LoadOverride::None, None), None);
        assert_eq!(refused(own, LoadOverride::None, Some("")), None);
    }

    #[test]
    fn a_client_may_name_the_libraries_of_the_repository() {
        let own = Some("'/opt/a.so', 'b.so'");
        for libraries in ["'/opt/a.so', 'b.so'", "'b.so'", ""] {
            assert_eq!(refused(libraries, LoadOverride::Configuration, own), None, "{libraries}");
        }
        let expected = "model_operations.op_library_filename: './b.so' is not among the libraries \
                        that the configuration in the model's repository names: a library is \
                        code, which can't come with a request to load";
        let found = refused("'b.so', './b.so'", LoadOverride::Configuration, own);
        assert_eq!(found.as_deref(), Some(expected));
        for own in [Some(""), None] {
            let found = refused("'b.so'", LoadOverride::Configuration, own);
            assert!(found.is_some_and(|text| text.contains("'b.so' is not among")), "{own:?}");
        }
    }

    #[test]
    fn a_load_with_files_names_no_library() {
        let same = Some("'b.so'");
        let found = refused("'b.so'", LoadOverride::Files, same);
        assert!(found.is_some_and(|text| text.contains("can't be given with files")));
        assert_eq!(refused("", LoadOverride::Files, same), None);
    }
}
