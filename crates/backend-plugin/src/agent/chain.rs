//! A model's agents.

use std::path::{Path, PathBuf};

use galatea_backend::ModelRepositoryAgents;
use galatea_stdx::Lock;

use super::session::{AgentAction, AgentSession};

/// A model's agents, after all of them have accepted the model.
///
/// The agents are notified of the result of a load and the end of an unload in reverse order, so
/// that an agent that changed another agent's work is notified first.
pub struct AgentChain {
    sessions: Vec<AgentSession>,
    location: PathBuf,
    /// Held while agents are called, because agents must not be called concurrently for the same
    /// model.
    phase: Lock<ChainPhase>,
}

/// The last event that the agents were notified of.
///
/// ```text
/// Loading ── loaded ──> Loaded ── unloading ──> Unloading
///    └── load_failed ──> Failed
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum ChainPhase {
    Loading,
    Loaded,
    Failed,
    Unloading,
}

impl AgentChain {
    pub(super) const fn new(sessions: Vec<AgentSession>, location: PathBuf) -> Self {
        Self { sessions, location, phase: Lock::new(ChainPhase::Loading) }
    }

    /// The location where the agents left the model.
    #[must_use]
    pub fn model_location(&self) -> &Path {
        &self.location
    }

    fn notify_in_order(&self, action: AgentAction) {
        self.sessions.iter().for_each(|session| session.notify(action));
    }

    fn notify_in_reverse(&self, action: AgentAction) {
        self.sessions.iter().rev().for_each(|session| session.notify(action));
    }
}

impl ModelRepositoryAgents for AgentChain {
    fn loaded(&self) {
        let mut phase = self.phase.lock("notify of the load");
        if *phase == ChainPhase::Loading {
            *phase = ChainPhase::Loaded;
            self.notify_in_reverse(AgentAction::LoadComplete);
        }
    }

    fn load_failed(&self) {
        let mut phase = self.phase.lock("notify of the failure");
        if *phase == ChainPhase::Loading {
            *phase = ChainPhase::Failed;
            self.notify_in_reverse(AgentAction::LoadFail);
        }
    }

    fn unloading(&self) {
        let mut phase = self.phase.lock("notify of the unload");
        if *phase == ChainPhase::Loaded {
            *phase = ChainPhase::Unloading;
            self.notify_in_order(AgentAction::Unload);
        }
    }
}

impl Drop for AgentChain {
    /// Takes the model from the agents. Agents that are still waiting for the result of the load
    /// are notified of a failure first.
    fn drop(&mut self) {
        self.unloading();
        if *self.phase.lock("notify of the end") == ChainPhase::Unloading {
            self.notify_in_reverse(AgentAction::UnloadComplete);
        }
        // The models are taken from the agents in order.
    }
}
