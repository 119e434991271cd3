//! Model configuration: from `config.pbtxt` or JSON to a checked [`ModelSpec`].
//! Start with `draft.rs`.
//!
//! A configuration starts as a [`ConfigDraft`], which is parsed from text or empty. The server
//! completes it from the model's directory ([`ConfigDraft::resolve_name_and_backend`]), and the
//! backend completes it from the model's files. [`ConfigDraft::into_validated_spec`] normalizes and
//! checks the result. All errors are reported at once. Each [`Diagnostic`] has a position in the
//! file, a field, the expected value and a suggestion. The text format is parsed in `pbtxt`, and
//! JSON in `config-message`.
//!
//! The crate opens no files and knows no model formats. It never silently ignores a setting:
//! settings that the server does not support are refused by name.
//!
//! ```
//! use galatea_config::SupportedFeatures;
//! use galatea_pbtxt::parse_config_draft;
//!
//! let text = r#"
//!     max_batch_size: 8
//!     input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
//!     output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
//! "#;
//! let mut draft = parse_config_draft("config.pbtxt", text)?;
//! draft.resolve_name_and_backend("simple", &["model.onnx".to_owned()])?;
//! let spec = draft.into_validated_spec(&SupportedFeatures::default())?;
//! assert_eq!((spec.name.as_str(), spec.backend.as_str()), ("simple", "onnxruntime"));
//! # Ok::<(), galatea_config::ConfigErrors>(())
//! ```

#![forbid(unsafe_code)]
#![deny(clippy::expect_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

mod code;
mod composing;
mod convert;
mod draft;
mod ensemble;
mod identity;
mod normalize;
mod own;
mod placement;
mod plug_in;
mod spec;
mod support;
#[cfg(test)]
mod testing;
mod tolerance;
mod validate;
mod warmup;
mod without_effect;

pub use code::ExternalCodeReference;
pub use composing::{ComposingModel, validate_ensemble};
pub use draft::{ConfigAutoCompletion, ConfigDraft, RepositoryAgentConfig, TensorDraft};
pub use ensemble::{EnsembleScheduling, EnsembleStep};
pub use galatea_config_message::{
    BoundedText, ConfigErrors, Diagnostic, Excerpt, Position, TritonDetectionStage,
    model_config_to_json, nearest_name,
};
pub use identity::misnamed_file_hint;
pub use own::{
    BatchPaddingSettings, NonTritonParameter, NonTritonSettings, OWN_PARAMETERS, PaddedInput,
    PaddingMaskInput, UnpaddedOutput,
};
pub use plug_in::PreferredInstances;
pub use spec::{
    Accelerator, BatchInputKind, BatchInputSpec, BatchOutputSpec, ControlInputSpec, ControlKind,
    ControlValues, DynamicBatching, InitialState, InputFormat, InputSpec, InstanceGroup,
    InstanceKind, ModelPriority, ModelSpec, Optimization, OutputSpec, QueuePolicy, RateLimiterSpec,
    RequiredResource, SchedulingChoice, SecondaryDevice, SequenceBatching, SequenceStrategy,
    StateSpec, TimeoutAction, VersionPolicy,
};
pub use support::{ComputeCapability, SupportedFeatures};
pub use warmup::{WarmupContent, WarmupInput, WarmupSample};

/// The default batch size that a backend sets for a model that supports batching but whose
/// configuration has no batch size.
pub const DEFAULT_MAX_BATCH_SIZE: u32 = 4;

/// The parameter that names a library with a batching strategy.
const BATCH_STRATEGY: &str = "TRITON_BATCH_STRATEGY_PATH";
