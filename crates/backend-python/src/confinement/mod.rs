//! Restrictions on a worker: forbidden system calls and resource limits.
//!
//! They are off by default. A short-lived thread applies the restrictions to itself and starts the
//! worker, which inherits them (`start.rs`, `restrict.rs`, `calls.rs`). The server's other threads
//! are unaffected, and no server code runs between `fork` and `exec`.
//!
//! The worker starts as a waiting shell. It becomes the interpreter once the thread has ended and
//! the process's limits have been set, because a process can reach the threads that share its
//! restrictions, and because process limits can't be set for a thread.

mod calls;
mod output;
mod restrict;
mod server;
mod start;
mod variables;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use galatea_infer::Status;

pub(crate) use server::WithoutControl;
pub(crate) use start::{ProcessStart, ScratchDirectory, VersionConfinement, is_missing};
pub(crate) use variables::PassedVariables;

/// The smallest memory limit with which an interpreter can start, in MiB.
const MEMORY_MIB_MIN: u64 = 32;
/// The largest memory limit in MiB. Larger values mean no limit.
const MEMORY_MIB_MAX: u64 = 1 << 30;

/// The names of the settings for the sandbox, the memory limit and the processor limit.
type LimitSettingNames = [&'static str; 3];
const SETTINGS: LimitSettingNames = ["sandbox", "memory-limit-mib", "processor-limit"];
const PARAMETERS: LimitSettingNames =
    ["GALATEA_SANDBOX", "GALATEA_MEMORY_LIMIT_MIB", "GALATEA_PROCESSOR_LIMIT"];

/// The restrictions on a model's workers: forbidden system calls and resource limits for each
/// worker.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Confinement {
    /// True if workers run in the sandbox.
    pub sandbox: bool,
    /// The private memory limit for each of a worker's processes, in MiB.
    pub memory_mib: Option<u64>,
    /// The number of processors that a worker may use.
    pub processors: Option<usize>,
}

impl Confinement {
    /// Returns true if this is a setting of `--backend-config=python,...`.
    #[must_use]
    pub fn is_setting(name: &str) -> bool {
        SETTINGS.contains(&name)
    }

    /// Reads the command-line settings.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the setting.
    pub fn from_settings<'a>(setting: impl Fn(&str) -> Option<&'a str>) -> Result<Self, Status> {
        Self::read(SETTINGS, setting)
    }

    /// Combines these limits with those in a model's configuration. The stricter value of each
    /// setting applies.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the parameter.
    pub fn tightened<'a>(
        self,
        parameter: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<Self, Status> {
        let asked = Self::read(PARAMETERS, parameter)?;
        let stricter = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
        Ok(Self {
            sandbox: self.sandbox || asked.sandbox,
            memory_mib: stricter(self.memory_mib, asked.memory_mib),
            processors: self.processors.into_iter().chain(asked.processors).min(),
        })
    }

    fn read<'a>(
        [sandbox, memory, processors]: LimitSettingNames,
        value: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<Self, Status> {
        let has_sandbox = match value(sandbox) {
            None | Some("false") => false,
            Some("true") => true,
            Some(other) => {
                let text = format!("{sandbox} must be 'true' or 'false', not '{other}'");
                return Err(Status::invalid_argument(text));
            }
        };
        let memory_mib = value(memory).map(|text| number(memory, text, MEMORY_MIB_MIN));
        let processors = value(processors).map(|text| number(processors, text, 1)).transpose()?;
        Ok(Self {
            sandbox: has_sandbox,
            memory_mib: memory_mib.transpose()?.map(|mib| mib.min(MEMORY_MIB_MAX)),
            processors: processors.map(|count| usize::try_from(count).unwrap_or(usize::MAX)),
        })
    }

    /// The limit on private memory and on each shared-memory area.
    pub(crate) fn memory_bytes(self) -> Option<u64> {
        self.memory_mib.map(|mib| mib << 20)
    }

    fn is_off(self) -> bool {
        self == Self::default()
    }
}

fn number(name: &str, text: &str, least: u64) -> Result<u64, Status> {
    let number = text.trim().parse().ok().filter(|number| *number >= least);
    number.ok_or_else(|| {
        let text = format!("{name} must be a number of at least {least}, not '{text}'");
        Status::invalid_argument(text)
    })
}

/// The confinement of a model version's workers; `None` if none is requested.
///
/// # Errors
///
/// `InvalidArgument` if the version's directory is outside the model's. The sandbox lets the worker
/// write to this directory, so it must belong to the model.
pub(crate) fn of_version(
    confinement: Confinement,
    (model, version): (&Path, &Path),
    temporary_folder: &Path,
    (turn, variables): (Arc<AtomicUsize>, PassedVariables),
) -> Result<Option<VersionConfinement>, Status> {
    if confinement.is_off() {
        return Ok(None);
    }
    let real = |path: &Path| {
        path.canonicalize().map_err(|error| {
            Status::internal(format!("failed to find '{}': {error}", path.display()))
        })
    };
    let own: PathBuf = real(version)?;
    if confinement.sandbox && !own.starts_with(real(model)?) {
        let text = format!(
            "'{}' leads out of the model's directory, which the sandbox doesn't allow",
            version.display()
        );
        return Err(Status::invalid_argument(text));
    }
    let temporary_folder = temporary_folder.to_owned();
    Ok(Some(VersionConfinement { confinement, own, temporary_folder, turn, variables }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<&'a str> {
        |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
    }

    #[test]
    fn settings_are_read() {
        let settings = [("sandbox", "true"), ("memory-limit-mib", "64"), ("processor-limit", "2")];
        let read = Confinement::from_settings(of(&settings)).unwrap();
        let expected = Confinement { sandbox: true, memory_mib: Some(64), processors: Some(2) };
        assert_eq!((read, read.memory_bytes()), (expected, Some(64 << 20)));
        let off = Confinement::from_settings(of(&[("sandbox", "false")])).unwrap();
        assert!(off.is_off() && Confinement::from_settings(of(&[])).unwrap().is_off());
    }

    #[test]
    fn wrong_values_are_named() {
        for (name, value, expected) in [
            ("sandbox", "yes", "sandbox must be 'true' or 'false', not 'yes'"),
            (
                "memory-limit-mib",
                "4G",
                "memory-limit-mib must be a number of at least 32, not '4G'",
            ),
            ("memory-limit-mib", "31", "at least 32, not '31'"),
            ("processor-limit", "0", "processor-limit must be a number of at least 1, not '0'"),
            ("processor-limit", "-1", "not '-1'"),
        ] {
            let error = Confinement::from_settings(of(&[(name, value)])).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let error = Confinement::default().tightened(of(&[("GALATEA_SANDBOX", "")])).unwrap_err();
        assert!(error.to_string().contains("GALATEA_SANDBOX must be"), "{error}");
    }

    #[test]
    fn models_only_tighten() {
        let strict = Confinement { sandbox: true, memory_mib: Some(64), processors: Some(2) };
        let loose = [
            ("GALATEA_SANDBOX", "false"),
            ("GALATEA_MEMORY_LIMIT_MIB", "65"),
            ("GALATEA_PROCESSOR_LIMIT", "3"),
        ];
        assert_eq!(strict.tightened(of(&loose)).unwrap(), strict);
        assert_eq!(strict.tightened(of(&[])).unwrap(), strict);
        let stricter = [
            ("GALATEA_SANDBOX", "true"),
            ("GALATEA_MEMORY_LIMIT_MIB", "63"),
            ("GALATEA_PROCESSOR_LIMIT", "1"),
        ];
        let expected = Confinement { sandbox: true, memory_mib: Some(63), processors: Some(1) };
        for own in [strict, Confinement::default()] {
            assert_eq!(own.tightened(of(&stricter)).unwrap(), expected);
        }
    }
}
