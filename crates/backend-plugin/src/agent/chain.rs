//! The agents of one model.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use galatea_backend::ModelAgents;

use super::attendance::{Action, Attendance};
use crate::plugins::lock;

/// The agents of one model, after all of them agreed to its being loaded.
///
/// Closing actions go the other way round, and so does the end of an unload: an agent
/// that changed what another one had made hears of the end first.
pub struct Chain {
    attendances: Vec<Attendance>,
    location: PathBuf,
    /// Held while agents are called, because one must not be called twice at once for
    /// the same model.
    stage: Mutex<Stage>,
}

/// What the agents were told.
///
/// ```text
/// Loading ── loaded ──> Loaded ── unloading ──> Leaving
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
    /// An agent that still waits for the outcome of the load is told that it failed
    /// when the model is taken from it.
    fn drop(&mut self) {
        self.unloading();
        if *lock(&self.stage) == Stage::Leaving {
            self.backwards(Action::UnloadComplete);
        }
        // The models are taken from the agents in their order.
    }
}
