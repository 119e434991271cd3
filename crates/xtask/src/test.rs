//! Everything that must pass, the cheapest steps first.

use crate::changed::Plan;
use crate::cost::Start;
use crate::count::Count;
use crate::left_out::LeftOut;
use crate::repeated::Repeated;
use crate::result::{StepResult, counted};
use crate::{changed, programs, pytest, steps};

/// One step with its name for `--only`.
struct TestStep {
    name: &'static str,
    /// True of a step of `--all`: it takes long and shows little of most changes.
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

const STEPS: [TestStep; 18] = [
    step("fmt", |_| steps::format()),
    step("arrows", |_| steps::check_arrows()),
    step("headers", |_| steps::check_headers()),
    step("tidy", |_| steps::check_tidiness()),
    step("clippy", |_| steps::lints()),
    step("build", |_| steps::build()),
    step("rust", steps::rust_tests),
    step("doc", |_| steps::doc_tests()),
    step("python", pytest::run),
    step("readme", |_| steps::readme()),
    step("descriptors", |_| steps::descriptors()),
    step("simulation", |_| steps::simulation()),
    long("browser", |_| pytest::run_browser()),
    long("deploy", |_| pytest::run_deploy()),
    long("mutants", |_| steps::mutants()),
    long("loom", |_| steps::models()),
    long("fuzz", |_| steps::fuzz_targets()),
    long("instructions", |_| steps::instructions()),
];

const USAGE: &str = "usage: cargo xtask test [--all | --only STEP | --changed [COMMIT]]";

/// The tests that a change can have broken, if the options ask for these alone.
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

/// The steps that the options choose.
fn chosen(options: &[&str]) -> Result<Vec<&'static TestStep>, String> {
    let all = STEPS.iter();
    let chosen: Vec<&TestStep> = match options {
        [] => all.filter(|step| !step.is_long).collect(),
        ["--all"] => all.collect(),
        ["--only", name] => all.filter(|step| step.name == *name).collect(),
        ["--changed", ..] => all.collect(),
        _ => return Err(String::from(USAGE)),
    };
    if chosen.is_empty() {
        let name = options.last().unwrap_or(&"");
        return Err(format!("there is no step '{name}'"));
    }
    Ok(chosen)
}

/// The task: runs the steps, even if one fails, and adds up their tests.
pub(crate) fn run(options: &[&str]) -> Result<(), String> {
    let chosen = chosen(options)?;
    programs::restrict()?;
    let is_partial = options.first() == Some(&"--changed");
    let plan = plan(options)?;
    let start = Start::now();
    let mut total = Count::default();
    let mut left_out = LeftOut::default();
    let mut repeated = Repeated::default();
    let mut summary = Vec::new();
    let is_planned = |step: &&TestStep| {
        plan.as_ref().map_or(!is_partial || !step.is_long, |plan| plan.steps.contains(step.name))
    };
    for step in chosen.into_iter().filter(is_planned) {
        let (count, line) = run_step(step, plan.as_ref(), &mut left_out, &mut repeated);
        total = total.plus(count);
        summary.push(line);
    }
    summary.push(format!("{:12}{}", "all", start.cost()));
    println!("\n{}\n\n{}{}", summary.join("\n"), left_out.report(), repeated.report());
    println!("{} passed, {} failed", total.passed, total.failed);
    if total.failed == 0 { Ok(()) } else { Err(String::from("something failed")) }
}

fn run_step(
    step: &TestStep,
    plan: Option<&Plan>,
    left_out: &mut LeftOut,
    repeated: &mut Repeated,
) -> (Count, String) {
    println!("\n== {} ==", step.name);
    let start = Start::now();
    let check = |passed: bool| Count { passed: passed.into(), failed: (!passed).into() };
    let mut remark = String::new();
    let count = match (step.run)(plan) {
        Ok(StepResult::Check(passed)) => check(passed),
        Ok(StepResult::Counted(count)) => count,
        Ok(StepResult::Tests(recorded)) => {
            left_out.extend(LeftOut::in_text(&recorded.text));
            repeated.extend(&recorded.text);
            counted(&recorded)
        }
        Ok(StepResult::LeftOut(all)) => {
            left_out.extend(all);
            Count::default()
        }
        Err(reason) => {
            println!("error: {reason}");
            remark = format!(" ({})", reason.lines().next().unwrap_or_default());
            check(false)
        }
    };
    let Count { passed, failed } = count;
    (count, format!("{:12}{}   {passed} passed, {failed} failed{remark}", step.name, start.cost()))
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
        let short = names(&[]);
        assert!(short.contains(&"python") && !short.contains(&"deploy"), "{short:?}");
        assert_eq!(chosen(&["--only", "b"]).err().unwrap(), "there is no step 'b'");
        assert!(chosen(&["--fast"]).err().unwrap().starts_with("usage: "));
    }
}
