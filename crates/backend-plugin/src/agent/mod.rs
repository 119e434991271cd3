//! Repository agents: libraries that are asked before a model is loaded and notified of the result.
//!
//! | file | what it holds |
//! |---|---|
//! | `library` | an agent: found, opened and initialised for the first model that names it, finalised and closed after the last |
//! | `session` | one agent and one model: what the agent sees of the model, and the actions |
//! | `chain` | the agents of one model, in their order |
//! | `directories` | directories for agents to fill |
//! | `functions` | the functions that agents call |
//!
//! Agents are asked while a model is defined, because they may refuse or move it: the server then
//! uses the files and the configuration that the agents leave. The engine knows them only as
//! [`ModelAgents`](galatea_backend::ModelAgents): three notifications, and the drop that ends the
//! unload. That drop comes after the model's, whose files may belong to the agents.
//!
//! The calls for one model come one at a time, from any thread that the engine chooses. Calls for
//! different models may run concurrently.

mod chain;
mod directories;
pub(crate) mod functions;
mod library;
mod session;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use galatea_config::AgentDraft;
use galatea_infer::Status;
use galatea_stdx::Lock;

pub use self::chain::AgentChain;
use self::directories::AgentDirectories;
use self::library::{AgentRef, AgentSlot, find};
use self::session::{AgentModel, AgentSession};
use crate::exports;
use crate::library::LibraryOpener;

/// The repository agents of a server.
pub struct Agents {
    /// The directory that contains one directory per agent.
    directory: PathBuf,
    opener: LibraryOpener,
    directories: Arc<AgentDirectories>,
    /// The slots, keyed by path. There are at most as many as libraries in the directory.
    slots: Lock<BTreeMap<PathBuf, Arc<AgentSlot>>>,
}

/// A model before it is loaded, as its agents see it.
pub struct ModelCandidate<'a> {
    /// The model's directory.
    pub location: &'a Path,
    /// The model's configuration as JSON.
    pub config: String,
    /// The model's agents, in the order in which they act.
    pub agents: Vec<AgentDraft>,
    /// Reads the configuration in a directory to which an agent has moved the model.
    pub config_at: &'a dyn Fn(&Path) -> String,
}

impl Agents {
    /// Creates a host that has not opened any agent yet. Directories for agents are created in
    /// `temporary_folder`.
    #[must_use]
    pub fn new(directory: &Path, temporary_folder: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            opener: LibraryOpener::new(exports::all),
            directories: Arc::new(AgentDirectories::new(temporary_folder)),
            slots: Lock::default(),
        }
    }

    /// Asks a model's agents, one after another, whether it may be loaded. Each agent
    /// sees the model where the previous one left it.
    ///
    /// # Errors
    ///
    /// The error of the first agent that refuses, or the reason why an agent can't be asked. The
    /// agents that have already agreed are notified that the load failed.
    pub fn begin_load(&self, candidate: ModelCandidate<'_>) -> Result<AgentChain, Status> {
        let ModelCandidate { location, mut config, agents, config_at } = candidate;
        let mut sessions: Vec<AgentSession> = Vec::new();
        let mut directory = location.to_owned();
        for AgentDraft { name, parameters } in agents {
            let agent = self.agent(&name)?;
            let model =
                AgentModel::new(&directory, config.clone(), &parameters, self.directories.clone());
            let session = AgentSession::begin(agent, model)?;
            session.load()?;
            let moved_to = session.location()?;
            if moved_to != directory {
                config = config_at(&moved_to);
                directory = moved_to;
            }
            sessions.push(session);
        }
        Ok(AgentChain::new(sessions, directory))
    }

    /// The agents that models currently use, as name and library, sorted.
    #[must_use]
    pub fn loaded_agents(&self) -> BTreeSet<(String, PathBuf)> {
        let slots: Vec<Arc<AgentSlot>> =
            self.slots.lock("list the agents").values().cloned().collect();
        let used = slots.iter().filter(|slot| slot.is_used());
        used.map(|slot| (slot.name.clone(), slot.path.clone())).collect()
    }

    fn agent(&self, name: &str) -> Result<AgentRef, Status> {
        let path = find(&self.directory, name)?;
        let new = || Arc::new(AgentSlot::new(name, &path));
        let slot = self.slots.lock("find an agent").entry(path.clone()).or_insert_with(new).clone();
        AgentRef::acquire(slot, &self.opener)
    }
}

#[cfg(test)]
mod tests;
