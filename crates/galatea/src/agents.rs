//! Repository agents, asked before a model is defined.

use std::path::Path;

use galatea_backend::ModelAgents;
use galatea_backend_plugin::{Agents, Chain, Visit};
use galatea_config::ConfigDraft;
use galatea_infer::Status;
use galatea_repository::{ModelDirectory, ModelSource, ScanOptions};

/// A model whose agents agree to its being loaded.
pub(crate) struct Attended {
    /// Where they moved it; `None` if it stays where it was.
    pub(crate) moved_to: Option<ModelSource>,
    /// The agents.
    pub(crate) agents: Box<dyn ModelAgents>,
}

/// Asks a model's agents; `None` if it has none.
///
/// # Errors
///
/// What an agent says against the load, and whatever keeps the directory that they
/// moved it to from being read.
pub(crate) fn attend(
    agents: &Agents,
    source: &ModelSource,
    draft: &ConfigDraft,
    options: &ScanOptions,
) -> Result<Option<Attended>, Status> {
    let named = draft.repository_agents();
    if named.is_empty() {
        return Ok(None);
    }
    let name = &source.name;
    let location = source.directory.path();
    let chain = agents.attend(Visit {
        location,
        config: draft.to_json(),
        agents: named,
        config_at: &|place| config_at(name, place, options),
    })?;
    let moved_to = if chain.location() == location {
        None
    } else {
        let found = ModelSource::at(name, chain.location(), options);
        Some(found.map_err(|reason| {
            Status::invalid_argument(format!("its repository agents moved it: {reason}"))
        })?)
    };
    let agents = Box::new(Keeping { chain, _directory: source.directory.clone() });
    Ok(Some(Attended { moved_to, agents }))
}

/// What the configuration in a directory says; nothing if there is none, as in the
/// original.
fn config_at(name: &str, place: &Path, options: &ScanOptions) -> String {
    let source = ModelSource::at(name, place, options).ok();
    let draft = source.and_then(|source| source.config).and_then(|file| {
        ConfigDraft::from_pbtxt(&file.path.display().to_string(), &file.text).ok()
    });
    draft.unwrap_or_default().to_json()
}

/// Agents with the directory that they found the model in, which may go with whoever
/// uses it last: they may have moved the model to a place in it.
struct Keeping {
    chain: Chain,
    /// Goes after the agents.
    _directory: ModelDirectory,
}

impl ModelAgents for Keeping {
    fn loaded(&self) {
        self.chain.loaded();
    }

    fn load_failed(&self) {
        self.chain.load_failed();
    }

    fn unloading(&self) {
        self.chain.unloading();
    }
}
