//! Steps that run in parallel.
//!
//! A lane is another process of this program with some of the steps, so that each step's processor
//! time is measured separately.

use std::process::Command;
use std::thread;

use crate::cost::Start;
use crate::count::Count;
use crate::process::{CommandOutput, command, gather, record};
use crate::report::RunReport;
use crate::workspace;

/// Runs lanes of steps in parallel and adds their reports. Shows the first lane's output while it
/// runs, and the output of the other lanes at the end.
pub(crate) fn run(lanes: &[&[&str]], report: &mut RunReport) {
    let start = Start::now();
    let Some((first, others)) = lanes.split_first() else { return };
    let texts: Vec<Result<CommandOutput, String>> = thread::scope(|scope| {
        let others = others.iter().map(|names| scope.spawn(|| gather(&mut lane(names))));
        let others: Vec<_> = others.collect();
        let first = record(&mut lane(first));
        let lost = |_| Err(String::from("the thread of a lane panicked"));
        let others = others.into_iter().map(|other| other.join().unwrap_or_else(lost));
        std::iter::once(first).chain(others).collect()
    });
    for (names, text) in lanes.iter().zip(texts) {
        let is_complete = text.as_ref().is_ok_and(|text| report.add_printed(&text.text));
        if !is_complete {
            let reason = text.err().unwrap_or_else(|| String::from("it did not come to its end"));
            let failed = Count { passed: 0, failed: 1 };
            report.add(&names.join(" "), &start.cost(), failed, Some(&reason));
        }
    }
}

/// The command for another process of this program. The build has replaced the program file.
fn lane(names: &[&str]) -> Command {
    let mut lane = command(workspace::program("debug", "xtask"));
    lane.args(["test", "--only"]).args(names);
    lane
}
