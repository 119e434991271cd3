//! Ensembles and the models that they need.

use super::*;

fn with_ensemble() -> World {
    let world = World::new();
    world.put("m", "one", &[1]);
    world.put_text("e", &ensemble_of("m"), &[1]);
    world.load("e").unwrap();
    world
}

#[test]
// row: MR-13
fn an_ensemble_loads_the_models_that_it_needs_and_is_reloaded_with_them() {
    let world = with_ensemble();
    world.check_index(&["e 1 READY", "m 1 READY"]);
    assert_eq!(world.tag("e"), "one");
    world.put("m", "two", &[1]);
    world.load("e").unwrap();
    assert_eq!((world.tag("e").as_str(), world.tag("m").as_str()), ("two", "two"));
    world.put("m", "three", &[1]);
    world.load("m").unwrap();
    assert_eq!(world.tag("e"), "three");
    until(|| world.instances() == 2);
    world.put_config("m", &config("three", 2), &[1]);
    let loads = world.loads();
    world.load("m").unwrap();
    assert_eq!(world.loads(), loads, "the ensemble doesn't notice");
}

#[test]
fn an_ensemble_is_unloaded_with_a_model_that_it_needs_after_its_requests() {
    let world = with_ensemble();
    world.controls.executing.close();
    let asked = InferenceRequest { model_name: "e".into(), ..echo_request(&[1, 1]) };
    let inbox = send(&world.server, asked);
    world.controls.executing.wait_for(1);
    let later = InferenceRequest { model_name: "e".into(), ..echo_request(&[1, 1]) };
    let later = send(&world.server, later);
    world.unload("m");
    assert_eq!(world.ask("e", None).unwrap_err().code(), Code::NotFound);
    assert_eq!(world.ask("m", None).unwrap_err().code(), Code::NotFound);
    // The ensemble has forwarded its requests, and may already be destroyed.
    assert_eq!(world.index()[1], "m 1 UNLOADING");
    world.controls.executing.open();
    for inbox in [inbox, later] {
        assert_eq!(inbox.recv_timeout(LONG).unwrap().unwrap().id, "one");
    }
    world.check_index(&["e 1 UNAVAILABLE: unloaded", "m 1 UNAVAILABLE: unloaded"]);
    until(|| world.instances() == 0);
    world.load("m").unwrap();
    assert_eq!(world.tag("e"), "one", "it comes back");
}

#[test]
fn models_that_only_an_ensemble_needs_are_unloaded_with_it_on_request() {
    let world = with_ensemble();
    world.unload("e");
    world.check_index(&["e 1 UNAVAILABLE: unloaded", "m 1 READY"]);
    world.load("e").unwrap();
    world.server.unload_model("e", true).unwrap();
    world.check_index(&["e 1 UNAVAILABLE: unloaded", "m 1 UNAVAILABLE: unloaded"]);
    world.load("m").unwrap();
    world.load("e").unwrap();
    world.server.unload_model("e", true).unwrap();
    world.check_index(&["e 1 UNAVAILABLE: unloaded", "m 1 READY"]);
}

#[test]
fn invalid_ensembles_fail_with_the_texts_of_triton() {
    let world = World::new();
    let check = |name: &str, expected: &str| {
        let status = world.load(name).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        let prefix = format!("load failed for model '{name}': ");
        let text = status.message().strip_prefix(&prefix).unwrap_or_else(|| panic!("{status}"));
        assert!(text.contains(expected), "{text}");
    };
    world.put_text("e", &ensemble_of("m"), &[1]);
    check("e", "ensemble e contains models that are not available or ambiguous: m");
    world.put("m", "corrupt", &[1]);
    check(
        "e",
        "ensemble 'e' depends on 'm' which has no loaded version. Model 'm' loading failed with error: version 1 is at UNAVAILABLE state: Internal: it is corrupt;",
    );
    world.put("m", "one", &[1]);
    world.load("e").unwrap();
    let other_type = config("two", 1).replace("TYPE_FP32", "TYPE_INT32");
    world.put_text("m", &other_type, &[1]);
    world.load("m").unwrap();
    let misfit = |name: &str| {
        format!(
            "in ensemble {name}, ensemble tensor IN: inconsistent data type: TYPE_FP32 is inferred \
             from model {name} while TYPE_INT32 is inferred from model m"
        )
    };
    check("e", &misfit("e"));
    world.check_index(&["e 1 UNAVAILABLE: unloaded", "m 1 READY"]);
    world.put_text("o", &ensemble_of("e"), &[1]);
    let outer = "ensemble 'o' depends on 'e' which is not valid. Model 'e' failed with error: ";
    check("o", &format!("{outer}{}", misfit("e")));
    // A mismatch is reported before a missing version.
    world.put_text("n", &ensemble_of("m"), &[]);
    check("n", &misfit("n"));
    world.unload("o");
    world.unload("n");
    world.put("m", "three", &[1]);
    world.load("m").unwrap();
    assert_eq!(world.tag("e"), "three");
    let second = ensemble_of("m").replace("model_version: -1", "model_version: 2");
    world.put_text("e", &second, &[1]);
    check("e", "ensemble 'e' depends on 'm' whose required version 2 is not loaded.");
    world.put_text("e", &ensemble_of("f"), &[1]);
    world.put_text("f", &ensemble_of("e"), &[1]);
    check("e", "circular dependency between ensembles: e -> ... -> f -> e");
}

#[test]
fn an_ensemble_that_does_not_fit_any_more_is_unloaded() {
    let world = with_ensemble();
    world.put_text("m", &config("two", 1).replace("TYPE_FP32", "TYPE_INT32"), &[1]);
    world.load("m").unwrap();
    until(|| world.index().len() == 2 && world.instances() == 1);
    // As in Triton, the reason appears only in the log.
    world.check_index(&["e 1 UNAVAILABLE: unloaded", "m 1 READY"]);
    assert_eq!(world.server.ready(), Ok(true));
    world.put("m", "three", &[1]);
    world.load("m").unwrap();
    world.check_index(&["e 1 READY", "m 1 READY"]);
    assert_eq!(world.server.ready(), Ok(true));

    // Unloading a model unloads the ensemble too.
    world.unload("m");
    world.check_index(&["e 1 UNAVAILABLE: unloaded", "m 1 UNAVAILABLE: unloaded"]);
    assert_eq!(world.server.ready(), Ok(true));
}

#[test]
fn an_ensemble_whose_model_was_removed_from_the_repository_is_blocked() {
    let world = World::with(ControlMode::Poll, 2);
    world.put("m", "one", &[1]);
    world.put_text("e", &ensemble_of("m"), &[1]);
    assert!(world.server.poll_repositories());
    assert_eq!(world.server.ready(), Ok(true));
    world.catalog.models.lock().unwrap().remove("m");
    assert!(!world.server.poll_repositories());
    world.check_index(&["e 1 UNAVAILABLE: unloaded"]);
    assert_eq!(world.server.ready(), Ok(true));
    world.put("m", "two", &[1]);
    assert!(world.server.poll_repositories());
    assert_eq!(world.tag("e"), "two");
}

#[test]
fn an_override_survives_the_load_of_another_model() {
    let world = World::new();
    world.put("m", "one", &[1]);
    world.put_text("e", &ensemble_of("m"), &[1]);
    let mine = |files| LoadParameters { config: Some(config("mine", 1)), files };
    world.server.load_model("m", mine(Vec::new())).unwrap();
    world.load("e").unwrap();
    assert_eq!((world.tag("e"), world.tag("m")), (String::from("mine"), String::from("mine")));
    world.load("m").unwrap();
    assert_eq!(world.tag("e"), "mine", "its files did not change");
    world.put("m", "two", &[1]);
    world.load("e").unwrap();
    assert_eq!(world.tag("e"), "two", "it changed");
    // Files that came with the load are not repository files.
    world.server.load_model("m", mine(vec![(String::from("1/x"), Vec::new())])).unwrap();
    world.load("e").unwrap();
    assert_eq!(world.tag("e"), "two");
}
