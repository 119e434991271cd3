//! Tests of models that share a resource, with a backend controlled by the test.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use galatea_backend::{ExecutionPolicy, ModelFiles};
use galatea_config::SupportedFeatures;
use galatea_infer::InferenceRequest;
use galatea_policy::InstanceId;

use crate::lane::LaneOwner;
use crate::testing::LONG;
use crate::testing::{
    Failure, FakeBackend, FakeModelFiles, ReplyReceiver, ServerSetup, TestServer, echo_request,
    resolved_draft, send,
};
use crate::{ModelDefinition, RateLimiterMode, ResourceLimit};

/// A server, and its instances' executions.
struct Stage {
    server: Arc<TestServer>,
    failures: Vec<Failure>,
    /// The names of models whose executions have begun.
    begun: mpsc::Receiver<String>,
    /// Each message ends one execution.
    end: mpsc::Sender<()>,
}

/// A model with one instance that requires these resources. Each OR adds another instance.
fn model(name: &str, limiter: &str) -> String {
    format!(
        "name: '{name}' backend: 'fake' max_batch_size: 8
         input {{ name: 'IN' data_type: TYPE_FP32 dims: [ -1 ] }}
         output {{ name: 'OUT' data_type: TYPE_FP32 dims: [ -1 ] }}
         instance_group {{ kind: KIND_CPU count: 1 rate_limiter {{ {limiter} }} }}"
    )
    .replace(" OR ", " } } instance_group { kind: KIND_CPU count: 1 rate_limiter { ")
}

fn backend(policy: ExecutionPolicy) -> (FakeBackend, mpsc::Receiver<String>, mpsc::Sender<()>) {
    let (begins, begun) = mpsc::channel();
    let (end, may_end) = mpsc::channel();
    let (begins, may_end) = (Mutex::new(begins), Mutex::new(may_end));
    let backend = FakeBackend::with_action(policy, move |batch| {
        let name = batch[0].request().model_name.clone();
        let _ = begins.lock().unwrap().send(name);
        let _ = may_end.lock().unwrap().recv_timeout(LONG);
        Ok(())
    });
    (backend, begun, end)
}

impl Stage {
    fn new(limit: RateLimiterMode, models: &[(&str, &str)]) -> Self {
        // Instances that need permits get threads, regardless of their backend's policy.
        let policy = match limit {
            RateLimiterMode::Off => ExecutionPolicy::Blocking,
            RateLimiterMode::ExecutionCount(_) => ExecutionPolicy::Inline,
        };
        let (fake, begun, end) = backend(policy);
        let backend = Arc::new(fake);
        let none = FakeBackend::new(policy);
        let (server, mut failures) =
            ServerSetup::new(model("echo", ""), none).rate_limit(limit).load();
        let definitions = models.iter().map(|(name, limiter)| ModelDefinition {
            stop: galatea_infer::CancelToken::default(),
            namespace: None,
            name: String::from(*name),
            draft: resolved_draft(&model(name, limiter)),
            backend: backend.clone(),
            versions: vec![Arc::new(FakeModelFiles { version: 1, ..FakeModelFiles::default() })
                as Arc<dyn ModelFiles>],
            auto_complete: true,
            support: SupportedFeatures::default(),
            agents: None,
        });
        for definition in definitions {
            failures.extend(server.load(&definition));
        }
        Self { server, failures, begun, end }
    }

    fn send(&self, model: &str) -> ReplyReceiver {
        let content = InferenceRequest { model_name: String::from(model), ..echo_request(&[1, 1]) };
        send(&self.server, content)
    }

    /// The model whose execution begins next.
    #[track_caller]
    fn next(&self) -> String {
        self.begun.recv_timeout(LONG).expect("an execution begins")
    }

    fn end_one(&self) {
        self.end.send(()).unwrap();
    }

    fn reason(&self, model: &str) -> String {
        let status = self.server.scheduler_status(model, None).unwrap();
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        status["queues"][0]["waits_for"]["reason"].as_str().unwrap_or_default().to_owned()
    }

    fn end_all(self) {
        for _ in 0..1000 {
            self.end_one();
        }
        assert_eq!(self.server.unload_all(LONG), 0);
    }
}

const UNIT: &str = "resources { name: 'R' count: 1 }";

#[test]
// row: RL-05
fn models_that_share_a_resource_alternate_and_the_status_shows_it() {
    let stage =
        Stage::new(RateLimiterMode::ExecutionCount(Vec::new()), &[("a", UNIT), ("b", UNIT)]);
    assert_eq!(stage.failures, []);
    let first = stage.send("a");
    assert_eq!(stage.next(), "a");
    let second = stage.send("b");
    assert_eq!(stage.reason("b"), "rate_limiter");
    stage.end_one();
    assert_eq!(stage.next(), "b");
    stage.end_one();
    for inbox in [first, second] {
        inbox.recv_timeout(LONG).unwrap().unwrap();
    }
    stage.end_all();
}

#[test]
fn a_request_is_executed_where_the_resources_are_free() {
    let other = "resources { name: 'S' count: 1 }";
    for either in [format!("{UNIT} OR {other}"), format!("{other} OR {UNIT}")] {
        let models = [("a", UNIT), ("b", either.as_str())];
        let stage = Stage::new(RateLimiterMode::ExecutionCount(Vec::new()), &models);
        assert_eq!(stage.failures, []);
        let _first = stage.send("a");
        assert_eq!(stage.next(), "a");
        let _second = stage.send("b");
        assert_eq!(stage.next(), "b");
        let _third = stage.send("b");
        assert_eq!(stage.reason("b"), "rate_limiter");
        stage.end_all();
    }
}

#[test]
fn without_a_rate_limiter_its_settings_are_ignored() {
    let stage = Stage::new(RateLimiterMode::Off, &[("a", UNIT), ("b", UNIT)]);
    let (_first, _second) = (stage.send("a"), stage.send("b"));
    let mut both = [stage.next(), stage.next()];
    both.sort();
    assert_eq!(both, ["a", "b"]);
    stage.end_all();
}

#[test]
fn a_model_of_priority_two_executes_half_as_often() {
    let twice = format!("priority: 2 {UNIT}");
    let models = [("a", UNIT), ("b", twice.as_str())];
    let stage = Stage::new(RateLimiterMode::ExecutionCount(Vec::new()), &models);
    let inboxes: Vec<ReplyReceiver> =
        (0..30).flat_map(|_| [stage.send("a"), stage.send("b")]).collect();
    let mut turns: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..30 {
        *turns.entry(stage.next()).or_default() += 1;
        stage.end_one();
    }
    assert_eq!(turns, BTreeMap::from([(String::from("a"), 20), (String::from("b"), 10)]));
    drop(inboxes);
    stage.end_all();
}

#[test]
fn a_draining_model_still_gets_its_permits() {
    let stage =
        Stage::new(RateLimiterMode::ExecutionCount(Vec::new()), &[("a", UNIT), ("b", UNIT)]);
    let _first = stage.send("a");
    assert_eq!(stage.next(), "a");
    let second = stage.send("b");
    // The third model is idle, and may take a while to end.
    let deadline = Instant::now() + LONG;
    while stage.server.unload_all(Duration::ZERO) > 2 && Instant::now() < deadline {}
    assert_eq!(stage.server.unload_all(Duration::ZERO), 2);
    stage.end_one();
    assert_eq!(stage.next(), "b");
    stage.end_one();
    second.recv_timeout(LONG).unwrap().unwrap();
    assert_eq!(stage.server.unload_all(LONG), 0);
}

#[test]
fn permits_of_a_broken_scheduler_are_taken_back() {
    let stage =
        Stage::new(RateLimiterMode::ExecutionCount(Vec::new()), &[("a", UNIT), ("b", UNIT)]);
    let _first = stage.send("a");
    assert_eq!(stage.next(), "a");
    let _second = stage.send("b");
    stage.server.model("a").dispatcher.break_scheduler();
    stage.end_one();
    assert_eq!(stage.next(), "b");
    stage.end_all();
}

#[test]
fn a_permit_that_many_instances_pass_on_does_not_overflow_the_stack() {
    let many = [UNIT; 200].join(" OR ");
    let models = [("a", many.as_str()), ("b", UNIT), ("c", UNIT)];
    let stage = Stage::new(RateLimiterMode::ExecutionCount(Vec::new()), &models);
    assert_eq!(stage.failures, []);
    let _first = stage.send("b");
    assert_eq!(stage.next(), "b");
    let (_second, _third) = (stage.send("a"), stage.send("c"));
    let dispatcher = |name| stage.server.model(name).dispatcher.clone();
    // All instances of model a are waiting for a permit that they don't need, so each passes it on.
    dispatcher("a").break_scheduler();
    dispatcher("b").break_scheduler();
    let small = std::thread::Builder::new().stack_size(128 << 10);
    std::thread::scope(|scope| {
        let free = || assert!(dispatcher("b").lane_free(InstanceId(0)).is_none());
        small.spawn_scoped(scope, free).unwrap().join().unwrap();
    });
    assert_eq!(stage.next(), "c");
    stage.end_all();
}

/// As in Triton, this holds even if the first count is larger.
#[test]
fn of_a_resource_named_twice_the_last_count_applies() {
    let twice = |first, last| {
        format!("resources [ {{ name: 'R' count: {first} }}, {{ name: 'R' count: {last} }} ]")
    };
    let (grows, shrinks) = (twice(1, 2), twice(2, 1));
    for (limit, needed) in [(0, ["2", "1"].as_slice()), (1, &["2"]), (2, &[])] {
        let limit = ResourceLimit { name: String::from("R"), count: limit, device: None };
        let models = [("grows", grows.as_str()), ("shrinks", shrinks.as_str())];
        let stage = Stage::new(RateLimiterMode::ExecutionCount(vec![limit]), &models);
        let failures: BTreeMap<&str, &str> = stage
            .failures
            .iter()
            .map(|failure| (failure.name.as_str(), failure.status.message()))
            .collect();
        let counts: Vec<&str> =
            failures.values().filter_map(|message| message.rsplit(' ').next()).collect();
        assert_eq!(counts, needed);
    }
    // The required count is also the one that is taken.
    let limit = ResourceLimit { name: String::from("R"), count: 2, device: None };
    let models = [("a", shrinks.as_str()), ("b", shrinks.as_str())];
    let stage = Stage::new(RateLimiterMode::ExecutionCount(vec![limit]), &models);
    let (_first, _second) = (stage.send("a"), stage.send("b"));
    assert_eq!(
        BTreeSet::from([stage.next(), stage.next()]),
        BTreeSet::from(["a", "b"].map(String::from))
    );
    stage.end_all();
}

#[test]
fn a_model_that_could_never_execute_does_not_load() {
    let limit = ResourceLimit { name: String::from("R"), count: 1, device: None };
    let much = "resources { name: 'R' count: 2 }";
    let stage =
        Stage::new(RateLimiterMode::ExecutionCount(vec![limit]), &[("a", UNIT), ("b", much)]);
    let [failure] = &stage.failures[..] else { panic!("{:?}", stage.failures) };
    assert_eq!(failure.name, "b");
    let expected = "Resource count for \"R\" is limited to 1 which will prevent scheduling of one \
                    or more model instances, the minimum required count is 2";
    assert_eq!(failure.status.message(), expected);
    let global = "resources { name: 'R' count: 1 global: true }";
    let stage =
        Stage::new(RateLimiterMode::ExecutionCount(Vec::new()), &[("a", UNIT), ("b", global)]);
    assert!(stage.failures[0].status.message().contains("both global and device-specific"));
}
