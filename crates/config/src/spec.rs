//! The checked and normalized configuration, as the rest of the server sees it.

use std::collections::BTreeMap;

use galatea_protocol::inference::ModelConfig;
use galatea_tensor::DataType;
use prost::Message as _;

use crate::{EnsembleScheduling, OwnSettings, WarmupSample};

/// Everything that is known about a model before it is loaded.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModelSpec {
    /// The model's name, equal to its directory's.
    pub name: String,
    /// The backend that executes it.
    pub backend: String,
    /// The platform, an older name of model format and backend; may be empty.
    pub platform: String,
    /// The maximum batch size; 0 without a batch dimension.
    pub max_batch_size: u32,
    /// The tensors of requests.
    pub inputs: Vec<InputSpec>,
    /// The tensors of responses.
    pub outputs: Vec<OutputSpec>,
    /// The groups of instances: at least one, or none for an ensemble.
    pub instance_groups: Vec<InstanceGroup>,
    /// The model's file in its version directory, such as `model.onnx`; empty if the
    /// backend has no such file.
    pub default_model_filename: String,
    /// The file in place of that one on GPUs whose compute capability has a file of its own,
    /// by the number of the GPU.
    pub(crate) filenames_on_gpus: BTreeMap<u32, String>,
    /// The operator libraries that the model's file uses, as the configuration names
    /// them.
    pub op_library_filenames: Vec<String>,
    /// Parameters for the backend.
    pub parameters: BTreeMap<String, String>,
    /// The way in which requests form batches.
    pub scheduling: SchedulingChoice,
    /// The settings of parameters that Triton lacks.
    pub own: OwnSettings,
    /// Tensors that the server computes from the shapes of a batch's requests.
    pub batch_inputs: Vec<BatchInputSpec>,
    /// Outputs of a batch that are split according to the shapes of an input.
    pub batch_outputs: Vec<BatchOutputSpec>,
    /// Settings that trade resources for speed.
    pub optimization: Optimization,
    /// The samples that each instance executes before the model serves.
    pub warmup: Vec<WarmupSample>,
    /// The versions that are served.
    pub version_policy: VersionPolicy,
    /// True if a request may get any number of responses.
    pub decoupled: bool,
    /// True if the response cache may serve equal requests, if the server has one.
    pub response_cache: bool,
    /// Labels added to the model's metrics.
    pub metric_tags: BTreeMap<String, String>,
    /// The buckets of histograms, by the family's name. They may be in any order.
    pub histogram_buckets: BTreeMap<String, Vec<f64>>,
    pub(crate) message: ModelConfig,
    pub(crate) remarks: Vec<String>,
}

impl ModelSpec {
    /// The group of the instance with this name.
    #[must_use]
    pub fn group_of(&self, instance: &str) -> Option<&InstanceGroup> {
        self.instance_groups.iter().find(|group| {
            let number = instance.strip_prefix(&*group.name);
            let number = number.and_then(|rest| rest.strip_prefix('_'));
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        })
    }

    /// The model's file for instances on a GPU, or elsewhere; empty if the backend has no
    /// such file.
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

    /// The normalized configuration as JSON, as the configuration endpoint sends it.
    #[must_use]
    pub fn to_json(&self) -> String {
        galatea_config_message::to_json(&self.message)
    }

    /// The normalized configuration as an encoded `inference.ModelConfig`.
    #[must_use]
    pub fn to_protobuf(&self) -> Vec<u8> {
        self.message.encode_to_vec()
    }

    /// A message for each setting that is accepted but has no effect.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
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

    /// The control inputs of the sequence batcher; none without it.
    #[must_use]
    pub fn controls(&self) -> &[ControlSpec] {
        self.sequence_batching().map_or(&[], |batching| &batching.controls)
    }

    /// The states of sequences; none without the sequence batcher.
    #[must_use]
    pub fn states(&self) -> &[StateSpec] {
        self.sequence_batching().map_or(&[], |batching| &batching.states)
    }

    /// The state that the output with this name produces.
    #[must_use]
    pub fn state_for_output(&self, name: &str) -> Option<&StateSpec> {
        self.states().iter().find(|state| state.output_name == name)
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

/// A tensor of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputSpec {
    /// Its name, unique among the inputs.
    pub name: String,
    /// The type of its elements.
    pub datatype: DataType,
    /// Its shape without the batch dimension; -1 is any size.
    pub dims: Vec<i64>,
    /// The shape that the backend sees instead; empty for one element per batch item.
    pub reshape: Option<Vec<i64>>,
    /// True if a request may leave it out.
    pub optional: bool,
    /// True if requests with different shapes may share a batch.
    pub allow_ragged_batch: bool,
    /// True if its contents are a shape. It has no batch dimension of its own then.
    pub is_shape_tensor: bool,
    /// True if its elements are in an order of the backend's, so that only the backend knows
    /// how many bytes they take.
    pub is_non_linear_format_io: bool,
    /// The order of an image's dimensions.
    pub format: InputFormat,
}

/// The order of the dimensions of an image.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum InputFormat {
    /// Not an image, or unspecified.
    #[default]
    None,
    /// Height, width, channels.
    Nhwc,
    /// Channels, height, width.
    Nchw,
}

/// A tensor of responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputSpec {
    /// Its name, unique among the outputs.
    pub name: String,
    /// The type of its elements.
    pub datatype: DataType,
    /// Its shape without the batch dimension; -1 is any size.
    pub dims: Vec<i64>,
    /// The shape that the backend returns instead.
    pub reshape: Option<Vec<i64>>,
    /// The file with the labels of its classes; may be empty.
    pub label_filename: String,
    /// True if its contents are a shape.
    pub is_shape_tensor: bool,
}

/// Instances of a model on one kind of device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceGroup {
    /// The group's name: an instance's name is this name and a number.
    pub name: String,
    /// Their place.
    pub kind: InstanceKind,
    /// The number of instances for each device, at least 1.
    pub count: u32,
    /// The GPUs, if `kind` is [`InstanceKind::Gpu`].
    pub gpus: Vec<i32>,
    /// True if they are created but execute no requests.
    pub passive: bool,
    /// The host policy, which selects their processors; empty for that of their kind of
    /// device.
    pub host_policy: String,
    /// The resources that each of them needs from the rate limiter.
    pub rate_limiter: RateLimiterSpec,
    /// Further devices that each of them uses, for the backend.
    pub secondary_devices: Vec<SecondaryDevice>,
}

/// A device that instances use beside their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecondaryDevice {
    /// The kind as configurations name it, such as `KIND_NVDLA`.
    pub kind: &'static str,
    /// The number of the device.
    pub device_id: i64,
}

/// The resources that an instance needs from the rate limiter, if it is enabled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimiterSpec {
    /// The resources; empty for an instance that is not limited.
    pub resources: Vec<ResourceNeed>,
    /// An instance of priority 2 executes half as often as one of priority 1; 0 counts
    /// as 1.
    pub priority: u32,
}

/// Units of a resource that an instance needs while it executes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceNeed {
    /// The resource's name.
    pub name: String,
    /// True if the resource belongs to the whole server instead of each device.
    pub global: bool,
    /// The number of units.
    pub count: u32,
}

/// The place of an instance.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum InstanceKind {
    /// The CPU.
    Cpu,
    /// A GPU.
    Gpu,
    /// The model decides.
    Model,
}

/// The way in which requests form batches.
#[derive(Clone, Debug, PartialEq)]
pub enum SchedulingChoice {
    /// Each request is a batch of its own.
    Default,
    /// The dynamic batcher joins requests.
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
    /// The way in which an instance's sequences share batches.
    pub strategy: SequenceStrategy,
    /// The control inputs, at most one of each kind.
    pub controls: Vec<ControlSpec>,
    /// The state tensors that each request passes to the next one of its sequence.
    pub states: Vec<StateSpec>,
    /// True if each request is a sequence of its own, which is executed again until the
    /// backend ends it.
    pub iterative: bool,
}

/// The way in which an instance's sequences share batches.
#[derive(Clone, Debug, PartialEq)]
pub enum SequenceStrategy {
    /// Each sequence has a slot, which is its row in every batch.
    Direct {
        /// The time that the oldest request may wait for more slots.
        max_queue_delay_microseconds: u64,
        /// The fraction of the slots, from 0 to 1, that must be ready for a batch to
        /// execute before the delay is over; with 0 it executes at once.
        minimum_slot_utilization: f32,
    },
    /// The next requests of the sequences are batched dynamically.
    Oldest {
        /// The number of sequences that an instance accepts, at least 1.
        max_candidate_sequences: u32,
        /// As [`DynamicBatching::preferred_batch_sizes`].
        preferred_batch_sizes: Vec<u32>,
        /// The time that the oldest request may wait for others.
        max_queue_delay_microseconds: u64,
        /// True if responses leave in the order of the requests.
        preserve_ordering: bool,
    },
}

/// A control input of the sequence batcher: one element for each request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlSpec {
    /// The input's name, unique among all inputs.
    pub name: String,
    /// The type of its element.
    pub datatype: DataType,
    /// Its meaning.
    pub kind: ControlKind,
}

/// The meaning of a control input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlKind {
    /// The sequence begins.
    Start(ControlValues),
    /// The row holds a request.
    Ready(ControlValues),
    /// The sequence ends.
    End(ControlValues),
    /// The sequence's correlation ID.
    CorrelationId,
}

/// The two values of a control input: one little-endian element each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlValues {
    /// The element for false.
    pub when_false: Vec<u8>,
    /// The element for true.
    pub when_true: Vec<u8>,
}

/// A tensor that each request of a sequence passes to the next one. It is not in
/// [`ModelSpec::inputs`]. It is in [`ModelSpec::outputs`] only if it is configured there
/// too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSpec {
    /// The input that receives it.
    pub input_name: String,
    /// The output that produces it.
    pub output_name: String,
    /// The type of its elements.
    pub datatype: DataType,
    /// Its shape without the batch dimension; -1 is any size.
    pub dims: Vec<i64>,
    /// The state of a sequence's first request.
    pub initial: InitialState,
    /// True if input and output share one buffer.
    pub use_same_buffer_for_input_output: bool,
    /// True if that buffer keeps its contents when the state becomes larger.
    pub is_growable: bool,
}

/// The state of a sequence's first request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitialState {
    /// Arbitrary values of the state's shape, with 1 instead of -1.
    Unspecified,
    /// Zeros, or empty strings.
    Zero {
        /// The shape without the batch dimension; no -1.
        dims: Vec<i64>,
    },
    /// The contents of a file in the model's directory `initial_state`.
    File {
        /// The shape without the batch dimension; no -1.
        dims: Vec<i64>,
        /// The file's name.
        file_name: String,
    },
}

/// A tensor that the server computes from the shapes of a batch's requests. It is not
/// in [`ModelSpec::inputs`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchInputSpec {
    /// Its contents.
    pub kind: BatchInputKind,
    /// The model's inputs that receive it.
    pub target_names: Vec<String>,
    /// The type of its elements: INT32 or FP32.
    pub datatype: DataType,
    /// The input in [`ModelSpec::inputs`] whose shapes are used.
    pub source_input: String,
}

/// The contents of a batch input.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum BatchInputKind {
    /// Each request's number of elements.
    ElementCount,
    /// The running sum of the numbers of elements.
    AccumulatedElementCount,
    /// The running sum with a leading 0.
    AccumulatedElementCountWithZero,
    /// Arbitrary values: its shape is the largest number of elements.
    MaxElementCountAsShape,
    /// Each request's shape, one row for each batch element.
    ItemShape,
    /// Each request's shape, flattened.
    ItemShapeFlatten,
}

/// Outputs of a whole batch that are split according to the shapes of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchOutputSpec {
    /// The outputs.
    pub target_names: Vec<String>,
    /// The input whose shapes give each request's number of elements.
    pub source_input: String,
}

/// The settings of the dynamic batcher.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DynamicBatching {
    /// Batch sizes that are dispatched before the delay ends, as configured. By default
    /// the maximum batch size.
    pub preferred_batch_sizes: Vec<u32>,
    /// The time that the oldest request may wait for others.
    pub max_queue_delay_microseconds: u64,
    /// True if responses leave in the order of the requests.
    pub preserve_ordering: bool,
    /// The number of priority levels; 0 for a single queue without priorities.
    pub priority_levels: u64,
    /// The priority of requests without one; 1 is the highest.
    pub default_priority_level: u64,
    /// The policy of every queue that has none of its own.
    pub default_queue_policy: QueuePolicy,
    /// The policies of the queues of single priorities; empty without priorities.
    pub priority_queue_policies: BTreeMap<u64, QueuePolicy>,
}

/// The limits of a queue of waiting requests.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct QueuePolicy {
    /// The fate of a request whose timeout expires.
    pub timeout_action: TimeoutAction,
    /// The timeout; 0 for none.
    pub default_timeout_microseconds: u64,
    /// True if a request may set a shorter timeout.
    pub allow_timeout_override: bool,
    /// The maximum number of waiting requests; 0 for no limit.
    pub max_queue_size: u32,
}

/// The fate of a request whose timeout expires.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum TimeoutAction {
    /// It is refused.
    #[default]
    Reject,
    /// It waits behind all other requests.
    Delay,
}

/// Settings that trade resources for speed; most are hints to the backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Optimization {
    /// The graph optimization level; 0 is the backend's default.
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

/// The priority of a model on its device.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum ModelPriority {
    /// The backend's default.
    #[default]
    Default,
    /// The highest priority of the backend.
    Max,
    /// The lowest priority of the backend.
    Min,
}

/// An execution provider of a backend, and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accelerator {
    /// The provider's name.
    pub name: String,
    /// The provider's settings.
    pub parameters: BTreeMap<String, String>,
}

/// The versions on disk that are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionPolicy {
    /// This number of the newest versions.
    Latest(u32),
    /// All versions.
    All,
    /// These versions.
    Specific(Vec<i64>),
}
