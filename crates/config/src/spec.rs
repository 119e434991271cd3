//! The configuration as the rest of the server sees it: checked, normalized,
//! and never changed again.

use std::collections::BTreeMap;

use galatea_protocol::inference::ModelConfig;
use galatea_tensor::DataType;
use prost::Message as _;

use crate::{EnsembleScheduling, WarmupSample};

/// Everything that is known about a model before it is loaded.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModelSpec {
    /// The model's name, equal to its directory's.
    pub name: String,
    /// The backend that executes it.
    pub backend: String,
    /// The older way of naming model format and backend; may be empty.
    pub platform: String,
    /// The largest batch; 0 if the first dimension is not a batch.
    pub max_batch_size: u32,
    /// Tensors that requests bring.
    pub inputs: Vec<InputSpec>,
    /// Tensors that the model returns.
    pub outputs: Vec<OutputSpec>,
    /// Groups of instances; at least one, but for ensembles, which have none.
    pub instance_groups: Vec<InstanceGroup>,
    /// The model's file in its version directory, such as `model.onnx`; empty
    /// if the backend has no such file.
    pub default_model_filename: String,
    /// Libraries with operators that the model's file uses, as the configuration names
    /// them.
    pub op_library_filenames: Vec<String>,
    /// Values that the backend gives a meaning.
    pub parameters: BTreeMap<String, String>,
    /// How requests become batches.
    pub scheduling: SchedulingChoice,
    /// Tensors made from the shapes of a batch's requests.
    pub batch_inputs: Vec<BatchInputSpec>,
    /// Outputs of a batch that are split by the shapes of an input.
    pub batch_outputs: Vec<BatchOutputSpec>,
    /// Settings that trade resources for speed.
    pub optimization: Optimization,
    /// What each instance executes before the model serves.
    pub warmup: Vec<WarmupSample>,
    /// Which versions are served.
    pub version_policy: VersionPolicy,
    /// Whether a request may get any number of responses.
    pub decoupled: bool,
    /// Whether equal requests may be answered without running the model, if
    /// the server has a cache.
    pub response_cache: bool,
    /// Labels added to the model's metrics.
    pub metric_tags: BTreeMap<String, String>,
    pub(crate) message: ModelConfig,
    pub(crate) remarks: Vec<String>,
}

impl ModelSpec {
    /// The group that an instance belongs to, told by its name.
    #[must_use]
    pub fn group_of(&self, instance: &str) -> Option<&InstanceGroup> {
        self.instance_groups.iter().find(|group| {
            let number = instance.strip_prefix(&*group.name);
            let number = number.and_then(|rest| rest.strip_prefix('_'));
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        })
    }

    /// The normalized configuration message.
    #[must_use]
    pub const fn message(&self) -> &ModelConfig {
        &self.message
    }

    /// The normalized configuration as the configuration endpoint prints it.
    #[must_use]
    pub fn to_json(&self) -> String {
        crate::json::to_json(&self.message)
    }

    /// The normalized configuration as an encoded `inference.ModelConfig`.
    #[must_use]
    pub fn to_protobuf(&self) -> Vec<u8> {
        self.message.encode_to_vec()
    }

    /// A line on each setting that is taken and changes nothing.
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

    /// The inputs that the sequence batcher fills in; none without it.
    #[must_use]
    pub fn controls(&self) -> &[ControlSpec] {
        self.sequence_batching().map_or(&[], |batching| &batching.controls)
    }

    /// The states that sequences carry; none without the sequence batcher.
    #[must_use]
    pub fn states(&self) -> &[StateSpec] {
        self.sequence_batching().map_or(&[], |batching| &batching.states)
    }

    /// The state that the output with this name carries on.
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

    /// The models that it consists of; `None` if it is no ensemble.
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

/// A tensor that requests bring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputSpec {
    /// Its name, unique among the inputs.
    pub name: String,
    /// The type of its elements.
    pub datatype: DataType,
    /// Its shape without the batch dimension; -1 is any size.
    pub dims: Vec<i64>,
    /// The shape that the backend sees instead; empty for one element per
    /// batch item.
    pub reshape: Option<Vec<i64>>,
    /// Whether a request may leave it out.
    pub optional: bool,
    /// Whether requests with different shapes may share a batch.
    pub allow_ragged_batch: bool,
    /// Whether its contents are a shape.
    pub is_shape_tensor: bool,
    /// The order of an image's dimensions.
    pub format: InputFormat,
}

/// The order of the dimensions of an image.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum InputFormat {
    /// Not an image, or not said.
    #[default]
    None,
    /// Height, width, channels.
    Nhwc,
    /// Channels, height, width.
    Nchw,
}

/// A tensor that the model returns.
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
    /// The file with the labels of its classes; empty if there is none.
    pub label_filename: String,
    /// Whether its contents are a shape.
    pub is_shape_tensor: bool,
}

/// Instances of a model on one kind of device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceGroup {
    /// The group's name; instances are called by it and their number.
    pub name: String,
    /// Where they run.
    pub kind: InstanceKind,
    /// How many instances per device, at least 1.
    pub count: u32,
    /// The GPUs, if `kind` is [`InstanceKind::Gpu`].
    pub gpus: Vec<i32>,
    /// Whether they are made but never given requests.
    pub passive: bool,
    /// The policy that says on which processors they run; empty for the one of
    /// their kind of device.
    pub host_policy: String,
    /// What each of them needs of the rate limiter.
    pub rate_limiter: RateLimiterSpec,
    /// Further processors that each of them uses, for its backend to know.
    pub secondary_devices: Vec<SecondaryDevice>,
}

/// A processor that instances use beside their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecondaryDevice {
    /// The kind as configurations name it, such as `KIND_NVDLA`.
    pub kind: &'static str,
    /// Its number among those.
    pub device_id: i64,
}

/// What an instance needs of the rate limiter, if the server has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimiterSpec {
    /// Nothing, for an instance that executes whenever it can.
    pub resources: Vec<ResourceNeed>,
    /// An instance of priority 2 gets half as many turns as one of priority 1; 0
    /// counts as 1.
    pub priority: u32,
}

/// Units of a resource that an instance needs while it executes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceNeed {
    /// The resource's name.
    pub name: String,
    /// Whether there is one for the whole server, not one for each device.
    pub global: bool,
    /// How many units.
    pub count: u32,
}

/// Where an instance runs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum InstanceKind {
    /// On the CPU.
    Cpu,
    /// On a GPU.
    Gpu,
    /// Where the model says.
    Model,
}

/// How requests become batches.
#[derive(Clone, Debug, PartialEq)]
pub enum SchedulingChoice {
    /// Each request is a batch of its own.
    Default,
    /// Requests are joined.
    Dynamic(DynamicBatching),
    /// Requests that belong together go to one instance, in order.
    Sequence(SequenceBatching),
    /// Requests are led through other models.
    Ensemble(EnsembleScheduling),
}

/// How sequences of requests are led to instances.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceBatching {
    /// How long a sequence with a slot may be idle; never 0.
    pub max_sequence_idle_microseconds: u64,
    /// How an instance's sequences share batches.
    pub strategy: SequenceStrategy,
    /// Tensors that tell the model about sequences. Each kind at most once.
    pub controls: Vec<ControlSpec>,
    /// Tensors that go from each request of a sequence to its next one.
    pub states: Vec<StateSpec>,
    /// Whether each request is a sequence of its own, which runs again until its
    /// backend is done with it.
    pub iterative: bool,
}

/// How an instance's sequences share batches.
#[derive(Clone, Debug, PartialEq)]
pub enum SequenceStrategy {
    /// Each sequence has a slot, which is its row in every batch.
    Direct {
        /// How long the longest waiting request may wait for more slots.
        max_queue_delay_microseconds: u64,
        /// The part of the slots, from 0 to 1, that must be ready for a batch to
        /// go before the delay is over; with 0 it always does.
        minimum_slot_utilization: f32,
    },
    /// The next requests of the sequences are batched dynamically.
    Oldest {
        /// Sequences that an instance takes on, at least 1.
        max_candidate_sequences: u32,
        /// As [`DynamicBatching::preferred_batch_sizes`].
        preferred_batch_sizes: Vec<u32>,
        /// How long the oldest request may wait for others.
        max_queue_delay_microseconds: u64,
        /// Whether responses leave in the order of the requests.
        preserve_ordering: bool,
    },
}

/// An input that the sequence batcher fills in: one element per request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlSpec {
    /// The input's name; no other input has it.
    pub name: String,
    /// The type of its element.
    pub datatype: DataType,
    /// What it says.
    pub kind: ControlKind,
}

/// What a control input says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlKind {
    /// The sequence begins.
    Start(FalseTrue),
    /// The row holds a request.
    Ready(FalseTrue),
    /// The sequence ends.
    End(FalseTrue),
    /// The sequence's correlation ID.
    CorrelationId,
}

/// The two values of a control input: one little-endian element each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FalseTrue {
    /// The bytes that stand for no.
    pub when_false: Vec<u8>,
    /// The bytes that stand for yes.
    pub when_true: Vec<u8>,
}

/// A tensor that goes from each request of a sequence to its next one. It is
/// neither among [`ModelSpec::inputs`], nor, unless it is configured there too,
/// among [`ModelSpec::outputs`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSpec {
    /// The input that it is fed to.
    pub input_name: String,
    /// The output that it comes from.
    pub output_name: String,
    /// The type of its elements.
    pub datatype: DataType,
    /// Its shape without the batch dimension; -1 is any size.
    pub dims: Vec<i64>,
    /// What the first request of a sequence sees.
    pub initial: InitialState,
    /// Whether input and output are to be one buffer.
    pub use_same_buffer_for_input_output: bool,
}

/// What the first request of a sequence sees as its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitialState {
    /// Anything of the state's shape, with 1 in place of -1.
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

/// A tensor that the server makes from the shapes of a batch's requests. It is
/// not among [`ModelSpec::inputs`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchInputSpec {
    /// What it holds.
    pub kind: BatchInputKind,
    /// The model's input, or inputs.
    pub target_names: Vec<String>,
    /// The type of its elements: INT32 or FP32.
    pub datatype: DataType,
    /// The input, among [`ModelSpec::inputs`], whose shapes are meant.
    pub source_input: String,
}

/// What a batch input holds.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum BatchInputKind {
    /// Each request's number of elements.
    ElementCount,
    /// The same, summed up from the first request on.
    AccumulatedElementCount,
    /// The same, with a 0 in front.
    AccumulatedElementCountWithZero,
    /// Nothing: its shape is the largest number of elements.
    MaxElementCountAsShape,
    /// Each request's shape, one row per batch element.
    ItemShape,
    /// The same, without rows.
    ItemShapeFlatten,
}

/// Outputs of a whole batch, which are split by the shapes of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchOutputSpec {
    /// The outputs.
    pub target_names: Vec<String>,
    /// The input whose shapes say how many elements each request gets.
    pub source_input: String,
}

/// How requests of different clients are joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DynamicBatching {
    /// Sizes worth dispatching before the delay ends, as configured; one entry
    /// with the largest batch if nothing was configured.
    pub preferred_batch_sizes: Vec<u32>,
    /// How long the oldest request may wait for others.
    pub max_queue_delay_microseconds: u64,
    /// Whether responses leave in the order of the requests.
    pub preserve_ordering: bool,
    /// Number of priorities; 0 if there are none, and then everything waits
    /// in one queue.
    pub priority_levels: u64,
    /// The priority of requests that give none; 1 is served first.
    pub default_priority_level: u64,
    /// Bounds on every queue that has no policy of its own.
    pub default_queue_policy: QueuePolicy,
    /// Bounds on the queues of single priorities; empty without priorities.
    pub priority_queue_policies: BTreeMap<u64, QueuePolicy>,
}

/// Bounds on a queue of waiting requests.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct QueuePolicy {
    /// What happens to a request that waited too long.
    pub timeout_action: TimeoutAction,
    /// How long is too long; 0 for any time.
    pub default_timeout_microseconds: u64,
    /// Whether a request may ask for a shorter timeout.
    pub allow_timeout_override: bool,
    /// How many requests may wait; 0 for any number.
    pub max_queue_size: u32,
}

/// What happens to a request that waited too long.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum TimeoutAction {
    /// It is refused.
    #[default]
    Reject,
    /// It waits behind the others.
    Delay,
}

/// Settings that trade resources for speed; most are hints to the backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Optimization {
    /// How much the backend may change the graph: 0 is its default, which is
    /// also what nothing configured means.
    pub graph_level: i32,
    /// How important the model is beside others on its device.
    pub priority: ModelPriority,
    /// Providers to try on the CPU, in order.
    pub cpu_execution_accelerators: Vec<Accelerator>,
    /// Providers to try on the GPU, in order.
    pub gpu_execution_accelerators: Vec<Accelerator>,
    /// Whether inputs are gathered in pinned memory; no effect on the CPU.
    pub input_pinned_memory: bool,
    /// Whether outputs are taken from pinned memory; no effect on the CPU.
    pub output_pinned_memory: bool,
}

/// How important a model is beside others on its device.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum ModelPriority {
    /// As the backend thinks.
    #[default]
    Default,
    /// The highest that the backend knows.
    Max,
    /// The lowest that the backend knows.
    Min,
}

/// A provider that makes a backend faster, and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accelerator {
    /// The provider's name.
    pub name: String,
    /// Settings that it gives a meaning.
    pub parameters: BTreeMap<String, String>,
}

/// Which of the versions on disk are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionPolicy {
    /// So many of the highest numbers.
    Latest(u32),
    /// Every one.
    All,
    /// These.
    Specific(Vec<i64>),
}
