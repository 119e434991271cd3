//! Instances added and removed while their model serves.

use super::*;

#[test]
fn instances_are_added_and_removed_in_place() {
    let world = World::new();
    world.put_text("m", &config("one", 1), &[1]);
    world.load("m").unwrap();
    let check = |count: u32, expected: usize| {
        world.put_config("m", &config("one", count), &[1]);
        world.load("m").unwrap();
        until(|| world.instances() == expected);
        let shown = world.server.model_config("m", None).unwrap();
        assert!(shown.json.contains(&format!("\"count\":{count}")), "{}", shown.json);
        assert_eq!((world.tag("m").as_str(), world.loads()), ("one", 1));
    };
    check(3, 3);
    check(3, 3);
    check(1, 1);
    check(2, 2);
    world.controls.refuses_instances.store(true, Ordering::SeqCst);
    world.put_config("m", &config("one", 4), &[1]);
    let status = world.load("m").unwrap_err();
    assert_eq!(
        status.message(),
        "load failed for model 'm': version 1 is at READY state: Unavailable: no room for \
         another;\n"
    );
    assert_eq!((world.tag("m").as_str(), world.instances()), ("one", 2));
    world.controls.refuses_instances.store(false, Ordering::SeqCst);
    world.load("m").unwrap();
    assert_eq!((world.instances(), world.loads()), (4, 1));
    world.put_config("m", &config("two", 4), &[1]);
    world.load("m").unwrap();
    assert_eq!((world.tag("m").as_str(), world.loads()), ("two", 2));
    until(|| world.instances() == 4);
    world.unload("m");
    until(|| world.instances() == 0);
}

#[test]
fn passive_instances_host_policies_and_resources_change_in_place() {
    let world = World::new();
    world.put_text("m", &config("one", 1), &[1]);
    world.load("m").unwrap();
    let check = |groups: &[&str], expected: usize| {
        let groups =
            groups.iter().map(|group| format!("instance_group {{ kind: KIND_CPU {group} }}"));
        let text = config("one", 1).replace("instance_group { kind: KIND_CPU count: 1 }", "");
        world.put_config("m", &format!("{text} {}", groups.collect::<String>()), &[1]);
        world.load("m").unwrap();
        assert_eq!((world.instances(), world.loads()), (expected, 1));
    };
    check(&["count: 1", "count: 2 passive: true"], 3);
    check(&["count: 1", "count: 1 passive: true"], 2);
    check(&["count: 1 host_policy: \"p\"", "count: 1 passive: true"], 2);
    check(&["count: 2 rate_limiter { resources { name: \"R\" count: 3 } }"], 2);
    check(&["count: 1"], 1);
    world.unload("m");
    until(|| world.instances() == 0);
}

#[test]
fn defaults_that_are_written_out_change_nothing() {
    let world = World::new();
    world.put_text("m", &config("one", 1), &[1]);
    world.load("m").unwrap();
    let defaults = "optimization { input_pinned_memory { enable: true } }";
    world.put_config("m", &format!("{} {defaults}", config("one", 2)), &[1]);
    world.load("m").unwrap();
    assert_eq!((world.instances(), world.loads()), (2, 1));
    let other = "optimization { input_pinned_memory { enable: false } }";
    world.put_config("m", &format!("{} {other}", config("one", 2)), &[1]);
    world.load("m").unwrap();
    assert_eq!(world.loads(), 2);
}

#[test]
fn a_removed_instance_finishes_its_batch_and_others_take_over() {
    let world = World::new();
    world.put_text("m", &config("one", 2), &[1]);
    world.load("m").unwrap();
    let ask = || {
        let asked = InferenceRequest { model_name: "m".into(), ..echo_request(&[1, 1]) };
        send(&world.server, asked)
    };
    world.controls.executing.close();
    let inboxes: Vec<_> = (0..5).map(|_| ask()).collect();
    world.controls.executing.wait_for(2);
    world.put_config("m", &config("one", 1), &[1]);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| world.load("m"));
        until(|| world.server.model_config("m", None).unwrap().json.contains("\"count\":1"));
        assert_eq!((world.instances(), load.is_finished()), (2, false), "both are busy");
        world.controls.executing.open();
        load.join().unwrap().unwrap();
        assert_eq!(world.instances(), 1, "the load waits until the instance is gone");
    });
    for inbox in inboxes {
        inbox.recv_timeout(LONG).unwrap().unwrap();
    }
    assert_eq!(world.tag("m"), "one");
}

/// The number of threads waiting at the gate, once it reaches `count` or time runs out.
fn waiting(gate: &Gate, count: usize) -> usize {
    let now = || gate.waiting.load(Ordering::SeqCst);
    eventually(|| now() >= count);
    now()
}

#[test]
fn versions_get_instances_side_by_side_and_beside_a_new_version() {
    let world = World::with(ControlMode::Explicit, 3);
    world.put_text("m", &config("one", 1), &[1, 2]);
    world.load("m").unwrap();
    world.put_config("m", &config("one", 2), &[1, 2, 3]);
    world.controls.creating.close();
    std::thread::scope(|scope| {
        let load = scope.spawn(|| world.load("m"));
        let at_once = waiting(&world.controls.creating, 3);
        world.controls.creating.open();
        load.join().unwrap().unwrap();
        assert_eq!(at_once, 3);
    });
    assert_eq!((world.instances(), world.loads()), (6, 3));
    world.check_index(&["m 1 READY", "m 2 READY", "m 3 READY"]);
}

#[test]
fn a_new_version_that_fails_undoes_the_new_instances_of_others() {
    let world = World::new();
    world.put_text("m", &config("one", 1), &[1, 2]);
    world.load("m").unwrap();
    world.put_config("m", &config("one", 3), &[1, 2, 3]);
    world.controls.full_version.store(3, Ordering::SeqCst);
    let status = world.load("m").unwrap_err();
    let expected = "load failed for model 'm': version 3 is at UNAVAILABLE state: Unavailable: no \
                    room for another;\n";
    assert_eq!(status.message(), expected);
    until(|| world.instances() == 2);
    for version in [1, 2] {
        let shown = world.server.model_config("m", Some(version)).unwrap();
        assert!(shown.json.contains("\"count\":1"), "{}", shown.json);
    }
    world.controls.full_version.store(0, Ordering::SeqCst);
    world.load("m").unwrap();
    assert_eq!((world.instances(), world.tag("m").as_str()), (9, "one"));
}

#[test]
fn a_panic_while_an_instance_is_created_fails_only_the_order() {
    let world = World::new();
    world.put_text("m", &config("one", 1), &[1, 2]);
    world.load("m").unwrap();
    world.put_config("m", &config("one", 2), &[1, 2]);
    world.controls.creation_panics.store(true, Ordering::SeqCst);
    let failed = std::thread::scope(|scope| {
        let load = scope.spawn(|| world.load("m"));
        if !eventually(|| load.is_finished()) {
            world.server.unload_all(Duration::ZERO);
        }
        load.join().unwrap()
    });
    let text = failed.unwrap_err();
    assert!(text.message().contains("failed while it made an instance"), "{text}");
    assert_eq!((world.tag("m").as_str(), world.instances()), ("one", 2));
    world.controls.creation_panics.store(false, Ordering::SeqCst);
    world.load("m").unwrap();
    assert_eq!(world.instances(), 4);
}
