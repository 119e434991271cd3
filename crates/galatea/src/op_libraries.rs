//! Who may name libraries with operators.
//!
//! A library is code. Whoever writes to a model repository may bring code; whoever may
//! only order the server to load models may not, whether the backend is built in or
//! compiled.

use galatea_config::{ConfigDraft, ConfigErrors, Diagnostic};
use galatea_engine::Overridden;

/// Refuses libraries that a load brings and the operator's configuration of the model,
/// `operators`, doesn't name. A client may still send back the configuration that it
/// was shown, with something else changed.
pub(crate) fn check(
    draft: &ConfigDraft,
    overridden: Overridden,
    operators: impl FnOnce() -> Option<ConfigDraft>,
) -> Result<(), ConfigErrors> {
    let names = draft.op_library_filenames();
    if names.is_empty() {
        return Ok(());
    }
    let own = match overridden {
        Overridden::Nothing => return Ok(()),
        Overridden::Configuration => operators(),
        // A configuration among these files is the client's too.
        Overridden::Files => return Err(refusal("can't be given with files")),
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
    let text = format!("{reason}: a library is code, which can't come with a request to load");
    Diagnostic::about("model_operations.op_library_filename", text).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(libraries: &str) -> ConfigDraft {
        let text = format!("model_operations {{ op_library_filename: [ {libraries} ] }}");
        ConfigDraft::from_pbtxt("f", &text).unwrap()
    }

    fn refused(libraries: &str, overridden: Overridden, operators: Option<&str>) -> Option<String> {
        let operators = || operators.map(draft);
        check(&draft(libraries), overridden, operators).err().map(|found| found.to_string())
    }

    #[test]
    fn the_operators_own_configuration_names_what_it_likes() {
        let own = "'/opt/a.so', '../b.so'";
        assert_eq!(refused(own, Overridden::Nothing, None), None);
        assert_eq!(refused(own, Overridden::Nothing, Some("")), None);
    }

    #[test]
    fn a_client_names_what_the_operator_named() {
        let own = Some("'/opt/a.so', 'b.so'");
        for libraries in ["'/opt/a.so', 'b.so'", "'b.so'", ""] {
            assert_eq!(refused(libraries, Overridden::Configuration, own), None, "{libraries}");
        }
        let expected = "model_operations.op_library_filename: './b.so' is not among the libraries \
                        that the configuration in the model's repository names: a library is \
                        code, which can't come with a request to load";
        let found = refused("'b.so', './b.so'", Overridden::Configuration, own);
        assert_eq!(found.as_deref(), Some(expected));
        for own in [Some(""), None] {
            let found = refused("'b.so'", Overridden::Configuration, own);
            assert!(found.is_some_and(|text| text.contains("'b.so' is not among")), "{own:?}");
        }
    }

    #[test]
    fn files_of_a_client_come_without_libraries() {
        let same = Some("'b.so'");
        let found = refused("'b.so'", Overridden::Files, same);
        assert!(found.is_some_and(|text| text.contains("can't be given with files")));
        assert_eq!(refused("", Overridden::Files, same), None);
    }
}
