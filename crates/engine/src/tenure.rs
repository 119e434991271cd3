//! The time that a model's repository agents have it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use galatea_backend::ModelAgents;

use crate::retire::Retirer;

/// The agents of a model: kept by every version that was loaded after they agreed.
/// The last that goes ends it, on the thread that destroys models.
pub(crate) struct Tenure {
    /// There until it is dropped.
    agents: Option<Box<dyn ModelAgents>>,
    is_over: Arc<AtomicBool>,
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

    /// The model is about to go out of service. Whoever wants it again asks other
    /// agents.
    pub(crate) fn unloading(&self) {
        self.is_over.store(true, Ordering::SeqCst);
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
    known: Option<Known>,
}

struct Known {
    tenure: Weak<Tenure>,
    /// Set once the model is to go, which the agents may be told later; versions that
    /// drain keep them longer.
    is_over: Arc<AtomicBool>,
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
        let waiting = agents.map(|agents| {
            let (is_over, retirer) = (Arc::default(), retirer.clone());
            Arc::new(Tenure { agents: Some(agents), is_over, retirer })
        });
        let known = waiting.as_ref().map(|tenure| Known {
            tenure: Arc::downgrade(tenure),
            is_over: tenure.is_over.clone(),
        });
        Self { waiting: Mutex::new(waiting), known }
    }

    /// Whether the model has agents.
    pub(crate) const fn is_empty(&self) -> bool {
        self.known.is_none()
    }

    /// Whether the model had agents that it can't be loaded with any more.
    pub(crate) fn is_spent(&self) -> bool {
        self.known.as_ref().is_some_and(|known| {
            known.is_over.load(Ordering::SeqCst) || known.tenure.strong_count() == 0
        })
    }

    /// The model is to go. Whoever wants it again from now on asks other agents.
    pub(crate) fn end(&self) {
        if let Some(known) = &self.known {
            known.is_over.store(true, Ordering::SeqCst);
        }
    }

    /// Gives the agents to whoever loads the model.
    pub(crate) fn take(&self) -> Claimed {
        let Some(known) = &self.known else { return Claimed::Nothing };
        let tenure = self.withdraw().or_else(|| known.tenure.upgrade());
        let tenure = tenure.filter(|_| !known.is_over.load(Ordering::SeqCst));
        tenure.map_or(Claimed::Spent, Claimed::Agents)
    }

    /// Agents that wait for a load. Dropping them ends them.
    pub(crate) fn withdraw(&self) -> Option<Arc<Tenure>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
