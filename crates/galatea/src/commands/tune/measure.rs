//! What executions cost: for each number of instances and threads, batches of each size.

use std::time::Duration;

use galatea_load::{Interface, Level, Sample, Shapes, run_level};
use galatea_simulate::LearnedCosts;

use super::candidate::{Resources, with_resources};
use super::server::TunedServer;

/// How long each size is executed, and for how long that does not count.
const DURATION: Duration = Duration::from_millis(250);
const WARMUP: Duration = Duration::from_millis(100);

/// What was measured with some instances and threads.
pub(super) struct Measured {
    pub(super) resources: Resources,
    pub(super) costs: LearnedCosts,
    /// The sizes and how long an execution typically takes.
    pub(super) curve: Vec<(u32, u64)>,
}

/// Measures batches of these sizes, in rows.
pub(super) fn measure(
    server: &TunedServer,
    interface: &Interface,
    shapes: &Shapes,
    resources: Resources,
    sizes: &[u32],
) -> Result<Measured, String> {
    let largest = sizes.last().copied().unwrap_or(1);
    server.load(&with_resources(&server.config, resources, largest))?;
    let recorder = server.record()?;
    let run = |rows: u32| -> Result<(), String> {
        let sample = Sample::new(interface, u64::from(rows), shapes)?;
        // One request for each instance, which is a batch by itself.
        let level = Level {
            target: &server.target,
            sample: &sample,
            connections: u64::from(resources.instances),
            warmup: WARMUP,
            duration: DURATION,
        };
        let found = run_level(level, || (), |_, _| ())?;
        match found.failures.iter().next() {
            Some((reason, _)) => Err(format!("a request of {rows} rows failed: {reason}")),
            None => Ok(()),
        }
    };
    let ran: Result<(), String> = sizes.iter().try_for_each(|rows| run(*rows));
    let executions = recorder.finish()?;
    ran?;
    let costs = LearnedCosts::new(&executions)?;
    let busy = resources.instances;
    let typical = |rows| costs.typical(galatea_simulate::Execution { rows, length: 0, busy });
    let curve = sizes.iter().map(|rows| (*rows, typical(*rows))).collect();
    Ok(Measured { resources, costs, curve })
}

/// 1, 2, 4 and so on, and the largest.
pub(super) fn sizes(largest: u32) -> Vec<u32> {
    let mut sizes: Vec<u32> = std::iter::successors(Some(1_u32), |size| size.checked_mul(2))
        .take_while(|size| *size < largest)
        .collect();
    sizes.push(largest.max(1));
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_double_up_to_the_largest() {
        assert_eq!(sizes(1), [1]);
        assert_eq!(sizes(8), [1, 2, 4, 8]);
        assert_eq!(sizes(12), [1, 2, 4, 8, 12]);
    }
}
