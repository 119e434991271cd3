//! Notices to a model's repository agents.

use galatea_backend::ModelRepositoryAgents;

use super::*;

/// A notice that agents must never receive.
pub(super) const LOADED_TOO_LATE: &str = "loaded after unloading";

/// Agents of one definition that record their notices.
pub(super) struct AgentRecorder {
    controls: Arc<Controls>,
    number: usize,
}

impl AgentRecorder {
    /// The agents, if the configuration specifies any.
    pub(super) fn of(
        draft: &ConfigDraft,
        controls: &Arc<Controls>,
    ) -> Option<Box<dyn ModelRepositoryAgents>> {
        if draft.repository_agents().is_empty() {
            return None;
        }
        let number = controls.agent_count.fetch_add(1, Ordering::SeqCst) + 1;
        let recorder = Self { controls: controls.clone(), number };
        recorder.write("asked");
        Some(Box::new(recorder))
    }

    /// Records a notice. Repeats are not recorded.
    fn write(&self, what: &str) {
        let mut told = self.controls.notices.lock().unwrap();
        let line = format!("{} {what}", self.number);
        if !told.contains(&line) {
            told.push(line);
        }
    }
}

impl ModelRepositoryAgents for AgentRecorder {
    fn loaded(&self) {
        let unloading = format!("{} unloading", self.number);
        let is_late = self.controls.notices.lock().unwrap().contains(&unloading);
        self.write(if is_late { LOADED_TOO_LATE } else { "loaded" });
    }

    fn load_failed(&self) {
        self.write("failed");
    }

    fn unloading(&self) {
        self.write("unloading");
        self.controls.unloading.pass();
        assert!(!self.controls.agents_panic.load(Ordering::SeqCst), "planned");
    }
}

impl Drop for AgentRecorder {
    fn drop(&mut self) {
        let instances = self.controls.instances.load(Ordering::SeqCst);
        self.write(&format!("gone, {instances} instances left"));
    }
}

pub(super) fn take_notices(world: &World) -> Vec<String> {
    std::mem::take(&mut *world.controls.notices.lock().unwrap())
}

/// Waits for all expected notices, then checks the notices received since the last check.
#[track_caller]
fn check(world: &World, expected: &[&str]) {
    until(|| world.controls.notices.lock().unwrap().len() >= expected.len());
    assert_eq!(take_notices(world), expected);
}

pub(super) fn with_agents(text: &str) -> String {
    format!("{text} model_repository_agents {{ agents {{ name: \"recorder\" }} }}")
}

fn put(world: &World, tag: &str, versions: &[i64]) {
    world.put_text("m", &with_agents(&config(tag, 1)), versions);
}

#[test]
fn a_lease_begins_with_the_load_and_ends_after_the_last_version() {
    let world = World::new();
    put(&world, "one", &[1, 2]);
    world.load("m").unwrap();
    check(&world, &["1 asked", "1 loaded"]);
    world.load("m").unwrap();
    check(&world, &[]);
    put(&world, "two", &[1, 2]);
    world.load("m").unwrap();
    let reload = ["2 asked", "1 unloading", "2 loaded", "1 gone, 2 instances left"];
    check(&world, &reload);
    world.controls.executing.close();
    let asked = InferenceRequest { model_name: "m".into(), ..echo_request(&[1, 1]) };
    let inbox = send(&world.server, asked);
    world.controls.executing.wait_for(1);
    world.unload("m");
    until(|| world.instances() == 1);
    check(&world, &["2 unloading"]);
    world.controls.executing.open();
    assert_eq!(inbox.recv_timeout(LONG).unwrap().unwrap().id, "two");
    check(&world, &["2 gone, 0 instances left"]);
}

#[test]
fn a_failed_load_ends_only_its_own_lease() {
    let world = World::new();
    put(&world, "corrupt", &[1]);
    world.load("m").unwrap_err();
    check(&world, &["1 asked", "1 failed", "1 gone, 0 instances left"]);
    put(&world, "one", &[1]);
    world.load("m").unwrap();
    check(&world, &["2 asked", "2 loaded"]);
    put(&world, "corrupt2", &[1, 2]);
    world.load("m").unwrap_err();
    check(&world, &["3 asked", "3 failed", "3 gone, 1 instances left"]);
    assert_eq!(world.tag("m"), "one");
}

#[test]
fn versions_that_agents_may_have_changed_are_reloaded() {
    let world = World::new();
    put(&world, "one", &[1]);
    world.load("m").unwrap();
    world.put_config("m", &with_agents(&config("one", 2)), &[1]);
    world.load("m").unwrap();
    let expected = ["1 asked", "1 loaded", "2 asked", "1 unloading", "2 loaded"];
    check(&world, &[&expected[..], &["1 gone, 2 instances left"]].concat());
    // The result is the same if the new configuration has no agents.
    world.put_config("m", &config("one", 1), &[1]);
    world.load("m").unwrap();
    check(&world, &["2 unloading", "2 gone, 1 instances left"]);
}

#[test]
fn the_exit_ends_every_lease() {
    let world = World::new();
    put(&world, "one", &[1]);
    world.load("m").unwrap();
    // This ensemble waits for a model that doesn't exist.
    world.put_text("e", &with_agents(&ensemble_of("nothing")), &[1]);
    world.load("e").unwrap_err();
    world.server.begin_exit();
    assert_eq!(world.server.unload_all(LONG), 0);
    let mut told = take_notices(&world);
    told.sort();
    let first = ["1 asked", "1 gone, 0 instances left", "1 loaded", "1 unloading", "2 asked"];
    assert_eq!(told[..5], first);
    assert!(told[5].starts_with("2 gone") && told.len() == 6, "{told:?}");
}

#[test]
fn an_ensemble_keeps_its_agents_while_its_models_change() {
    let world = World::new();
    world.put("m", "one", &[1]);
    world.put_text("e", &with_agents(&ensemble_of("m")), &[1]);
    world.load("e").unwrap();
    check(&world, &["1 asked", "1 loaded"]);
    world.put("m", "two", &[1]);
    world.load("m").unwrap();
    assert_eq!(world.tag("e"), "two");
    until(|| world.instances() == 2);
    // The ensemble was reloaded, and its agents received no other notice.
    let told = take_notices(&world);
    assert!(told.iter().all(|line| line == "1 loaded"), "{told:?}");
    world.unload("e");
    check(&world, &["1 unloading", "1 gone, 1 instances left"]);
}

#[test]
fn agents_that_were_told_of_the_unload_take_no_other_load() {
    let world = World::new();
    world.put("m", "one", &[1]);
    world.put_text("e", &with_agents(&ensemble_of("m")), &[1]);
    world.load("e").unwrap();
    world.load("m").unwrap();
    check(&world, &["1 asked", "1 loaded"]);
    // A snapshot keeps the ensemble's lease.
    let snapshot = world.server.registry.snapshot();
    world.unload("m");
    check(&world, &["1 unloading"]);
    world.load("m").unwrap();
    check(&world, &[]);
    world.ask("e", None).unwrap_err();
    world.load("e").unwrap();
    check(&world, &["2 asked", "2 loaded"]);
    world.ask("e", None).unwrap();
    drop(snapshot);
}

#[test]
fn agents_take_no_other_load_once_the_unload_was_ordered() {
    let world = World::new();
    world.put("m", "one", &[1]);
    world.put_text("b", &with_agents(&ensemble_of("m")), &[1]);
    world.put_text("a", &with_agents(&ensemble_of("b")), &[1]);
    world.load("a").unwrap();
    check(&world, &["1 asked", "2 asked", "2 loaded", "1 loaded"]);
    world.controls.unloading.close();
    std::thread::scope(|scope| {
        let unload = scope.spawn(|| world.server.unload_model("a", true));
        world.controls.unloading.wait_for(1);
        // The agents of a are being notified; those of b are next.
        let load = scope.spawn(|| world.load("b"));
        let asked = String::from("3 asked");
        eventually(|| world.controls.notices.lock().unwrap().contains(&asked));
        world.controls.unloading.open();
        load.join().unwrap().unwrap();
        unload.join().unwrap().unwrap();
    });
    assert_eq!(world.tag("b"), "one");
    // The agents may be dropped at any time.
    let mut told = take_notices(&world);
    told.retain(|line| !line.contains("gone"));
    assert_eq!(told, ["1 unloading", "3 asked", "2 unloading", "3 loaded"]);
}

#[test]
fn agents_of_an_incompatible_ensemble_are_asked_again() {
    let world = World::new();
    world.put("m", "one", &[1]);
    let misfit = ensemble_of("m").replace("key: \"OUT\"", "key: \"NOTHING\"");
    world.put_text("e", &with_agents(&misfit), &[1]);
    for number in 1..=3 {
        if number == 3 {
            // Now the ensemble is blocked by a missing model, but has not failed itself.
            world.unload("m");
            until(|| world.instances() == 0);
        }
        let status = world.load("e").unwrap_err();
        assert!(status.message().contains("NOTHING"), "{status}");
        let asked = format!("{number} asked");
        let failed = format!("{number} failed");
        let gone = format!("{number} gone, 1 instances left");
        check(&world, &[&asked, &failed, &gone]);
    }
    world.put_text("e", &with_agents(&ensemble_of("m")), &[1]);
    world.load("e").unwrap();
    check(&world, &["4 asked", "4 loaded"]);
}

#[test]
fn agents_of_an_ensemble_that_lacks_a_version_are_told_that_its_load_failed() {
    let world = World::new();
    world.put("m", "one", &[1]);
    let lacks = ensemble_of("m").replace("model_version: -1", "model_version: 7");
    world.put_text("e", &with_agents(&lacks), &[1]);
    let status = world.load("e").unwrap_err();
    assert!(status.message().contains("required version 7"), "{status}");
    check(&world, &["1 asked", "1 failed", "1 gone, 1 instances left"]);
}
