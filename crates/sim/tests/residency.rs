//! Tests random worlds of models that don't all fit into memory, and the choice of victims.

use galatea_sim::{ModelTrace, compare_residency, fuzz_residency};

#[test]
fn random_worlds_of_models_keep_the_rules() {
    for seed in 0..2_000 {
        fuzz_residency(seed).unwrap_or_else(|message| panic!("seed {seed}: {message}"));
    }
}

/// Checks on a short sample of each trace that the choice of victims is as good as others, and not
/// far from one that knows the future. `cargo run --release -p galatea-sim --bin residency` takes
/// ten million requests.
#[test]
fn the_choice_of_victims_saves_as_much_load_time_as_others() {
    for trace in ModelTrace::all(6_000) {
        let result = compare_residency(&trace);
        let [saved, _] = result.residency;
        let [[least_recent, _], [known_future, _]] = [result.least_recent, result.known_future];
        let others = [result.least_frequent[0], result.greedy_dual[0]];
        let text = format!("{}: {result:?}", trace.name);
        assert!(saved > least_recent - 0.001, "{text}");
        assert!(others.iter().all(|other| saved > other - 0.01), "{text}");
        assert!(saved > known_future * 0.8, "{text}");
        assert!(known_future <= result.bound + 0.001, "{text}");
    }
}
