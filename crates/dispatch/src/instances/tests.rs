//! Tests of a model's instances: their number, concurrency and placement.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex};

use galatea_backend::{
    Backend, ExecutionPolicy, Instance, InstanceCreation, Model, ModelFiles, ModelHost, Placement,
};
use galatea_config::ModelSpec;
use galatea_infer::Status;
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::testing::LONG;
use crate::testing::{ECHO, FakeBackend, ServerSetup, echo_request, send};
use crate::{HostPolicies, HostPolicySetting};

/// A point where executions meet. Each execution waits until the expected number is present.
#[derive(Default)]
struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    inside: usize,
    most: usize,
    leave: bool,
}

impl Meeting {
    /// Enters and stays until the meeting ends; returns false if that takes too long.
    fn attend(&self) -> bool {
        let mut state = self.state.lock().unwrap();
        state.inside += 1;
        state.most = state.most.max(state.inside);
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(state, LONG, |state| !state.leave);
        let (mut state, timeout) = waited.unwrap();
        state.inside -= 1;
        !timeout.timed_out()
    }

    /// Waits until `count` executions are present at the same time.
    #[track_caller]
    fn wait_for(&self, count: usize) {
        let state = self.state.lock().unwrap();
        let waited = self.changed.wait_timeout_while(state, LONG, |state| state.inside < count);
        let (state, timeout) = waited.unwrap();
        assert!(!timeout.timed_out(), "only {} came", state.inside);
    }

    fn end(&self) -> usize {
        let mut state = self.state.lock().unwrap();
        state.leave = true;
        self.changed.notify_all();
        state.most
    }

    fn backend(self: &Arc<Self>) -> FakeBackend {
        let meeting = self.clone();
        FakeBackend::with_action(ExecutionPolicy::Blocking, move |_| {
            assert!(meeting.attend(), "the meeting has not ended");
            Ok(())
        })
    }
}

#[test]
fn each_instance_executes_a_request_concurrently() {
    let meeting = Arc::new(Meeting::default());
    let text = format!("{ECHO} instance_group {{ count: 3 }}");
    let server = ServerSetup::new(text, meeting.backend()).serve();
    let inboxes: Vec<_> = (0..4).map(|_| send(&server, echo_request(&[1, 1]))).collect();
    meeting.wait_for(3);
    // The fourth request waits until one of the other three is done.
    let statistics = server.statistics(Some("echo"), None).unwrap();
    assert_eq!(statistics[0].pending, 1);
    meeting.end();
    for inbox in inboxes {
        inbox.recv_timeout(LONG).unwrap().unwrap();
    }
    assert_eq!(meeting.end(), 3);
}

#[test]
// row: INST-06
fn one_instance_executes_one_request_after_another() {
    let meeting = Arc::new(Meeting::default());
    let server = ServerSetup::new(ECHO, meeting.backend()).serve();
    let inboxes: Vec<_> = (0..3).map(|_| send(&server, echo_request(&[1, 1]))).collect();
    meeting.wait_for(1);
    meeting.end();
    for inbox in inboxes {
        inbox.recv_timeout(LONG).unwrap().unwrap();
    }
    assert_eq!(meeting.end(), 1);
}

#[test]
fn groups_add_up_without_passive_ones() {
    let meeting = Arc::new(Meeting::default());
    let groups = "instance_group [ { count: 2 }, { count: 3 passive: true }, { count: 1 } ]";
    let server = ServerSetup::new(format!("{ECHO} {groups}"), meeting.backend()).serve();
    let inboxes: Vec<_> = (0..6).map(|_| send(&server, echo_request(&[1, 1]))).collect();
    meeting.wait_for(3);
    let status = server.scheduler_status("echo", None).unwrap();
    for name in ["echo_0_0", "echo_0_1", "echo_2_0"] {
        assert!(status.contains(&format!("\"{name}\"")), "{name}: {status}");
    }
    assert!(!status.contains("echo_1_"), "{status}");
    meeting.end();
    for inbox in inboxes {
        inbox.recv_timeout(LONG).unwrap().unwrap();
    }
    assert_eq!(meeting.end(), 3);
}

fn affinity() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}

/// The processors on which a model with these groups executes, if the policy `here` names the
/// first processor.
fn executes_on(policy: ExecutionPolicy, name: &str, groups: &str) -> Vec<usize> {
    let first = affinity()[0];
    let mut policies = HostPolicies::default();
    policies.set(name, HostPolicySetting::CpuCores, &format!("{first}-{first}"));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = seen.clone();
    let backend = FakeBackend::with_action(policy, move |_| {
        noted.lock().unwrap().push(affinity());
        Ok(())
    });
    let sample = "model_warmup { name: 's' batch_size: 1
        inputs { key: 'IN' value { data_type: TYPE_FP32 dims: 1 zero_data: true } } }";
    let text = format!("{ECHO} {sample} {groups}");
    let server = ServerSetup::new(text, backend).host_policies(policies).serve();
    send(&server, echo_request(&[1, 1])).recv_timeout(LONG).unwrap().unwrap();
    let mut seen = seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0], seen[1], "warmup runs where requests do");
    seen.remove(0)
}

#[test]
fn an_instance_runs_on_the_processors_of_its_host_policy() {
    const BLOCKING: ExecutionPolicy = ExecutionPolicy::Blocking;
    let first = vec![affinity()[0]];
    assert_eq!(executes_on(BLOCKING, "here", "instance_group { host_policy: 'here' }"), first);
    assert_eq!(executes_on(BLOCKING, "cpu", ""), first);
    assert_eq!(executes_on(BLOCKING, "model", "instance_group { kind: KIND_MODEL }"), first);
    assert_eq!(executes_on(BLOCKING, "here", ""), affinity());
    assert_eq!(executes_on(BLOCKING, "model", ""), affinity());
    // An instance that needs no thread gets one anyway, because only a thread can be bound.
    assert_eq!(executes_on(ExecutionPolicy::Inline, "cpu", ""), first);
}

#[test]
fn a_missing_processor_fails_the_load() {
    let mut policies = HostPolicies::default();
    policies.set("cpu", HostPolicySetting::CpuCores, "1023-1023");
    let backend = FakeBackend::new(ExecutionPolicy::Blocking);
    let (_, failures) = ServerSetup::new(ECHO, backend).host_policies(policies).load();
    let reason = failures[0].status.message();
    assert!(reason.starts_with("Unable to set NUMA thread affinity: "), "{reason}");
}

type Make = dyn Fn(&str) -> Result<(), Status> + Send + Sync;

/// A backend whose models call `make` with the name of each instance that they create.
struct Maker {
    making: InstanceCreation,
    make: Arc<Make>,
    backend: FakeBackend,
}

impl Maker {
    fn new(
        making: InstanceCreation,
        make: impl Fn(&str) -> Result<(), Status> + Send + Sync + 'static,
    ) -> Self {
        let backend = FakeBackend::new(ExecutionPolicy::Blocking);
        Self { making, make: Arc::new(make), backend }
    }
}

impl Backend for Maker {
    fn execution_policy(&self, spec: &ModelSpec) -> ExecutionPolicy {
        self.backend.execution_policy(spec)
    }

    fn load(
        &self,
        spec: Arc<ModelSpec>,
        files: &dyn ModelFiles,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn Model>, Status> {
        let model = self.backend.load(spec, files, host)?;
        Ok(Box::new(Made { making: self.making, make: self.make.clone(), model }))
    }
}

struct Made {
    making: InstanceCreation,
    make: Arc<Make>,
    model: Box<dyn Model>,
}

impl Model for Made {
    fn create_instance(&self, at: &Placement) -> Result<Box<dyn Instance>, Status> {
        (self.make)(&at.name)?;
        self.model.create_instance(at)
    }

    fn instance_creation(&self) -> InstanceCreation {
        self.making
    }
}

#[test]
fn instances_are_created_in_parallel_if_the_backend_allows_it() {
    let meeting = Arc::new(Meeting::default());
    let inside = meeting.clone();
    let backend = Maker::new(InstanceCreation::Parallel, move |_| {
        assert!(inside.attend(), "the meeting has not ended");
        Ok(())
    });
    let groups = "instance_group [ { count: 3 }, { count: 1 passive: true } ]";
    let setup = ServerSetup::new(format!("{ECHO} {groups}"), backend);
    let loading = std::thread::spawn(move || setup.serve());
    meeting.wait_for(4);
    meeting.end();
    let server = loading.join().unwrap();
    let status = server.scheduler_status("echo", None).unwrap();
    let places = ["echo_0_0", "echo_0_1", "echo_0_2"].map(|name| status.find(name).unwrap());
    assert!(places.is_sorted(), "in the configuration's order: {status}");
    send(&server, echo_request(&[1, 1])).recv_timeout(LONG).unwrap().unwrap();
}

#[test]
// row: INST-12
fn instances_are_created_sequentially_by_default() {
    let made = Arc::new(Mutex::new(Vec::new()));
    let noted = made.clone();
    let backend = Maker::new(InstanceCreation::Sequential, move |name| {
        noted.lock().unwrap().push((name.to_owned(), std::thread::current().id()));
        Ok(())
    });
    ServerSetup::new(format!("{ECHO} instance_group {{ count: 3 }}"), backend).serve();
    let made = made.lock().unwrap();
    let names: Vec<&str> = made.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["echo_0_0", "echo_0_1", "echo_0_2"]);
    assert!(made.iter().all(|(_, thread)| *thread == made[0].1), "on one thread");
}

#[test]
// row: INST-12
fn the_server_decides_whether_instances_are_created_in_parallel() {
    let threads = |declared, parallel_creation| {
        let threads = Arc::new(Mutex::new(BTreeSet::new()));
        let noted = threads.clone();
        let meeting = Arc::new(Meeting::default());
        let inside = meeting.clone();
        let backend = Maker::new(declared, move |_| {
            noted.lock().unwrap().insert(format!("{:?}", std::thread::current().id()));
            let alone = parallel_creation == Some(false);
            assert!(alone || inside.attend(), "the meeting has not ended");
            Ok(())
        });
        let text = format!("{ECHO} instance_group {{ count: 2 }}");
        let setup = ServerSetup::new(text, backend).parallel_creation(parallel_creation);
        let loading = std::thread::spawn(move || setup.serve());
        if parallel_creation == Some(true) {
            meeting.wait_for(2);
            meeting.end();
        }
        loading.join().unwrap();
        threads.lock().unwrap().len()
    };
    assert_eq!(threads(InstanceCreation::Parallel, Some(false)), 1);
    assert_eq!(threads(InstanceCreation::Sequential, Some(true)), 2);
}

#[test]
fn no_instance_is_begun_after_a_failed_one() {
    const COUNT: usize = 500;
    let begun = Arc::new(Mutex::new(0));
    let counted = begun.clone();
    let backend = Maker::new(InstanceCreation::Parallel, move |name| {
        *counted.lock().unwrap() += 1;
        Err(Status::unavailable(format!("no room for {name}")))
    });
    let text = format!("{ECHO} instance_group {{ count: {COUNT} }}");
    let (_, failures) = ServerSetup::new(text, backend).load();
    let reason = failures[0].status.message();
    assert!(reason.starts_with("no room for echo_0_"), "{reason}");
    let begun = *begun.lock().unwrap();
    assert!(begun <= 16, "{begun} were begun");
}

#[test]
fn a_panic_of_an_instance_fails_the_load() {
    let backend = Maker::new(InstanceCreation::Parallel, |name| {
        assert_ne!(name, "echo_0_1", "planned");
        Ok(())
    });
    let text = format!("{ECHO} instance_group {{ count: 3 }}");
    let (_, failures) = ServerSetup::new(text, backend).load();
    let reason = failures[0].status.message();
    assert_eq!(reason, "the backend failed while it loaded the model");
}
