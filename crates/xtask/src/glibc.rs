//! The oldest glibc on which a program or a library starts.
//!
//! The linker records in each object the symbol versions that it needs, and glibc refuses an object
//! that needs a missing version. `readelf` lists these versions.

use std::fmt;
use std::path::Path;

use crate::process::{command, output};

/// The oldest supported glibc: the one that ONNX Runtime's packages and the `manylinux_2_28` wheels
/// require, and that Debian 10, Ubuntu 18.10, Red Hat 8 and newer systems have.
pub(crate) const OLDEST: Glibc = Glibc { major: 2, minor: 28 };

/// Libraries that every Linux system with glibc has: those that `manylinux` allows and Rust's
/// standard library needs.
const ON_EVERY_SYSTEM: [&str; 8] = [
    "ld-linux-aarch64.so.1",
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
];

/// A glibc version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Glibc {
    major: u32,
    minor: u32,
}

impl Glibc {
    /// Parses a symbol version name such as `GLIBC_2.2.5`. The third number has not been used since
    /// 2.3.
    fn of_symbol(name: &str) -> Option<Self> {
        let mut numbers = name.strip_prefix("GLIBC_")?.split('.').map(str::parse);
        let major = numbers.next()?.ok()?;
        let minor = numbers.next()?.ok()?;
        numbers.all(|number| number.is_ok()).then_some(Self { major, minor })
    }

    /// The platform tag of wheels for this glibc and newer ones.
    pub(crate) fn manylinux(self) -> String {
        format!("manylinux_{}_{}", self.major, self.minor)
    }
}

impl fmt::Display for Glibc {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.major, self.minor)
    }
}

/// Refuses objects that need a newer glibc or a library that some systems lack.
pub(crate) fn check<'a>(
    objects: impl IntoIterator<Item = &'a Path>,
    oldest: Glibc,
) -> Result<(), String> {
    let mut problems = Vec::new();
    for object in objects {
        let name = object.file_name().unwrap_or_default().to_string_lossy();
        let found = ObjectRequirements::of(object)?.problems(oldest);
        problems.extend(found.into_iter().map(|problem| format!("{name} {problem}")));
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

/// The oldest glibc on which an object starts; `None` if the object needs no glibc symbols.
pub(crate) fn newest_needed(object: &Path) -> Result<Option<Glibc>, String> {
    Ok(ObjectRequirements::of(object)?
        .symbols
        .iter()
        .filter_map(|name| Glibc::of_symbol(name))
        .max())
}

/// The versions and libraries that an object requires.
#[derive(Debug, Default, PartialEq, Eq)]
struct ObjectRequirements {
    libraries: Vec<String>,
    /// The symbol versions.
    symbols: Vec<String>,
}

impl ObjectRequirements {
    fn of(object: &Path) -> Result<Self, String> {
        let mut readelf = command("readelf");
        // Otherwise, its output is translated.
        readelf.env("LC_ALL", "C").args(["--wide", "--dynamic", "--version-info"]).arg(object);
        let needs = Self::listed(&output(&mut readelf)?);
        let is_there = !needs.libraries.is_empty();
        is_there.then_some(needs).ok_or_else(|| format!("'{}' needs no library", object.display()))
    }

    /// Parses the requirements in `readelf` output.
    fn listed(text: &str) -> Self {
        let mut needs = Self::default();
        // Versions that the object defines are listed in the same format.
        let mut are_needed = false;
        for line in text.lines() {
            if line.starts_with("Version ") {
                are_needed = line.starts_with("Version needs section");
            } else if let Some((_, rest)) = line.split_once("(NEEDED)") {
                let name = rest.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
                needs.libraries.extend(name.map(|(name, _)| name.to_owned()));
            } else if are_needed && let Some((_, rest)) = line.split_once(" Name: ") {
                needs.symbols.extend(rest.split_whitespace().next().map(String::from));
            }
        }
        needs
    }

    fn problems(&self, oldest: Glibc) -> Vec<String> {
        let libraries = self.libraries.iter().filter(|name| !ON_EVERY_SYSTEM.contains(&&***name));
        let libraries = libraries.map(|name| format!("needs the library {name}"));
        let is_newer = |name: &str| match Glibc::of_symbol(name) {
            Some(version) => version > oldest,
            // Names without a number, such as GLIBC_ABI_DT_RELR, stand for newer versions.
            None => name.starts_with("GLIBC_"),
        };
        let symbols = self.symbols.iter().filter(|name| is_newer(name));
        let symbols = symbols.map(|name| format!("needs {name}, which glibc {oldest} lacks"));
        libraries.chain(symbols).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "\
Dynamic section at offset 0x1234 contains 28 entries:
  Tag        Type                         Name/Value
 0x0000000000000001 (NEEDED)             Shared library: [libm.so.6]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
 0x000000000000000e (SONAME)             Library soname: [libtritonserver.so]

Version symbols section '.gnu.version' contains 3 entries:
  000:   0 (*local*)       2 (GLIBC_2.2.5)   4 (GLIBC_2.28)

Version definition section '.gnu.version_d' contains 1 entry:
  000000: Rev: 1  Flags: none  Index: 2  Cnt: 1  Name: GLIBC_2.99

Version needs section '.gnu.version_r' contains 1 entry:
 Addr: 0x0000000000001000  Offset: 0x001000  Link: 5 (.dynstr)
  000000: Version: 1  File: libc.so.6  Cnt: 2
  0x0010:   Name: GLIBC_2.2.5  Flags: none  Version: 2
  0x0020:   Name: GLIBC_2.28  Flags: none  Version: 4
";

    #[test]
    fn the_needs_are_read_and_not_what_is_defined() {
        let needs = ObjectRequirements::listed(LISTED);
        assert_eq!(needs.libraries, ["libm.so.6", "libc.so.6"]);
        assert_eq!(needs.symbols, ["GLIBC_2.2.5", "GLIBC_2.28"]);
        assert_eq!(needs.problems(OLDEST), Vec::<String>::new());
    }

    #[test]
    fn versions_are_numbers() {
        let version = |major, minor| Some(Glibc { major, minor });
        assert_eq!(Glibc::of_symbol("GLIBC_2.2.5"), version(2, 2));
        assert_eq!(Glibc::of_symbol("GLIBC_2.17"), version(2, 17));
        assert_eq!(Glibc::of_symbol("GLIBC_PRIVATE"), None);
        assert_eq!(Glibc::of_symbol("GCC_3.0"), None);
        // As strings, 2.4 would be newer than 2.28.
        assert!(version(2, 4) < version(2, 28) && version(2, 28) < version(3, 0));
    }

    #[test]
    fn newer_symbols_and_strange_libraries_are_named() {
        let text = LISTED
            .replace("Name: GLIBC_2.28 ", "Name: GLIBC_2.34 ")
            .replace("Name: GLIBC_2.2.5 ", "Name: GLIBC_ABI_DT_RELR ")
            .replace("libm.so.6", "libstdc++.so.6");
        assert_eq!(
            ObjectRequirements::listed(&text).problems(OLDEST),
            [
                "needs the library libstdc++.so.6",
                "needs GLIBC_ABI_DT_RELR, which glibc 2.28 lacks",
                "needs GLIBC_2.34, which glibc 2.28 lacks",
            ]
        );
        let text = LISTED.replace("Name: GLIBC_2.28 ", "Name: GCC_4.2.0 ");
        assert_eq!(ObjectRequirements::listed(&text).problems(OLDEST), Vec::<String>::new());
    }

    #[test]
    fn a_program_of_this_machine_is_read() {
        let this = std::env::current_exe().unwrap();
        assert!(newest_needed(&this).unwrap() >= Glibc::of_symbol("GLIBC_2.2.5"));
        let nothing = Glibc { major: 2, minor: 0 };
        assert!(check([this.as_path()], nothing).unwrap_err().contains("which glibc 2.0 lacks"));
        assert!(check([Path::new("Cargo.toml")], OLDEST).is_err());
    }
}
