//! A model's session settings.
//!
//! Unlisted parameters are ignored, because a configuration's parameters are free-form and may be
//! intended for other readers.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};

use galatea_config::{InstanceKind, ModelSpec};
use galatea_infer::Status;
use galatea_runtime::parameters::{bool_parameter, integer_parameter, invalid_value_error};
use galatea_runtime::threads::{ThreadDemand, ThreadPoolChoice};
use galatea_runtime::{OnOff, c_string};
use galatea_tensor::DataType;

use crate::api::{ExecutionMode, GraphLevel, OrtEnvironment, RunOptions, SessionOptions};

const ARENA_SHRINKAGE: &str = "memory.enable_memory_arena_shrinkage";
const DEVICE_ALLOCATOR: &str = "session.use_device_allocator_for_initializers";
const GRAPH_ANNOTATION: &CStr = c"gpu_graph_id";
const INTRA_OP_SPINNING: &str = "session.intra_op.allow_spinning";
const INTER_OP_SPINNING: &str = "session.inter_op.allow_spinning";

/// A model's settings, parsed and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelSettings {
    graph_level: GraphLevel,
    execution_mode: ExecutionMode,
    /// The number of threads per execution; `None` leaves the decision to the server.
    intra_op_threads: Option<i32>,
    /// The number of threads per execution; `None` leaves the decision to the library.
    inter_op_threads: Option<i32>,
    memory_arena: Option<OnOff>,
    memory_pattern: Option<OnOff>,
    device_allocator: Option<OnOff>,
    intra_op_spinning: Option<OnOff>,
    inter_op_spinning: Option<OnOff>,
    arena_shrinkage: Option<CString>,
}

impl ModelSettings {
    /// Parses a model's parameters and optimization settings.
    pub(crate) fn parse(spec: &ModelSpec) -> Result<Self, Status> {
        let values = &spec.parameters;
        let memory_arena = bool_parameter(values, "enable_mem_arena")?;
        let arena_shrinkage = arena_shrinkage(spec, memory_arena)?;
        // The arena would keep the largest tensor of strings forever. It stores an object of at
        // least 32 bytes for each string, and the contents are outside the arena anyway.
        let of_strings = arena_shrinkage.is_none() && has_strings(spec);
        Ok(Self {
            graph_level: graph_level(spec.optimization.graph_level),
            execution_mode: execution_mode(values)?,
            intra_op_threads: threads(values, "intra_op_thread_count")?,
            inter_op_threads: threads(values, "inter_op_thread_count")?,
            memory_arena: memory_arena.or(of_strings.then_some(OnOff::Off)),
            memory_pattern: bool_parameter(values, "enable_mem_pattern")?,
            device_allocator: bool_parameter(values, DEVICE_ALLOCATOR)?,
            intra_op_spinning: bool_parameter(values, INTRA_OP_SPINNING)?,
            inter_op_spinning: bool_parameter(values, INTER_OP_SPINNING)?,
            arena_shrinkage,
        })
    }

    /// The threads that the model requests, in a session that `instances` instances share.
    pub(crate) fn thread_demand(&self, instances: u32) -> ThreadDemand {
        let spins = [self.intra_op_spinning, self.inter_op_spinning].contains(&Some(OnOff::On));
        let parallel = self.execution_mode == ExecutionMode::Parallel;
        ThreadDemand {
            instances,
            intra_op_threads: self.intra_op_threads,
            needs_own_pool: spins || parallel || self.inter_op_threads.is_some(),
        }
    }

    /// The options of a session that `instances` instances share.
    pub(crate) fn session_options(
        &self,
        environment: &OrtEnvironment,
        instances: u32,
        pool: ThreadPoolChoice,
    ) -> Result<SessionOptions, Status> {
        let mut options = SessionOptions::new(environment)?;
        options.set_graph_level(self.graph_level)?;
        options.set_execution_mode(self.execution_mode)?;
        match pool {
            ThreadPoolChoice::Environment => options.use_global_threads()?,
            ThreadPoolChoice::Own { intra_op_threads } => {
                options.set_intra_op_threads(intra_op_threads)?;
                if let Some(threads) = self.inter_op_threads {
                    options.set_inter_op_threads(threads)?;
                }
            }
        }
        if let Some(arena) = self.memory_arena {
            options.set_memory_arena(arena)?;
        }
        if let Some(pattern) = self.memory_pattern {
            options.set_memory_pattern(pattern)?;
        }
        for (key, value) in self.entries(instances) {
            options.set_entry(key, value)?;
        }
        Ok(options)
    }

    fn entries(&self, instances: u32) -> Vec<(&'static str, &'static str)> {
        // Threads that spin while they wait for work take processors from other instances. With a
        // single instance, the library's default remains in effect, which is to spin.
        let spinning = (instances > 1).then_some(OnOff::Off);
        let entries = [
            (DEVICE_ALLOCATOR, self.device_allocator),
            (INTRA_OP_SPINNING, self.intra_op_spinning.or(spinning)),
            (INTER_OP_SPINNING, self.inter_op_spinning.or(spinning)),
        ];
        entries.into_iter().filter_map(|(key, value)| Some((key, value?.digit()))).collect()
    }

    /// Applies the settings to the options of an instance's runs.
    pub(crate) fn apply_to_run(&self, options: &mut RunOptions) -> Result<(), Status> {
        if let Some(devices) = &self.arena_shrinkage {
            let key = c_string(ARENA_SHRINKAGE, "an option's name")?;
            options.set_entry(&key, devices)?;
        }
        // Runs are not recorded or replayed as CUDA graphs, because a replayed graph would read the
        // inputs of the recorded run.
        options.set_entry(GRAPH_ANNOTATION, c"-1")?;
        Ok(())
    }
}

/// The levels in a configuration are relative to its default, which enables all optimizations.
/// Triton defines these four numbers and treats all others as the default.
const fn graph_level(level: i32) -> GraphLevel {
    match level {
        -1 => GraphLevel::Basic,
        1 => GraphLevel::Extended,
        2 => GraphLevel::None,
        _ => GraphLevel::All,
    }
}

fn execution_mode(values: &BTreeMap<String, String>) -> Result<ExecutionMode, Status> {
    match integer_parameter(values, "execution_mode")? {
        None | Some(0) => Ok(ExecutionMode::Sequential),
        Some(1) => Ok(ExecutionMode::Parallel),
        Some(other) => Err(Status::invalid_argument(format!(
            "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 \
             but got {other} ."
        ))),
    }
}

/// A number of threads. Values below 1 mean the default, as in Triton.
fn threads(values: &BTreeMap<String, String>, key: &str) -> Result<Option<i32>, Status> {
    Ok(integer_parameter(values, key)?.filter(|&threads| threads > 0))
}

/// Returns true if the model has a tensor of strings.
fn has_strings(spec: &ModelSpec) -> bool {
    let inputs = spec.inputs.iter().map(|input| input.datatype);
    let mut datatypes = inputs.chain(spec.outputs.iter().map(|output| output.datatype));
    datatypes.any(|datatype| datatype == DataType::Bytes)
}

/// The devices whose arenas shrink after each run, such as `cpu:0;gpu:0`.
///
/// The library validates them at each run, and the run fails if they are invalid. Because they are
/// also validated here, an invalid device makes the load fail instead.
fn arena_shrinkage(
    spec: &ModelSpec,
    memory_arena: Option<OnOff>,
) -> Result<Option<CString>, Status> {
    let Some(text) = spec.parameters.get(ARENA_SHRINKAGE) else { return Ok(None) };
    for device in text.split(';') {
        let (kind, number) = device.split_once(':').unwrap_or((device, ""));
        if !matches!(kind, "cpu" | "gpu") || number.parse::<u16>().is_err() {
            return Err(invalid_value_error(
                ARENA_SHRINKAGE,
                text,
                "a list of devices like 'cpu:0;gpu:0'",
            ));
        }
        if kind == "cpu" && memory_arena == Some(OnOff::Off) {
            return Err(invalid_value_error(
                ARENA_SHRINKAGE,
                text,
                "possible while 'enable_mem_arena' is off",
            ));
        }
        let on_gpu = spec.instance_groups.iter().any(|group| group.kind == InstanceKind::Gpu);
        if kind == "gpu" && !on_gpu {
            return Err(invalid_value_error(
                ARENA_SHRINKAGE,
                text,
                "possible without an instance on a GPU",
            ));
        }
    }
    Ok(Some(c_string(text, ARENA_SHRINKAGE)?))
}

#[cfg(test)]
mod tests {
    use galatea_config::SupportedFeatures;
    use galatea_pbtxt::parse_config_draft;

    use super::*;

    fn settings(parameters: &[(&str, &str)]) -> ModelSettings {
        let mut text = String::from(
            "input [ { name: 'I' data_type: TYPE_FP32 dims: [ 1 ] } ]
             output [ { name: 'O' data_type: TYPE_FP32 dims: [ 1 ] } ]",
        );
        for (key, value) in parameters {
            text.push_str(&format!(
                "\nparameters {{ key: '{key}' value: {{ string_value: '{value}' }} }}"
            ));
        }
        let mut draft = parse_config_draft("config.pbtxt", &text).unwrap();
        draft.resolve_name_and_backend("m", &["model.onnx".to_owned()]).unwrap();
        ModelSettings::parse(&draft.into_validated_spec(&SupportedFeatures::default()).unwrap())
            .unwrap()
    }

    #[test]
    fn settings_that_need_an_own_pool_are_recognized() {
        let needs_own_pool =
            |parameters: &[(&str, &str)]| settings(parameters).thread_demand(3).needs_own_pool;
        assert!(!needs_own_pool(&[]));
        assert!(!needs_own_pool(&[("intra_op_thread_count", "2"), ("execution_mode", "0")]));
        assert!(!needs_own_pool(&[(INTRA_OP_SPINNING, "0"), ("inter_op_thread_count", "0")]));
        assert!(needs_own_pool(&[("execution_mode", "1")]));
        assert!(needs_own_pool(&[("inter_op_thread_count", "2")]));
        assert!(needs_own_pool(&[(INTRA_OP_SPINNING, "1")]));
        let demand = settings(&[("intra_op_thread_count", "2")]).thread_demand(3);
        assert_eq!((demand.instances, demand.intra_op_threads), (3, Some(2)));
        let demand = settings(&[("intra_op_thread_count", "-1")]).thread_demand(3);
        assert_eq!(demand.intra_op_threads, None);
    }

    #[test]
    fn threads_spin_only_with_a_single_instance() {
        let spinning = |settings: &ModelSettings, instances: u32| {
            let entries = settings.entries(instances);
            entries.iter().find(|(key, _)| *key == INTRA_OP_SPINNING).map(|(_, value)| *value)
        };
        assert_eq!(spinning(&settings(&[]), 1), None);
        assert_eq!(spinning(&settings(&[]), 2), Some("0"));
        assert_eq!(spinning(&settings(&[(INTRA_OP_SPINNING, "1")]), 2), Some("1"));
        assert_eq!(spinning(&settings(&[(INTRA_OP_SPINNING, "off")]), 1), Some("0"));
    }

    #[test]
    fn graph_levels_are_those_of_triton() {
        for (level, expected) in [
            (-1, GraphLevel::Basic),
            (0, GraphLevel::All),
            (1, GraphLevel::Extended),
            (2, GraphLevel::None),
        ] {
            assert_eq!(graph_level(level), expected);
        }
    }
}
