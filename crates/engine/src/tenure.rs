//! The time that a model's repository agents have it.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use galatea_backend::ModelAgents;

use crate::retire::Retirer;

/// The agents of a model: kept by every version that was loaded after they agreed.
/// The last that goes ends it, on the thread that destroys models.
pub(crate) struct Tenure {
    /// There until it is dropped.
    agents: Option<Box<dyn ModelAgents>>,
    retirer: Retirer,
}

impl Tenure {
    /// The model is about to serve.
    pub(crate) fn loaded(&self) {
        self.agents.iter().for_each(|agents| agents.loaded());
    }

    /// The model could not be loaded.
    pub(crate) fn load_failed(&self) {
        self.agents.iter().for_each(|agents| agents.load_failed());
    }

    /// The model is about to go out of service.
    pub(crate) fn unloading(&self) {
        self.agents.iter().for_each(|agents| agents.unloading());
    }
}

impl Drop for Tenure {
    fn drop(&mut self) {
        if let Some(agents) = self.agents.take() {
            self.retirer.end(agents);
        }
    }
}

/// How a model that is wanted holds its agents: until it is first loaded they are
/// its own, later its versions'.
#[derive(Default)]
pub(crate) struct Claim {
    waiting: Mutex<Option<Arc<Tenure>>>,
    /// `None` if the model has no agents.
    known: Option<Weak<Tenure>>,
}

/// What a claim comes to when its model is loaded.
pub(crate) enum Claimed {
    /// The model has no agents.
    Nothing,
    /// Those that agreed to the load.
    Agents(Arc<Tenure>),
    /// They agreed to a load that is over.
    Spent,
}

impl Claim {
    pub(crate) fn new(agents: Option<Box<dyn ModelAgents>>, retirer: &Retirer) -> Self {
        let tenure = |agents| Arc::new(Tenure { agents: Some(agents), retirer: retirer.clone() });
        let waiting = agents.map(tenure);
        let known = waiting.as_ref().map(Arc::downgrade);
        Self { waiting: Mutex::new(waiting), known }
    }

    /// Whether the model has agents.
    pub(crate) const fn is_empty(&self) -> bool {
        self.known.is_none()
    }

    /// Whether the model had agents that it can't be loaded with any more.
    pub(crate) fn is_spent(&self) -> bool {
        self.known.as_ref().is_some_and(|known| known.strong_count() == 0)
    }

    /// Gives the agents to whoever loads the model.
    pub(crate) fn take(&self) -> Claimed {
        let Some(known) = &self.known else { return Claimed::Nothing };
        let waiting = self.withdraw();
        waiting.or_else(|| known.upgrade()).map_or(Claimed::Spent, Claimed::Agents)
    }

    /// Agents that wait for a load. Dropping them ends them.
    pub(crate) fn withdraw(&self) -> Option<Arc<Tenure>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
