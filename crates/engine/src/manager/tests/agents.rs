//! What a model's repository agents are told, and when.

use galatea_backend::ModelAgents;

use super::*;

/// What no agents may be told.
pub(super) const LOADED_TOO_LATE: &str = "loaded after unloading";

/// Agents of one definition, which write down what they are told.
pub(super) struct Diary {
    bench: Arc<Bench>,
    number: usize,
}

impl Diary {
    /// If the configuration names agents.
    pub(super) fn of(draft: &ConfigDraft, bench: &Arc<Bench>) -> Option<Box<dyn ModelAgents>> {
        if draft.repository_agents().is_empty() {
            return None;
        }
        let number = bench.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let diary = Self { bench: bench.clone(), number };
        diary.write("asked");
        Some(Box::new(diary))
    }

    /// What is told again changes nothing.
    fn write(&self, what: &str) {
        let mut told = self.bench.told.lock().unwrap();
        let line = format!("{} {what}", self.number);
        if !told.contains(&line) {
            told.push(line);
        }
    }
}

impl ModelAgents for Diary {
    fn loaded(&self) {
        let unloading = format!("{} unloading", self.number);
        let is_late = self.bench.told.lock().unwrap().contains(&unloading);
        self.write(if is_late { LOADED_TOO_LATE } else { "loaded" });
    }

    fn load_failed(&self) {
        self.write("failed");
    }

    fn unloading(&self) {
        self.write("unloading");
        self.bench.unloading.pass();
        assert!(!self.bench.agents_panic.load(Ordering::SeqCst), "planned");
    }
}

impl Drop for Diary {
    fn drop(&mut self) {
        let instances = self.bench.instances.load(Ordering::SeqCst);
        self.write(&format!("gone, {instances} instances left"));
    }
}

pub(super) fn told(world: &World) -> Vec<String> {
    std::mem::take(&mut *world.bench.told.lock().unwrap())
}

/// What was told since the last time, once it is so much.
#[track_caller]
fn check(world: &World, expected: &[&str]) {
    until(|| world.bench.told.lock().unwrap().len() >= expected.len());
    assert_eq!(told(world), expected);
}

pub(super) fn with_agents(text: &str) -> String {
    format!("{text} model_repository_agents {{ agents {{ name: \"diary\" }} }}")
}

fn put(world: &World, tag: &str, versions: &[i64]) {
    world.put_text("m", &with_agents(&config(tag, 1)), versions);
}

#[test]
fn a_life_begins_with_the_load_and_ends_behind_the_last_version() {
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
    world.bench.executing.close();
    let asked = InferenceRequest { model_name: "m".into(), ..request(&[1, 1]) };
    let inbox = send(&world.server, asked);
    world.bench.executing.wait_for(1);
    world.unload("m");
    until(|| world.instances() == 1);
    check(&world, &["2 unloading"]);
    world.bench.executing.open();
    assert_eq!(inbox.recv_timeout(LONG).unwrap().unwrap().id, "two");
    check(&world, &["2 gone, 0 instances left"]);
}

#[test]
fn a_load_that_fails_ends_its_own_life_only() {
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
fn no_version_stays_that_agents_may_have_changed() {
    let world = World::new();
    put(&world, "one", &[1]);
    world.load("m").unwrap();
    world.put_config("m", &with_agents(&config("one", 2)), &[1]);
    world.load("m").unwrap();
    let expected = ["1 asked", "1 loaded", "2 asked", "1 unloading", "2 loaded"];
    check(&world, &[&expected[..], &["1 gone, 2 instances left"]].concat());
    // Nor if the new configuration has none.
    world.put_config("m", &config("one", 1), &[1]);
    world.load("m").unwrap();
    check(&world, &["2 unloading", "2 gone, 1 instances left"]);
}

#[test]
fn the_end_ends_every_life() {
    let world = World::new();
    put(&world, "one", &[1]);
    world.load("m").unwrap();
    // This one waits for a model that is not there.
    world.put_text("e", &with_agents(&ensemble_of("nothing")), &[1]);
    world.load("e").unwrap_err();
    world.server.begin_exit();
    assert_eq!(world.server.unload_all(LONG), 0);
    let mut told = told(&world);
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
    // It was loaded anew, and they were told nothing that concerns them.
    let told = told(&world);
    assert!(told.iter().all(|line| line == "1 loaded"), "{told:?}");
    world.unload("e");
    check(&world, &["1 unloading", "1 gone, 1 instances left"]);
}

#[test]
fn agents_that_were_told_of_the_end_take_no_other_load() {
    let world = World::new();
    world.put("m", "one", &[1]);
    world.put_text("e", &with_agents(&ensemble_of("m")), &[1]);
    world.load("e").unwrap();
    world.load("m").unwrap();
    check(&world, &["1 asked", "1 loaded"]);
    // Whoever works with the ensemble keeps them.
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
fn agents_of_a_model_that_is_to_go_take_no_other_load_though_they_were_not_told_yet() {
    let world = World::new();
    world.put("m", "one", &[1]);
    world.put_text("b", &with_agents(&ensemble_of("m")), &[1]);
    world.put_text("a", &with_agents(&ensemble_of("b")), &[1]);
    world.load("a").unwrap();
    check(&world, &["1 asked", "2 asked", "2 loaded", "1 loaded"]);
    world.bench.unloading.close();
    std::thread::scope(|scope| {
        let unload = scope.spawn(|| world.server.unload_model("a", true));
        world.bench.unloading.wait_for(1);
        // The agents of a hear of it, those of b are to be next.
        let load = scope.spawn(|| world.load("b"));
        let deadline = std::time::Instant::now() + LONG;
        let asked = String::from("3 asked");
        let is_asked = || world.bench.told.lock().unwrap().contains(&asked);
        while !is_asked() && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        world.bench.unloading.open();
        load.join().unwrap().unwrap();
        unload.join().unwrap().unwrap();
    });
    assert_eq!(world.tag("b"), "one");
    // Their ends come when they come.
    let mut told = told(&world);
    told.retain(|line| !line.contains("gone"));
    assert_eq!(told, ["1 unloading", "3 asked", "2 unloading", "3 loaded"]);
}

#[test]
fn agents_of_an_ensemble_that_did_not_fit_are_asked_again() {
    let world = World::new();
    world.put("m", "one", &[1]);
    let misfit = ensemble_of("m").replace("key: \"OUT\"", "key: \"NOTHING\"");
    world.put_text("e", &with_agents(&misfit), &[1]);
    for number in 1..=3 {
        if number == 3 {
            // Now it is not itself that failed, but what it needs that is missing.
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
fn agents_of_an_ensemble_that_lacks_a_version_hear_of_it() {
    let world = World::new();
    world.put("m", "one", &[1]);
    let lacks = ensemble_of("m").replace("model_version: -1", "model_version: 7");
    world.put_text("e", &with_agents(&lacks), &[1]);
    let status = world.load("e").unwrap_err();
    assert!(status.message().contains("required version 7"), "{status}");
    check(&world, &["1 asked", "1 failed", "1 gone, 1 instances left"]);
}
