//! Model configuration: from `config.pbtxt` or JSON to a [`ModelSpec`] that
//! cannot be wrong.
//!
//! A configuration starts as a [`ConfigDraft`], parsed from text or empty. The
//! server fills in what follows from the model's directory
//! ([`ConfigDraft::resolve_identity`]), the backend what follows from the
//! model's files, and [`ConfigDraft::finish`] normalizes and checks the result.
//! Everything that is wrong is reported at once, each [`Diagnostic`] with its
//! place in the file, its field, what was expected and what was probably meant.
//!
//! What this is not: it opens no files and knows no model formats. A setting
//! that the server can not honour is refused by name; none is ignored.
//!
//! ```
//! use galatea_config::{ConfigDraft, Support};
//!
//! let text = r#"
//!     max_batch_size: 8
//!     input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
//!     output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
//! "#;
//! let mut draft = ConfigDraft::from_pbtxt("config.pbtxt", text)?;
//! draft.resolve_identity("simple", &["model.onnx".to_owned()])?;
//! let spec = draft.finish(&Support::default())?;
//! assert_eq!((spec.name.as_str(), spec.backend.as_str()), ("simple", "onnxruntime"));
//! # Ok::<(), galatea_config::ConfigErrors>(())
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod composing;
mod convert;
mod diagnostic;
mod draft;
mod dynamic;
mod ensemble;
mod identity;
mod json;
mod json_input;
mod normalize;
mod plug_in;
mod source;
mod spec;
mod suggest;
mod text;
mod unsupported;
mod validate;
mod warmup;

pub use composing::validate_ensemble;
pub use diagnostic::{ConfigErrors, Diagnostic, Excerpt, Position};
pub use draft::{AgentDraft, ConfigDraft, Support, TensorDraft};
pub use ensemble::{EnsembleScheduling, EnsembleStep};
pub use json::to_json;
pub use plug_in::PreferredInstances;
pub use spec::{
    Accelerator, BatchInputKind, BatchInputSpec, BatchOutputSpec, ControlKind, ControlSpec,
    DynamicBatching, FalseTrue, InitialState, InputFormat, InputSpec, InstanceGroup, InstanceKind,
    ModelPriority, ModelSpec, Optimization, OutputSpec, QueuePolicy, RateLimiterSpec, ResourceNeed,
    SchedulingChoice, SecondaryDevice, SequenceBatching, SequenceStrategy, StateSpec,
    TimeoutAction, VersionPolicy,
};
pub use warmup::{WarmupContent, WarmupInput, WarmupSample};

/// The batch size that a backend fills in for a model that could batch but
/// whose configuration says nothing, unless the server is told another.
pub const DEFAULT_MAX_BATCH_SIZE: u32 = 4;
