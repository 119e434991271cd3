//! Repository agents: libraries that are asked before a model is loaded, and notified of
//! the result.
//!
//! | file | what it holds |
//! |---|---|
//! | `library` | an agent: found, opened and initialised for the first model that names it, finalised and closed after the last |
//! | `session` | one agent and one model: what the agent sees of the model, and the actions |
//! | `chain` | the agents of one model, in their order |
//! | `directories` | directories for agents to fill |
//! | `functions` | the functions that agents call |
//!
//! The calls for one model come one at a time, from any thread that the engine chooses.
//! Calls for different models may run at the same time.

mod attendance;
mod chain;
pub(crate) mod functions;
mod library;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::{fs, io};

use galatea_config::AgentDraft;
use galatea_infer::Status;

use self::attendance::{Attendance, Facts};
pub use self::chain::Chain;
use self::library::{Lease, Slot, find};
use crate::library::Opener;
use crate::plugins::lock;

/// The number of names that are tried for a directory.
const ATTEMPTS_MAX: u32 = 1_000;

/// The repository agents of a server.
pub struct Agents {
    /// The directory that contains one directory per agent.
    directory: PathBuf,
    opener: Opener,
    places: Arc<Places>,
    /// By path. There are at most as many as libraries in the directory.
    slots: Mutex<BTreeMap<PathBuf, Arc<Slot>>>,
}

/// A model before it is loaded, as its agents see it.
pub struct Visit<'a> {
    /// Its directory.
    pub location: &'a Path,
    /// Its configuration as JSON.
    pub config: String,
    /// Its agents, in the order in which they act.
    pub agents: Vec<AgentDraft>,
    /// Reads the configuration in a directory that an agent moved the model to.
    pub config_at: &'a dyn Fn(&Path) -> String,
}

impl Agents {
    /// A host that has not opened any agent yet. Directories for agents are created in
    /// `temporary_folder`.
    #[must_use]
    pub fn new(directory: &Path, temporary_folder: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            opener: Opener::default(),
            places: Arc::new(Places {
                parent: temporary_folder.to_owned(),
                next: AtomicU64::new(0),
            }),
            slots: Mutex::default(),
        }
    }

    /// Asks a model's agents, one after another, whether it may be loaded. Each agent
    /// sees the model where the previous one left it.
    ///
    /// # Errors
    ///
    /// The error of the first agent that refuses, or why an agent can't be asked. The
    /// agents that agreed before are notified that the load failed.
    pub fn attend(&self, visit: Visit<'_>) -> Result<Chain, Status> {
        let Visit { location, mut config, agents, config_at } = visit;
        let mut attendances: Vec<Attendance> = Vec::new();
        let mut place = location.to_owned();
        for AgentDraft { name, parameters } in agents {
            let lease = self.lease(&name)?;
            let facts = Facts::new(&place, config.clone(), &parameters, self.places.clone());
            let attendance = Attendance::begin(lease, facts)?;
            attendance.load()?;
            let moved_to = attendance.location()?;
            if moved_to != place {
                config = config_at(&moved_to);
                place = moved_to;
            }
            attendances.push(attendance);
        }
        Ok(Chain::new(attendances, place))
    }

    /// The agents that models use at the moment: name and library, sorted.
    #[must_use]
    pub fn in_use(&self) -> BTreeSet<(String, PathBuf)> {
        let slots: Vec<Arc<Slot>> = lock(&self.slots).values().cloned().collect();
        let used = slots.iter().filter(|slot| slot.is_used());
        used.map(|slot| (slot.name.clone(), slot.path.clone())).collect()
    }

    fn lease(&self, name: &str) -> Result<Lease, Status> {
        let path = find(&self.directory, name)?;
        let new = || Arc::new(Slot::new(name, &path));
        let slot = lock(&self.slots).entry(path.clone()).or_insert_with(new).clone();
        Lease::take(slot, &self.opener)
    }
}

/// Creates directories for agents to fill.
struct Places {
    parent: PathBuf,
    next: AtomicU64,
}

impl Places {
    /// An empty directory that only this user can enter.
    fn make(&self) -> io::Result<PathBuf> {
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700);
        for _ in 0..ATTEMPTS_MAX {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let path = self.parent.join(format!("galatea-agent-{}-{number}", std::process::id()));
            match builder.create(&path) {
                Ok(()) => return Ok(path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other(format!("no free name in '{}'", self.parent.display())))
    }
}

#[cfg(test)]
mod tests;
