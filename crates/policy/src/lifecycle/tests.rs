use super::*;

fn render(action: &LifecycleAction) -> String {
    match action {
        LifecycleAction::Load(name, revision) => format!("load {name}@{}", revision.0),
        LifecycleAction::Unload(name) => format!("unload {name}"),
        LifecycleAction::Block(name, LoadBlockReason::MissingDependency(need)) => {
            format!("block {name} without {need}")
        }
        LifecycleAction::Block(name, LoadBlockReason::DependencyCycle) => {
            format!("block {name} cycle")
        }
    }
}

/// Runs one event per line: `want a@1 b c` (desired directly, depends on b and c), `need a@1`
/// (desired as a dependency), `drop a`, `prune a` (with unused dependencies), `retry a`; the load
/// results `ok a`, `same a` (unchanged), `failed a`, `unfit a` (incompatible) and `given-up a`
/// (cancelled); and `gone a` (unloaded).
#[track_caller]
fn check(script: &str) -> LifecyclePlanner {
    let mut lifecycle = LifecyclePlanner::default();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (input, expected) = line.split_once("->").expect("event -> actions");
        let input: Vec<&str> = input.split_whitespace().collect();
        let event = match input.as_slice() {
            [verb @ ("want" | "need"), model, needs @ ..] => {
                let (name, revision) = model.split_once('@').expect("name@revision");
                let desired = DesiredModel {
                    reason: match *verb {
                        "want" => LoadReason::Direct,
                        _ => LoadReason::Dependency,
                    },
                    revision: ModelRevision(revision.parse().expect("a revision")),
                    dependencies: needs.iter().map(|need| ModelId::from(*need)).collect(),
                };
                LifecycleEvent::SetDesired(name.into(), desired)
            }
            ["drop", name] => LifecycleEvent::RemoveDesired((*name).into()),
            ["prune", name] => LifecycleEvent::RemoveDesiredAndUnused((*name).into()),
            ["retry", name] => LifecycleEvent::Retry((*name).into()),
            ["ok", name] => LifecycleEvent::Loaded((*name).into(), LoadOutcome::Serves),
            ["same", name] => LifecycleEvent::Loaded((*name).into(), LoadOutcome::ServesUnchanged),
            ["unfit", name] => LifecycleEvent::Loaded((*name).into(), LoadOutcome::Incompatible),
            ["failed", name] => LifecycleEvent::Loaded((*name).into(), LoadOutcome::Failed),
            ["given-up", name] => LifecycleEvent::Loaded((*name).into(), LoadOutcome::Cancelled),
            ["gone", name] => LifecycleEvent::Unloaded((*name).into()),
            other => panic!("unknown event {other:?}"),
        };
        let mut actions = Vec::new();
        lifecycle.step(event, &mut actions);
        let done: Vec<String> = actions.iter().map(render).collect();
        assert_eq!(done.join(", "), expected.trim(), "in line {line:?}");
    }
    lifecycle
}

#[test]
fn a_model_is_loaded_once_per_revision() {
    let lifecycle = check(
        "want a@1 -> load a@1
         want a@1 ->
         ok a ->
         want a@1 ->
         want a@2 -> load a@2
         want a@3 ->
         ok a -> load a@3
         failed a ->
         want a@3 ->
         retry a -> load a@3
         ok a ->",
    );
    assert_eq!(lifecycle.serving_revision("a"), Some(ModelRevision(3)));
    assert!(lifecycle.is_settled());
}

#[test]
fn a_failed_reload_leaves_the_old_revision_serving() {
    let lifecycle = check(
        "want a@1 -> load a@1
         ok a ->
         want a@2 -> load a@2
         failed a ->",
    );
    assert_eq!(lifecycle.serving_revision("a"), Some(ModelRevision(1)));
    assert_eq!(lifecycle.status("a"), LifecycleStatus::Failed);
    assert_eq!(lifecycle.status("b"), LifecycleStatus::Absent);
}

#[test]
fn a_model_that_is_removed_while_loading_is_unloaded_afterwards() {
    let lifecycle = check(
        "want a@1 -> load a@1
         drop a ->
         ok a -> unload a
         want a@2 ->
         gone a -> load a@2
         ok a ->
         drop a -> unload a
         gone a ->
         drop a ->",
    );
    assert_eq!(lifecycle.status("a"), LifecycleStatus::Absent);
    assert!(lifecycle.models.is_empty());
}

#[test]
fn a_cancelled_load_is_repeated_if_the_model_is_desired_again() {
    let lifecycle = check(
        "want a@1 -> load a@1
         drop a ->
         want a@1 ->
         given-up a -> load a@1
         ok a ->
         want e@1 a -> load e@1
         ok e ->
         want a@2 -> load a@2
         ok a -> load e@1
         drop e ->
         want e@1 a ->
         given-up e -> load e@1
         drop e ->
         given-up e -> unload e
         gone e ->",
    );
    assert!(lifecycle.is_settled());
}

#[test]
fn an_ensemble_is_loaded_after_its_dependencies() {
    check(
        "want e@1 a b -> block e without a
         want a@1 ->  load a@1, block e without b
         want b@1 -> load b@1
         ok a ->
         ok b -> load e@1
         ok e ->",
    );
}

#[test]
fn an_ensemble_is_reloaded_with_its_dependencies() {
    check(
        "want a@1 -> load a@1
         ok a ->
         want e@1 a -> load e@1
         ok e ->
         want a@2 -> load a@2
         ok a -> load e@1
         ok e ->
         want a@3 -> load a@3
         failed a ->",
    );
}

#[test]
fn an_ensemble_is_unloaded_with_its_dependencies() {
    let lifecycle = check(
        "want a@1 -> load a@1
         ok a ->
         want e@1 a -> load e@1
         ok e ->
         want f@1 e -> load f@1
         ok f ->
         drop a -> unload a, block e without a, unload e, block f without e, unload f
         gone a ->
         gone e ->
         gone f ->
         want a@1 -> load a@1
         ok a -> load e@1
         ok e -> load f@1
         ok f ->",
    );
    assert!(lifecycle.is_settled());
}

#[test]
fn an_ensemble_with_a_failed_dependency_is_blocked() {
    let lifecycle = check(
        "want e@1 a -> block e without a
         want a@1 -> load a@1
         failed a -> block e without a
         want a@2 -> load a@2
         ok a -> load e@1
         ok e ->",
    );
    assert_eq!(lifecycle.status("e"), LifecycleStatus::Serving);
}

#[test]
// row: MR-15
fn only_models_in_a_cycle_are_blocked() {
    let lifecycle = check(
        "want a@1 -> load a@1
         ok a ->
         want e@1 a f -> block e without f
         want f@1 e -> block e cycle, block f cycle
         want g@1 g -> block g cycle
         want f@2 a -> load f@2
         ok f -> load e@1",
    );
    assert_eq!(lifecycle.status("e"), LifecycleStatus::InProgress);
    assert_eq!(lifecycle.dependents_of("a").map(|name| &**name).collect::<Vec<_>>(), ["e", "f"]);
}

#[test]
// row: PREP-09
fn unused_dependencies_are_unloaded_with_their_ensemble() {
    let lifecycle = check(
        "need a@1 -> load a@1
         ok a ->
         need b@1 -> load b@1
         ok b ->
         want c@1 -> load c@1
         ok c ->
         want e@1 a b c -> load e@1
         ok e ->
         want f@1 b -> load f@1
         ok f ->
         prune e -> unload a, unload e
         gone a ->
         gone e ->
         drop f -> unload f
         gone f ->",
    );
    let desired: Vec<&str> = lifecycle.desired().map(|name| &**name).collect();
    assert_eq!(desired, ["b", "c"], "without pruning, dependencies stay");
}

#[test]
fn removal_of_unused_models_is_transitive_and_ends_in_a_cycle() {
    check(
        "need a@1 -> load a@1
         ok a ->
         need inner@1 a -> load inner@1
         ok inner ->
         want outer@1 inner -> load outer@1
         ok outer ->
         prune outer -> unload a, unload inner, unload outer",
    );
    check(
        "want e@1 f -> block e without f
         need f@1 e -> block e cycle, block f cycle
         prune e ->",
    );
}

#[test]
fn a_model_desired_directly_stays_so() {
    check(
        "want a@1 -> load a@1
         ok a ->
         need a@1 ->
         want e@1 a -> load e@1
         ok e ->
         prune e -> unload e
         gone e ->",
    );
}

#[test]
fn an_unchanged_reload_reloads_no_dependent() {
    let lifecycle = check(
        "want a@1 -> load a@1
         ok a ->
         want e@1 a -> load e@1
         ok e ->
         want a@2 -> load a@2
         same a ->",
    );
    assert_eq!(lifecycle.serving_revision("a"), Some(ModelRevision(2)));
    assert!(lifecycle.is_settled());
}

#[test]
fn an_incompatible_ensemble_is_unloaded_and_loaded_when_compatible_again() {
    let lifecycle = check(
        "want a@1 -> load a@1
         ok a ->
         want e@1 a -> load e@1
         ok e ->
         want f@1 e -> load f@1
         ok f ->
         want a@2 -> load a@2
         ok a -> load e@1
         unfit e -> unload e
         gone e -> block f without e, unload f
         gone f ->
         want a@3 -> load a@3
         ok a -> load e@1
         ok e -> load f@1
         ok f ->",
    );
    assert!(lifecycle.is_settled_with_related("a"));
}

#[test]
fn an_ensemble_is_not_settled_before_its_dependencies() {
    let mut lifecycle = check(
        "want a@1 -> load a@1
         ok a ->
         want e@1 a -> load e@1
         ok e ->
         want b@1 -> load b@1
         want a@2 -> load a@2
         want e@1 a ->",
    );
    let settled = |lifecycle: &LifecyclePlanner| {
        ["a", "b", "e"].map(|name| lifecycle.is_settled_with_related(name))
    };
    assert_eq!(settled(&lifecycle), [false; 3]);
    for (name, after) in [("b", [false, true, false]), ("a", [false, true, false])] {
        let event = LifecycleEvent::Loaded(name.into(), LoadOutcome::Serves);
        lifecycle.step(event, &mut Vec::new());
        assert_eq!(settled(&lifecycle), after, "{name}");
    }
    let event = LifecycleEvent::Loaded("e".into(), LoadOutcome::Serves);
    lifecycle.step(event, &mut Vec::new());
    assert_eq!(settled(&lifecycle), [true; 3]);
}

#[test]
fn a_load_is_repeated_if_a_dependency_was_reloaded_meanwhile() {
    check(
        "want a@1 -> load a@1
         ok a ->
         want e@1 a -> load e@1
         want a@2 -> load a@2
         ok a ->
         unfit e -> load e@1
         unfit e ->",
    );
}
