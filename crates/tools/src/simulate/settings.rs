//! Scheduler settings: recorded settings, settings from a file, and changes to them.

use galatea_config::{ConfigDraft, ModelSpec, SupportedFeatures};
use galatea_load::InputShapes;
use galatea_pbtxt::parse_config_draft;
use galatea_policy::{DeadlineBatcherSpec, DynamicBatcherSpec, SchedulingMode, SchedulingSpec};
use galatea_traffic::TrafficHeader;
use serde_json::json;

const NS_PER_US: u64 = 1_000;

/// `KIND_GPU` in a configuration's message.
const KIND_GPU: i32 = 1;

/// Derives the scheduler settings from a configuration, as the server does.
pub type DeriveScheduling = fn(&ModelSpec) -> SchedulingSpec;

/// A scheduler and its instances.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedScheduler {
    /// The model's configuration.
    draft: ConfigDraft,
    pub(crate) scheduling: SchedulingSpec,
    scheduling_of: DeriveScheduling,
    pub(crate) instances: u32,
    /// The padded dimensions, with the names that recordings use.
    padded: Vec<String>,
}

/// Settings that replace those of a configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct SchedulingChanges {
    pub(crate) instances: Option<u32>,
    pub(crate) max_batch: Option<u32>,
    pub(crate) delay_us: Option<u64>,
    pub(crate) preferred: Option<Vec<u32>>,
    pub(crate) queue_size: Option<u32>,
    pub(crate) timeout_us: Option<u64>,
    pub(crate) objective_us: Option<u64>,
}

impl SimulatedScheduler {
    /// The settings of the server that was recorded.
    pub(super) fn recorded(
        header: &TrafficHeader,
        scheduling_of: DeriveScheduling,
    ) -> Result<Self, String> {
        let config = match &header.config {
            Some(config) => config.to_string(),
            None => without_config(&header.model),
        };
        let mut configured = Self::of_json("the recorded configuration", &config, scheduling_of)?;
        if !header.instances.is_empty() {
            configured.instances = u32::try_from(header.instances.len()).unwrap_or(u32::MAX);
        }
        Ok(configured)
    }

    /// Reads the settings from a configuration in the form that the server sends.
    pub(crate) fn of_json(
        what: &str,
        config: &str,
        scheduling_of: DeriveScheduling,
    ) -> Result<Self, String> {
        let draft = ConfigDraft::from_json(what, config);
        Self::new(draft.map_err(|errors| errors.to_string())?, what, scheduling_of)
    }

    /// Replaces the batch settings, the scheduler and the instances with those of a `config.pbtxt`.
    /// Other fields may be omitted, as on a server that completes configurations.
    pub(super) fn with_file(self, path: &str) -> Result<Self, String> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| format!("can't read '{path}': {error}"))?;
        let given = parse_config_draft(path, &text).map_err(|errors| errors.to_string())?;
        let mut draft = self.draft;
        let (message, given) = (draft.message_mut(), given.message());
        message.max_batch_size = given.max_batch_size;
        message.scheduling_choice.clone_from(&given.scheduling_choice);
        message.instance_group.clone_from(&given.instance_group);
        message.parameters.clone_from(&given.parameters);
        Self::new(draft, path, self.scheduling_of)
    }

    fn new(
        draft: ConfigDraft,
        file: &str,
        scheduling_of: DeriveScheduling,
    ) -> Result<Self, String> {
        let spec = draft.clone().into_validated_spec(&support(&draft));
        let spec = spec.map_err(|errors| format!("{file}: {errors}"))?;
        if spec.ensemble().is_some() {
            return Err(format!("model '{}' is an ensemble: record its steps", spec.name));
        }
        let scheduling = scheduling_of(&spec);
        if matches!(scheduling.mode, SchedulingMode::Sequence(_)) {
            let name = &spec.name;
            return Err(format!("model '{name}' has a sequence batcher, which is not simulated"));
        }
        let instances = instances(&spec);
        let padded = padded(&spec);
        Ok(Self { draft, scheduling, scheduling_of, instances, padded })
    }

    /// The indices of the padded dimensions in the `dims` of recorded requests.
    pub(super) fn padded_dims(&self, header: &TrafficHeader) -> Vec<usize> {
        let is_padded = |name: &String| self.pads() && self.padded.contains(name);
        (0..).zip(&header.variable).filter(|(_, name)| is_padded(name)).map(|(at, _)| at).collect()
    }

    /// The padding length for requests whose rows have these shapes; `None` if requests are not
    /// padded.
    pub(crate) fn padded_length(&self, shapes: &InputShapes) -> Option<u32> {
        let size = |padded: &String| {
            let (name, place) = padded.rsplit_once(':')?;
            let size = shapes.get(name)?.get(place.parse::<usize>().ok()?)?;
            u32::try_from(*size).ok()
        };
        self.pads().then(|| self.padded.iter().map(|one| size(one).unwrap_or(1)).max().unwrap_or(1))
    }

    fn pads(&self) -> bool {
        match &self.scheduling.mode {
            SchedulingMode::Dynamic(dynamic) => dynamic.padding.is_some(),
            SchedulingMode::Deadline(deadline) => deadline.queue.padding.is_some(),
            SchedulingMode::Default | SchedulingMode::Sequence(_) => false,
        }
    }

    pub(super) fn change(&mut self, changes: &SchedulingChanges) -> Result<(), String> {
        self.instances = changes.instances.unwrap_or(self.instances);
        if let Some(max_batch) = changes.max_batch {
            self.scheduling.max_batch_size = max_batch;
        }
        let batches = changes.max_batch.is_some_and(|size| size > 0);
        if batches || changes.needs_batcher() {
            self.apply(changes);
        }
        let batches_by_deadline = matches!(self.scheduling.mode, SchedulingMode::Deadline(_));
        let unused = changes.delay_us.is_some() || changes.preferred.is_some();
        if batches_by_deadline && unused {
            return Err(String::from(
                "'--delay' and '--preferred' have no effect with a latency objective",
            ));
        }
        Ok(())
    }

    fn apply(&mut self, changes: &SchedulingChanges) {
        let (mut dynamic, mut objective_ns) = match &self.scheduling.mode {
            SchedulingMode::Dynamic(dynamic) => (dynamic.clone(), None),
            SchedulingMode::Deadline(deadline) => {
                (deadline.queue.clone(), Some(deadline.objective_ns))
            }
            SchedulingMode::Default | SchedulingMode::Sequence(_) => {
                (DynamicBatcherSpec::default(), None)
            }
        };
        changes.apply(&mut dynamic);
        objective_ns = changes.objective_us.map(|us| us.saturating_mul(NS_PER_US)).or(objective_ns);
        self.scheduling.mode = match objective_ns {
            Some(objective_ns) => {
                SchedulingMode::Deadline(DeadlineBatcherSpec { objective_ns, queue: dynamic })
            }
            None => SchedulingMode::Dynamic(dynamic),
        };
    }

    /// The latency objective; `u64::MAX` without one.
    pub(super) fn objective_ns(&self) -> u64 {
        match &self.scheduling.mode {
            SchedulingMode::Deadline(deadline) => deadline.objective_ns,
            SchedulingMode::Default | SchedulingMode::Dynamic(_) | SchedulingMode::Sequence(_) => {
                u64::MAX
            }
        }
    }

    /// A short description of the settings.
    pub(super) fn scheduler(&self) -> String {
        match &self.scheduling.mode {
            SchedulingMode::Default => String::from("no batcher"),
            SchedulingMode::Sequence(_) => String::from("sequences"),
            SchedulingMode::Deadline(deadline) => {
                format!("deadlines {} µs", deadline.objective_ns / NS_PER_US)
            }
            SchedulingMode::Dynamic(dynamic) => {
                format!("delay {} µs", dynamic.max_queue_delay_ns / NS_PER_US)
            }
        }
    }
}

impl SchedulingChanges {
    /// Returns true if any setting requires a batcher.
    const fn needs_batcher(&self) -> bool {
        self.delay_us.is_some()
            || self.preferred.is_some()
            || self.queue_size.is_some()
            || self.timeout_us.is_some()
            || self.objective_us.is_some()
    }

    fn apply(&self, dynamic: &mut DynamicBatcherSpec) {
        if let Some(delay_us) = self.delay_us {
            dynamic.max_queue_delay_ns = delay_us.saturating_mul(NS_PER_US);
        }
        if let Some(preferred) = &self.preferred {
            dynamic.preferred_batch_sizes.clone_from(preferred);
        }
        let levels = dynamic.priority_queue_policies.values_mut();
        for policy in levels.chain([&mut dynamic.default_queue_policy]) {
            if let Some(queue_size) = self.queue_size {
                policy.max_queue_size = queue_size;
            }
            if let Some(timeout_us) = self.timeout_us {
                policy.default_timeout_ns = timeout_us.saturating_mul(NS_PER_US);
            }
        }
    }
}

/// The GPUs that the configuration names, or else one GPU, because this machine need not be the
/// server's.
fn support(draft: &ConfigDraft) -> SupportedFeatures {
    let mut support = SupportedFeatures::default();
    let groups = draft.message().instance_group.iter().filter(|group| group.kind == KIND_GPU);
    for group in groups {
        support.gpus.extend(if group.gpus.is_empty() { &[0][..] } else { &group.gpus });
    }
    support.gpus.sort_unstable();
    support.gpus.dedup();
    support.whole_configuration = true;
    support
}

/// The padded dimensions, such as `ids:0`, not counting the batch dimension.
fn padded(spec: &ModelSpec) -> Vec<String> {
    let inputs = spec.own.padding.iter().flat_map(|padding| &padding.inputs);
    inputs.map(|input| format!("{}:{}", input.name, input.axis.saturating_sub(1))).collect()
}

/// The total number of instances in all groups, at least one.
fn instances(spec: &ModelSpec) -> u32 {
    let groups = spec.instance_groups.iter().filter(|group| !group.passive);
    let count = |group: &galatea_config::InstanceGroup| {
        let devices = u32::try_from(group.gpus.len()).unwrap_or(u32::MAX).max(1);
        group.count.saturating_mul(devices)
    };
    groups.map(count).fold(0, u32::saturating_add).max(1)
}

/// A replacement for a configuration that was not recorded. It doesn't batch requests.
fn without_config(model: &str) -> String {
    let tensor = json!([{ "name": "x", "data_type": "TYPE_FP32", "dims": [1] }]);
    json!({ "name": model, "backend": "unknown", "input": tensor, "output": tensor }).to_string()
}
