//! Applies a candidate's settings to a configuration file with as few changes as possible.

use std::collections::BTreeMap;

use galatea_config::ConfigDraft;
use galatea_pbtxt::{PbtxtEditor, parse_config_draft};
use serde_json::Value;

use super::candidate::{
    Candidate, DELAY, OBJECTIVE, PREFERRED, Resources, ThreadsParameter, instances, joins,
    max_batch_size, needs_batching,
};

/// The text of a configuration, and a description of its changes.
#[derive(Debug)]
pub(super) struct EditedConfig {
    pub(super) text: String,
    pub(super) changes: Vec<String>,
}

/// Applies a candidate's settings, `config`, to the file; `own` is the configuration that the
/// server derived from the file. If there is no file, or the file can't be changed field by field,
/// the result is the whole of `config`.
pub(super) fn edit(
    file: Option<&str>,
    own: &Value,
    candidate: &Candidate,
) -> Result<EditedConfig, String> {
    let config = candidate.apply(own);
    let whole = ConfigDraft::from_json("the best configuration", &config.to_string());
    let whole = whole.map_err(|errors| errors.to_string())?;
    let mut edit = Edit {
        text: PbtxtEditor::new(file.unwrap_or_default()),
        changes: Vec::new(),
        own,
        config: &config,
    };
    edit.all(candidate);
    let Edit { text, mut changes, .. } = edit;
    if let Some(file) = file {
        let edited = settings(file).zip(settings(text.as_str())).is_some_and(|(file, edited)| {
            edited == file.changed_as(&Settings::new(own), Settings::new(&config))
        });
        if edited {
            return Ok(EditedConfig { text: text.as_str().to_owned(), changes });
        }
        changes.push(String::from("the file is written anew, without its comments"));
    }
    Ok(EditedConfig { text: whole.to_pbtxt(), changes })
}

/// Removes the preferred size that the server added to a configuration whose file has none. That
/// size equals the largest batch, and would otherwise remain even if the largest batch changes.
pub(super) fn forget_completed(config: &mut Value, file: Option<&str>) {
    let is_own = file
        .and_then(settings)
        .and_then(|own| own.batching)
        .is_some_and(|(_, preferred)| preferred.as_array().is_some_and(|sizes| !sizes.is_empty()));
    if !is_own && let Some(batching) = config["dynamic_batching"].as_object_mut() {
        batching.remove(PREFERRED);
    }
}

/// The settings that tuning may change, as read from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Settings {
    max_batch_size: u64,
    instances: u32,
    /// The delay and the preferred sizes, if requests are batched.
    batching: Option<(u64, Value)>,
    parameters: BTreeMap<String, String>,
}

impl Settings {
    fn new(config: &Value) -> Self {
        let batching = &config["dynamic_batching"];
        let preferred = batching[PREFERRED].as_array().cloned().unwrap_or_default();
        let delay = batching[DELAY].as_u64().unwrap_or(0);
        let is_tuned = |name: &str| ThreadsParameter::is_name(name) || needs_batching(name);
        let parameters = config["parameters"].as_object().into_iter().flatten();
        let parameters = parameters.filter(|(name, _)| is_tuned(name));
        let text = |value: &Value| value["string_value"].as_str().unwrap_or_default().to_owned();
        Self {
            max_batch_size: max_batch_size(config),
            instances: instances(config),
            batching: joins(config).then_some((delay, Value::Array(preferred))),
            parameters: parameters.map(|(name, value)| (name.clone(), text(value))).collect(),
        }
    }

    /// Returns these file settings, updated with every setting that differs between the server's
    /// configuration and the desired one.
    fn changed_as(self, before: &Self, after: Self) -> Self {
        fn pick<T: PartialEq>(own: T, before: &T, after: T) -> T {
            if *before == after { own } else { after }
        }
        Self {
            max_batch_size: pick(self.max_batch_size, &before.max_batch_size, after.max_batch_size),
            instances: pick(self.instances, &before.instances, after.instances),
            batching: pick(self.batching, &before.batching, after.batching),
            parameters: pick(self.parameters, &before.parameters, after.parameters),
        }
    }
}

/// The settings in a file; `None` if it can't be parsed.
fn settings(text: &str) -> Option<Settings> {
    let draft = parse_config_draft("config.pbtxt", text).ok()?;
    serde_json::from_str(&draft.to_json()).ok().map(|config| Settings::new(&config))
}

struct Edit<'a> {
    text: PbtxtEditor,
    changes: Vec<String>,
    own: &'a Value,
    config: &'a Value,
}

impl Edit<'_> {
    fn all(&mut self, candidate: &Candidate) {
        let (from, to) = (max_batch_size(self.own), max_batch_size(self.config));
        if from != to {
            self.text.set("max_batch_size", &to.to_string());
            self.changes.push(format!("max_batch_size: {from} -> {to}"));
        }
        self.instances();
        self.batching();
        let Resources { instances, threads } = candidate.resources;
        if let (Some(threads), Some(parameter)) = (threads, ThreadsParameter::of(self.config)) {
            let threads = parameter.value(self.config, instances, threads);
            self.text.set_parameter(parameter.name, threads.into());
            self.changes.push(format!("{}: {threads}", parameter.name));
        }
        if let Some(objective_us) = candidate.objective_us {
            self.text.set_parameter(OBJECTIVE, objective_us);
            self.changes.push(format!("{OBJECTIVE}: {objective_us}"));
        }
        let own = self.own["parameters"].as_object().into_iter().flatten();
        for (name, _) in own {
            if self.config["parameters"].get(name).is_none() && needs_batching(name) {
                self.text.remove_parameter(name);
                self.changes.push(format!("{name} is dropped"));
            }
        }
    }

    fn instances(&mut self) {
        let (from, to) = (instances(self.own), instances(self.config));
        if from == to {
            return;
        }
        self.changes.push(format!("instances: {from} -> {to}"));
        let count = to.to_string();
        if self.text.message_count("instance_group") != 1 {
            self.text.remove("instance_group");
            let kind = self.config["instance_group"][0]["kind"].as_str().unwrap_or("KIND_CPU");
            self.text.append(&format!("instance_group [ {{ count: {count} kind: {kind} }} ]"));
        } else {
            self.text.set_within("instance_group", "count", &count);
        }
    }

    fn batching(&mut self) {
        if !joins(self.config) {
            if joins(self.own) {
                self.text.remove("dynamic_batching");
                self.changes.push(String::from("dynamic_batching is dropped"));
            }
            return;
        }
        if !joins(self.own) {
            self.changes.push(String::from("dynamic_batching is added"));
        }
        if self.text.message_count("dynamic_batching") == 0 {
            self.text.append("dynamic_batching { }");
        }
        let (own, config) = (&self.own["dynamic_batching"], &self.config["dynamic_batching"]);
        let delay = |batching: &Value| batching[DELAY].as_u64().unwrap_or(0);
        let (from, to) = (delay(own), delay(config));
        if from != to {
            self.text.set_within("dynamic_batching", DELAY, &to.to_string());
            self.changes.push(format!("{DELAY}: {from} -> {to}"));
        }
        if config[PREFERRED] != own[PREFERRED] {
            let sizes = config[PREFERRED].to_string();
            self.text.set_within("dynamic_batching", PREFERRED, &sizes);
            self.changes.push(format!("{PREFERRED}: {sizes}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::candidate::Resources;
    use super::*;

    const FILE: &str = "\
# Ours.
backend: \"identity\"
max_batch_size: 4  # of the client
input { name: \"x\" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: \"y\" data_type: TYPE_FP32 dims: [ 1 ] }
";

    fn own(batching: &Value) -> Value {
        json!({
            "name": "m", "backend": "identity", "max_batch_size": 4,
            "input": [{ "name": "x", "data_type": "TYPE_FP32", "dims": [1] }],
            "output": [{ "name": "y", "data_type": "TYPE_FP32", "dims": [1] }],
            "instance_group": [{ "name": "m_0", "count": 1, "kind": "KIND_CPU" }],
            "dynamic_batching": batching,
            "parameters": {},
        })
    }

    fn candidate(instances: u32, max_batch: u32) -> Candidate {
        let resources = Resources { instances, threads: None };
        Candidate { resources, max_batch, delay_us: 0, objective_us: None }
    }

    #[test]
    fn only_what_changes_is_written() {
        let edited = edit(Some(FILE), &own(&Value::Null), &candidate(2, 8)).unwrap();
        let expected = FILE.replace("size: 4", "size: 8")
            + "instance_group [ { count: 2 kind: KIND_CPU } ]\ndynamic_batching { }\n";
        assert_eq!(edited.text, expected);
        let changes = ["max_batch_size: 4 -> 8", "instances: 1 -> 2", "dynamic_batching is added"];
        assert_eq!(edited.changes, changes);
        let file = format!("{FILE}dynamic_batching {{ preserve_ordering: true }}\n");
        let same = own(&json!({ "preserve_ordering": true }));
        assert_eq!(edit(Some(&file), &same, &candidate(1, 4)).unwrap().text, file);
        let delayed = Candidate { delay_us: 5, ..candidate(1, 4) };
        let text = edit(Some(&file), &same, &delayed).unwrap().text;
        let delay = "{ max_queue_delay_microseconds: 5 preserve_ordering";
        assert_eq!(text, file.replace("{ preserve_ordering", delay));
    }

    #[test]
    fn a_preferred_size_stays_only_if_the_file_has_it() {
        let batching = json!({ "preferred_batch_size": [4] });
        let left = |file: Option<&str>| {
            let mut config = own(&batching);
            forget_completed(&mut config, file);
            config["dynamic_batching"].clone()
        };
        let file = format!("{FILE}dynamic_batching {{ preferred_batch_size: 4 }}");
        assert_eq!(left(Some(&file)), batching);
        assert_eq!((left(Some(FILE)), left(None)), (json!({}), json!({})));
    }

    #[test]
    fn the_whole_is_written_where_no_file_can_be_changed() {
        let edited = edit(None, &own(&Value::Null), &candidate(1, 8)).unwrap();
        assert!(edited.text.contains("max_batch_size: 8") && edited.text.contains("name: \"y\""));
        // A list from which parameters can't be removed one at a time.
        let padded = json!({ "batch_padding_budget": { "string_value": "5" } });
        let mut config = own(&json!({}));
        config["parameters"] = padded;
        let listed = "parameters [ { key: \"a\" value { string_value: \"b\" } }, \
                      { key: \"batch_padding_budget\" value { string_value: \"5\" } } ]";
        let file = format!("{FILE}dynamic_batching {{ }}\n{listed}\n");
        let edited = edit(Some(&file), &config, &candidate(1, 1)).unwrap();
        assert!(!edited.text.contains("batch_padding") && !edited.text.contains("# Ours"));
        let last = edited.changes.last().unwrap();
        assert_eq!(last, "the file is written anew, without its comments");
    }
}
