//! Configurations that are compared.

use serde_json::{Map, Value, json};

/// The parameter by which ONNX models get their threads, and the one of the latency objective.
const THREADS: &str = "intra_op_thread_count";
const OBJECTIVE: &str = "latency_objective_us";

/// The beginning of the parameters about padding, which is a way to join requests and is refused
/// without that. Candidates with a latency objective join requests of equal lengths alone.
const PADDING: &str = "batch_padding";

/// Instances and the threads of each: what executions cost depends on it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Resources {
    pub(super) instances: u32,
    /// `None` leaves it to the backend.
    pub(super) threads: Option<u32>,
}

/// A configuration.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) resources: Resources,
    /// 1 is without joining requests.
    pub(super) max_batch: u32,
    pub(super) delay_us: u64,
    /// With a latency objective the delay has no effect.
    pub(super) objective_us: Option<u64>,
}

impl Candidate {
    /// The configuration with these settings in place of its own.
    pub(super) fn apply(&self, own: &Value) -> Value {
        let mut config = with_resources(own, self.resources, self.max_batch);
        let Some(fields) = config.as_object_mut() else { return config };
        if self.max_batch > 1 {
            let delay = self.objective_us.map_or(self.delay_us, |_| 0);
            let batching = json!({ "max_queue_delay_microseconds": delay });
            fields.insert(String::from("dynamic_batching"), batching);
        }
        if self.max_batch > 1 && self.objective_us.is_none() {
            let own = own["parameters"].as_object().into_iter().flatten();
            let padding = own.filter(|(name, _)| name.starts_with(PADDING));
            let padding = padding.map(|(name, value)| (name.clone(), value.clone()));
            parameters(fields).extend(padding);
        }
        if let Some(objective_us) = self.objective_us {
            let value = json!({ "string_value": objective_us.to_string() });
            parameters(fields).insert(String::from(OBJECTIVE), value);
        }
        config
    }

    /// The settings in a few words.
    pub(super) fn text(&self) -> String {
        let Resources { instances, threads } = self.resources;
        let threads = threads.map_or_else(String::new, |threads| format!(", threads {threads}"));
        let batches = match (self.max_batch, self.objective_us) {
            (0 | 1, _) => String::from("no batching"),
            (size, Some(objective_us)) => format!("batches to {size}, objective {objective_us} µs"),
            (size, None) => format!("batches to {size}, delay {} µs", self.delay_us),
        };
        format!("instances {instances}{threads}, {batches}")
    }
}

/// The configuration with instances and batches of this size, and no scheduler.
pub(super) fn with_resources(config: &Value, resources: Resources, max_batch: u32) -> Value {
    let mut config = config.clone();
    let Some(fields) = config.as_object_mut() else { return config };
    for choice in ["dynamic_batching", "sequence_batching", "ensemble_scheduling", "instance_group"]
    {
        fields.remove(choice);
    }
    // A model that takes batches takes them of one too.
    let has_batches = fields.get("max_batch_size").and_then(Value::as_i64).unwrap_or(0) > 0;
    if has_batches {
        fields.insert(String::from("max_batch_size"), json!(max_batch.max(1)));
    }
    let group = json!([{ "count": resources.instances, "kind": "KIND_CPU" }]);
    fields.insert(String::from("instance_group"), group);
    parameters(fields).retain(|name, _| name != OBJECTIVE && !name.starts_with(PADDING));
    if let Some(threads) = resources.threads {
        let value = json!({ "string_value": threads.to_string() });
        parameters(fields).insert(String::from(THREADS), value);
    }
    config
}

fn parameters(fields: &mut Map<String, Value>) -> &mut Map<String, Value> {
    let value = fields.entry("parameters").or_insert_with(|| json!({}));
    if !value.is_object() {
        *value = json!({});
    }
    value.as_object_mut().unwrap_or_else(|| unreachable!("it was made an object"))
}

/// The instances and threads that are measured: as many as fit on the processors.
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
    fn settings_replace_those_of_the_configuration() {
        let config = json!({
            "max_batch_size": 4,
            "parameters": { "latency_objective_us": { "string_value": "5" }, "a": { "string_value": "b" } },
            "instance_group": [{ "count": 7 }],
            "dynamic_batching": { "preferred_batch_size": [2] },
        });
        let resources = Resources { instances: 2, threads: Some(1) };
        let some = Candidate { resources, max_batch: 8, delay_us: 100, objective_us: None };
        let applied = some.apply(&config);
        assert_eq!(applied["max_batch_size"], 8);
        assert_eq!(applied["dynamic_batching"], json!({ "max_queue_delay_microseconds": 100 }));
        assert_eq!(applied["instance_group"][0]["count"], 2);
        let names: Vec<&String> = applied["parameters"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["a", "intra_op_thread_count"]);
        let alone = Candidate { max_batch: 1, ..some }.apply(&config);
        assert_eq!((&alone["max_batch_size"], alone.get("dynamic_batching")), (&json!(1), None));
        assert_eq!(some.text(), "instances 2, threads 1, batches to 8, delay 100 µs");
    }

    #[test]
    fn requests_are_padded_only_where_they_are_joined_without_an_objective() {
        let config = json!({
            "max_batch_size": 4,
            "parameters": { "batch_padding": { "string_value": "ids=0" }, "batch_padding_budget": {} },
        });
        let resources = Resources { instances: 1, threads: None };
        let some = Candidate { resources, max_batch: 8, delay_us: 0, objective_us: None };
        let names = |config: &Value| config["parameters"].as_object().unwrap().len();
        assert_eq!(names(&with_resources(&config, resources, 8)), 0);
        assert_eq!(some.apply(&config)["parameters"], config["parameters"]);
        assert_eq!(names(&Candidate { max_batch: 1, ..some }.apply(&config)), 0);
        let timed = Candidate { objective_us: Some(5), ..some }.apply(&config);
        assert_eq!(timed["parameters"], json!({ "latency_objective_us": { "string_value": "5" } }));
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
