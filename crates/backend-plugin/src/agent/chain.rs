//! The agents of one model.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use galatea_backend::ModelAgents;

use super::attendance::{Action, Attendance};
use crate::plugins::lock;

/// The agents of one model, after all of them agreed to load it.
///
/// The results of a load, and the end of an unload, reach the agents in reverse order: an
/// agent that changed another agent's work is notified first.
pub struct Chain {
    attendances: Vec<Attendance>,
    location: PathBuf,
    /// Held while agents are called, because an agent must not be called twice at the
    /// same time for one model.
    stage: Mutex<Stage>,
}

/// What the agents were notified of.
///
/// ```text
/// Loading ── loaded ──> Loaded ── unloading ──> Unloading
///    └── load_failed ──> Failed
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Stage {
    Loading,
    Loaded,
    Failed,
    Leaving,
}

impl Chain {
    pub(super) const fn new(attendances: Vec<Attendance>, location: PathBuf) -> Self {
        Self { attendances, location, stage: Mutex::new(Stage::Loading) }
    }

    /// Where the agents left the model.
    #[must_use]
    pub fn location(&self) -> &Path {
        &self.location
    }

    fn forwards(&self, action: Action) {
        self.attendances.iter().for_each(|attendance| attendance.tell(action));
    }

    fn backwards(&self, action: Action) {
        self.attendances.iter().rev().for_each(|attendance| attendance.tell(action));
    }
}

impl ModelAgents for Chain {
    fn loaded(&self) {
        let mut stage = lock(&self.stage);
        if *stage == Stage::Loading {
            *stage = Stage::Loaded;
            self.backwards(Action::LoadComplete);
        }
    }

    fn load_failed(&self) {
        let mut stage = lock(&self.stage);
        if *stage == Stage::Loading {
            *stage = Stage::Failed;
            self.backwards(Action::LoadFail);
        }
    }

    fn unloading(&self) {
        let mut stage = lock(&self.stage);
        if *stage == Stage::Loaded {
            *stage = Stage::Leaving;
            self.forwards(Action::Unload);
        }
    }
}

impl Drop for Chain {
    /// An agent that still waits for the result of the load is notified of a failure when
    /// the model is taken from it.
    fn drop(&mut self) {
        self.unloading();
        if *lock(&self.stage) == Stage::Leaving {
            self.backwards(Action::UnloadComplete);
        }
        // The models are taken from the agents in the agents' order.
    }
}
