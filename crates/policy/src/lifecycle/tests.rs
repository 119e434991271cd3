use super::*;

fn words(action: &LifecycleAction) -> String {
    match action {
        LifecycleAction::Load(name, revision) => format!("load {name}@{}", revision.0),
        LifecycleAction::Unload(name) => format!("unload {name}"),
        LifecycleAction::Block(name, BlockReason::Missing(need)) => {
            format!("block {name} without {need}")
        }
        LifecycleAction::Block(name, BlockReason::Cycle) => format!("block {name} cycle"),
    }
}

/// Plays `want a@1 b c` (needs b and c), `drop a`, `ok a`, `failed a`, `gone a`,
/// `retry a`, line by line.
#[track_caller]
fn check(script: &str) -> Lifecycle {
    let mut lifecycle = Lifecycle::default();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (input, expected) = line.split_once("->").expect("event -> actions");
        let input: Vec<&str> = input.split_whitespace().collect();
        let event = match input.as_slice() {
            ["want", model, needs @ ..] => {
                let (name, revision) = model.split_once('@').expect("name@revision");
                let wanted = Wanted {
                    revision: Revision(revision.parse().expect("a revision")),
                    needs: needs.iter().map(|need| ModelName::from(*need)).collect(),
                };
                LifecycleEvent::Want(name.into(), wanted)
            }
            ["drop", name] => LifecycleEvent::Unwant((*name).into()),
            ["retry", name] => LifecycleEvent::Retry((*name).into()),
            ["ok", name] => LifecycleEvent::Loaded((*name).into(), LoadOutcome::Serves),
            ["failed", name] => LifecycleEvent::Loaded((*name).into(), LoadOutcome::Failed),
            ["gone", name] => LifecycleEvent::Unloaded((*name).into()),
            other => panic!("unknown event {other:?}"),
        };
        let mut actions = Vec::new();
        lifecycle.step(event, &mut actions);
        let done: Vec<String> = actions.iter().map(words).collect();
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
    assert_eq!(lifecycle.serves("a"), Some(Revision(3)));
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
    assert_eq!(lifecycle.serves("a"), Some(Revision(1)));
    assert_eq!(lifecycle.situation("a"), ModelSituation::Failed);
    assert_eq!(lifecycle.situation("b"), ModelSituation::Absent);
}

#[test]
fn what_is_not_wanted_any_more_goes_once_it_is_loaded() {
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
    assert_eq!(lifecycle.situation("a"), ModelSituation::Absent);
    assert!(lifecycle.models.is_empty());
}

#[test]
fn an_ensemble_is_loaded_behind_what_it_needs() {
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
fn an_ensemble_is_loaded_anew_with_what_it_needs() {
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
fn an_ensemble_goes_with_what_it_needs() {
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
fn an_ensemble_without_what_failed_is_blocked() {
    let lifecycle = check(
        "want e@1 a -> block e without a
         want a@1 -> load a@1
         failed a -> block e without a
         want a@2 -> load a@2
         ok a -> load e@1
         ok e ->",
    );
    assert_eq!(lifecycle.situation("e"), ModelSituation::Serves);
}

#[test]
fn cycles_are_blocked_and_nothing_else() {
    let lifecycle = check(
        "want a@1 -> load a@1
         ok a ->
         want e@1 a f -> block e without f
         want f@1 e -> block e cycle, block f cycle
         want g@1 g -> block g cycle
         want f@2 a -> load f@2
         ok f -> load e@1",
    );
    assert_eq!(lifecycle.situation("e"), ModelSituation::Working);
    assert_eq!(lifecycle.needed_by("a").map(|name| &**name).collect::<Vec<_>>(), ["e", "f"]);
}
