//! The checked and normalized configuration that the rest of the server uses.

use std::collections::BTreeMap;

use galatea_protocol::inference::ModelConfig;
use galatea_tensor::DataType;
use prost::Message as _;

use crate::{EnsembleScheduling, NonTritonSettings, WarmupSample};

/// Everything that is known about a model before it is loaded.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModelSpec {
    /// The model's name, equal to its directory name.
    pub name: String,
    /// The backend that executes the model.
    pub backend: String,
    /// The platform, an older way to specify the model format and backend; may be empty.
    pub platform: String,
    /// The maximum batch size; 0 if there is no batch dimension.
    pub max_batch_size: u32,
    /// The request tensors.
    pub inputs: Vec<InputSpec>,
    /// The response tensors.
    pub outputs: Vec<OutputSpec>,
    /// The groups of instances: at least one, or none for an ensemble.
    pub instance_groups: Vec<InstanceGroup>,
    /// The model file in the version directory, such as `model.onnx`; empty if the backend has no
    /// such file.
    pub default_model_filename: String,
    /// The alternative files for GPUs whose compute capability has a separate file, by GPU number.
    pub(crate) filenames_on_gpus: BTreeMap<u32, String>,
    /// The operator libraries that the model file uses, as named in the configuration.
    pub op_library_filenames: Vec<String>,
    /// Parameters for the backend.
    pub parameters: BTreeMap<String, String>,
    /// The scheduler, which determines how requests form batches.
    pub scheduling: SchedulingChoice,
    /// The settings from parameters that Triton lacks.
    pub own: NonTritonSettings,
    /// Tensors that the server computes from the shapes of a batch's requests.
    pub batch_inputs: Vec<BatchInputSpec>,
    /// The batch outputs that are split according to an input's shapes.
    pub batch_outputs: Vec<BatchOutputSpec>,
    /// Settings that trade resources for speed.
    pub optimization: Optimization,
    /// The samples that each instance executes before the model starts serving.
    pub warmup: Vec<WarmupSample>,
    /// The versions to serve.
    pub version_policy: VersionPolicy,
    /// True if a request may get any number of responses.
    pub decoupled: bool,
    /// True if the response cache, if any, may serve identical requests.
    pub response_cache: bool,
    /// Labels added to the model's metrics.
    pub metric_tags: BTreeMap<String, String>,
    /// The histogram buckets, by family name, in any order.
    pub histogram_buckets: BTreeMap<String, Vec<f64>>,
    pub(crate) message: ModelConfig,
    pub(crate) remarks: Vec<String>,
}

impl ModelSpec {
    /// The group that contains the instance with this name.
    #[must_use]
    pub fn group_of_instance(&self, instance: &str) -> Option<&InstanceGroup> {
        self.instance_groups.iter().find(|group| {
            let number = instance.strip_prefix(&*group.name);
            let number = number.and_then(|rest| rest.strip_prefix('_'));
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        })
    }

    /// The model file for instances on a GPU or elsewhere; empty if the backend has no such file.
    #[must_use]
    pub fn model_filename(&self, gpu: Option<u32>) -> &str {
        let on_gpu = gpu.and_then(|gpu| self.filenames_on_gpus.get(&gpu));
        on_gpu.unwrap_or(&self.default_model_filename)
    }

    /// The normalized configuration message.
    #[must_use]
    pub const fn message(&self) -> &ModelConfig {
        &self.message
    }

    /// The normalized configuration as JSON, in the form that the configuration endpoint sends.
    #[must_use]
    pub fn to_json(&self) -> String {
        galatea_config_message::model_config_to_json(&self.message)
    }

    /// The normalized configuration as an encoded `inference.ModelConfig`.
    #[must_use]
    pub fn to_protobuf(&self) -> Vec<u8> {
        self.message.encode_to_vec()
    }

    /// A message for each setting that is accepted but has no effect.
    #[must_use]
    pub fn ignored_setting_warnings(&self) -> Vec<String> {
        self.remarks.clone()
    }

    /// The input with this name.
    #[must_use]
    pub fn input(&self, name: &str) -> Option<&InputSpec> {
        self.inputs.iter().find(|input| input.name == name)
    }

    /// The output with this name.
    #[must_use]
    pub fn output(&self, name: &str) -> Option<&OutputSpec> {
        self.outputs.iter().find(|output| output.name == name)
    }

    /// The sequence batcher's control inputs; empty without it.
    #[must_use]
    pub fn sequence_controls(&self) -> &[ControlInputSpec] {
        self.sequence_batching().map_or(&[], |batching| &batching.controls)
    }

    /// The sequence states; empty without the sequence batcher.
    #[must_use]
    pub fn sequence_states(&self) -> &[StateSpec] {
        self.sequence_batching().map_or(&[], |batching| &batching.states)
    }

    /// The state that the output with this name produces.
    #[must_use]
    pub fn state_for_output(&self, name: &str) -> Option<&StateSpec> {
        self.sequence_states().iter().find(|state| state.output_name == name)
    }

    const fn sequence_batching(&self) -> Option<&SequenceBatching> {
        match &self.scheduling {
            SchedulingChoice::Sequence(batching) => Some(batching),
            SchedulingChoice::Default
            | SchedulingChoice::Dynamic(_)
            | SchedulingChoice::Ensemble(_) => None,
        }
    }

    /// The steps of an ensemble; `None` for any other model.
    #[must_use]
    pub const fn ensemble(&self) -> Option<&EnsembleScheduling> {
        match &self.scheduling {
            SchedulingChoice::Ensemble(ensemble) => Some(ensemble),
            SchedulingChoice::Default
            | SchedulingChoice::Dynamic(_)
            | SchedulingChoice::Sequence(_) => None,
        }
    }
}

/// A request tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputSpec {
    /// The name, unique among the inputs.
    pub name: String,
    /// The element type.
    pub datatype: DataType,
    /// The shape, without the batch dimension; -1 stands for any size.
    pub dims: Vec<i64>,
    /// The shape that the backend sees instead; empty for one element per batch item.
    pub reshape: Option<Vec<i64>>,
    /// True if a request may omit the input.
    pub optional: bool,
    /// True if requests with different shapes may share a batch.
    pub allow_ragged_batch: bool,
    /// True if the contents are a shape. Such a tensor has no batch dimension of its own.
    pub is_shape_tensor: bool,
    /// True if the elements are in a backend-specific layout, so only the backend knows their size
    /// in bytes.
    pub is_non_linear_format_io: bool,
    /// The image dimension order.
    pub format: InputFormat,
}

/// The dimension order of an image.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum InputFormat {
    /// The tensor is not an image, or the order is unspecified.
    #[default]
    None,
    /// Height, width, channels.
    Nhwc,
    /// Channels, height, width.
    Nchw,
}

/// A response tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputSpec {
    /// The name, unique among the outputs.
    pub name: String,
    /// The element type.
    pub datatype: DataType,
    /// The shape, without the batch dimension; -1 stands for any size.
    pub dims: Vec<i64>,
    /// The shape that the backend returns instead.
    pub reshape: Option<Vec<i64>>,
    /// The file with the class labels; may be empty.
    pub label_filename: String,
    /// True if the contents are a shape.
    pub is_shape_tensor: bool,
}

/// A group of model instances on one kind of device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceGroup {
    /// The group's name. Instance names consist of this name and a number.
    pub name: String,
    /// The kind of device on which the instances run.
    pub kind: InstanceKind,
    /// The number of instances per device, at least 1.
    pub count: u32,
    /// The GPUs, if `kind` is [`InstanceKind::Gpu`].
    pub gpus: Vec<i32>,
    /// True if the instances are created but execute no requests.
    pub passive: bool,
    /// The host policy, which selects the instances' processors; empty for the default policy of
    /// the device kind.
    pub host_policy: String,
    /// The resources that each instance needs from the rate limiter.
    pub rate_limiter: RateLimiterSpec,
    /// Additional devices that each instance uses, for the backend.
    pub secondary_devices: Vec<SecondaryDevice>,
}

/// A device that instances use in addition to their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecondaryDevice {
    /// The kind, as named in configurations, such as `KIND_NVDLA`.
    pub kind: &'static str,
    /// The device number.
    pub device_id: i64,
}

/// The resources that an instance needs from the rate limiter, if it is enabled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimiterSpec {
    /// The resources; empty for an unlimited instance.
    pub resources: Vec<RequiredResource>,
    /// An instance of priority 2 executes half as often as one of priority 1; 0 counts
    /// as 1.
    pub priority: u32,
}

/// A number of units of a resource that an instance needs while it executes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequiredResource {
    /// The resource's name.
    pub name: String,
    /// True if the resource belongs to the whole server instead of each device.
    pub global: bool,
    /// The number of units.
    pub count: u32,
}

/// The kind of device on which an instance runs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum InstanceKind {
    /// The CPU.
    Cpu,
    /// A GPU.
    Gpu,
    /// The model decides.
    Model,
}

/// The scheduler, which determines how requests form batches.
#[derive(Clone, Debug, PartialEq)]
pub enum SchedulingChoice {
    /// Each request is a separate batch.
    Default,
    /// The dynamic batcher combines requests.
    Dynamic(DynamicBatching),
    /// The sequence batcher sends the requests of a sequence to one instance, in order.
    Sequence(SequenceBatching),
    /// An ensemble sends requests through its composing models.
    Ensemble(EnsembleScheduling),
}

/// The settings of the sequence batcher.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceBatching {
    /// The time that a sequence with a slot may be idle; never 0.
    pub max_sequence_idle_microseconds: u64,
    /// The strategy by which an instance's sequences share batches.
    pub strategy: SequenceStrategy,
    /// The control inputs, at most one of each kind.
    pub controls: Vec<ControlInputSpec>,
    /// The state tensors that each request passes to the next one of its sequence.
    pub states: Vec<StateSpec>,
    /// True if each request is a separate sequence, which is executed repeatedly until the backend
    /// ends it.
    pub iterative: bool,
}

/// The strategy by which an instance's sequences share batches.
#[derive(Clone, Debug, PartialEq)]
pub enum SequenceStrategy {
    /// Each sequence has a slot, which is its row in every batch.
    Direct {
        /// The maximum time that the oldest request waits for more slots.
        max_queue_delay_microseconds: u64,
        /// The fraction of the slots, from 0 to 1, that must be ready for a batch to execute before
        /// the delay expires; with 0, it executes immediately.
        minimum_slot_utilization: f32,
    },
    /// The next requests of the sequences are batched dynamically.
    Oldest {
        /// The number of sequences that an instance accepts, at least 1.
        max_candidate_sequences: u32,
        /// Same as [`DynamicBatching::preferred_batch_sizes`].
        preferred_batch_sizes: Vec<u32>,
        /// The maximum time that the oldest request waits for others.
        max_queue_delay_microseconds: u64,
        /// True if responses are sent in request order.
        preserve_ordering: bool,
    },
}

/// A control input of the sequence batcher, with one element per request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlInputSpec {
    /// The input's name, unique among all inputs.
    pub name: String,
    /// The element type.
    pub datatype: DataType,
    /// The control's meaning.
    pub kind: ControlKind,
}

/// The meaning of a control input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlKind {
    /// The sequence begins.
    Start(ControlValues),
    /// The row contains a request.
    Ready(ControlValues),
    /// The sequence ends.
    End(ControlValues),
    /// The sequence's correlation ID.
    CorrelationId,
}

/// The two values of a control input, one little-endian element each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlValues {
    /// The element for false.
    pub when_false: Vec<u8>,
    /// The element for true.
    pub when_true: Vec<u8>,
}

/// A tensor that each request of a sequence passes to the next one. It is not in
/// [`ModelSpec::inputs`]. It is in [`ModelSpec::outputs`] only if it is also configured there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSpec {
    /// The input that receives it.
    pub input_name: String,
    /// The output that produces it.
    pub output_name: String,
    /// The element type.
    pub datatype: DataType,
    /// The shape, without the batch dimension; -1 stands for any size.
    pub dims: Vec<i64>,
    /// The state for a sequence's first request.
    pub initial: InitialState,
    /// True if the input and the output share one buffer.
    pub use_same_buffer_for_input_output: bool,
    /// True if that buffer keeps its contents when the state grows.
    pub is_growable: bool,
}

/// The state for a sequence's first request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitialState {
    /// Arbitrary values in the state's shape, with 1 instead of -1.
    Unspecified,
    /// Zeros, or empty strings.
    Zero {
        /// The shape, without the batch dimension and without -1.
        dims: Vec<i64>,
    },
    /// The contents of a file in the model's `initial_state` directory.
    File {
        /// The shape, without the batch dimension and without -1.
        dims: Vec<i64>,
        /// The file's name.
        file_name: String,
    },
}

/// A tensor that the server computes from the shapes of a batch's requests. It is not
/// in [`ModelSpec::inputs`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchInputSpec {
    /// The contents.
    pub kind: BatchInputKind,
    /// The model's inputs that receive it.
    pub target_names: Vec<String>,
    /// The element type: INT32 or FP32.
    pub datatype: DataType,
    /// The input in [`ModelSpec::inputs`] whose shapes are used.
    pub source_input: String,
}

/// The contents of a batch input.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum BatchInputKind {
    /// The element count of each request.
    ElementCount,
    /// The running sum of the element counts.
    AccumulatedElementCount,
    /// The running sum of the element counts, with a leading 0.
    AccumulatedElementCountWithZero,
    /// Arbitrary values, whose shape is the largest element count.
    MaxElementCountAsShape,
    /// The shape of each request, one row per batch element.
    ItemShape,
    /// The shape of each request, flattened.
    ItemShapeFlatten,
}

/// The outputs of a whole batch that are split according to an input's shapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchOutputSpec {
    /// The outputs.
    pub target_names: Vec<String>,
    /// The input whose shapes determine each request's element count.
    pub source_input: String,
}

/// The settings of the dynamic batcher.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DynamicBatching {
    /// The batch sizes that are dispatched before the delay expires, as configured; by default, the
    /// maximum batch size.
    pub preferred_batch_sizes: Vec<u32>,
    /// The maximum time that the oldest request waits for others.
    pub max_queue_delay_microseconds: u64,
    /// True if responses are sent in request order.
    pub preserve_ordering: bool,
    /// The number of priority levels; 0 for a single queue without priorities.
    pub priority_levels: u64,
    /// The priority of requests that don't specify one; 1 is the highest.
    pub default_priority_level: u64,
    /// The policy of every queue that has no separate policy.
    pub default_queue_policy: QueuePolicy,
    /// The per-priority queue policies; empty without priorities.
    pub priority_queue_policies: BTreeMap<u64, QueuePolicy>,
}

/// The limits of a queue of waiting requests.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct QueuePolicy {
    /// The action taken when a request's timeout expires.
    pub timeout_action: TimeoutAction,
    /// The timeout; 0 for none.
    pub default_timeout_microseconds: u64,
    /// True if a request may set a shorter timeout.
    pub allow_timeout_override: bool,
    /// The maximum number of waiting requests; 0 for no limit.
    pub max_queue_size: u32,
}

/// The action taken when a request's timeout expires.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum TimeoutAction {
    /// The request is rejected.
    #[default]
    Reject,
    /// The request waits behind all other requests.
    Delay,
}

/// Settings that trade resources for speed; most are hints to the backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Optimization {
    /// The graph optimization level; 0 selects the backend's default.
    pub graph_level: i32,
    /// The model's priority on its device.
    pub priority: ModelPriority,
    /// Execution providers for the CPU, in order.
    pub cpu_execution_accelerators: Vec<Accelerator>,
    /// Execution providers for the GPU, in order.
    pub gpu_execution_accelerators: Vec<Accelerator>,
    /// True if inputs are gathered in pinned memory; no effect on the CPU.
    pub input_pinned_memory: bool,
    /// True if outputs are taken from pinned memory; no effect on the CPU.
    pub output_pinned_memory: bool,
}

/// A model's priority on its device.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum ModelPriority {
    /// The backend's default.
    #[default]
    Default,
    /// The backend's highest priority.
    Max,
    /// The backend's lowest priority.
    Min,
}

/// A backend's execution provider and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accelerator {
    /// The provider's name.
    pub name: String,
    /// The provider's settings.
    pub parameters: BTreeMap<String, String>,
}

/// The policy that selects the versions to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionPolicy {
    /// The newest versions, up to this number.
    Latest(u32),
    /// All versions.
    All,
    /// These versions.
    Specific(Vec<i64>),
}
