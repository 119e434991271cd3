//! Repository agents: libraries that may reject a model before it is loaded and that are notified
//! of the result.
//!
//! | file | what it holds |
//! |---|---|
//! | `library` | an agent: found, opened and initialised for the first model that names it, finalised and closed after the last |
//! | `session` | one agent and one model: what the agent sees of the model, and the actions |
//! | `chain` | the agents of one model, in their order |
//! | `directories` | directories for agents to fill |
//! | `functions` | the functions that agents call |
//!
//! Agents are called while a model is being defined, because they may reject or move it. The server
//! then uses the files and the configuration that the agents leave behind. The engine knows them
//! only as [`ModelRepositoryAgents`](galatea_backend::ModelRepositoryAgents): three notifications, and a drop that ends
//! the unload. The agents are dropped after the model, because they may own the model's files.
//!
//! Calls for one model are made one at a time, from any thread that the engine chooses. Calls for
//! different models may run concurrently.

mod chain;
mod directories;
pub(crate) mod functions;
mod library;
mod session;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use galatea_config::RepositoryAgentConfig;
use galatea_infer::Status;
use galatea_stdx::Lock;

pub use self::chain::AgentChain;
use self::directories::AgentDirectories;
use self::library::{AgentRef, AgentSlot, find};
use self::session::{AgentModel, AgentSession};
use crate::exports;
use crate::library::LibraryOpener;

/// A server's repository agents.
pub struct RepositoryAgents {
    /// The directory that contains one directory per agent.
    directory: PathBuf,
    opener: LibraryOpener,
    directories: Arc<AgentDirectories>,
    /// The agent slots, keyed by path. There are at most as many slots as libraries in the
    /// directory.
    slots: Lock<BTreeMap<PathBuf, Arc<AgentSlot>>>,
}

/// A model before it is loaded, as its agents see it.
pub struct ModelForAgents<'a> {
    /// The model's directory.
    pub location: &'a Path,
    /// The model's configuration as JSON.
    pub config: String,
    /// The model's agents, in the order in which they are called.
    pub agents: Vec<RepositoryAgentConfig>,
    /// Reads the configuration from a directory that an agent has moved the model to.
    pub config_at: &'a dyn Fn(&Path) -> String,
}

impl RepositoryAgents {
    /// Creates a host that hasn't opened any agents yet. Directories for agents are created in
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

    /// Asks each of a model's agents in turn whether the model may be loaded. Each agent sees the
    /// model where the previous agent left it.
    ///
    /// # Errors
    ///
    /// The error of the first agent that rejects the model, or the reason why an agent can't be
    /// called. The agents that have already accepted the model are notified that the load failed.
    pub fn invoke_load_action(&self, candidate: ModelForAgents<'_>) -> Result<AgentChain, Status> {
        let ModelForAgents { location, mut config, agents, config_at } = candidate;
        let mut sessions: Vec<AgentSession> = Vec::new();
        let mut directory = location.to_owned();
        for RepositoryAgentConfig { name, parameters } in agents {
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

    /// The name and library of each agent that a model currently uses, sorted.
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
