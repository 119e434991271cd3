//! The events and actions of [`Residency`](super::Residency).

use super::pools::{MemoryBudget, MemoryByPool, MemoryPoolId};
use crate::ids::RequestKey;
use crate::lifecycle::ModelId;
use crate::time::Time;

/// The limits of a [`Residency`](super::Residency).
#[derive(Clone, PartialEq, Debug)]
pub struct ResidencySettings {
    /// The maximum memory of resident models.
    pub budget: MemoryBudget,
    /// The maximum number of models that are loaded at the same time.
    pub concurrent_loads_max: usize,
    /// The maximum number of requests that wait for one model.
    pub waiting_per_model_max: usize,
    /// The maximum number of requests that wait for all models.
    pub waiting_max: usize,
    /// The time for which a loaded model stays, as a multiple of its load time.
    pub stay_factor: f64,
}

impl Default for ResidencySettings {
    fn default() -> Self {
        Self {
            budget: MemoryBudget::default(),
            concurrent_loads_max: 2,
            waiting_per_model_max: 256,
            waiting_max: 4096,
            stay_factor: 3.0,
        }
    }
}

/// The estimated cost of a model that hasn't been loaded, and its dependencies.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ModelEstimate {
    /// The memory that the model takes while it is resident.
    pub bytes: MemoryByPool,
    /// The duration of a load. Measured durations replace it.
    pub load_ns: u64,
    /// Models that must be resident before this one is loaded.
    pub dependencies: Vec<ModelId>,
}

/// The measured cost of a load.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadMeasurement {
    /// The memory that the model takes.
    pub bytes: MemoryByPool,
    /// The duration of the load.
    pub load_ns: u64,
}

/// A request that needs a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResidencyRequest {
    /// The key of the request. It must be unique among the requests that wait.
    pub key: RequestKey,
    /// The model.
    pub model: ModelId,
    /// The time until which the request may wait.
    pub deadline: Time,
    /// The origin of the request.
    pub origin: RequestOrigin,
}

/// The origin of a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RequestOrigin {
    /// A client sent the request. It may start a sequence.
    Client,
    /// The request continues a sequence that holds the model. It never waits while the model is
    /// resident.
    Sequence,
    /// A request that is being executed sent this one, and waits for it. It never waits until
    /// another model becomes idle, because that could be the model that sent it.
    Nested,
}

/// An input of a [`Residency`](super::Residency).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ResidencyEvent {
    /// The model is in the repository, or its estimate or its dependencies have changed.
    Known(ModelId, ModelEstimate),
    /// The model is no longer in the repository.
    Forgotten(ModelId),
    /// A request needs a model. `Admit`, `Wait` or `Refuse` follows at once.
    Request(ResidencyRequest),
    /// A waiting request is no longer of interest. It gets no outcome.
    Cancelled(RequestKey),
    /// This number of requests has used a resident model without a `Request`. A driver that doesn't
    /// ask for each request to a resident model reports them before other events.
    Used(ModelId, u64),
    /// A sequence holds the model until `Released`.
    Held(ModelId),
    /// An admitted request or a sequence no longer uses the model.
    Released(ModelId),
    /// A client loads the model explicitly. The model stays until `ClientUnload`. `Admit` reports
    /// that it is resident; it isn't followed by `Released`.
    ClientLoad {
        /// The key of the client's request.
        key: RequestKey,
        /// The model.
        model: ModelId,
        /// The origin of the client's request.
        origin: RequestOrigin,
    },
    /// A client unloads the model explicitly, even if it is in use. Requests are refused until
    /// `ClientLoad`.
    ClientUnload(ModelId),
    /// The load requested by [`ResidencyAction::Load`] is complete.
    Loaded(ModelId, LoadMeasurement),
    /// The load requested by [`ResidencyAction::Load`] failed.
    LoadFailed(ModelId),
    /// The model is out of service and its memory is free.
    Unloaded(ModelId),
    /// The memory of a resident model was measured again.
    Measured(ModelId, MemoryByPool),
    /// The budget has changed.
    Budget(MemoryBudget),
    /// Time has passed.
    Tick,
}

/// An output of a [`Residency`](super::Residency), which the driver performs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ResidencyAction {
    /// The model and its dependencies are resident and in use by this request until `Released`.
    Admit(RequestKey),
    /// The request waits. `Admit` or `Refuse` follows, unless it is cancelled.
    Wait {
        /// The key of the request.
        key: RequestKey,
        /// The predicted time of admission.
        ready_at: Time,
    },
    /// The request fails.
    Refuse(RequestKey, ResidencyRefusal),
    /// Load the model. Its dependencies are resident. `Loaded` or `LoadFailed` follows.
    Load(ModelId),
    /// Unload the model. `Unloaded` follows.
    Unload(ModelId),
}

/// A refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResidencyRefusal {
    /// The reason.
    pub reason: RefusalReason,
    /// The time after which the same request is likely to succeed, if it can be predicted.
    pub retry_after_ns: Option<u64>,
}

/// The reason for a refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RefusalReason {
    /// The model, or a dependency of it, isn't known.
    UnknownModel(ModelId),
    /// A client has unloaded the model, or a dependency of it.
    UnloadedByClient(ModelId),
    /// The model and its dependencies need more memory than there can be.
    OverBudget {
        /// The pool.
        pool: MemoryPoolId,
        /// The bytes of the model and its dependencies.
        needed: u64,
        /// The limit of the pool.
        limit: u64,
        /// The bytes of models that clients have loaded explicitly.
        pinned: u64,
    },
    /// The model's limit of waiting requests is reached.
    TooManyWaitingForModel,
    /// The limit of all waiting requests is reached.
    TooManyWaiting,
    /// The deadline is before the predicted time of admission.
    TooLate,
    /// The deadline has passed while the request waited.
    DeadlineExceeded,
    /// The load of the model, or of a dependency, has failed.
    LoadFailed(ModelId),
    /// The request is nested, and would have to wait for a model that is in use.
    WouldDeadlock,
}

/// The state of a model.
///
/// Absent → Reserved → Loading → Resident → Unloading → Absent. A resident model may first become
/// Draining. A failed load leads from Loading to Absent, and a reservation may be given up.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ResidencyState {
    /// The model isn't in memory.
    Absent,
    /// The model's memory is reserved. The load begins when its dependencies are resident and
    /// fewer models are being loaded.
    Reserved,
    /// The model is being loaded.
    Loading,
    /// The model is in memory.
    Resident,
    /// The model is in memory, and will be unloaded when it is idle. Only requests of sequences
    /// and nested requests are still admitted.
    Draining,
    /// The model is being unloaded.
    Unloading,
}

/// The status of a known model.
#[derive(Clone, PartialEq, Debug)]
pub struct ResidencyStatus {
    /// The model.
    pub model: ModelId,
    /// The state.
    pub state: ResidencyState,
    /// The memory: measured at the latest load, or estimated.
    pub bytes: MemoryByPool,
    /// True if the memory was measured.
    pub is_measured: bool,
    /// The expected duration of a load.
    pub load_ns: u64,
    /// The number of requests and sequences that use the model.
    pub uses: u64,
    /// The number of requests that wait for the model.
    pub waiting: usize,
    /// True if a client has loaded the model explicitly.
    pub is_pinned: bool,
    /// True if a client has unloaded the model explicitly.
    pub is_unloaded_by_client: bool,
    /// The time until which a waiting request is expected to wait.
    pub ready_at: Option<Time>,
    /// The value of keeping the model, in relation to other models.
    pub worth: f64,
}
