//! Opens files below a directory.
//!
//! Callers ensure that paths don't contain `..`. [`SymlinkPolicy`] decides about links: links that
//! an operator placed in a repository may point anywhere, but links in files that came with a
//! request must stay inside the directory.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Opens a directory that the operator specified. Every link in its path is followed.
pub(crate) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

/// The treatment of symbolic links in a model's directory.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum SymlinkPolicy {
    /// Links are followed anywhere, because the operator created them.
    #[default]
    Followed,
    /// Symbolic links must not point outside the directory.
    Beneath,
    /// Paths that contain a link can't be opened.
    Forbidden,
}

/// An open model directory.
#[derive(Debug)]
pub(crate) struct OpenDirectory {
    handle: OwnedFd,
    symlinks: SymlinkPolicy,
}

impl OpenDirectory {
    /// Opens a model's directory.
    pub(crate) fn open(path: &Path, symlinks: SymlinkPolicy) -> io::Result<Self> {
        let handle = match (symlinks, path.parent(), path.file_name()) {
            // Links in the path to the repository are not part of it.
            (SymlinkPolicy::Forbidden, Some(parent), Some(name)) if parent != Path::new("") => {
                let parent = open_directory(parent)?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                open(parent.as_fd(), Path::new(name), flags, symlinks)?
            }
            _ => open_directory(path)?,
        };
        Ok(Self { handle, symlinks })
    }

    /// Opens `path` without read access, which is enough to know that it exists and to query its
    /// type. An empty path means the directory itself.
    ///
    /// The error is `EXDEV` if the path leads out, and `ELOOP` if it contains a forbidden link.
    pub(crate) fn locate(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.open_at(path, OFlags::PATH)
    }

    fn open_at(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        open(self.handle.as_fd(), path, flags, self.symlinks)
    }
}

/// Opens a path, which the kernel resolves as a whole under one rule. On kernels before 5.6, and in
/// sandboxes that block the call, a restricted path is walked without following links.
fn open(
    directory: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    symlinks: SymlinkPolicy,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC;
    let rule = match symlinks {
        SymlinkPolicy::Followed => {
            return rustix::fs::openat(directory, path, flags, Mode::empty());
        }
        SymlinkPolicy::Beneath => ResolveFlags::NO_MAGICLINKS,
        SymlinkPolicy::Forbidden => ResolveFlags::NO_SYMLINKS,
    };
    let resolve = ResolveFlags::BENEATH | rule;
    match rustix::fs::openat2(directory, path, flags, Mode::empty(), resolve) {
        Err(Errno::NOSYS | Errno::PERM) => walk(directory, path, flags),
        outcome => outcome,
    }
}

fn walk(directory: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut components = path.components().filter(|part| *part != Component::CurDir).peekable();
    let mut reached: Option<OwnedFd> = None;
    while let Some(component) = components.next() {
        let Component::Normal(name) = component else { return Err(Errno::XDEV) };
        let from = reached.as_ref().map_or(directory, AsFd::as_fd);
        let path_flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let next = rustix::fs::openat(from, name, path_flags, Mode::empty())?;
        if file_type(&next)? == FileType::Symlink {
            return Err(Errno::XDEV);
        }
        reached = Some(if components.peek().is_some() {
            next
        } else {
            rustix::fs::openat(from, name, flags | OFlags::NOFOLLOW, Mode::empty())?
        });
    }
    match reached {
        Some(handle) => Ok(handle),
        None => rustix::fs::openat(directory, ".", flags, Mode::empty()),
    }
}

/// Returns the type of the file behind a handle.
pub(crate) fn file_type(handle: &OwnedFd) -> Result<FileType, Errno> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(handle)?.st_mode))
}

impl OpenDirectory {
    /// Opens a regular file for reading.
    pub(crate) fn open_file(&self, path: &Path) -> io::Result<File> {
        // Opening a named pipe must not block.
        let handle = self.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
        if file_type(&handle)? != FileType::RegularFile {
            return Err(io::Error::other("not a regular file"));
        }
        Ok(File::from(handle))
    }

    /// Reads a text file.
    ///
    /// # Errors
    ///
    /// Returns an error if the file can't be read, is not a regular file, is longer than
    /// `bytes_max` or isn't UTF-8.
    pub(crate) fn read_text(&self, path: &Path, bytes_max: u64) -> io::Result<String> {
        let file = self.open_file(path)?;
        let mut text = String::new();
        file.take(bytes_max.saturating_add(1)).read_to_string(&mut text)?;
        if u64::try_from(text.len()).unwrap_or(u64::MAX) > bytes_max {
            return Err(io::Error::other(format!("longer than {bytes_max} bytes")));
        }
        Ok(text)
    }

    /// The sorted entry names of the directory at `path`.
    pub(crate) fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let handle = self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        entries(handle.as_fd())
    }
}

/// The sorted entry names of a directory.
pub(crate) fn entries(directory: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::testing::ScratchDirectory;

    /// Tests both ways of opening a path.
    fn check(inside: &OwnedFd, path: &str, kernel: Result<(), Errno>, walked: Result<(), Errno>) {
        let path = Path::new(path);
        let located = open(inside.as_fd(), path, OFlags::PATH, SymlinkPolicy::Beneath);
        assert_eq!(located.map(drop), kernel, "{path:?}");
        assert_eq!(walk(inside.as_fd(), path, OFlags::PATH).map(drop), walked, "walk {path:?}");
    }

    #[test]
    fn links_of_an_operator_lead_anywhere_unless_all_are_forbidden() {
        let scratch = ScratchDirectory::new();
        scratch.file("outside/weights", "x");
        scratch.file("model/1/model.onnx", "x");
        let root = scratch.path();
        symlink(root.join("outside/weights"), root.join("model/1/absolute")).unwrap();
        symlink("../../outside", root.join("model/1/directory")).unwrap();
        symlink("model", root.join("link")).unwrap();
        let check = |directory: &str, symlinks, path: &str, expected: Result<(), Errno>| {
            let opened = OpenDirectory::open(&root.join(directory), symlinks);
            let located = opened.and_then(|one| Ok(one.locate(Path::new(path))?));
            let actual = located.map(drop).map_err(|error| error.raw_os_error());
            assert_eq!(actual, expected.map_err(|errno| Some(errno.raw_os_error())), "{path}");
        };
        for path in ["1/absolute", "1/directory/weights", "1/model.onnx", ""] {
            check("model", SymlinkPolicy::Followed, path, Ok(()));
            check("link", SymlinkPolicy::Followed, path, Ok(()));
        }
        check("model", SymlinkPolicy::Beneath, "1/absolute", Err(Errno::XDEV));
        check("link", SymlinkPolicy::Beneath, "1/model.onnx", Ok(()));
        check("model", SymlinkPolicy::Forbidden, "1/model.onnx", Ok(()));
        check("model", SymlinkPolicy::Forbidden, "1/directory/weights", Err(Errno::LOOP));
        check("link", SymlinkPolicy::Forbidden, "1/model.onnx", Err(Errno::LOOP));
    }

    #[test]
    fn no_path_leads_out() {
        let scratch = ScratchDirectory::new();
        scratch.file("model/1/model.onnx", "x");
        scratch.file("model_evil/secret", "x");
        let root = scratch.path();
        symlink("1/model.onnx", root.join("model/inner")).unwrap();
        symlink("../model_evil/secret", root.join("model/outer")).unwrap();
        symlink(root.join("model/1"), root.join("model/absolute")).unwrap();
        symlink("loop", root.join("model/loop")).unwrap();
        let inside = open_directory(&root.join("model")).unwrap();
        let out = Err(Errno::XDEV);
        check(&inside, "1/model.onnx", Ok(()), Ok(()));
        check(&inside, "./1", Ok(()), Ok(()));
        check(&inside, ".", Ok(()), Ok(()));
        check(&inside, "inner", Ok(()), out);
        check(&inside, "outer", out, out);
        check(&inside, "../model_evil/secret", out, out);
        check(&inside, "1/../../model_evil/secret", out, out);
        check(&inside, "/etc/passwd", out, out);
        check(&inside, "absolute/model.onnx", out, out);
        check(&inside, "loop", Err(Errno::LOOP), out);
        check(&inside, "nothing", Err(Errno::NOENT), Err(Errno::NOENT));
        check(&inside, "1/model.onnx/x", Err(Errno::NOTDIR), Err(Errno::NOTDIR));
    }

    #[test]
    fn only_short_regular_files_in_utf_8_are_text() {
        let scratch = ScratchDirectory::new();
        scratch.file("text", "12345");
        std::fs::write(scratch.path().join("bytes"), [0xff, 0xfe]).unwrap();
        std::fs::create_dir(scratch.path().join("folder")).unwrap();
        rustix::fs::mkfifoat(CWD, scratch.path().join("pipe"), Mode::RWXU).unwrap();
        let inside = OpenDirectory::open(scratch.path(), SymlinkPolicy::Beneath).unwrap();
        let read = |name: &str, bytes_max| {
            let outcome = inside.read_text(Path::new(name), bytes_max);
            outcome.map_err(|error| error.to_string())
        };
        assert_eq!(read("text", 5), Ok("12345".to_owned()));
        assert_eq!(read("text", 4), Err("longer than 4 bytes".to_owned()));
        assert_eq!(read("pipe", 5), Err("not a regular file".to_owned()));
        assert_eq!(read("folder", 5), Err("not a regular file".to_owned()));
        assert!(read("bytes", 5).is_err());
    }
}
