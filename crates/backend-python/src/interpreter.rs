//! The Python interpreter for a model: either the one in the model's environment or the default
//! one.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use flate2::read::GzDecoder;
use galatea_infer::Status;
use galatea_stdx::Lock;

use crate::folders;

/// The parameter that specifies a model's environment.
pub(crate) const ENVIRONMENT: &str = "EXECUTION_ENV_PATH";
/// The placeholder for the model's directory in that parameter.
const MODEL_DIRECTORY: &str = "$$TRITON_MODEL_DIRECTORY";

/// A shell command that runs a program in an environment with an activation script.
const ACTIVATED: &str = "source \"$1/bin/activate\" && shift && exec \"$@\"";

/// A model's interpreter, and the environment in which it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interpreter {
    pub(crate) program: PathBuf,
    environment: Option<PathBuf>,
    /// The server's variables that the interpreter's process doesn't get.
    pub(crate) withheld: &'static [&'static str],
}

impl Interpreter {
    /// The command that runs the interpreter: the program and its first arguments.
    pub(crate) fn command(&self) -> Vec<OsString> {
        let program = self.program.clone().into_os_string();
        let Some(environment) = &self.environment else { return vec![program] };
        if !environment.join("bin/activate").is_file() {
            return vec![program];
        }
        let shell = ["/bin/bash", "-c", ACTIVATED, "bash"].map(OsString::from);
        let mut command = Vec::from(shell);
        command.extend([environment.clone().into_os_string(), program]);
        command
    }

    /// The environment's variables, in addition to the server's.
    pub(crate) fn variables(&self, inherited: Option<OsString>) -> Vec<(&'static str, OsString)> {
        let Some(environment) = &self.environment else { return Vec::new() };
        let mut libraries = environment.join("lib").into_os_string();
        if let Some(inherited) = inherited.filter(|paths| !paths.is_empty()) {
            libraries.push(":");
            libraries.push(inherited);
        }
        vec![("LD_LIBRARY_PATH", libraries)]
    }
}

/// The models' environments. Archived environments are extracted once, into a directory that is
/// removed when the value is dropped.
#[derive(Debug)]
pub(crate) struct Environments {
    default: PathBuf,
    temporary_folder: PathBuf,
    withheld: &'static [&'static str],
    extracted: Lock<ExtractedArchives>,
}

#[derive(Debug, Default)]
struct ExtractedArchives {
    /// The folder that archives are extracted into, once it has been created.
    folder: Option<PathBuf>,
    by_archive: HashMap<PathBuf, (SystemTime, PathBuf)>,
    last_number: u32,
}

impl Environments {
    pub(crate) fn new(
        default: PathBuf,
        temporary_folder: PathBuf,
        withheld: &'static [&'static str],
    ) -> Self {
        Self { default, temporary_folder, withheld, extracted: Lock::default() }
    }

    /// The interpreter for a model.
    ///
    /// # Errors
    ///
    /// `Internal` if the environment doesn't exist or is not an archive.
    pub(crate) fn interpreter(
        &self,
        environment: Option<&str>,
        model_directory: &Path,
    ) -> Result<Interpreter, Status> {
        let Some(environment) = environment.filter(|text| !text.is_empty()) else {
            let (program, withheld) = (self.default.clone(), self.withheld);
            return Ok(Interpreter { program, environment: None, withheld });
        };
        let text = environment.replace(MODEL_DIRECTORY, &model_directory.to_string_lossy());
        let path = fs::canonicalize(&text).map_err(|_| {
            Status::internal(format!("Failed to get the canonical path for {text}."))
        })?;
        let directory = if path.is_dir() { path } else { self.extract(&path)? };
        Ok(self.interpreter_in(directory))
    }

    /// The interpreter in an environment. If the environment doesn't contain an interpreter, the
    /// default one is used.
    fn interpreter_in(&self, directory: PathBuf) -> Interpreter {
        let own = ["python3", "python"].map(|name| directory.join("bin").join(name));
        let own = own.into_iter().find(|program| program.exists());
        let program = own.unwrap_or_else(|| self.default.clone());
        Interpreter { program, environment: Some(directory), withheld: self.withheld }
    }

    /// The directory with an archive's contents.
    fn extract(&self, archive: &Path) -> Result<PathBuf, Status> {
        let failed = |what: &str, error: std::io::Error| {
            Status::internal(format!("{what}: {}: {error}", archive.display()))
        };
        let modified = archive.metadata().and_then(|metadata| metadata.modified());
        let modified = modified.map_err(|error| failed("LastModifiedTime() failed", error))?;
        // The lock is held during the extraction, so that each archive is extracted only once.
        let mut extracted = self.extracted.lock("extract an environment");
        if let Some((known, directory)) = extracted.by_archive.get(archive)
            && *known == modified
        {
            return Ok(directory.clone());
        }
        let folder = match &extracted.folder {
            Some(folder) => folder.clone(),
            None => {
                let made = folders::private(&self.temporary_folder, "galatea_python_env");
                made.map_err(|error| failed("no folder for environments could be made", error))?
            }
        };
        extracted.folder = Some(folder.clone());
        extracted.last_number = extracted.last_number.saturating_add(1);
        let directory = folder.join(extracted.last_number.to_string());
        unpack(archive, &directory).map_err(|error| {
            // Leftover files are removed with the folder.
            let _ = fs::remove_dir_all(&directory);
            failed("archive_read_open_filename() failed", error)
        })?;
        extracted.by_archive.insert(archive.to_owned(), (modified, directory.clone()));
        Ok(directory)
    }
}

impl Drop for Environments {
    fn drop(&mut self) {
        if let Some(folder) = self.extracted.get_mut().folder.take() {
            // The system cleans up its temporary files.
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Unpacks a compressed archive. Entries that point outside the directory are rejected.
fn unpack(archive: &Path, directory: &Path) -> std::io::Result<()> {
    fs::create_dir(directory)?;
    let mut archive = tar::Archive::new(GzDecoder::new(File::open(archive)?));
    archive.set_preserve_permissions(true);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        if !entry.unpack_in(directory)? {
            let text = format!("'{}' leads out of the archive", path.display());
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, text));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("galatea-env-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// An archive whose entries have these names, even malformed ones.
    fn archive(path: &Path, names: &[&str]) {
        let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for name in names {
            let mut header = tar::Header::new_gnu();
            header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
            header.set_size(2);
            header.set_mode(0o755);
            header.set_cksum();
            builder.append(&header, &b"#!"[..]).unwrap();
        }
        let bytes = builder.into_inner().unwrap().finish().unwrap();
        File::create(path).unwrap().write_all(&bytes).unwrap();
    }

    #[test]
    fn an_archive_is_extracted_once() {
        let folder = folder("once");
        let path = folder.join("env.tar.gz");
        archive(&path, &["bin/python3", "bin/activate"]);
        let environments = Environments::new("python3".into(), folder.clone(), &[]);
        let text = "$$TRITON_MODEL_DIRECTORY/env.tar.gz";
        let first = environments.interpreter(Some(text), &folder).unwrap();
        assert!(first.program.ends_with("bin/python3") && first.program.exists());
        assert_eq!(first.command()[0], "/bin/bash");
        assert_eq!(environments.interpreter(Some(text), &folder).unwrap(), first);
        drop(environments);
        assert!(!first.program.exists(), "nothing is left");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn damaged_archives_are_refused() {
        let folder = folder("damaged");
        let environments = Environments::new("python3".into(), folder.clone(), &[]);
        let error = |name: &str| {
            let path = folder.join(name).to_string_lossy().into_owned();
            environments.interpreter(Some(&path), &folder).unwrap_err().to_string()
        };
        fs::write(folder.join("text"), "no archive").unwrap();
        assert!(error("text").contains("archive_read_open_filename() failed"));
        archive(&folder.join("climbs"), &["../outside"]);
        assert!(error("climbs").contains("leads out of the archive"), "{}", error("climbs"));
        assert!(!folder.join("outside").exists());
        assert!(error("nowhere").contains("Failed to get the canonical path"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_directory_without_an_interpreter_gets_the_default_one() {
        let folder = folder("bare");
        let environments = Environments::new("/usr/bin/python3".into(), folder.clone(), &[]);
        let path = folder.to_string_lossy().into_owned();
        let interpreter = environments.interpreter(Some(&path), &folder).unwrap();
        assert_eq!(interpreter.command(), ["/usr/bin/python3"]);
        let libraries = folder.canonicalize().unwrap().join("lib");
        let expected = format!("{}:/a", libraries.display());
        assert_eq!(
            interpreter.variables(Some("/a".into())),
            [("LD_LIBRARY_PATH", OsString::from(expected))]
        );
        let default = environments.interpreter(None, &folder).unwrap();
        assert_eq!((default.command().len(), default.variables(None).len()), (1, 0));
        fs::remove_dir_all(folder).unwrap();
    }
}
