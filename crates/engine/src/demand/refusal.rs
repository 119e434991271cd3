//! The errors of requests that don't get their model.

use std::time::Duration;

use galatea_infer::{Code, Status};
use galatea_policy::{MemoryPoolId, RefusalReason, ResidencyRefusal};

use super::Demand;
use super::report::RefusalLabel;
use super::state::DemandState;
use super::waiter::{Purpose, Waiter};

/// The error if too many unknown names are being looked up.
pub(super) fn too_many_lookups() -> Status {
    Status::unavailable("too many models are being looked up in the repositories")
        .with_retry_after(Duration::from_secs(1))
}

/// The error if too many requests wait for a model that is being unloaded.
pub(super) fn too_many_behind(model: &str) -> Status {
    let text = format!("too many requests wait for model '{model}', which is being unloaded");
    Status::unavailable(text).with_retry_after(Duration::from_secs(1))
}

impl Demand {
    /// The error of a refused request, and its count.
    pub(super) fn refusal_status(
        &self,
        state: &mut DemandState,
        waiter: &Waiter,
        refusal: ResidencyRefusal,
    ) -> Status {
        let label = RefusalLabel::of(&refusal.reason);
        *state.counts.refusals.entry(label).or_default() += 1;
        let status = self.describe(state, waiter, &refusal.reason);
        match refusal.retry_after_ns {
            Some(after) => status.with_retry_after(Duration::from_nanos(after)),
            None => status,
        }
    }

    fn describe(&self, state: &DemandState, waiter: &Waiter, reason: &RefusalReason) -> Status {
        let name = &waiter.name;
        match reason {
            RefusalReason::UnknownModel(model) => {
                self.not_ready(waiter, model, "which is in no model repository")
            }
            RefusalReason::UnloadedByClient(model) => {
                self.not_ready(waiter, model, "which a client has unloaded")
            }
            RefusalReason::LoadFailed(model) => {
                let error = state.errors.get(model).cloned();
                let error = error.unwrap_or_else(|| Status::internal("its load failed"));
                if waiter.purpose == Purpose::ClientLoad {
                    return error;
                }
                let text = format!("'{name}' can't be loaded: {}", error.message().trim_end());
                Status::unavailable(format!("Request for unknown model: {text}"))
            }
            RefusalReason::OverBudget { pool, needed, limit, pinned } => {
                let pinned = match pinned {
                    0 => String::new(),
                    bytes => format!(", and models that clients have loaded take {bytes} bytes"),
                };
                let (place, flag) = self.place_and_flag(*pool);
                Status::unavailable(format!(
                    "model '{name}' can't be loaded: with the models that it needs, it takes \
                     {needed} bytes{place}{pinned}, but {flag} allows {limit}"
                ))
            }
            RefusalReason::TooManyWaitingForModel => {
                let most = state.residency.settings().waiting_per_model_max;
                Status::unavailable(format!(
                    "model '{name}' is being loaded, and {most} requests wait for it, the maximum"
                ))
            }
            RefusalReason::TooManyWaiting => {
                let most = state.residency.settings().waiting_max;
                Status::unavailable(format!("{most} requests wait for models, the maximum"))
            }
            RefusalReason::TooLate => Status::unavailable(format!(
                "model '{name}' will not be loaded by the deadline of the request"
            )),
            RefusalReason::DeadlineExceeded => Status::new(
                Code::DeadlineExceeded,
                format!("the deadline of the request passed while model '{name}' was not loaded"),
            ),
            RefusalReason::WouldDeadlock => Status::unavailable(format!(
                "model '{name}' can't be loaded for a request of another model: all memory is \
                 taken by models in use, and no more is allowed"
            )),
        }
    }

    /// The pool in an error, and the flag that limits it.
    fn place_and_flag(&self, pool: MemoryPoolId) -> (String, &'static str) {
        let mut gpus = self.options.gpus.keys();
        match gpus.find(|gpu| MemoryPoolId::gpu(**gpu) == pool) {
            Some(gpu) => (format!(" on GPU {gpu}"), "--model-gpu-memory"),
            None => (String::new(), "--model-memory"),
        }
    }

    /// The error for a model that isn't ready, in Triton's words.
    fn not_ready(&self, waiter: &Waiter, model: &str, reason: &str) -> Status {
        let found = self.registry.snapshot().find(&waiter.name, waiter.version).map(drop);
        let status = found.err().unwrap_or_else(|| {
            let name = &waiter.name;
            Status::unavailable(format!("Request for unknown model: '{name}' is not ready"))
        });
        if *model == *waiter.name {
            return status;
        }
        let text = format!("{}: it needs '{model}', {reason}", status.message());
        status.with_message(text)
    }
}
