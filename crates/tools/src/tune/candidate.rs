//! The configurations under comparison.

use galatea_config::OWN_PARAMETERS;
use serde_json::{Map, Value, json};

/// The parameter for the latency objective.
pub(super) const OBJECTIVE: &str = "latency_objective_us";

/// Fields of `dynamic_batching`.
pub(super) const DELAY: &str = "max_queue_delay_microseconds";
pub(super) const PREFERRED: &str = "preferred_batch_size";

/// The number of instances and of threads per instance, on which execution costs depend.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Resources {
    pub(super) instances: u32,
    /// The number of threads per instance; `None` leaves it to the backend.
    pub(super) threads: Option<u32>,
}

/// A candidate configuration.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) resources: Resources,
    /// The largest batch; 1 means no batching.
    pub(super) max_batch: u32,
    pub(super) delay_us: u64,
    /// The latency objective. If it is set, the delay has no effect.
    pub(super) objective_us: Option<u64>,
}

/// The parameter for the threads of a backend's models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ThreadsParameter {
    backend: &'static str,
    pub(super) name: &'static str,
    /// The parameters that count the threads of all instances together.
    totals: &'static [&'static str],
}

/// The backends whose models have such a parameter.
const THREADS_PARAMETERS: [ThreadsParameter; 2] = [
    ThreadsParameter { backend: "onnxruntime", name: "intra_op_thread_count", totals: &[] },
    ThreadsParameter {
        backend: "openvino",
        name: "INFERENCE_NUM_THREADS",
        totals: &["NUM_STREAMS", "PERFORMANCE_HINT"],
    },
];

impl ThreadsParameter {
    /// The parameter for a model with this configuration; `None` if its backend has no such
    /// parameter.
    pub(super) fn of(config: &Value) -> Option<&'static Self> {
        THREADS_PARAMETERS.iter().find(|one| config["backend"] == one.backend)
    }

    /// Returns true if a parameter with this name determines threads.
    pub(super) fn is_name(name: &str) -> bool {
        THREADS_PARAMETERS.iter().any(|one| one.name == name)
    }

    /// The parameter's value in this configuration, for instances with this number of threads each.
    pub(super) fn value(&self, config: &Value, instances: u32, threads: u32) -> u32 {
        let parameters = &config["parameters"];
        let is_total = self.totals.iter().any(|name| parameters.get(name).is_some());
        if is_total { instances.saturating_mul(threads) } else { threads }
    }
}

impl Candidate {
    /// Returns the configuration with this candidate's settings. Everything else stays the same:
    /// priorities, queue limits, padding, and the size of requests that are not batched.
    pub(super) fn apply(&self, own: &Value) -> Value {
        let mut config = own.clone();
        set_resources(&mut config, self.resources);
        let own_max = max_batch_size(own);
        let Some(fields) = config.as_object_mut() else { return config };
        if self.max_batch <= 1 {
            fields.remove("dynamic_batching");
            parameters(fields).retain(|name, _| !needs_batching(name));
            return config;
        }
        if own_max > 0 {
            fields.insert(String::from("max_batch_size"), json!(self.max_batch));
        }
        let mut batching = if joins(own) { own["dynamic_batching"].clone() } else { json!({}) };
        self.apply_delay(&mut batching);
        fields.insert(String::from("dynamic_batching"), batching);
        if let Some(objective_us) = self.objective_us {
            let value = json!({ "string_value": objective_us.to_string() });
            parameters(fields).insert(String::from(OBJECTIVE), value);
        }
        config
    }

    fn apply_delay(&self, batching: &mut Value) {
        let delay = self.objective_us.map_or(self.delay_us, |_| 0);
        let Some(batching) = batching.as_object_mut() else { return };
        if delay > 0 || batching.contains_key(DELAY) {
            batching.insert(String::from(DELAY), json!(delay));
        }
        if let Some(sizes) = batching.get_mut(PREFERRED).and_then(Value::as_array_mut) {
            sizes.retain(|size| size.as_u64().is_some_and(|size| size <= self.max_batch.into()));
        }
    }

    /// Returns true if the candidate accepts every request that the model's own configuration
    /// accepts, and batches requests if that configuration does.
    pub(super) fn keeps(&self, own: &Value) -> bool {
        if self.max_batch <= 1 {
            return !joins(own);
        }
        u64::from(self.max_batch) >= max_batch_size(own)
    }

    /// A short description of the settings.
    pub(super) fn text(&self) -> String {
        let batches = match (self.max_batch, self.objective_us) {
            (0 | 1, _) => String::from("no batching"),
            (size, Some(objective_us)) => format!("batches to {size}, objective {objective_us} µs"),
            (size, None) => format!("batches to {size}, delay {} µs", self.delay_us),
        };
        format!("{}, {batches}", self.resources.text())
    }
}

impl Resources {
    /// A short description.
    pub(super) fn text(self) -> String {
        let threads =
            self.threads.map_or_else(String::new, |threads| format!(", threads {threads}"));
        format!("instances {}{threads}", self.instances)
    }
}

/// The `max_batch_size` of a configuration.
pub(super) fn max_batch_size(config: &Value) -> u64 {
    config["max_batch_size"].as_u64().unwrap_or(0)
}

/// Returns true if a configuration batches requests.
pub(super) fn joins(config: &Value) -> bool {
    config.get("dynamic_batching").is_some_and(|batching| !batching.is_null())
}

/// Returns true if a configuration has its own latency objective.
pub(super) fn has_objective(config: &Value) -> bool {
    config["parameters"].get(OBJECTIVE).is_some()
}

/// Returns true if a configuration has preferred sizes, which contradict an objective.
pub(super) fn has_preferred_sizes(config: &Value) -> bool {
    let sizes = config["dynamic_batching"][PREFERRED].as_array();
    sizes.is_some_and(|sizes| !sizes.is_empty())
}

/// Returns true if a parameter is refused without `dynamic_batching`.
pub(super) fn needs_batching(parameter: &str) -> bool {
    OWN_PARAMETERS.iter().any(|own| own.needs_batcher && own.matches_name(parameter))
}

/// Removes the sharing of executions by equal requests, because requests of measurements may be
/// equal.
pub(super) fn without_coalescing(mut config: Value) -> Value {
    if let Some(fields) = config.as_object_mut() {
        parameters(fields).remove("coalesce");
    }
    config
}

/// The configuration for measuring execution costs: batches of this size, each made of one request.
pub(super) fn with_resources(config: &Value, resources: Resources, max_batch: u32) -> Value {
    let mut config = config.clone();
    set_resources(&mut config, resources);
    let has_batches = max_batch_size(&config) > 0;
    let Some(fields) = config.as_object_mut() else { return config };
    fields.remove("dynamic_batching");
    if has_batches {
        fields.insert(String::from("max_batch_size"), json!(max_batch.max(1)));
    }
    parameters(fields).retain(|name, _| !needs_batching(name));
    without_coalescing(config)
}

/// Sets the number of instances and threads. If there are several groups, only the first is kept.
fn set_resources(config: &mut Value, resources: Resources) {
    let usual = instances(config);
    let parameter = resources
        .threads
        .zip(ThreadsParameter::of(config))
        .map(|(threads, one)| (one.name, one.value(config, resources.instances, threads)));
    let Some(fields) = config.as_object_mut() else { return };
    if usual != resources.instances || fields.get("instance_group").is_none() {
        let own = fields.get("instance_group").and_then(|groups| groups.get(0)).cloned();
        let mut group = own.unwrap_or_else(|| json!({ "kind": "KIND_CPU" }));
        group["count"] = json!(resources.instances);
        fields.insert(String::from("instance_group"), json!([group]));
    }
    if let Some((name, value)) = parameter {
        let value = json!({ "string_value": value.to_string() });
        parameters(fields).insert(String::from(name), value);
    }
}

/// The total number of instances in all groups.
pub(super) fn instances(config: &Value) -> u32 {
    let groups = config["instance_group"].as_array().map_or(&[][..], Vec::as_slice);
    let count = |group: &Value| u32::try_from(group["count"].as_u64().unwrap_or(1).max(1));
    groups.iter().filter_map(|group| count(group).ok()).sum::<u32>().max(1)
}

fn parameters(fields: &mut Map<String, Value>) -> &mut Map<String, Value> {
    let value = fields.entry("parameters").or_insert_with(|| json!({}));
    if !value.is_object() {
        *value = json!({});
    }
    value.as_object_mut().unwrap_or_else(|| unreachable!("it was made an object"))
}

/// The combinations of instances and threads to measure, as far as they fit on the processors.
pub(super) fn resources(most: u32, processors: u32, has_threads: bool) -> Vec<Resources> {
    let mut all = Vec::new();
    let mut instances = 1;
    while instances <= most {
        all.push(Resources { instances, threads: None });
        if has_threads {
            for threads in [1, (processors / instances).max(1)] {
                all.push(Resources { instances, threads: Some(threads) });
            }
        }
        instances = if instances < most { (instances * 2).min(most) } else { instances + 1 };
    }
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threads_of_openvino_are_those_of_all_instances_if_streams_are_given() {
        let resources = Resources { instances: 3, threads: Some(2) };
        for (backend, given, parameter, value) in [
            ("onnxruntime", "NUM_STREAMS", "intra_op_thread_count", json!("2")),
            ("openvino", "other", "INFERENCE_NUM_THREADS", json!("2")),
            ("openvino", "NUM_STREAMS", "INFERENCE_NUM_THREADS", json!("6")),
            ("openvino", "PERFORMANCE_HINT", "INFERENCE_NUM_THREADS", json!("6")),
            ("identity", "other", "intra_op_thread_count", json!(null)),
        ] {
            let given = json!({ given: { "string_value": "1" } });
            let mut config = json!({ "backend": backend, "parameters": given });
            set_resources(&mut config, resources);
            assert_eq!(config["parameters"][parameter]["string_value"], value, "{backend}");
        }
    }

    #[test]
    fn settings_replace_those_of_the_configuration_and_the_rest_stays() {
        let config = json!({
            "backend": "onnxruntime",
            "max_batch_size": 4,
            "parameters": { "latency_objective_us": { "string_value": "5" }, "a": { "string_value": "b" } },
            "instance_group": [{ "count": 7, "kind": "KIND_GPU", "gpus": [1] }],
            "dynamic_batching": { "preserve_ordering": true, "preferred_batch_size": [2, 4] },
        });
        let resources = Resources { instances: 2, threads: Some(1) };
        let some = Candidate { resources, max_batch: 8, delay_us: 100, objective_us: None };
        let applied = some.apply(&config);
        assert_eq!(applied["max_batch_size"], 8);
        let batching = json!({ "preserve_ordering": true, "preferred_batch_size": [2, 4],
                               "max_queue_delay_microseconds": 100 });
        assert_eq!(applied["dynamic_batching"], batching);
        let group = json!([{ "count": 2, "kind": "KIND_GPU", "gpus": [1] }]);
        assert_eq!(applied["instance_group"], group);
        let threads = &applied["parameters"]["intra_op_thread_count"]["string_value"];
        assert_eq!((threads, applied["parameters"].as_object().unwrap().len()), (&json!("1"), 3));
        let less = Candidate { max_batch: 2, ..some }.apply(&config);
        assert_eq!(less["dynamic_batching"]["preferred_batch_size"], json!([2]));
        let alone = Candidate { max_batch: 1, ..some }.apply(&config);
        assert_eq!((&alone["max_batch_size"], alone.get("dynamic_batching")), (&json!(4), None));
        assert_eq!(some.text(), "instances 2, threads 1, batches to 8, delay 100 µs");
    }

    #[test]
    fn smaller_batches_are_known_from_the_others() {
        let one = |max_batch| Candidate {
            resources: Resources { instances: 1, threads: None },
            max_batch,
            delay_us: 0,
            objective_us: None,
        };
        let joined = json!({ "max_batch_size": 4, "dynamic_batching": {} });
        assert_eq!([1, 2, 4, 8].map(|size| one(size).keeps(&joined)), [false, false, true, true]);
        let single = json!({ "max_batch_size": 4 });
        assert_eq!([1, 2, 4].map(|size| one(size).keeps(&single)), [true, false, true]);
        assert!(one(1).keeps(&json!({})));
    }

    #[test]
    fn padding_goes_only_where_requests_are_not_joined() {
        let config = json!({
            "max_batch_size": 4, "dynamic_batching": {},
            "parameters": { "batch_padding": { "string_value": "ids=0" }, "batch_padding_budget": {} },
        });
        let resources = Resources { instances: 1, threads: None };
        let some = Candidate { resources, max_batch: 8, delay_us: 0, objective_us: None };
        let names = |config: &Value| config["parameters"].as_object().unwrap().len();
        assert_eq!(names(&with_resources(&config, resources, 8)), 0);
        assert_eq!(some.apply(&config)["parameters"], config["parameters"]);
        assert_eq!(names(&Candidate { max_batch: 1, ..some }.apply(&config)), 0);
        assert_eq!(names(&Candidate { objective_us: Some(5), ..some }.apply(&config)), 3);
    }

    #[test]
    fn measurements_execute_equal_requests_one_by_one() {
        let config = json!({ "parameters": { "coalesce": { "string_value": "true" } } });
        let resources = Resources { instances: 1, threads: None };
        let alone = Candidate { resources, max_batch: 1, delay_us: 0, objective_us: None };
        let none = json!({});
        assert_eq!(alone.apply(&config)["parameters"], config["parameters"]);
        assert_eq!(with_resources(&config, resources, 8)["parameters"], none);
        assert_eq!(without_coalescing(alone.apply(&config))["parameters"], none);
    }

    #[test]
    fn instances_share_the_processors() {
        let text = |one: &Resources| (one.instances, one.threads);
        let found: Vec<_> = resources(3, 4, true).iter().map(text).collect();
        let expected = [
            (1, None),
            (1, Some(1)),
            (1, Some(4)),
            (2, None),
            (2, Some(1)),
            (2, Some(2)),
            (3, None),
            (3, Some(1)),
        ];
        assert_eq!(found, expected);
        assert_eq!(resources(1, 4, false).len(), 1);
    }
}
