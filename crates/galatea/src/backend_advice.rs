//! The advice for a model whose backend is neither built in nor installed.

use std::path::Path;

use galatea_backend_plugin::Plugins;
use galatea_config::nearest_name;

/// The maximum number of backend-directory entries to examine.
const ENTRIES_MAX: usize = 1000;

/// Suggests a backend that was probably meant, and names the library that a backend with this name
/// needs.
pub(crate) fn advice(name: &str, built_in: &[&str], directory: &Path) -> String {
    let mut known: Vec<String> = built_in.iter().map(|&one| one.to_owned()).collect();
    known.extend(installed(directory));
    let names = || known.iter().map(String::as_str);
    let begun = || names().find(|one| name.len() > 2 && one.starts_with(name)).map(str::to_owned);
    let meant = nearest_name(name, names()).map(|one| one.to_string()).or_else(begun);
    let meant = meant.map(|one| format!("did you mean '{one}'? ")).unwrap_or_default();
    let library = directory.join(name).join(format!("libtriton_{name}.so"));
    format!(
        "there is no backend '{name}': {meant}It needs its library installed as '{}'; \
         --backend-directory names another directory",
        library.display()
    )
}

fn installed(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().take(ENTRIES_MAX).flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter(|one| Plugins::is_installed(one, directory)).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backend_that_was_meant_and_the_library_are_named() {
        let advice = |name| advice(name, &["onnxruntime", "python"], Path::new("/no/backends"));
        let library = |name| {
            format!(
                "It needs its library installed as '/no/backends/{name}/libtriton_{name}.so'; \
                 --backend-directory names another directory"
            )
        };
        for (name, meant) in [("onxruntime", "onnxruntime"), ("onnx", "onnxruntime")] {
            let expected =
                format!("there is no backend '{name}': did you mean '{meant}'? {}", library(name));
            assert_eq!(advice(name), expected);
        }
        let expected = format!("there is no backend 'tensorrt': {}", library("tensorrt"));
        assert_eq!(advice("tensorrt"), expected);
    }
}
