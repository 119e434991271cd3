//! Environment variables of a sandboxed worker.
//!
//! This is an allowlist, because a server's environment contains keys for clouds and caches.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Variables for programs, libraries, caches, the user and the language.
const NAMES: [&str; 22] = [
    "CONDA_PREFIX",
    "HF_DATASETS_OFFLINE",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "HOME",
    "LANG",
    "LANGUAGE",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TERM",
    "TORCH_HOME",
    "TRANSFORMERS_CACHE",
    "TRANSFORMERS_OFFLINE",
    "TZ",
    "TZDIR",
    "USER",
    "VIRTUAL_ENV",
    "XDG_CACHE_HOME",
];

/// Prefixes of the variables for Python, languages and library threads.
const BEGINNINGS: [&str; 7] = ["GOMP_", "KMP_", "LC_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON"];

/// The server's variables that sandboxed workers receive.
#[derive(Clone, Debug)]
pub(crate) struct PassedVariables {
    /// A function that returns the server's current variables.
    pub(crate) inherited: fn() -> Vec<(OsString, OsString)>,
    /// Variable names that the operator allows in addition to the list.
    pub(crate) further: Vec<String>,
}

impl PassedVariables {
    /// The variables for a worker that is starting now.
    pub(super) fn allowed(&self) -> impl Iterator<Item = (OsString, OsString)> {
        (self.inherited)().into_iter().filter(|(name, _)| self.allows(name))
    }

    fn allows(&self, name: &OsStr) -> bool {
        let further = self.further.iter().map(String::as_str);
        NAMES.into_iter().chain(further).any(|one| name == one)
            || BEGINNINGS.iter().any(|one| name.as_bytes().starts_with(one.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_names_are_allowed() {
        let inherited = || {
            let names = [
                "PATH",
                "PATHS",
                "AWS_SECRET_ACCESS_KEY",
                "GOOGLE_APPLICATION_CREDENTIALS",
                "AZURE_STORAGE_KEY",
                "HF_TOKEN",
                "LC_ALL",
                "PYTHONPATH",
                "MODEL_SIZE",
            ];
            names.map(|name| (OsString::from(name), OsString::from("x"))).to_vec()
        };
        let names = |further: &[&str]| {
            let further = further.iter().map(|name| String::from(*name)).collect();
            let variables = PassedVariables { inherited, further };
            variables.allowed().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(names(&[]), ["PATH", "LC_ALL", "PYTHONPATH"]);
        assert_eq!(names(&["MODEL_SIZE"]), ["PATH", "LC_ALL", "PYTHONPATH", "MODEL_SIZE"]);
        assert!(NAMES.is_sorted() && BEGINNINGS.is_sorted());
    }
}
