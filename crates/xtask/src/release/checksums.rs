//! The hashes of a release's files, in the format that `sha256sum --check` reads.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use sha2::{Digest as _, Sha256};

/// The name of the file with the hashes.
pub(crate) const FILE: &str = "SHA256SUMS";

/// A file in a release.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChecksummedFile {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    sha256: String,
}

/// The files in a folder, sorted by name.
pub(crate) fn of_folder(folder: &Path) -> Result<Vec<ChecksummedFile>, String> {
    let failed = |error: io::Error| format!("can't read '{}': {error}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_file() {
            let mut hash = Sha256::new();
            let copied = File::open(&path).and_then(|mut file| io::copy(&mut file, &mut hash));
            let bytes = copied.map_err(|error| format!("can't read '{name}': {error}"))?;
            files.push(ChecksummedFile { name, bytes, sha256: in_hexadecimal(&hash.finalize()) });
        }
    }
    files.sort();
    Ok(files)
}

/// The contents of the hash file, which has no hash of itself.
pub(crate) fn write(files: &[ChecksummedFile]) -> String {
    let files = files.iter().filter(|file| file.name != FILE);
    files.map(|file| format!("{}  {}\n", file.sha256, file.name)).collect()
}

fn in_hexadecimal(digest: &[u8]) -> String {
    digest.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_has_its_hash_in_the_order_of_names() {
        let folder = std::env::temp_dir().join(format!("galatea-sums-{}", std::process::id()));
        fs::create_dir_all(folder.join("a folder")).unwrap();
        for (name, content) in [("b.whl", "abc"), ("a.tar.gz", ""), (FILE, "of the last time")] {
            fs::write(folder.join(name), content).unwrap();
        }
        let files = of_folder(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        // The hashes of the empty string and of "abc" are in the standard.
        assert_eq!(
            write(&files),
            "\
e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  a.tar.gz
ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  b.whl
"
        );
        let sizes: Vec<_> = files.iter().map(|file| (&*file.name, file.bytes)).collect();
        assert_eq!(sizes, [(FILE, 16), ("a.tar.gz", 0), ("b.whl", 3)]);
    }
}
