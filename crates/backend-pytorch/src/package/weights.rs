//! The location of a compiled model's weights.
//!
//! Usually they are in the model's library. PyTorch may also write them to a single file next to
//! the library (`binary_blob`), write each to its own file (`pickle_weights`), or not write them at
//! all.

/// The ending of the name of the file with all weights.
pub(super) const BLOB_ENDING: &str = ".blob";

/// The location of a model's weights.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum WeightsPlace {
    /// In the model's library, or the model has no weights.
    Library,
    /// In a file of the package that contains all weights.
    Blob,
}

/// Returns true if the file in the archive contains one of several separate weights.
pub(super) fn is_list(name: &str) -> bool {
    name.contains("data/constants/") || name.contains("data/weights/")
}

/// Returns true if the library contains the weights; `None` if the source doesn't specify this. The
/// constructor in the source passes on the number of weights, and whether the library contains
/// them: `AOTInductorModelBase(1, 1, 3, device, dir, true) {`.
pub(super) fn library_holds_weights(source: &str) -> Option<bool> {
    let (_, rest) = source.split_once(": AOTInductorModelBase(")?;
    let (arguments, _) = rest.split_once(") {")?;
    let mut arguments = arguments.split(',').map(str::trim);
    let count: u64 = arguments.by_ref().nth(2)?.parse().ok()?;
    match arguments.next_back()? {
        "true" => Some(true),
        "false" => Some(count == 0),
        _ => None,
    }
}

/// The location of the weights, determined from the source and the package's files.
///
/// # Errors
///
/// The reason why the server can't find the weights.
pub(super) fn place(
    library_holds: Option<bool>,
    has_blob: bool,
    separate: Option<&str>,
) -> Result<WeightsPlace, String> {
    let where_they_are = match (library_holds, has_blob, separate) {
        (Some(true), ..) | (None, false, None) => return Ok(WeightsPlace::Library),
        (Some(false) | None, true, _) => return Ok(WeightsPlace::Blob),
        (Some(false) | None, false, Some(name)) => {
            format!("the weights in '{name}' are for programs in Python")
        }
        (Some(false), false, None) => String::from("it has no weights"),
    };
    Err(format!(
        "{where_they_are}: compile the model with `aot_inductor.package_constants_in_so` on, which \
         is the default, or with `aot_inductor.package_constants_on_disk_format` as 'binary_blob'"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_says_if_the_library_has_the_weights() {
        let source = |count: u32, last: &str| {
            format!(
                "M::M(a)\n    : AOTInductorModelBase(1,\n 2,\n {count},\n device_str,\n \
                 std::move(cubin_dir){last}) {{\n"
            )
        };
        let holds = |count, last| library_holds_weights(&source(count, last));
        assert_eq!(holds(3, ",\n true"), Some(true));
        assert_eq!(holds(3, ",\n false"), Some(false));
        assert_eq!(holds(0, ",\n false"), Some(true));
        // Before PyTorch 2.6, the source doesn't specify this.
        assert_eq!(holds(3, ""), None);
        assert_eq!(library_holds_weights("int main() {"), None);
    }

    #[test]
    fn weights_are_found_or_the_error_says_how_to_compile() {
        let library = Ok(WeightsPlace::Library);
        assert_eq!(place(Some(true), false, Some("data/weights/weight_0")), library);
        assert_eq!(place(None, false, None), library);
        assert_eq!(place(Some(false), true, None), Ok(WeightsPlace::Blob));
        assert_eq!(place(None, true, None), Ok(WeightsPlace::Blob));
        let error = place(Some(false), false, None).unwrap_err();
        assert!(error.starts_with("it has no weights: compile the model with"), "{error}");
        for holds in [Some(false), None] {
            let error = place(holds, false, Some("data/weights/weight_0")).unwrap_err();
            assert!(error.starts_with("the weights in 'data/weights/weight_0'"), "{error}");
        }
    }
}
