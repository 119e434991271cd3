//! Compares files with their checksums.

use std::fs::File;
use std::io;
use std::path::{Component, Path};

use md5::Md5;
use md5::digest::Digest;
use sha2::Sha256;

/// Why a model may not be loaded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The parameter isn't a checksum.
    Malformed(String),
    /// The algorithm is not supported.
    Unsupported(String),
    /// The file is missing, or has another checksum.
    Mismatch(String),
}

/// Checks one parameter, whose key is `ALGORITHM:FILE`, of the model in this directory.
pub(crate) fn check(directory: &Path, key: &str, expected: &str) -> Result<(), Refusal> {
    let (algorithm, file) = key
        .split_once(':')
        .ok_or_else(|| Refusal::Malformed(format!("failed to parse key: {key}")))?;
    // Configurations may come from clients, who must not learn about other files.
    if !is_beneath(Path::new(file)) {
        let text = format!("file {file} of key {key} is not in the model's directory");
        return Err(Refusal::Malformed(text));
    }
    let name = algorithm.to_ascii_uppercase();
    let hash = match name.as_str() {
        "MD5" => hash::<Md5>,
        "SHA256" => hash::<Sha256>,
        _ => {
            let text = format!("Unsupported checksum algorithm: {algorithm}");
            return Err(Refusal::Unsupported(text));
        }
    };
    let found = hash(&directory.join(file)).map_err(|error| {
        Refusal::Mismatch(format!("failed to open file for read {file}: {error}"))
    })?;
    if found.eq_ignore_ascii_case(expected) {
        return Ok(());
    }
    Err(Refusal::Mismatch(format!(
        "Mismatched {name} hash for file {file}, expect: {expected}, got: {found}"
    )))
}

/// Returns true if a path leads only downwards.
fn is_beneath(path: &Path) -> bool {
    let is_name = |component| matches!(component, Component::Normal(_) | Component::CurDir);
    path.components().next().is_some() && path.components().all(is_name)
}

/// The hash of a file. It is read in parts, because it may be larger than the memory.
fn hash<D: Digest + io::Write>(path: &Path) -> io::Result<String> {
    let mut digest = D::new();
    io::copy(&mut File::open(path)?, &mut digest)?;
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MD5: &str = "900150983cd24fb0d6963f7d28e17f72";
    const SHA256: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn files_are_compared_with_the_configured_checksums() {
        let directory = std::env::temp_dir().join(format!("checksum-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("1")).unwrap();
        std::fs::write(directory.join("1/model"), "abc").unwrap();
        let check = |key: &str, expected: &str| check(&directory, key, expected);
        assert_eq!(check("MD5:1/model", MD5), Ok(()));
        assert_eq!(check("md5:./1/model", &MD5.to_ascii_uppercase()), Ok(()));
        assert_eq!(check("SHA256:1/model", SHA256), Ok(()));
        let mismatch = format!("Mismatched MD5 hash for file 1/model, expect: 0, got: {MD5}");
        assert_eq!(check("Md5:1/model", "0"), Err(Refusal::Mismatch(mismatch)));
        let text = String::from("Unsupported checksum algorithm: crc");
        assert_eq!(check("crc:1/model", "0"), Err(Refusal::Unsupported(text)));
        let text = String::from("failed to parse key: 1/model");
        assert_eq!(check("1/model", "0"), Err(Refusal::Malformed(text)));
        for file in ["2/model", "1"] {
            let refusal = check(&format!("MD5:{file}"), MD5).unwrap_err();
            assert!(matches!(&refusal, Refusal::Mismatch(text) if text.contains(file)));
        }
        for file in ["../x/1/model", "/etc/passwd", "1/../1/model", ""] {
            let refusal = check(&format!("MD5:{file}"), MD5).unwrap_err();
            assert!(matches!(refusal, Refusal::Malformed(_)), "{file}");
        }
        std::fs::remove_dir_all(directory).unwrap();
    }
}
