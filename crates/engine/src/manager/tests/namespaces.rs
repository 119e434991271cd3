//! Models with the same name in several repositories.

use super::*;

fn world(control: ControlMode) -> World {
    World::made(control, 2, NamespaceMode::Repositories)
}

/// The model `m` in `/a` and `/b`, and ensembles that use it: `ea` in `/a`, `eb` in `/b`, `ec` in
/// `/c`.
fn with_ensembles(control: ControlMode) -> World {
    let world = world(control);
    for (id, tag) in [("/a::m", "a"), ("/b::m", "b")] {
        world.put(id, tag, &[1]);
    }
    for id in ["/a::ea", "/b::eb", "/c::ec"] {
        world.put_text(id, &ensemble_of("m"), &[1]);
    }
    world
}

fn refused(world: &World, name: &str, code: Code, message: &str) {
    let status = world.ask(name, None).unwrap_err();
    assert_eq!((status.code(), status.message()), (code, message));
}

const AMBIGUOUS: &str = "There are 2 identifiers of model 'm' in global map, model namespace must \
                         be provided to resolve ambiguity.";

fn namespace_of_step(world: &World, ensemble: &str) -> String {
    let config = world.server.model_config(ensemble, None).unwrap();
    let (_, rest) = config.json.split_once("\"model_namespace\":\"").unwrap();
    rest.split_once('"').unwrap().0.to_owned()
}

#[test]
fn names_in_ensembles_mean_the_model_in_their_own_namespace() {
    let world = with_ensembles(ControlMode::Explicit);
    world.load("ea").unwrap();
    world.load("eb").unwrap();
    assert_eq!((world.tag("ea").as_str(), world.tag("eb").as_str()), ("a", "b"));
    assert_eq!(namespace_of_step(&world, "ea"), "/a");
    assert_eq!(namespace_of_step(&world, "eb"), "/b");
    world.check_index(&["ea 1 READY", "m 1 READY", "eb 1 READY", "m 1 READY", "ec"]);
    let error = "load failed for model '/c::ec': ensemble /c::ec contains models that are not \
                 available or ambiguous: m\n";
    assert_eq!(world.load("ec").unwrap_err().message(), error);
}

#[test]
fn ambiguous_and_unknown_names_are_refused() {
    let world = with_ensembles(ControlMode::Explicit);
    refused(&world, "m", Code::InvalidArgument, "Request for unknown model: 'm' is not found");
    world.load("m").unwrap();
    refused(&world, "m", Code::InvalidArgument, AMBIGUOUS);
    assert_eq!(world.server.model_ready("m", None).unwrap_err().message(), AMBIGUOUS);
    assert_eq!(world.server.model_config("m", None).unwrap_err().message(), AMBIGUOUS);
    assert_eq!(world.server.model_metadata("m", Some(1)).unwrap_err().message(), AMBIGUOUS);
    let status = world.server.statistics(Some("m"), None).unwrap_err();
    assert_eq!(status.message(), "requested model 'm' is not available");
    let all = world.server.statistics(None, None).unwrap();
    let all: Vec<_> = all.iter().map(|one| (one.namespace.as_deref(), &*one.name)).collect();
    assert_eq!(all, [(Some("/a"), "m"), (Some("/b"), "m")]);
    world.unload("m");
    let gone = "Identifier of model 'm' is not found in global map";
    refused(&world, "m", Code::NotFound, gone);
    world.check_index(&[
        "ea",
        "m 1 UNAVAILABLE: unloaded",
        "eb",
        "m 1 UNAVAILABLE: unloaded",
        "ec",
    ]);
}

#[test]
fn the_only_model_of_a_name_is_found_by_it_and_shown_by_its_id() {
    let world = with_ensembles(ControlMode::Explicit);
    world.catalog.models.lock().unwrap().remove("/b::m");
    world.load("ea").unwrap();
    assert_eq!(world.tag("m"), "a");
    let status = world.ask("m", Some(7)).unwrap_err();
    let message = "Request for unknown model: '/a::m' version 7 is not found";
    assert_eq!((status.code(), status.message()), (Code::NotFound, message));
    world.load("ec").unwrap();
    assert_eq!((world.tag("ec").as_str(), namespace_of_step(&world, "ec").as_str()), ("a", "/a"));
    world.put("/b::m", "corrupt", &[1]);
    let error = "load failed for model '/b::m': version 1 is at UNAVAILABLE state: Internal: it is \
                 corrupt;\n";
    assert_eq!(world.load("m").unwrap_err().message(), error);
    // The model is desired, so the name doesn't refer only to the other one.
    refused(&world, "m", Code::InvalidArgument, AMBIGUOUS);
    assert_eq!(world.tag("ea"), "a");
    until(|| world.ask("ec", None).is_err());
}

#[test]
fn ensembles_switch_to_another_model_of_the_name_and_back() {
    let world = with_ensembles(ControlMode::Poll);
    world.catalog.models.lock().unwrap().remove("/c::ec");
    assert!(world.server.poll_repositories());
    assert_eq!((world.tag("ea").as_str(), world.tag("eb").as_str()), ("a", "b"));
    let own = world.catalog.models.lock().unwrap().remove("/a::m").unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = SetOnDrop(&over);
        let client = scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                world.ask("ea", None).expect("it serves all the time");
            }
        });
        for _ in 0..20 {
            assert!(world.server.poll_repositories());
            assert_eq!(world.tag("ea"), "b");
            assert_eq!(world.tag("m"), "b");
            world.catalog.models.lock().unwrap().insert(String::from("/a::m"), own.clone());
            assert!(world.server.poll_repositories());
            assert_eq!(world.tag("ea"), "a");
            refused(&world, "m", Code::InvalidArgument, AMBIGUOUS);
            world.catalog.models.lock().unwrap().remove("/a::m");
        }
        drop(end);
        client.join().unwrap();
    });
    assert_eq!(world.tag("eb"), "b");
}

#[test]
fn unloading_a_name_unloads_all_models_of_it_and_what_only_they_need() {
    let world = with_ensembles(ControlMode::Explicit);
    world.put_text("/b::ea", &ensemble_of("m"), &[1]);
    world.load("ea").unwrap();
    refused(&world, "ea", Code::InvalidArgument, &AMBIGUOUS.replace("'m'", "'ea'"));
    world.server.unload_model("ea", true).unwrap();
    refused(&world, "m", Code::NotFound, "Identifier of model 'm' is not found in global map");
    until(|| world.instances() == 0);
    world.load("eb").unwrap();
    assert_eq!(world.tag("eb"), "b");
    refused(&world, "m", Code::InvalidArgument, AMBIGUOUS);
}

#[test]
fn a_name_does_not_mean_a_model_whose_load_was_cancelled() {
    let world = with_ensembles(ControlMode::Poll);
    world.catalog.models.lock().unwrap().retain(|id, _| id == "/a::m");
    assert!(world.server.poll_repositories());
    world.put("/b::m", "b", &[1]);
    world.controls.loading.close();
    std::thread::scope(|scope| {
        let load = scope.spawn(|| world.server.poll_repositories());
        world.controls.loading.wait_for(1);
        world.catalog.models.lock().unwrap().remove("/b::m");
        let gone = scope.spawn(|| world.server.poll_repositories());
        until(|| world.ask("m", None).is_ok());
        world.controls.loading.open();
        load.join().unwrap();
        assert!(gone.join().unwrap());
    });
    assert_eq!(world.tag("m"), "a");
}

#[test]
fn a_name_does_not_mean_an_order_that_failed_at_start() {
    let world = world(ControlMode::Explicit);
    let names = [String::from("m"), String::from("n")];
    assert!(!world.server.load_named(&names));
    assert_eq!(world.server.ready(), Ok(true));
    refused(&world, "n", Code::InvalidArgument, "Request for unknown model: 'n' is not found");
    world.put("/a::m", "a", &[1]);
    world.load("m").unwrap();
    assert_eq!(world.tag("m"), "a");
    world.unload("n");
    assert_eq!(world.tag("m"), "a");
}

#[test]
fn a_name_does_not_mean_a_model_that_can_not_be_read() {
    let world = world(ControlMode::Poll);
    world.put("/b::m", "b", &[1]);
    world.put_text("/a::m", "colour: 1", &[1]);
    world.put_text("/a::ea", &ensemble_of("m"), &[1]);
    world.put_text("/a::n", "colour: 1", &[1]);
    assert!(!world.server.poll_repositories());
    assert_eq!((world.tag("m").as_str(), world.tag("ea").as_str()), ("b", "b"));
    assert_eq!(world.server.ready(), Ok(true));
    refused(&world, "n", Code::InvalidArgument, "Request for unknown model: 'n' is not found");
    world.catalog.models.lock().unwrap().retain(|id, _| !["/a::m", "/a::n"].contains(&&**id));
    assert!(world.server.poll_repositories());
    assert_eq!(world.server.ready(), Ok(true));
}

#[test]
fn models_of_a_needed_name_are_unloaded_with_the_ensemble() {
    let world = with_ensembles(ControlMode::Explicit);
    world.load("ea").unwrap();
    world.check_index(&["ea 1 READY", "m 1 READY", "eb", "m 1 READY", "ec"]);
    world.load("eb").unwrap();
    world.server.unload_model("ea", true).unwrap();
    assert_eq!((world.tag("m").as_str(), world.tag("eb").as_str()), ("b", "b"));
    world.server.unload_model("eb", true).unwrap();
    until(|| world.instances() == 0);
    world.load("ea").unwrap();
    world.server.unload_model("ea", true).unwrap();
    refused(&world, "m", Code::NotFound, "Identifier of model 'm' is not found in global map");
    until(|| world.instances() == 0);
}
