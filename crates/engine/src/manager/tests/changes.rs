//! Loads, reloads, unloads and polls of individual models.

use super::*;

#[test]
fn a_batch_strategy_ends_with_its_model_although_a_timer_has_the_dispatcher() {
    let world = World::new();
    world.put_text("m", &format!("{} dynamic_batching {{ }}", config("one", 1)), &[1]);
    world.load("m").unwrap();
    assert_eq!(world.tag("m"), "one");
    assert_eq!(world.controls.rules.load(Ordering::SeqCst), 1);
    let snapshot = world.server.registry.snapshot();
    // Such a reference may be held by a timer alarm or by a request that is being cancelled.
    let model = snapshot.find("m", None).unwrap().downgrade().upgrade();
    drop(snapshot);
    world.unload("m");
    world.check_index(&["m 1 UNAVAILABLE: unloaded"]);
    assert_eq!(world.controls.rules.load(Ordering::SeqCst), 0);
    drop(model);
}

#[test]
fn a_model_is_loaded_reloaded_and_unloaded_by_order() {
    let world = World::new();
    world.put("m", "one", &[1]);
    world.check_index(&["m"]);
    assert_eq!(world.ask("m", None).unwrap_err().code(), Code::NotFound);
    assert_eq!(world.server.ready(), Ok(true), "no order loaded it");
    world.load("m").unwrap();
    assert_eq!(world.ask("m", None).unwrap(), (1, String::from("one")));
    world.check_index(&["m 1 READY"]);

    world.load("m").unwrap();
    assert_eq!(world.loads(), 1, "it did not change");
    world.put("m", "two", &[1]);
    assert_eq!(world.tag("m"), "one");
    world.load("m").unwrap();
    assert_eq!((world.tag("m").as_str(), world.loads()), ("two", 2));

    world.unload("m");
    let status = world.ask("m", None).unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::NotFound, "Request for unknown model: 'm' has no available versions")
    );
    let status = world.ask("m", Some(1)).unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    world.check_index(&["m 1 UNAVAILABLE: unloaded"]);
    assert_eq!(world.server.ready(), Ok(true));
    until(|| world.instances() == 0);
    world.unload("m");
    world.unload("never heard of");
    world.load("m").unwrap();
    assert_eq!(world.tag("m"), "two");
}

#[test]
fn invalid_orders_are_refused_with_the_texts_of_triton() {
    let world = World::new();
    let check = |name: &str, code: Code, expected: &str| {
        let status = world.load(name).unwrap_err();
        assert_eq!((status.code(), status.message()), (code, expected), "{name:?}");
    };
    let empty = "Model name cannot be empty. Please enter a valid name to deploy.";
    check("", Code::InvalidArgument, empty);
    check("  ", Code::InvalidArgument, empty);
    let path = "model name must not contain path traversal characters";
    check("..", Code::InvalidArgument, &format!("invalid model name '..', {path}"));
    check("a/b", Code::InvalidArgument, &format!("invalid model name 'a/b', {path}"));
    let missing = "failed to load 'x', failed to poll from model repository";
    check("x", Code::Internal, missing);
    world.put_text("x", "colour: \"blue\"", &[1]);
    check("x", Code::Internal, missing);
    world.check_index(&["x"]);
    assert_eq!(world.server.ready(), Ok(true), "nothing is known of a model that was not read");
    world.put("x", "corrupt", &[1]);
    check(
        "x",
        Code::InvalidArgument,
        "load failed for model 'x': version 1 is at UNAVAILABLE state: Internal: it is corrupt;\n",
    );
    world.check_index(&["x 1 UNAVAILABLE: Internal: it is corrupt"]);
    assert_eq!(world.server.ready(), Ok(false));
    world.put("x", "panic", &[1]);
    assert_eq!(world.load("x").unwrap_err().code(), Code::InvalidArgument);
    world.unload("x");
    assert_eq!(world.server.ready(), Ok(true), "it is not desired any more");

    for mode in [ControlMode::None, ControlMode::Poll] {
        let world = World::with(mode, 1);
        world.put("m", "one", &[1]);
        let status = world.load("m").unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().starts_with("explicit model load / unload is not allowed"));
        assert_eq!(world.server.unload_model("m", false).unwrap_err().code(), Code::Unavailable);
    }
}

#[test]
fn a_failed_reload_leaves_the_old_model_serving_and_can_be_repeated() {
    let world = World::new();
    world.put("m", "one", &[1, 2]);
    world.load("m").unwrap();
    world.put("m", "corrupt2", &[1, 2]);
    for _ in 0..2 {
        let status = world.load("m").unwrap_err();
        assert_eq!(
            status.message(),
            "load failed for model 'm': version 2 is at READY state: Internal: it is corrupt;\n"
        );
        assert_eq!(world.ask("m", Some(1)).unwrap().1, "one", "all or nothing");
        assert_eq!(world.ask("m", Some(2)).unwrap().1, "one");
    }
    world.check_index(&["m 1 READY", "m 2 READY"]);
    assert_eq!(world.loads(), 6);
    world.put("m", "three", &[1, 2]);
    world.load("m").unwrap();
    assert_eq!(world.ask("m", Some(1)).unwrap().1, "three");
}

#[test]
fn the_old_model_serves_until_the_new_one_is_ready_and_finishes_what_it_took() {
    let world = World::new();
    world.put("m", "one", &[1]);
    world.load("m").unwrap();
    world.put("m", "two", &[1]);
    world.controls.loading.close();
    std::thread::scope(|scope| {
        let load = scope.spawn(|| world.load("m"));
        world.controls.loading.wait_for(1);
        assert_eq!((world.tag("m").as_str(), world.index()[0].as_str()), ("one", "m 1 READY"));
        world.controls.executing.close();
        let early: Vec<_> = (0..3)
            .map(|_| {
                let asked = InferenceRequest { model_name: "m".into(), ..echo_request(&[1, 1]) };
                send(&world.server, asked)
            })
            .collect();
        world.controls.executing.wait_for(1);
        world.controls.loading.open();
        load.join().unwrap().unwrap();
        assert_eq!(world.instances(), 2, "the old one has requests left");
        world.controls.executing.open();
        for inbox in early {
            assert_eq!(inbox.recv_timeout(LONG).unwrap().unwrap().id, "one");
        }
        assert_eq!(world.tag("m"), "two");
        until(|| world.instances() == 1);
    });
}

#[test]
fn a_configuration_that_came_stays_until_the_model_changes_or_is_unloaded() {
    let world = World::new();
    world.put("m", "one", &[1]);
    world.load("m").unwrap();
    let with = |config: &str, files: &[&str]| LoadParameters {
        config: Some(config.to_owned()),
        files: files.iter().map(|path| ((*path).to_owned(), Vec::new())).collect(),
    };
    world.server.load_model("m", with(&config("mine", 1), &[])).unwrap();
    assert_eq!(world.tag("m"), "mine");
    world.load("m").unwrap();
    assert_eq!((world.tag("m").as_str(), world.loads()), ("mine", 2));
    world.put("m", "two", &[1]);
    world.load("m").unwrap();
    assert_eq!((world.tag("m").as_str(), world.loads()), ("two", 3));
    world.server.load_model("m", with(&config("mine", 1), &[])).unwrap();
    world.unload("m");
    world.load("m").unwrap();
    assert_eq!((world.tag("m").as_str(), world.loads()), ("two", 5));
    world.server.load_model("m", with(&config("mine", 1), &["1/x"])).unwrap();
    assert_eq!(world.tag("m"), "mine");
    world.load("m").unwrap();
    assert_eq!((world.tag("m").as_str(), world.loads()), ("two", 7));
    let status = world.server.load_model("m", with("x", &[])).unwrap_err();
    assert_eq!((status.code(), world.tag("m").as_str()), (Code::Internal, "two"));
}

#[test]
// row: MR-20
fn orders_for_one_name_run_one_after_another_and_for_several_at_once() {
    let world = World::new();
    world.put("a", "one", &[1]);
    world.put("b", "one", &[1]);
    world.controls.loading.close();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| world.load("a"));
        world.controls.loading.wait_for(1);
        let again = scope.spawn(|| world.load("a"));
        let unload = scope.spawn(|| world.server.unload_model("a", false));
        let other = scope.spawn(|| world.load("b"));
        world.controls.loading.wait_for(2);
        assert_eq!(world.loads(), 2, "a and b");
        world.controls.loading.open();
        for done in [first, again, unload, other] {
            done.join().unwrap().unwrap();
        }
    });
    assert_eq!(world.tag("b"), "one");
}

#[test]
fn no_request_is_lost_while_a_model_is_reloaded_again_and_again() {
    const RELOADS: usize = 60;
    let world = World::new();
    world.put("m", "0", &[1]);
    world.load("m").unwrap();
    let over = AtomicBool::new(false);
    let answers = [0, 0, 0].map(AtomicUsize::new);
    std::thread::scope(|scope| {
        let end = SetOnDrop(&over);
        let clients = answers.each_ref().map(|answers| {
            scope.spawn(|| {
                let mut newest = 0;
                while !over.load(Ordering::SeqCst) {
                    let tag: usize = world.tag("m").parse().unwrap();
                    assert!(tag >= newest, "an older model answered");
                    newest = tag;
                    answers.fetch_add(1, Ordering::SeqCst);
                }
            })
        });
        for number in 1..=RELOADS {
            // However late a client's thread starts, it sends requests between any two changes.
            let before = answers.each_ref().map(|answers| answers.load(Ordering::SeqCst));
            let both = answers.iter().zip(before);
            let have_asked = || both.clone().all(|(now, old)| now.load(Ordering::SeqCst) > old);
            let has_failed = || clients.iter().any(|client| client.is_finished());
            until(|| have_asked() || has_failed());
            let is_corrupt = number % 10 == 0;
            let tag = if is_corrupt { String::from("corrupt") } else { number.to_string() };
            world.put("m", &tag, &[1]);
            assert_eq!(world.load("m").is_err(), is_corrupt);
        }
        drop(end);
        for client in clients {
            client.join().unwrap();
        }
    });
    until(|| world.instances() == 1);
}

#[test]
fn polling_follows_the_repository() {
    let world = World::with(ControlMode::Poll, 2);
    world.put("a", "one", &[1]);
    world.put("b", "corrupt", &[1]);
    assert!(!world.server.poll_repositories());
    world.check_index(&["a 1 READY", "b 1 UNAVAILABLE: Internal: it is corrupt"]);
    world.put("b", "one", &[1]);
    world.put_text("c", "colour: 1", &[1]);
    assert!(!world.server.poll_repositories());
    world.check_index(&["a 1 READY", "b 1 READY", "c"]);
    assert_eq!((world.loads(), world.server.ready()), (3, Ok(true)));
    let unknown = world.ask("c", None).unwrap_err();
    assert_eq!(unknown.message(), "Request for unknown model: 'c' is not found");
    world.catalog.models.lock().unwrap().retain(|name, _| name == "b");
    world.put("b", "two", &[1]);
    assert!(world.server.poll_repositories());
    assert_eq!(world.tag("b"), "two");
    until(|| world.server.ready() == Ok(true));
    assert_eq!(world.ask("a", None).unwrap_err().code(), Code::NotFound);
    world.check_index(&["b 1 READY"]);
    assert!(world.server.poll_repositories());
    assert_eq!(world.loads(), 4);
}

#[test]
fn polls_log_a_failure_once_until_it_changes() {
    let world = World::with(ControlMode::Poll, 2);
    let logged = || std::mem::take(&mut *world.controls.errors.lock().unwrap());
    let poll = || {
        world.server.poll_repositories();
        let mut lines = logged();
        lines.sort();
        lines
    };
    let failed = "failed to load 'b' version 1: it is corrupt";
    let unread = "Poll failed for model directory 'c':";
    world.put("b", "corrupt", &[1]);
    world.put_text("c", "colour: 1", &[1]);
    world.put_text("e", &ensemble_of("b"), &[1]);
    let first = poll();
    assert_eq!(first.len(), 3, "{first:?}");
    assert!(first[0].starts_with(unread), "{first:?}");
    assert_eq!(first[1], failed);
    assert!(first[2].starts_with("failed to load 'e': "), "{first:?}");
    assert_eq!((poll(), poll(), world.loads()), (vec![], vec![], 3));
    // The same mistake recurs in different files.
    world.put("b", "corrupt", &[1]);
    assert_eq!(poll(), [failed]);
    world.put_text("c", "flavour: 1", &[1]);
    let other = poll();
    assert!(other.len() == 1 && other[0].starts_with(unread), "{other:?}");
    // A model that served in the meantime fails again.
    world.put("b", "one", &[1]);
    world.put("c", "one", &[1]);
    assert_eq!(poll(), [""; 0]);
    world.put("b", "corrupt", &[1]);
    world.put_text("c", "flavour: 1", &[1]);
    assert_eq!(poll().len(), 2);
}

#[test]
fn orders_log_each_failure() {
    let world = World::new();
    world.put("b", "corrupt", &[1]);
    for count in 1..3 {
        world.load("b").unwrap_err();
        assert_eq!(world.controls.errors.lock().unwrap().len(), count);
    }
}

#[test]
fn repositories_are_registered_under_explicit_control_only() {
    for control in [ControlMode::None, ControlMode::Poll] {
        let world = World::with(control, 1);
        let status = world.server.register_repository("/r", &[]).unwrap_err();
        let expected =
            "repository registration is not allowed if model control mode is not EXPLICIT";
        assert_eq!((status.code(), status.message()), (Code::Unsupported, expected));
        let status = world.server.unregister_repository("/r").unwrap_err();
        let expected =
            "repository unregistration is not allowed if model control mode is not EXPLICIT";
        assert_eq!((status.code(), status.message()), (Code::Unsupported, expected));
    }
    let status = World::new().server.register_repository("/r", &[]).unwrap_err();
    assert_eq!(status.message(), "there are no repositories to add '/r' to");
}

#[test]
fn models_are_loaded_by_name_at_start() {
    let world = World::new();
    world.put("a", "one", &[1]);
    world.put("b", "one", &[1]);
    assert!(world.server.load_named(&[String::from("a")]));
    world.check_index(&["a 1 READY", "b"]);
    assert!(!world.server.load_named(&[String::from("x")]));
}

#[test]
fn the_exit_waits_for_requests_and_loads_and_begins_no_others() {
    let world = World::new();
    world.put("a", "one", &[1]);
    world.put("b", "one", &[1]);
    world.load("a").unwrap();
    world.controls.executing.close();
    let asked = InferenceRequest { model_name: "a".into(), ..echo_request(&[1, 1]) };
    let inbox = send(&world.server, asked);
    world.controls.executing.wait_for(1);
    world.controls.loading.close();
    std::thread::scope(|scope| {
        let load = scope.spawn(|| world.load("b"));
        world.controls.loading.wait_for(1);
        world.server.begin_exit();
        assert_eq!(world.server.unload_all(Duration::ZERO), 2);
        assert_eq!(load.join().unwrap().unwrap_err().code(), Code::Unavailable);
        assert_eq!(world.load("a").unwrap_err().code(), Code::Unavailable);
        let statistics = world.server.statistics(None, None).unwrap();
        assert_eq!(statistics.len(), 1, "what still runs can be measured");
        world.controls.loading.open();
        world.controls.executing.open();
        assert_eq!(world.server.unload_all(LONG), 0);
    });
    assert_eq!(inbox.recv_timeout(LONG).unwrap().unwrap().id, "one");
    assert_eq!(world.instances(), 0);
}
