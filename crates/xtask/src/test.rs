//! Everything that must pass, cheapest steps first.

use crate::changed::Plan;
use crate::cost::Start;
use crate::count::Count;
use crate::left_out::SkippedTests;
use crate::report::RunReport;
use crate::result::{StepResult, counted};
use crate::{changed, lanes, programs, pytest, steps};

/// A step with its name for `--only`.
struct TestStep {
    name: &'static str,
    /// True for a step of `--all`, which takes long and rarely reveals anything about a change.
    is_long: bool,
    run: fn(Option<&Plan>) -> Result<StepResult, String>,
}

const fn step(
    name: &'static str,
    run: fn(Option<&Plan>) -> Result<StepResult, String>,
) -> TestStep {
    TestStep { name, is_long: false, run }
}

const fn long(
    name: &'static str,
    run: fn(Option<&Plan>) -> Result<StepResult, String>,
) -> TestStep {
    TestStep { name, is_long: true, run }
}

const STEPS: [TestStep; 19] = [
    step("fmt", |_| steps::format()),
    step("arrows", |_| steps::check_arrows()),
    step("headers", |_| steps::check_headers()),
    step("tidy", |_| steps::check_tidiness()),
    // This step compiles everything separately.
    long("clippy", |_| steps::lints()),
    step("build", |_| steps::build()),
    step("python", pytest::run),
    step("descriptors", |_| steps::descriptors()),
    step("rust", steps::rust_tests),
    step("doc", |_| steps::doc_tests()),
    step("readme", |_| steps::readme()),
    step("simulation", |_| steps::simulation()),
    long("seeds", |_| steps::more_seeds()),
    long("browser", |_| pytest::run_browser()),
    long("deploy", |_| pytest::run_deploy()),
    long("mutants", |_| steps::mutants()),
    long("loom", |_| steps::models()),
    long("fuzz", |_| steps::fuzz_targets()),
    long("instructions", |_| steps::instructions()),
];

/// Steps that a whole run executes in parallel: each list is one lane, whose steps run one after
/// another. Python tests spend a third of their time waiting for servers.
const LANES: [&[&str]; 2] = [&["python", "descriptors"], &["rust", "doc", "readme", "simulation"]];

/// The steps that read the sources, for `cargo xtask lint`.
pub(crate) const LINTS: [&str; 6] = ["--only", "fmt", "arrows", "headers", "tidy", "clippy"];

const USAGE: &str = "usage: cargo xtask test [--all | --only STEP… | --changed [COMMIT]]";

/// The tests that a change can break, if the options ask for only these.
fn plan(options: &[&str]) -> Result<Option<Plan>, String> {
    let base = match options {
        ["--changed"] => None,
        ["--changed", base] => Some(*base),
        ["--changed", ..] => return Err(String::from(USAGE)),
        _ => return Ok(None),
    };
    let files = changed::files(base)?;
    let plan = Plan::new(files.iter().map(String::as_str), &changed::uses()?);
    match &plan {
        Some(plan) => println!("{} files have changed:\n{plan}", files.len()),
        None => println!("{} files have changed, and may have broken everything", files.len()),
    }
    Ok(plan)
}

/// The steps that the options select.
fn chosen(options: &[&str]) -> Result<Vec<&'static TestStep>, String> {
    let all = STEPS.iter();
    let chosen: Vec<&TestStep> = match options {
        [] => all.filter(|step| !step.is_long).collect(),
        ["--all"] => all.collect(),
        ["--only", names @ ..] if !names.is_empty() => return named(names),
        ["--changed", ..] => all.collect(),
        _ => return Err(String::from(USAGE)),
    };
    Ok(chosen)
}

/// The steps with these names, in the usual order.
fn named(names: &[&str]) -> Result<Vec<&'static TestStep>, String> {
    if let Some(name) = names.iter().find(|name| !STEPS.iter().any(|step| step.name == **name)) {
        return Err(format!("there is no step '{name}'"));
    }
    Ok(STEPS.iter().filter(|step| names.contains(&step.name)).collect())
}

/// The task: runs the steps, even if one fails, and adds up their tests.
pub(crate) fn run(options: &[&str]) -> Result<(), String> {
    let chosen = chosen(options)?;
    programs::restrict()?;
    let is_partial = options.first() == Some(&"--changed");
    let plan = plan(options)?;
    let start = Start::now();
    let mut report = RunReport::default();
    let is_planned = |step: &&TestStep| {
        plan.as_ref().map_or(!is_partial || !step.is_long, |plan| plan.steps.contains(step.name))
    };
    let is_whole = matches!(options, [] | ["--all"]);
    let mut are_lanes_due = is_whole;
    for step in chosen.into_iter().filter(is_planned) {
        if !is_whole || !LANES.concat().contains(&step.name) {
            run_step(step, plan.as_ref(), &mut report);
        } else if std::mem::take(&mut are_lanes_due) {
            lanes::run(&LANES, &mut report);
        }
    }
    println!("\n{}", report.text(&start.cost()));
    if report.is_good() { Ok(()) } else { Err(String::from("something failed")) }
}

fn run_step(step: &TestStep, plan: Option<&Plan>, report: &mut RunReport) {
    println!("\n== {} ==", step.name);
    let start = Start::now();
    let check = |passed: bool| Count { passed: passed.into(), failed: (!passed).into() };
    let mut remark = None;
    let count = match (step.run)(plan) {
        Ok(StepResult::Check(passed)) => check(passed),
        Ok(StepResult::Counted(count)) => count,
        Ok(StepResult::Tests(recorded)) => {
            report.left_out.extend(SkippedTests::in_text(&recorded.text));
            report.repeated.extend(&recorded.text);
            counted(&recorded)
        }
        Ok(StepResult::LeftOut(all)) => {
            report.left_out.extend(all);
            Count::default()
        }
        Err(reason) => {
            println!("error: {reason}");
            remark = reason.lines().next().map(String::from);
            check(false)
        }
    };
    report.add(step.name, &start.cost(), count, remark.as_deref());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_choose_the_steps() {
        let names = |options: &[&str]| -> Vec<&str> {
            chosen(options).unwrap().iter().map(|step| step.name).collect()
        };
        assert_eq!(names(&["--all"]).len(), STEPS.len());
        assert_eq!(names(&["--only", "fuzz"]), ["fuzz"]);
        assert_eq!(names(&["--only", "doc", "rust"]), ["rust", "doc"]);
        assert_eq!(names(&LINTS).len() + 1, LINTS.len());
        let short = names(&[]);
        assert!(short.contains(&"python") && !short.contains(&"deploy"), "{short:?}");
        assert_eq!(chosen(&["--only", "b"]).err().unwrap(), "there is no step 'b'");
        assert!(chosen(&["--fast"]).err().unwrap().starts_with("usage: "));
    }

    #[test]
    fn lanes_have_the_short_steps_after_the_build() {
        let short: Vec<&str> = chosen(&[]).unwrap().iter().map(|step| step.name).collect();
        let after: Vec<&str> = short.into_iter().skip_while(|name| *name != "build").collect();
        assert_eq!(after.split_first(), Some((&"build", &LANES.concat()[..])));
    }
}
