//! A TorchScript model's signature, read from its file.
//!
//! The file is a ZIP archive that contains code. Its data begins with the model's class:
//! `\x80\x02c__torch__\nNet\n`. The code of this class is in `code/__torch__.py`: `def
//! forward(self: __torch__.Net,\n    x: Tensor) -> Tensor:`. The code is not executed here.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use zip::ZipArchive;

/// The maximum size of a class's code.
const CODE_BYTES_MAX: u64 = 16 << 20;

/// The beginning of the data, which contains the class's name.
const HEAD_BYTES: u64 = 1024;

/// The arguments and results of a model's `forward` function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScriptSignature {
    /// The names and types of the arguments, except the model itself.
    pub(crate) arguments: Vec<(String, String)>,
    /// The types of the results.
    pub(crate) results: Vec<String>,
}

impl ScriptSignature {
    /// Reads the signature of the model at `path`.
    ///
    /// # Errors
    ///
    /// The reason why the file isn't a TorchScript model.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let file = File::open(path).map_err(|error| error.to_string())?;
        let mut archive = ZipArchive::new(BufReader::new(file))
            .map_err(|_| String::from("it has no code, but weights or a pickle"))?;
        let names = archive.file_names().filter_map(Result::ok);
        let names: Vec<String> = names.map(|name| name.into_owned()).collect();
        let find = |end: &str| {
            let found =
                names.iter().find(|name| name.split_once('/').is_some_and(|it| it.1 == end));
            found.cloned().ok_or_else(|| String::from("it has no code, but weights or a pickle"))
        };
        find("constants.pkl")?;
        let head = read_entry(&mut archive, &find("data.pkl")?, HEAD_BYTES)?;
        let (module, class) = class_of(&head).ok_or("its data begin with no class")?;
        let code = find(&format!("code/{}.py", module.replace('.', "/")))?;
        let code = read_entry(&mut archive, &code, CODE_BYTES_MAX)?;
        let code = String::from_utf8_lossy(&code);
        signature(&code, &class).ok_or_else(|| format!("its class {class} has no function forward"))
    }
}

fn read_entry(
    archive: &mut ZipArchive<BufReader<File>>,
    name: &str,
    bytes_max: u64,
) -> Result<Vec<u8>, String> {
    let mut content = Vec::new();
    let read = archive.by_name(name).map_err(|error| error.to_string()).and_then(|entry| {
        let read = entry.take(bytes_max).read_to_end(&mut content);
        read.map_err(|error| error.to_string())
    });
    read.map(|_| content).map_err(|error| format!("'{name}' is unreadable: {error}"))
}

/// The module and the name of the class that the data begins with.
fn class_of(data: &[u8]) -> Option<(String, String)> {
    // The pickle protocol, followed by the class of the next object.
    let [0x80, _, b'c', rest @ ..] = data else { return None };
    let mut lines = rest.split(|&byte| byte == b'\n');
    let mut line = || Some(std::str::from_utf8(lines.next()?).ok()?.to_owned());
    Some((line()?, line()?))
}

/// The signature of `forward` in a class's code.
fn signature(code: &str, class: &str) -> Option<ScriptSignature> {
    let (_, rest) = code.split_once(&format!("class {class}("))?;
    let (_, rest) = rest.split_once("def forward(self")?;
    let (arguments, rest) = rest.split_once(") -> ")?;
    let (result, _) = rest.split_once(":\n")?;
    let arguments = parts(arguments).into_iter().skip(1).filter_map(|argument| {
        let (name, kind) = argument.split_once(": ")?;
        let kind = kind.split_once('=').map_or(kind, |(kind, _)| kind);
        Some((name.to_owned(), kind.to_owned()))
    });
    let results = match result.strip_prefix("Tuple[").and_then(|rest| rest.strip_suffix(']')) {
        Some(results) => parts(results),
        None => vec![result],
    };
    let results = results.into_iter().map(str::to_owned).collect();
    Some(ScriptSignature { arguments: arguments.collect(), results })
}

/// Splits text at the commas that are not in brackets.
fn parts(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let is_separator = |one: char| {
        depth += i32::from(one == '[') - i32::from(one == ']');
        one == ',' && depth == 0
    };
    text.split(is_separator).map(str::trim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str) -> Result<ScriptSignature, String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
        ScriptSignature::read(&folder.join(name))
    }

    #[test]
    fn arguments_and_results_are_those_of_forward() {
        for (name, arguments, results) in [
            ("mlp.pt", &[("x", "Tensor")][..], &["Tensor"][..]),
            ("pair.pt", &[("left", "Tensor"), ("right", "Tensor")], &["Tensor", "Tensor"]),
            ("keyed.pt", &[("inputs", "Dict[str, Tensor]")], &["Tensor"]),
            ("mixed.pt", &[("texts", "List[str]"), ("x", "Tensor")], &["List[str]", "Tensor"]),
        ] {
            let own = |&(name, kind): &(&str, &str)| (name.to_owned(), kind.to_owned());
            let expected = ScriptSignature {
                arguments: arguments.iter().map(own).collect(),
                results: results.iter().map(|&one| one.to_owned()).collect(),
            };
            assert_eq!(read(name), Ok(expected), "{name}");
        }
        assert_eq!(read("mlp.json").unwrap_err(), "it has no code, but weights or a pickle");
    }

    #[test]
    fn damaged_code_has_no_signature() {
        let code = "class A(Module):\n  def forward(self: A,\n    x: Tensor=1) -> Tuple[Tensor]:\n";
        assert_eq!(signature(code, "A").unwrap().arguments[0].1, "Tensor");
        for length in 0..code.len() {
            let found = signature(&code[..length], "A");
            assert!(found.is_none(), "{found:?}");
        }
        assert_eq!(signature(code, "B"), None);
        assert_eq!(
            class_of(b"\x80\x02c__torch__\nNet\n"),
            Some(("__torch__".into(), "Net".into()))
        );
        for data in [&b""[..], b"\x80\x02}q", b"\x80\x02c__torch__", b"\x80\x02c\xff\nNet\n"] {
            assert_eq!(class_of(data), None);
        }
    }
}
