//! Orders and polls that come while others are carried out.

use super::agents::{told, with_agents};
use super::*;

/// Whether this comes to its end while something else stands still. The gate is opened
/// in any case, so that a test that fails ends.
#[track_caller]
fn ends_before(gate: &Gate, action: impl FnOnce() + Send) {
    let done = AtomicBool::new(false);
    let deadline = std::time::Instant::now() + LONG;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            action();
            done.store(true, Ordering::SeqCst);
        });
        while !done.load(Ordering::SeqCst) && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        let is_done = done.load(Ordering::SeqCst);
        gate.open();
        assert!(is_done, "it waits for the other");
    });
}

/// The ensemble `z` of the model `m`, with agents.
fn with_slow_ensemble() -> World {
    let world = World::new();
    world.put("m", "one", &[1]);
    world.put("other", "one", &[1]);
    world.put_text("z", &with_agents(&ensemble_of("m")), &[1]);
    world.load("z").unwrap();
    world
}

#[test]
fn a_model_that_is_loaded_again_during_its_unload_serves() {
    let world = with_slow_ensemble();
    world.bench.unloading.close();
    std::thread::scope(|scope| {
        let unload = scope.spawn(|| world.server.unload_model("z", true));
        world.bench.unloading.wait_for(1);
        // The model m is gone already, and nobody holds it.
        ends_before(&world.bench.unloading, || world.load("m").unwrap());
        unload.join().unwrap().unwrap();
    });
    assert_eq!(world.tag("m"), "one");
    world.check_index(&["m 1 READY", "other", "z 1 UNAVAILABLE: unloaded"]);
}

#[test]
fn an_unload_is_answered_when_the_model_is_out_of_service_whoever_takes_it_out() {
    let world = World::new();
    world.put("m", "one", &[1]);
    world.put_text("a", &with_agents(&ensemble_of("m")), &[1]);
    world.load("a").unwrap();
    world.bench.unloading.close();
    let is_answered = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| world.server.unload_model("a", true));
        world.bench.unloading.wait_for(1);
        // The model m is to go behind the ensemble, whose agents take their time.
        let second = scope.spawn(|| {
            world.unload("m");
            is_answered.store(true, Ordering::SeqCst);
            world.ask("m", None).is_ok()
        });
        // An answer that doesn't wait would come soon.
        for _ in 0..100_000 {
            if is_answered.load(Ordering::SeqCst) {
                break;
            }
            std::thread::yield_now();
        }
        let is_early = is_answered.load(Ordering::SeqCst);
        world.bench.unloading.open();
        assert!(!second.join().unwrap(), "it serves behind the answer");
        first.join().unwrap().unwrap();
        assert!(!is_early);
    });
    world.check_index(&["a 1 UNAVAILABLE: unloaded", "m 1 UNAVAILABLE: unloaded"]);
}

#[test]
fn an_unload_waits_for_no_load_that_begins_behind_it() {
    let world = with_slow_ensemble();
    world.bench.unloading.close();
    std::thread::scope(|scope| {
        let unload = scope.spawn(|| world.server.unload_model("z", true));
        world.bench.unloading.wait_for(1);
        // The model m is wanted again, and takes its time.
        world.bench.loading.close();
        let load = scope.spawn(|| world.load("m"));
        world.bench.loading.wait_for(1);
        ends_before(&world.bench.loading, || {
            world.bench.unloading.open();
            unload.join().unwrap().unwrap();
        });
        load.join().unwrap().unwrap();
    });
    assert_eq!(world.tag("m"), "one");
}

#[test]
fn slow_agents_delay_no_other_model() {
    let world = with_slow_ensemble();
    world.bench.unloading.close();
    std::thread::scope(|scope| {
        let unload = scope.spawn(|| world.server.unload_model("z", false));
        world.bench.unloading.wait_for(1);
        ends_before(&world.bench.unloading, || world.load("other").unwrap());
        unload.join().unwrap().unwrap();
    });
    assert_eq!(world.tag("other"), "one");
}

#[test]
fn agents_that_panic_keep_no_model_from_going() {
    let world = with_slow_ensemble();
    world.bench.agents_panic.store(true, Ordering::SeqCst);
    world.unload("z");
    world.check_index(&["m 1 READY", "other", "z 1 UNAVAILABLE: unloaded"]);
    world.bench.agents_panic.store(false, Ordering::SeqCst);
    world.load("z").unwrap();
    assert_eq!(world.tag("z"), "one");
}

#[test]
fn a_model_that_failed_at_start_can_be_given_up() {
    let world = World::new();
    assert!(!world.server.load_named(&[String::from("x")]));
    assert_eq!(world.server.ready(), Ok(false));
    world.unload("x");
    assert_eq!(world.server.ready(), Ok(true));
}

#[test]
fn a_model_that_is_given_up_while_it_loads_never_serves() {
    let world = World::with(ControlMode::Poll, 2);
    world.put_text("m", &with_agents(&config("one", 1)), &[1]);
    world.bench.loading.close();
    std::thread::scope(|scope| {
        let load = scope.spawn(|| world.server.follow_repositories());
        world.bench.loading.wait_for(1);
        world.catalog.models.lock().unwrap().clear();
        let gone = scope.spawn(|| world.server.follow_repositories());
        until(|| world.index().is_empty());
        world.bench.loading.open();
        load.join().unwrap();
        assert!(gone.join().unwrap());
    });
    until(|| world.bench.told.lock().unwrap().len() == 3);
    assert_eq!(told(&world), ["1 asked", "1 failed", "1 gone, 0 instances left"]);
    assert_eq!(world.server.ready(), Ok(true));
}

#[test]
fn repositories_are_followed_one_survey_after_another() {
    let world = World::with(ControlMode::Poll, 2);
    world.put("m", "one", &[1]);
    world.bench.surveying.close();
    let surveys = || world.bench.surveys.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| world.server.follow_repositories());
        world.bench.surveying.wait_for(1);
        world.catalog.models.lock().unwrap().clear();
        let second = scope.spawn(|| world.server.follow_repositories());
        // A second one would come soon.
        for _ in 0..100_000 {
            if surveys() > 1 {
                break;
            }
            std::thread::yield_now();
        }
        let early = surveys();
        world.bench.surveying.open();
        first.join().unwrap();
        assert!(second.join().unwrap());
        assert_eq!(early, 1);
    });
    assert_eq!((surveys(), world.ask("m", None).is_err()), (2, true));
}

#[test]
fn what_is_unloaded_while_an_order_looks_for_it_is_loaded_again() {
    let world = World::new();
    world.put("m", "one", &[1]);
    world.put("n", "one", &[1]);
    let two_steps = ensemble_of("n").replace(
        "ensemble_scheduling { step {",
        r#"ensemble_scheduling {
            step { model_name: "m" model_version: -1
                input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "MIDDLE" } }
            step {"#,
    );
    let two_steps = two_steps.replacen(
        r#"model_name: "n" model_version: -1
            input_map { key: "IN" value: "IN" }"#,
        r#"model_name: "n" model_version: -1
            input_map { key: "IN" value: "MIDDLE" }"#,
        1,
    );
    world.put_text("e", &two_steps, &[1]);
    world.load("e").unwrap();
    world.bench.finding.close();
    std::thread::scope(|scope| {
        let load = scope.spawn(|| world.load("e"));
        // It has found that n did not change.
        world.bench.finding.wait_for(1);
        world.unload("n");
        assert!(world.ask("e", None).is_err());
        world.bench.finding.open();
        load.join().unwrap().unwrap();
    });
    assert_eq!((world.tag("e").as_str(), world.tag("n").as_str()), ("one", "one"));
}

#[test]
fn instances_of_all_versions_change_or_of_none() {
    let world = World::new();
    world.put_text("m", &config("one", 1), &[1, 2]);
    world.load("m").unwrap();
    world.put_config("m", &config("one", 3), &[1, 2]);
    world.bench.full_version.store(2, Ordering::SeqCst);
    let status = world.load("m").unwrap_err();
    assert!(status.message().contains("version 2 is at READY state"), "{status}");
    until(|| world.instances() == 2);
    for version in [1, 2] {
        let shown = world.server.model_config("m", Some(version)).unwrap();
        assert!(shown.json.contains("\"count\":1"), "{}", shown.json);
    }
    world.bench.full_version.store(0, Ordering::SeqCst);
    world.load("m").unwrap();
    assert_eq!((world.instances(), world.loads()), (6, 2));
}

#[test]
fn a_model_without_a_version_fails_to_load_and_what_serves_goes_on() {
    let world = World::new();
    let reason = |name: &str| {
        format!("at least one version must be available under the version policy of model '{name}'")
    };
    let check = |name: &str| {
        let status = world.load(name).unwrap_err();
        let expected = format!("load failed for model '{name}': {}\n", reason(name));
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, &*expected));
    };
    world.put("m", "one", &[1]);
    world.load("m").unwrap();
    world.put("m", "two", &[]);
    check("m");
    assert_eq!(world.tag("m"), "one");
    world.put("n", "one", &[]);
    check("n");
    let index = world.index();
    assert_eq!(index, ["m 1 READY", &*format!("n UNAVAILABLE: {}", reason("n"))]);
    assert_eq!(world.server.ready(), Ok(false));
    world.unload("n");
    assert_eq!(world.server.ready(), Ok(true));
}
