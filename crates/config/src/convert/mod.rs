//! Converts the message to the specification and finds numbers that don't fit their types.

mod ragged;
mod sequence;

use std::collections::BTreeMap;

use galatea_protocol::inference::model_config::SchedulingChoice as MessageChoice;
use galatea_protocol::inference::model_instance_group::Kind;
use galatea_protocol::inference::model_instance_group::secondary_device::SecondaryDeviceKind;
use galatea_protocol::inference::model_metrics::metric_control::MetricOptions;
use galatea_protocol::inference::model_optimization_policy::ModelPriority as MessagePriority;
use galatea_protocol::inference::model_optimization_policy::execution_accelerators;
use galatea_protocol::inference::model_queue_policy::TimeoutAction as MessageAction;
use galatea_protocol::inference::model_version_policy::PolicyChoice;
use galatea_protocol::inference::{
    ModelConfig, ModelDynamicBatching, ModelInput, ModelInstanceGroup, ModelOptimizationPolicy,
    ModelOutput, ModelQueuePolicy, ModelRateLimiter, model_input, model_optimization_policy,
};
use galatea_tensor::DataType;

use crate::spec::{
    Accelerator, DynamicBatching, InputFormat, InputSpec, InstanceGroup, InstanceKind,
    ModelPriority, ModelSpec, Optimization, OutputSpec, QueuePolicy, RateLimiterSpec,
    RequiredResource, SchedulingChoice, SecondaryDevice, TimeoutAction, VersionPolicy,
};
use crate::{NonTritonSettings, warmup};
use galatea_config_message::{BoundedText, Diagnostic, Diagnostics};

/// Converts the message, or returns `None` and adds a diagnostic.
///
/// A diagnostic is added only if there are none: earlier checks have better messages.
pub(crate) fn model_spec(
    message: &ModelConfig,
    diagnostics: &mut Diagnostics,
) -> Option<ModelSpec> {
    match convert(message) {
        Ok(spec) => Some(spec),
        Err(path) => {
            if diagnostics.is_empty() {
                let text = "has a value that can not be represented";
                diagnostics.push(|| Diagnostic::about(BoundedText::truncated(&path), text));
            }
            None
        }
    }
}

fn convert(message: &ModelConfig) -> Result<ModelSpec, String> {
    Ok(ModelSpec {
        name: message.name.clone(),
        backend: message.backend.clone(),
        platform: message.platform.clone(),
        max_batch_size: unsigned(message.max_batch_size, "max_batch_size")?,
        inputs: indexed(&message.input, "input", input)?,
        outputs: indexed(&message.output, "output", output)?,
        instance_groups: indexed(&message.instance_group, "instance_group", instance_group)?,
        default_model_filename: message.default_model_filename.clone(),
        filenames_on_gpus: BTreeMap::new(),
        op_library_filenames: message
            .model_operations
            .as_ref()
            .map(|operations| operations.op_library_filename.clone())
            .unwrap_or_default(),
        parameters: parameters(message),
        scheduling: scheduling(message)?,
        own: NonTritonSettings::of(message).ok_or_else(|| String::from("parameters"))?,
        batch_inputs: indexed(&message.batch_input, "batch_input", ragged::batch_input)?,
        batch_outputs: indexed(&message.batch_output, "batch_output", ragged::batch_output)?,
        optimization: optimization(message.optimization.as_ref())?,
        warmup: warmup::samples(message)?,
        version_policy: version_policy(message),
        decoupled: message.model_transaction_policy.as_ref().is_some_and(|p| p.decoupled),
        response_cache: message.response_cache.as_ref().is_some_and(|cache| cache.enable),
        metric_tags: message.metric_tags.clone(),
        histogram_buckets: histogram_buckets(message),
        message: message.clone(),
        remarks: Vec::new(),
    })
}

/// Collects the histogram buckets. As in Triton, the last entry for a family wins.
fn histogram_buckets(message: &ModelConfig) -> BTreeMap<String, Vec<f64>> {
    let controls = message.model_metrics.iter().flat_map(|metrics| &metrics.metric_control);
    let buckets = controls.filter_map(|control| {
        let family = control.metric_identifier.as_ref()?.family.clone();
        let MetricOptions::HistogramOptions(options) = control.metric_options.as_ref()?;
        Some((family, options.buckets.clone()))
    });
    buckets.collect()
}

fn indexed<M, S>(
    messages: &[M],
    field: &str,
    convert: impl Fn(&M) -> Result<S, &'static str>,
) -> Result<Vec<S>, String> {
    let numbered = messages.iter().enumerate();
    numbered
        .map(|(index, one)| convert(one).map_err(|inner| format!("{field}[{index}].{inner}")))
        .collect()
}

fn unsigned(number: i32, path: &str) -> Result<u32, String> {
    u32::try_from(number).map_err(|_| path.to_owned())
}

fn datatype(number: i32) -> Result<DataType, &'static str> {
    DataType::from_config_number(number).ok_or("data_type")
}

fn input(message: &ModelInput) -> Result<InputSpec, &'static str> {
    let format = model_input::Format::try_from(message.format).map_err(|_| "format")?;
    Ok(InputSpec {
        name: message.name.clone(),
        datatype: datatype(message.data_type)?,
        dims: message.dims.clone(),
        reshape: message.reshape.as_ref().map(|reshape| reshape.shape.clone()),
        optional: message.optional,
        allow_ragged_batch: message.allow_ragged_batch,
        is_shape_tensor: message.is_shape_tensor,
        is_non_linear_format_io: message.is_non_linear_format_io,
        format: match format {
            model_input::Format::None => InputFormat::None,
            model_input::Format::Nhwc => InputFormat::Nhwc,
            model_input::Format::Nchw => InputFormat::Nchw,
        },
    })
}

fn output(message: &ModelOutput) -> Result<OutputSpec, &'static str> {
    Ok(OutputSpec {
        name: message.name.clone(),
        datatype: datatype(message.data_type)?,
        dims: message.dims.clone(),
        reshape: message.reshape.as_ref().map(|reshape| reshape.shape.clone()),
        label_filename: message.label_filename.clone(),
        is_shape_tensor: message.is_shape_tensor,
    })
}

fn instance_group(message: &ModelInstanceGroup) -> Result<InstanceGroup, &'static str> {
    let kind = match Kind::try_from(message.kind) {
        Ok(Kind::Cpu) => InstanceKind::Cpu,
        Ok(Kind::Gpu) => InstanceKind::Gpu,
        Ok(Kind::Model) => InstanceKind::Model,
        Ok(Kind::Auto) | Err(_) => return Err("kind"),
    };
    Ok(InstanceGroup {
        name: message.name.clone(),
        kind,
        count: u32::try_from(message.count).map_err(|_| "count")?,
        gpus: message.gpus.clone(),
        passive: message.passive,
        host_policy: message.host_policy.clone(),
        rate_limiter: message.rate_limiter.as_ref().map(rate_limiter).unwrap_or_default(),
        secondary_devices: secondary_devices(message)?,
    })
}

fn secondary_devices(message: &ModelInstanceGroup) -> Result<Vec<SecondaryDevice>, &'static str> {
    let devices = message.secondary_devices.iter().map(|device| {
        let kind = SecondaryDeviceKind::try_from(device.kind);
        let kind = kind.map_err(|_| "secondary_devices.kind")?.as_str_name();
        Ok(SecondaryDevice { kind, device_id: device.device_id })
    });
    devices.collect()
}

fn rate_limiter(message: &ModelRateLimiter) -> RateLimiterSpec {
    let resources = message.resources.iter().map(|resource| RequiredResource {
        name: resource.name.clone(),
        global: resource.global,
        count: resource.count,
    });
    RateLimiterSpec { resources: resources.collect(), priority: message.priority }
}

fn parameters(message: &ModelConfig) -> BTreeMap<String, String> {
    let entries = message.parameters.iter();
    entries.map(|(key, value)| (key.clone(), value.string_value.clone())).collect()
}

fn scheduling(message: &ModelConfig) -> Result<SchedulingChoice, String> {
    match &message.scheduling_choice {
        None => Ok(SchedulingChoice::Default),
        Some(MessageChoice::DynamicBatching(batching)) => {
            dynamic_batching(batching).map(SchedulingChoice::Dynamic)
        }
        Some(MessageChoice::SequenceBatching(batching)) => {
            sequence::sequence_batching(batching, message.max_batch_size)
                .map(SchedulingChoice::Sequence)
        }
        Some(MessageChoice::EnsembleScheduling(ensembling)) => {
            Ok(SchedulingChoice::Ensemble(ensembling.into()))
        }
    }
}

fn dynamic_batching(message: &ModelDynamicBatching) -> Result<DynamicBatching, String> {
    const PREFERRED: &str = "dynamic_batching.preferred_batch_size";
    let sizes = message.preferred_batch_size.iter();
    let default = message.default_queue_policy.unwrap_or_default();
    // Without priority levels there is one queue, and per-level policies are ignored.
    let levels = message.priority_queue_policy.iter().filter(|_| message.priority_levels > 0);
    Ok(DynamicBatching {
        preferred_batch_sizes: sizes
            .map(|&size| unsigned(size, PREFERRED))
            .collect::<Result<_, _>>()?,
        max_queue_delay_microseconds: message.max_queue_delay_microseconds,
        preserve_ordering: message.preserve_ordering,
        priority_levels: message.priority_levels,
        default_priority_level: message.default_priority_level,
        default_queue_policy: queue_policy(&default, "dynamic_batching.default_queue_policy")?,
        priority_queue_policies: levels
            .map(|(&level, policy)| {
                let path = format!("dynamic_batching.priority_queue_policy[{level}]");
                Ok((level, queue_policy(policy, &path)?))
            })
            .collect::<Result<_, String>>()?,
    })
}

fn queue_policy(message: &ModelQueuePolicy, path: &str) -> Result<QueuePolicy, String> {
    let action = MessageAction::try_from(message.timeout_action)
        .map_err(|_| format!("{path}.timeout_action"))?;
    Ok(QueuePolicy {
        timeout_action: match action {
            MessageAction::Reject => TimeoutAction::Reject,
            MessageAction::Delay => TimeoutAction::Delay,
        },
        default_timeout_microseconds: message.default_timeout_microseconds,
        allow_timeout_override: message.allow_timeout_override,
        max_queue_size: message.max_queue_size,
    })
}

fn optimization(message: Option<&ModelOptimizationPolicy>) -> Result<Optimization, String> {
    let Some(message) = message else { return Ok(Optimization::default()) };
    let priority = match MessagePriority::try_from(message.priority) {
        Ok(MessagePriority::PriorityDefault) => ModelPriority::Default,
        Ok(MessagePriority::PriorityMax) => ModelPriority::Max,
        Ok(MessagePriority::PriorityMin) => ModelPriority::Min,
        Err(_) => return Err("optimization.priority".to_owned()),
    };
    let pinned = |buffer: Option<&model_optimization_policy::PinnedMemoryBuffer>| {
        buffer.is_some_and(|buffer| buffer.enable)
    };
    let accelerators = message.execution_accelerators.clone().unwrap_or_default();
    Ok(Optimization {
        graph_level: message.graph.map_or(0, |graph| graph.level),
        priority,
        cpu_execution_accelerators: list(accelerators.cpu_execution_accelerator),
        gpu_execution_accelerators: list(accelerators.gpu_execution_accelerator),
        input_pinned_memory: pinned(message.input_pinned_memory.as_ref()),
        output_pinned_memory: pinned(message.output_pinned_memory.as_ref()),
    })
}

fn list(messages: Vec<execution_accelerators::Accelerator>) -> Vec<Accelerator> {
    let convert = |message: execution_accelerators::Accelerator| Accelerator {
        name: message.name,
        parameters: message.parameters,
    };
    messages.into_iter().map(convert).collect()
}

/// The version policy. As in Triton, an empty policy selects all versions, and a missing policy the
/// latest version.
pub(crate) fn version_policy(message: &ModelConfig) -> VersionPolicy {
    let Some(policy) = &message.version_policy else { return VersionPolicy::Latest(1) };
    match &policy.policy_choice {
        Some(PolicyChoice::Latest(latest)) => VersionPolicy::Latest(latest.num_versions),
        Some(PolicyChoice::Specific(specific)) => {
            VersionPolicy::Specific(specific.versions.clone())
        }
        Some(PolicyChoice::All(_)) | None => VersionPolicy::All,
    }
}
