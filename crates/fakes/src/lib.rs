//! A server without models, for testing doors: it returns inputs as outputs, or misbehaves as the
//! model's name specifies.
//!
//! Only tests, examples and fuzz targets use this crate. It never becomes part of a program.
//!
//! ```
//! use galatea_fakes::FakeServer;
//! use galatea_control::ServerControl;
//! use galatea_infer::AccessPass;
//!
//! let (server, _held) = FakeServer::new();
//! assert!(server.model_ready(AccessPass::in_process(), "echo", None).unwrap());
//! assert!(!server.model_ready(AccessPass::in_process(), "unknown", None).unwrap());
//! ```

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "only tests use this")]

mod control;
mod service;

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, mpsc};

use galatea_infer::{InferenceRequest, ResponseSender};
use galatea_protocol::inference::{ModelConfig, ModelInput, ModelOutput};
use galatea_tensor::DataType;

pub use service::echo;

/// A request to which the test responds.
pub type HeldRequest = (InferenceRequest, ResponseSender);

/// A function that the server calls once, on the requesting thread.
pub type Hook = Mutex<Option<Box<dyn FnOnce() + Send>>>;

/// A server that has every model except `unknown`, each with every version except 9, which is not
/// ready.
///
/// Some model names select the server's behaviour, unless it is [plain](FakeServer::plain):
///
/// | name | requests |
/// |---|---|
/// | `held`, `decoupled` | wait for the test |
/// | `thread` | are responded to on another thread |
/// | `split` | get a response, then its end |
/// | `twice` | get two responses |
/// | `silent` | get no response |
/// | `refusing`, `dropping`, `panicking` | fail |
/// | `buggy` | panic already when the model is looked up |
/// | `broken`, `large` | the model can't be loaded, the latter for want of memory |
///
/// A repository whose path contains `taken` is already registered.
pub struct FakeServer {
    /// The configuration and interface of every model.
    pub model: ModelConfig,
    /// The number of requests that have arrived.
    pub requests: AtomicU64,
    /// The number of times a model was looked up for a request: by its door, and by this server if
    /// the door did not pass the model on.
    pub lookups: AtomicU64,
    /// True if all requests wait for the test, whatever their model.
    pub holds_all: AtomicBool,
    /// True if the server and its models are not ready.
    pub is_unready: AtomicBool,
    /// True if the server is being stopped.
    pub is_stopping: AtomicBool,
    /// The changes to models and repositories, one string each. A plain server records no changes.
    pub orders: Mutex<Vec<String>>,
    /// Called when a model is loaded.
    pub before_load: Hook,
    /// Called when an inference starts.
    pub before_inference: Hook,
    /// Called when the statistics of all models are read.
    pub before_statistics: Hook,
    /// The number of times that the statistics of all models have been read.
    pub statistics_reads: AtomicU64,
    names_have_effects: bool,
    hold: Box<dyn Fn(HeldRequest) + Send + Sync>,
}

impl FakeServer {
    /// Creates a server, and the receiver of the requests that the server holds back.
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<HeldRequest>) {
        let (held, inbox) = mpsc::channel();
        (Self::with_hold(move |request| held.send(request).unwrap()), inbox)
    }

    /// Creates a server that passes the requests that it holds back to `hold`.
    #[must_use]
    pub fn with_hold(hold: impl Fn(HeldRequest) + Send + Sync + 'static) -> Self {
        Self {
            model: model(DataType::Uint8),
            requests: AtomicU64::new(0),
            lookups: AtomicU64::new(0),
            holds_all: AtomicBool::new(false),
            is_unready: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            orders: Mutex::default(),
            before_load: Mutex::default(),
            before_inference: Mutex::default(),
            before_statistics: Mutex::default(),
            statistics_reads: AtomicU64::new(0),
            names_have_effects: true,
            hold: Box::new(hold),
        }
    }

    /// Creates a server that immediately returns the inputs of every request, whatever the model.
    #[must_use]
    pub fn plain() -> Self {
        Self { names_have_effects: false, model: model(DataType::Fp32), ..Self::with_hold(drop) }
    }

    /// Makes the server pass all requests to `hold`.
    #[must_use]
    pub fn holding_all(self, hold: impl Fn(HeldRequest) + Send + Sync + 'static) -> Self {
        Self { holds_all: AtomicBool::new(true), hold: Box::new(hold), ..self }
    }
}

/// A model with one input and one output of any length.
fn model(datatype: DataType) -> ModelConfig {
    let data_type = datatype.config_number();
    let input =
        ModelInput { name: "INPUT0".into(), data_type, dims: vec![-1], ..Default::default() };
    let output =
        ModelOutput { name: "OUTPUT0".into(), data_type, dims: vec![-1], ..Default::default() };
    ModelConfig {
        backend: String::from("identity"),
        input: vec![input],
        output: vec![output],
        ..Default::default()
    }
}
