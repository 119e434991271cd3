//! Lost GPUs, and the thread that notifies all models about them.
//!
//! A report may come from any thread, even from an instance thread, for which a model may have to
//! wait when it removes the instance. A separate thread therefore notifies the models, and ends
//! when nothing is left to report. This is step 2 of the protocol in
//! `dispatch/version/gpu_loss.rs`.

use std::sync::{Arc, Weak};

use galatea_backend::LogLevel;
use galatea_dispatch::{LogSink, LostGpus};
use galatea_stdx::Lock;

use crate::registry::Registry;

/// A server's lost GPUs.
pub(crate) struct GpuLosses {
    registry: Weak<Registry>,
    /// The lost GPUs, shared with the loader.
    lost: Arc<LostGpus>,
    log: LogSink,
    state: Lock<LossState>,
}

#[derive(Default)]
struct LossState {
    /// True if the models have yet to be notified.
    is_due: bool,
    is_running: bool,
}

impl GpuLosses {
    pub(crate) fn new(registry: &Arc<Registry>, lost: Arc<LostGpus>, log: LogSink) -> Arc<Self> {
        Arc::new(Self { registry: Arc::downgrade(registry), lost, log, state: Lock::default() })
    }

    /// Notifies all models that a GPU has been lost. Returns immediately.
    pub(crate) fn report(self: &Arc<Self>, gpu: u32, reason: &str) {
        if self.lost.add(gpu, reason) {
            let line = format_args!("GPU {gpu} is lost and not used any more: {reason}");
            self.log.write(LogLevel::Error, line);
        }
        let mut state = self.state.lock("report a lost GPU");
        state.is_due = true;
        if state.is_running {
            return;
        }
        state.is_running = true;
        drop(state);
        let this = self.clone();
        let thread = std::thread::Builder::new().name(String::from("galatea-gpu-loss"));
        if let Err(error) = thread.spawn(move || this.tell()) {
            self.log.write(LogLevel::Error, format_args!("can't tell of a lost GPU: {error}"));
            self.state.lock("give up").is_running = false;
        }
    }

    /// Notifies the models until no notification is due.
    fn tell(&self) {
        while self.is_due() {
            let Some(registry) = self.registry.upgrade() else { return };
            let snapshot = registry.snapshot();
            let models: Vec<_> = snapshot.ready().cloned().collect();
            drop(snapshot);
            // Versions being loaded or unloaded notice the loss after their next batch.
            models.iter().for_each(|model| model.retire_lost_gpus());
        }
    }

    fn is_due(&self) -> bool {
        let mut state = self.state.lock("look for lost GPUs");
        let is_due = std::mem::take(&mut state.is_due);
        state.is_running = is_due;
        is_due
    }
}
