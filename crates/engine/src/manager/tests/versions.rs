//! Versions of a single model that load concurrently.

use super::*;

#[test]
fn versions_load_side_by_side_on_all_threads() {
    let world = World::with(ControlMode::Explicit, 2);
    world.put("m", "one", &[1, 2, 3]);
    world.controls.loading.close();
    std::thread::scope(|scope| {
        let load = scope.spawn(|| world.load("m"));
        world.controls.loading.wait_for(2);
        assert_eq!(world.loads(), 2, "two threads");
        world.check_index(&["m 1 LOADING", "m 2 LOADING", "m 3 LOADING"]);
        world.controls.loading.open();
        load.join().unwrap().unwrap();
    });
    world.check_index(&["m 1 READY", "m 2 READY", "m 3 READY"]);
    assert_eq!(world.loads(), 3);
}

#[test]
fn one_thread_is_enough_for_all_versions_of_all_models() {
    let world = World::with(ControlMode::Explicit, 1);
    for name in ["a", "b"] {
        world.put(name, name, &[1, 2, 3]);
    }
    std::thread::scope(|scope| {
        let loads = ["a", "b"].map(|name| scope.spawn(|| world.load(name)));
        loads.into_iter().for_each(|load| load.join().unwrap().unwrap());
    });
    assert_eq!(world.ask("a", Some(1)).unwrap().1, "a");
    assert_eq!(world.ask("b", None).unwrap().0, 3);
}

#[test]
fn versions_beside_one_that_fails_are_abandoned() {
    let world = World::with(ControlMode::Explicit, 3);
    world.put("m", "corrupt2", &[1, 2, 3]);
    let status = world.load("m").unwrap_err();
    let expected = "load failed for model 'm': version 2 is at UNAVAILABLE state: Internal: it is \
                    corrupt;\n";
    assert_eq!(status.message(), expected);
    assert_eq!(world.loads(), 3, "none is left out because another failed");
    until(|| world.instances() == 0);
    world.check_index(&[
        "m 1 UNAVAILABLE: unloaded",
        "m 2 UNAVAILABLE: Internal: it is corrupt",
        "m 3 UNAVAILABLE: unloaded",
    ]);
}

#[test]
fn all_failed_versions_are_reported_in_ascending_order() {
    let world = World::with(ControlMode::Explicit, 3);
    world.put("m", "corrupt", &[1, 2, 10]);
    let one = |version: i64| {
        format!("version {version} is at UNAVAILABLE state: Internal: it is corrupt;")
    };
    let expected = format!("load failed for model 'm': {}{}{}\n", one(1), one(2), one(10));
    assert_eq!(world.load("m").unwrap_err().message(), expected);
}

#[test]
fn a_version_that_panics_fails_the_model_and_the_thread_goes_on() {
    let world = World::with(ControlMode::Explicit, 1);
    world.put("m", "panic", &[1, 2]);
    assert_eq!(world.load("m").unwrap_err().code(), Code::InvalidArgument);
    world.put("m", "fine", &[1, 2]);
    world.load("m").unwrap();
    assert_eq!(world.tag("m"), "fine");
}

#[test]
fn versions_that_wait_when_the_server_exits_are_not_loaded() {
    let world = World::with(ControlMode::Explicit, 2);
    world.put("m", "one", &[1, 2, 3, 4]);
    world.controls.loading.close();
    std::thread::scope(|scope| {
        let load = scope.spawn(|| world.load("m"));
        world.controls.loading.wait_for(2);
        world.server.begin_exit();
        assert_eq!(world.server.unload_all(Duration::ZERO), 4, "two run and two wait");
        assert_eq!(load.join().unwrap().unwrap_err().code(), Code::Unavailable);
        world.controls.loading.open();
        assert_eq!(world.server.unload_all(LONG), 0);
    });
    assert_eq!((world.loads(), world.instances()), (2, 0));
}

#[test]
fn a_model_of_another_directory_is_another_model() {
    let world = World::new();
    world.put("m", "one", &[1]);
    world.load("m").unwrap();
    // The modification times of the model's files don't reveal the change.
    world.move_model("m", &config("two", 1));
    world.load("m").unwrap();
    assert_eq!((world.tag("m"), world.loads()), (String::from("two"), 2));
    // The configuration doesn't reveal the change either: only instances differ.
    world.put("n", "one", &[1]);
    world.load("n").unwrap();
    world.move_model("n", &config("one", 2));
    world.load("n").unwrap();
    assert_eq!(world.loads(), 4);
}

#[test]
fn a_model_that_can_not_be_read_stays_as_it_was() {
    let world = World::with(ControlMode::Poll, 2);
    world.put("m", "one", &[1]);
    world.server.poll_repositories();
    let gone = world.catalog.models.lock().unwrap().remove("m").unwrap();
    world.server.poll_repositories();
    // The model is not desired.
    until(|| world.server.ready() == Ok(true));
    world.put_text("m", "colour: \"blue\"", &[1]);
    world.server.poll_repositories();
    world.check_index(&["m 1 UNAVAILABLE: unloaded"]);
    assert_eq!(world.server.ready(), Ok(true));
    world.put_text("m", &gone.text, &[1]);
    world.server.poll_repositories();
    world.check_index(&["m 1 READY"]);
    // A version that keeps serving is not a failure.
    world.put_text("m", "colour: \"blue\"", &[1]);
    world.server.poll_repositories();
    world.check_index(&["m 1 READY"]);
    assert_eq!(world.server.ready(), Ok(true));
}

#[test]
fn a_model_without_versions_fails_even_if_it_served_before() {
    let world = World::new();
    world.put("m", "one", &[1]);
    world.load("m").unwrap();
    world.unload("m");
    world.put("m", "two", &[]);
    assert!(world.load("m").is_err());
    world.check_index(&["m 1 UNAVAILABLE: unloaded"]);
    assert_eq!(world.server.ready(), Ok(true));
}

#[test]
fn a_model_fails_while_two_repositories_hold_it() {
    let world = World::with(ControlMode::Poll, 2);
    world.put("m", "one", &[1]);
    assert!(world.server.poll_repositories());
    world.put_text("m", DUPLICATED, &[1]);
    assert!(!world.server.poll_repositories());
    world.check_index(&["m 1 UNAVAILABLE: unloaded"]);
    assert_eq!(world.server.ready(), Ok(true));
    assert!(!world.server.poll_repositories());
    world.check_index(&["m 1 UNAVAILABLE: unloaded"]);
    world.put("m", "two", &[1]);
    assert!(world.server.poll_repositories());
    assert_eq!((world.tag("m").as_str(), world.server.ready()), ("two", Ok(true)));
}

#[test]
fn unchanged_versions_are_left_alone() {
    let world = World::new();
    world.put("m", "one", &[1, 2]);
    world.load("m").unwrap();
    assert_eq!(world.ask("m", Some(1)).unwrap(), (1, String::from("one")));
    world.put_config("m", &config("one", 1), &[2, 3]);
    world.load("m").unwrap();
    assert_eq!(world.loads(), 3, "only version 3");
    world.check_index(&["m 1 UNAVAILABLE: unloaded", "m 2 READY", "m 3 READY"]);
    let executed = world.server.statistics(Some("m"), Some(2)).unwrap();
    assert_eq!(executed[0].execution_count, 0);
    assert_eq!(world.ask("m", None).unwrap().0, 3);
}
