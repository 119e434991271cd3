//! Orders and polls that arrive while other orders or polls are in progress.

use std::sync::mpsc;

use super::agents::{take_notices, with_agents};
use super::*;

/// Checks that an action ends while threads wait at a gate. The gate is opened in any case, so that
/// even a failing test ends.
#[track_caller]
fn ends_before(gate: &Gate, action: impl FnOnce() + Send) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            action();
            done.store(true, Ordering::SeqCst);
        });
        let is_done = eventually(|| done.load(Ordering::SeqCst));
        gate.open();
        assert!(is_done, "it waits for the other");
    });
}

/// The ensemble `z`, which uses the model `m` and has agents.
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
    world.controls.unloading.close();
    std::thread::scope(|scope| {
        let unload = scope.spawn(|| world.server.unload_model("z", true));
        world.controls.unloading.wait_for(1);
        // The model m is already out of service, and no order is changing it.
        ends_before(&world.controls.unloading, || world.load("m").unwrap());
        unload.join().unwrap().unwrap();
    });
    assert_eq!(world.tag("m"), "one");
    world.check_index(&["m 1 READY", "other", "z 1 UNAVAILABLE: unloaded"]);
}

#[test]
fn an_unload_returns_once_another_order_took_the_model_out_of_service() {
    let world = World::new();
    world.put("m", "one", &[1]);
    world.put_text("a", &with_agents(&ensemble_of("m")), &[1]);
    world.load("a").unwrap();
    world.controls.unloading.close();
    let is_answered = AtomicBool::new(false);
    let (begin, begun) = mpsc::channel();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| world.server.unload_model("a", true));
        world.controls.unloading.wait_for(1);
        // The model m is unloaded after the ensemble, whose agents are slow.
        let second = scope.spawn(|| {
            begin.send(state_of_this_thread()).unwrap();
            world.unload("m");
            is_answered.store(true, Ordering::SeqCst);
            world.ask("m", None).is_ok()
        });
        wait_until_blocked(&begun.recv().unwrap());
        let is_early = is_answered.load(Ordering::SeqCst);
        world.controls.unloading.open();
        assert!(!second.join().unwrap(), "it serves behind the answer");
        first.join().unwrap().unwrap();
        assert!(!is_early);
    });
    world.check_index(&["a 1 UNAVAILABLE: unloaded", "m 1 UNAVAILABLE: unloaded"]);
}

#[test]
fn an_unload_comes_after_the_load_of_an_ensemble_that_has_begun() {
    let world = World::new();
    world.put("m", "one", &[1]);
    world.put_text("e", &ensemble_of("m"), &[1]);
    world.controls.loading.close();
    std::thread::scope(|scope| {
        let load = scope.spawn(|| world.load("e"));
        world.controls.loading.wait_for(1);
        let unload = scope.spawn(|| world.server.unload_model("m", false));
        // The unload order has begun once no other order for m is admitted.
        until(|| world.server.manager.is_ordered("m"));
        world.controls.loading.open();
        load.join().unwrap().unwrap();
        unload.join().unwrap().unwrap();
    });
    world.check_index(&["e 1 UNAVAILABLE: unloaded", "m 1 UNAVAILABLE: unloaded"]);
    assert_eq!(world.server.ready(), Ok(true));
}

#[test]
fn an_unload_does_not_wait_for_a_later_load() {
    let world = with_slow_ensemble();
    world.controls.unloading.close();
    std::thread::scope(|scope| {
        let unload = scope.spawn(|| world.server.unload_model("z", true));
        world.controls.unloading.wait_for(1);
        // The model m is loaded again, slowly.
        world.controls.loading.close();
        let load = scope.spawn(|| world.load("m"));
        world.controls.loading.wait_for(1);
        ends_before(&world.controls.loading, || {
            world.controls.unloading.open();
            unload.join().unwrap().unwrap();
        });
        load.join().unwrap().unwrap();
    });
    assert_eq!(world.tag("m"), "one");
}

#[test]
fn an_unload_does_not_wait_for_a_thread_on_behalf_of_a_load() {
    let world = World::with(ControlMode::Explicit, 1);
    world.put("slow", "one", &[1]);
    world.put("waiting", "two", &[1, 2]);
    world.controls.loading.close();
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| world.load("slow"));
        world.controls.loading.wait_for(1);
        // The only thread is busy.
        let waiting = scope.spawn(|| world.load("waiting"));
        until(|| world.server.manager.is_ordered("waiting"));
        ends_before(&world.controls.loading, || world.unload("waiting"));
        // This matches Triton, where the unload would come after the load.
        waiting.join().unwrap().unwrap();
        slow.join().unwrap().unwrap();
    });
    assert_eq!(world.tag("slow"), "one");
    assert_eq!((world.server.ready(), world.ask("waiting", None).is_err()), (Ok(true), true));
    world.load("waiting").unwrap();
    assert_eq!(world.tag("waiting"), "two");
}

#[test]
fn an_unload_leaves_a_load_on_behalf_of_an_ensemble_its_thread() {
    let world = World::with(ControlMode::Explicit, 1);
    world.put("slow", "one", &[1]);
    world.put("m", "one", &[1]);
    world.put_text("e", &ensemble_of("m"), &[1]);
    world.controls.loading.close();
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| world.load("slow"));
        world.controls.loading.wait_for(1);
        // The load of m is waiting for the only thread.
        let load = scope.spawn(|| world.load("e"));
        until(|| world.server.manager.wants("m"));
        let unload = scope.spawn(|| world.server.unload_model("m", false));
        until(|| world.server.manager.is_ordered("m"));
        world.controls.loading.open();
        load.join().unwrap().unwrap();
        unload.join().unwrap().unwrap();
        slow.join().unwrap().unwrap();
    });
    world.check_index(&["e 1 UNAVAILABLE: unloaded", "m 1 UNAVAILABLE: unloaded", "slow 1 READY"]);
}

#[test]
fn slow_agents_delay_no_other_model() {
    let world = with_slow_ensemble();
    world.controls.unloading.close();
    std::thread::scope(|scope| {
        let unload = scope.spawn(|| world.server.unload_model("z", false));
        world.controls.unloading.wait_for(1);
        ends_before(&world.controls.unloading, || world.load("other").unwrap());
        unload.join().unwrap().unwrap();
    });
    assert_eq!(world.tag("other"), "one");
}

#[test]
fn agents_that_panic_do_not_prevent_an_unload() {
    let world = with_slow_ensemble();
    world.controls.agents_panic.store(true, Ordering::SeqCst);
    world.unload("z");
    world.check_index(&["m 1 READY", "other", "z 1 UNAVAILABLE: unloaded"]);
    world.controls.agents_panic.store(false, Ordering::SeqCst);
    world.load("z").unwrap();
    assert_eq!(world.tag("z"), "one");
}

#[test]
fn a_model_that_failed_at_start_can_be_unloaded() {
    let world = World::new();
    world.put("x", "corrupt", &[1]);
    assert!(!world.server.load_named(&[String::from("x")]));
    assert_eq!(world.server.ready(), Ok(false));
    world.unload("x");
    assert_eq!(world.server.ready(), Ok(true));
}

#[test]
fn a_model_that_is_removed_while_it_loads_never_serves() {
    let world = World::with(ControlMode::Poll, 2);
    world.put_text("m", &with_agents(&config("one", 1)), &[1]);
    world.controls.loading.close();
    std::thread::scope(|scope| {
        let load = scope.spawn(|| world.server.poll_repositories());
        world.controls.loading.wait_for(1);
        world.catalog.models.lock().unwrap().clear();
        let gone = scope.spawn(|| world.server.poll_repositories());
        until(|| world.index().is_empty());
        world.controls.loading.open();
        load.join().unwrap();
        assert!(gone.join().unwrap());
    });
    until(|| world.controls.notices.lock().unwrap().len() == 3);
    assert_eq!(take_notices(&world), ["1 asked", "1 failed", "1 gone, 0 instances left"]);
    assert_eq!(world.server.ready(), Ok(true));
}

#[test]
fn scans_are_followed_one_after_another() {
    let world = World::with(ControlMode::Poll, 2);
    world.put("m", "one", &[1]);
    world.controls.scanning.close();
    let scans = || world.controls.scans.load(Ordering::SeqCst);
    let (begin, begun) = mpsc::channel();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| world.server.poll_repositories());
        world.controls.scanning.wait_for(1);
        world.catalog.models.lock().unwrap().clear();
        let second = scope.spawn(|| {
            begin.send(state_of_this_thread()).unwrap();
            world.server.poll_repositories()
        });
        wait_until_blocked(&begun.recv().unwrap());
        let early = scans();
        world.controls.scanning.open();
        first.join().unwrap();
        assert!(second.join().unwrap());
        assert_eq!(early, 1);
    });
    assert_eq!((scans(), world.ask("m", None).is_err()), (2, true));
}

#[test]
fn a_model_that_is_unloaded_during_a_search_for_it_is_loaded_again() {
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
    world.controls.finding.close();
    std::thread::scope(|scope| {
        let load = scope.spawn(|| world.load("e"));
        // The search has found that n has not changed.
        world.controls.finding.wait_for(1);
        world.unload("n");
        assert!(world.ask("e", None).is_err());
        world.controls.finding.open();
        load.join().unwrap().unwrap();
    });
    assert_eq!((world.tag("e").as_str(), world.tag("n").as_str()), ("one", "one"));
}

#[test]
fn the_instances_of_all_versions_change_or_of_none() {
    let world = World::new();
    world.put_text("m", &config("one", 1), &[1, 2]);
    world.load("m").unwrap();
    world.put_config("m", &config("one", 3), &[1, 2]);
    world.controls.full_version.store(2, Ordering::SeqCst);
    let status = world.load("m").unwrap_err();
    assert!(status.message().contains("version 2 is at READY state"), "{status}");
    until(|| world.instances() == 2);
    for version in [1, 2] {
        let shown = world.server.model_config("m", Some(version)).unwrap();
        assert!(shown.json.contains("\"count\":1"), "{}", shown.json);
    }
    world.controls.full_version.store(0, Ordering::SeqCst);
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
    // As in Triton, the index omits it because it is known and has no version.
    world.check_index(&["m 1 READY"]);
    assert_eq!(world.server.ready(), Ok(false));
    let unknown = world.ask("n", None).unwrap_err();
    assert_eq!(unknown.message(), "Request for unknown model: 'n' has no available versions");
    world.unload("n");
    assert_eq!(world.server.ready(), Ok(true));
}

#[test]
fn a_panic_while_a_load_is_prepared_ends_its_order() {
    let world = World::new();
    world.put("m", "one", &[1]);
    world.load("m").unwrap();
    world.put("m", "two", &[1]);
    world.controls.files_panic.store(true, Ordering::SeqCst);
    let (reported, result) = mpsc::channel();
    let server = world.server.clone();
    std::thread::spawn(move || {
        let _ = reported.send(server.load_model("m", LoadParameters::default()));
    });
    let status = result.recv_timeout(LONG).expect("the order ends").unwrap_err();
    assert!(status.message().contains("the server failed while it prepared the load"), "{status}");
    assert_eq!(world.tag("m"), "one");
    world.controls.files_panic.store(false, Ordering::SeqCst);
    world.load("m").unwrap();
    assert_eq!(world.tag("m"), "two");
}

#[test]
fn the_end_counts_a_version_that_a_readiness_check_holds() {
    let world = World::new();
    world.put("m", "one", &[1]);
    world.load("m").unwrap();
    world.controls.asking.close();
    std::thread::scope(|scope| {
        scope.spawn(|| world.server.model_ready("m", None));
        world.controls.asking.wait_for(1);
        let left = world.server.unload_all_detailed(Duration::ZERO);
        world.controls.asking.open();
        assert_eq!((left.loads, left.versions), (0, 1));
    });
    assert_eq!(world.server.unload_all(LONG), 0);
    assert_eq!(world.instances(), 0);
}

#[test]
fn the_end_counts_a_version_whose_instances_change() {
    let world = World::new();
    world.put_text("m", &config("one", 1), &[1]);
    world.load("m").unwrap();
    world.put_config("m", &config("one", 2), &[1]);
    world.controls.creating.close();
    std::thread::scope(|scope| {
        scope.spawn(|| world.load("m"));
        world.controls.creating.wait_for(1);
        let left = world.server.unload_all_detailed(Duration::ZERO);
        world.controls.creating.open();
        assert_eq!((left.loads, left.versions), (1, 1));
    });
    assert_eq!(world.server.unload_all(LONG), 0);
    assert_eq!(world.instances(), 0);
}

#[test]
fn a_version_whose_responses_are_still_to_come_is_not_unloaded() {
    let world = World::new();
    for name in ["m", "other"] {
        world.put(name, "one", &[1]);
        world.load(name).unwrap();
    }
    world.controls.ending.close();
    world.unload("m");
    world.controls.ending.wait_for(1);
    assert_eq!(world.index(), ["m 1 UNLOADING", "other 1 READY"]);
    // Another version does not wait for that one to end.
    world.unload("other");
    world.controls.ending.wait_for(2);
    assert_eq!(world.server.unload_all_detailed(Duration::ZERO).versions, 2);
    world.controls.ending.open();
    assert_eq!(world.server.unload_all(LONG), 0);
}

#[test]
fn agents_that_hang_do_not_hold_the_end() {
    let world = World::new();
    world.put_text("m", &with_agents(&config("one", 1)), &[1]);
    world.put("other", "one", &[1]);
    world.load("m").unwrap();
    world.load("other").unwrap();
    take_notices(&world);
    world.controls.unloading.close();
    ends_before(&world.controls.unloading, || {
        // The other model may take a while to end.
        until(|| world.server.unload_all_detailed(Duration::ZERO).versions == 1);
        world.controls.unloading.wait_for(1);
        assert_eq!(world.index(), ["m 1 READY", "other 1 UNAVAILABLE: unloaded"]);
        assert_eq!(world.server.unload_all_detailed(Duration::ZERO).versions, 1);
    });
    assert_eq!(world.server.unload_all(LONG), 0);
    assert_eq!(take_notices(&world), ["1 unloading", "1 gone, 0 instances left"]);
}
