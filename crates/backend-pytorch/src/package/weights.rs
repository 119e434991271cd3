//! The location of a compiled model's weights.
//!
//! Usually they are in the model's library. PyTorch may also write them to a single file next to
//! the library (`binary_blob`), pickle each to its own file (`pickle_weights`), or not write them at
//! all.

/// The ending of the name of the file with all weights.
pub(super) const BLOB_ENDING: &str = ".blob";

/// The name of the model's file that lists pickled weights.
pub(super) const PICKLED_LIST: &str = "weights_config.json";

/// The location of a model's weights.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum WeightsPlace {
    /// In the model's library, or the model has no weights.
    Library,
    /// In a file of the package that contains all weights.
    Blob,
    /// In pickled files, which only a Python program can read.
    Pickled,
}

/// The package's files that contain weights.
#[derive(Copy, Clone, Default)]
pub(super) struct WeightFiles<'a> {
    pub(super) has_blob: bool,
    pub(super) has_pickled_list: bool,
    /// A file with one of several separate weights.
    pub(super) separate: Option<&'a str>,
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
    files: WeightFiles<'_>,
) -> Result<WeightsPlace, String> {
    let where_they_are = match (library_holds, files.separate) {
        (Some(true), _) => return Ok(WeightsPlace::Library),
        _ if files.has_blob => return Ok(WeightsPlace::Blob),
        (_, Some(_)) if files.has_pickled_list => return Ok(WeightsPlace::Pickled),
        (None, None) => return Ok(WeightsPlace::Library),
        (_, Some(name)) => format!("no file says which weights are in '{name}'"),
        (Some(false), None) => String::from("it has no weights"),
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
        let (library, none) = (Ok(WeightsPlace::Library), WeightFiles::default());
        let separate = WeightFiles { separate: Some("data/weights/weight_0"), ..none };
        let pickled = WeightFiles { has_pickled_list: true, ..separate };
        assert_eq!(place(Some(true), pickled), library);
        assert_eq!(place(None, none), library);
        // Without weights, the list has no entries.
        assert_eq!(place(None, WeightFiles { separate: None, ..pickled }), library);
        let error = place(Some(false), none).unwrap_err();
        assert!(error.starts_with("it has no weights: compile the model with"), "{error}");
        for holds in [Some(false), None] {
            let blob = WeightFiles { has_blob: true, ..pickled };
            assert_eq!(place(holds, blob), Ok(WeightsPlace::Blob));
            assert_eq!(place(holds, pickled), Ok(WeightsPlace::Pickled));
            let error = place(holds, separate).unwrap_err();
            let expected = "no file says which weights are in 'data/weights/weight_0': compile";
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
