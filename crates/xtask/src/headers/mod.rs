//! Writes the C headers from the declarations in the `abi` crate, so that each signature and number
//! is defined once.
//!
//! The declarations are lists inside macros, which Rust tools don't parse. Their format is regular,
//! so they are read line by line.

mod declarations;
mod text;

use std::path::{Path, PathBuf};

use crate::workspace;
use declarations::Declarations;

/// The headers, each with the `abi` file that declares its functions.
pub(crate) const HEADERS: [Header; 4] = [
    Header { name: "tritonserver", source: "server", about: "The server as a library." },
    Header {
        name: "tritonbackend",
        source: "backend",
        about: "What backends in libraries call, and what they provide.",
    },
    Header {
        name: "tritoncache",
        source: "cache",
        about: "What response caches in libraries call, and what they provide. Galatea does\n * not host them yet: what it provides here answers that it is unsupported.",
    },
    Header {
        name: "tritonrepoagent",
        source: "repoagent",
        about: "What repository agents in libraries call, and what they provide.",
    },
];

/// A header to write.
pub(crate) struct Header {
    name: &'static str,
    source: &'static str,
    about: &'static str,
}

impl Header {
    /// The prefix of the header's names, such as `TRITONSERVER`.
    fn prefix(&self) -> String {
        self.name.to_ascii_uppercase()
    }
}

/// The task: writes the headers.
pub(crate) fn run() -> Result<(), String> {
    for (path, text) in all()? {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
        }
        std::fs::write(&path, text).map_err(|error| failed(&path, &error))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Checks that the headers in the repository are up to date.
pub(crate) fn check() -> Result<(), String> {
    for (path, text) in all()? {
        let found = std::fs::read_to_string(&path).map_err(|error| failed(&path, &error))?;
        if found != text {
            return Err(format!("'{}' is not current: run cargo xtask headers", path.display()));
        }
    }
    Ok(())
}

fn all() -> Result<Vec<(PathBuf, String)>, String> {
    let sources = workspace::root().join("crates/abi/src");
    let read = |name: &str| {
        let path = sources.join(name).with_extension("rs");
        std::fs::read_to_string(&path).map_err(|error| failed(&path, &error))
    };
    let declarations = Declarations {
        objects: declarations::objects(&read("opaque")?),
        enumerations: declarations::enumerations(&read("enums")?)?,
        callbacks: declarations::callbacks(&read("callbacks")?)?,
        versions: declarations::versions(&read("lib")?)?,
    };
    let folder = workspace::root().join("include/triton/core");
    let mut files = Vec::new();
    for header in &HEADERS {
        let functions = declarations::functions(&read(header.source)?)?;
        let text = text::header(header, &declarations, &functions)?;
        files.push((folder.join(header.name).with_extension("h"), text));
    }
    Ok(files)
}

fn failed(path: &Path, error: &std::io::Error) -> String {
    format!("'{}': {error}", path.display())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_headers_of_this_workspace_are_current() {
        super::check().unwrap();
    }
}
