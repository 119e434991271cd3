//! Repository agents, called before a model is defined.
//!
//! The agents may refuse the model or move it to another directory, so they run before its
//! configuration takes effect. The model is defined from the directory that they leave behind. The
//! engine sees them only as [`ModelRepositoryAgents`]: three methods report changes to the model's
//! state, and dropping the value ends the agents.

use std::path::Path;

use galatea_backend::ModelRepositoryAgents;
use galatea_backend_plugin::{AgentChain, ModelForAgents, RepositoryAgents};
use galatea_config::ConfigDraft;
use galatea_infer::Status;
use galatea_pbtxt::parse_config_draft;
use galatea_repository::{ModelDirectory, ScanOptions, ScannedModel};

/// The agents of a model, after they have approved the load.
pub(crate) struct AgentApproval {
    /// The model at its new location; `None` if the agents didn't move it.
    pub(crate) moved_to: Option<ScannedModel>,
    /// The agents.
    pub(crate) agents: Box<dyn ModelRepositoryAgents>,
}

/// Calls a model's agents; returns `None` if the model has none.
///
/// # Errors
///
/// Returns the reason why an agent refuses the load, or why the directory to which the agents moved
/// the model can't be read.
pub(crate) fn visit_agents(
    agents: &RepositoryAgents,
    source: &ScannedModel,
    draft: &ConfigDraft,
    options: &ScanOptions,
) -> Result<Option<AgentApproval>, Status> {
    let named = draft.repository_agents();
    if named.is_empty() {
        return Ok(None);
    }
    // Agents may read any file.
    source.directory.fetch()?;
    let name = &source.name;
    let location = source.directory.path();
    let chain = agents.invoke_load_action(ModelForAgents {
        location,
        config: draft.to_json(),
        agents: named,
        config_at: &|path| config_at(name, path, options),
    })?;
    let moved_to = if chain.model_location() == location {
        None
    } else {
        let found = ScannedModel::read_directory(name, chain.model_location(), options);
        Some(found.map_err(|reason| {
            Status::invalid_argument(format!("its repository agents moved it: {reason}"))
        })?)
    };
    let agents = Box::new(ChainWithDirectory { chain, _directory: source.directory.clone() });
    Ok(Some(AgentApproval { moved_to, agents }))
}

/// The configuration in a directory, as JSON. As in Triton, it is empty if the directory contains
/// no configuration.
fn config_at(name: &str, path: &Path, options: &ScanOptions) -> String {
    let source = ScannedModel::read_directory(name, path, options).ok();
    let draft = source
        .and_then(|source| source.config)
        .and_then(|file| parse_config_draft(&file.path.display().to_string(), &file.text).ok());
    draft.unwrap_or_default().to_json()
}

/// The agents, with the directory in which they found the model. A temporary directory is removed
/// with its last user, and the agents may have moved the model to a path inside it.
struct ChainWithDirectory {
    chain: AgentChain,
    /// The model's directory, dropped after the agents.
    _directory: ModelDirectory,
}

impl ModelRepositoryAgents for ChainWithDirectory {
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
