//! `galatea simulate`: what the scheduler would do with recorded traffic under other settings.
//!
//! Three things are shown beside each other: what was recorded, a simulation of the recorded
//! configuration with the recorded arrivals, which says how far a simulation can be trusted, and
//! a simulation with the options.

mod options;
mod report;
mod settings;

use std::fs::File;
use std::io::BufReader;

use galatea_simulate::{LearnedCosts, LoadOptions, Report, arrivals, recorded, simulate};
use galatea_traffic::Traffic;

pub(crate) use self::options::SimulateOptions;
use self::report::{Column, Comparison};
pub(super) use self::settings::Configured;
use crate::console::{Colours, Console};

/// The most requests that are simulated.
const REQUESTS_MAX: u64 = 100_000_000;

/// Simulates, and renders what was found.
pub(super) fn run(options: &SimulateOptions, colours: Colours) -> Result<String, String> {
    let comparison = compare(options)?;
    Ok(comparison.render(options.format, Console::results(colours)))
}

fn compare(options: &SimulateOptions) -> Result<Comparison, String> {
    let traffic = read(&options.files)?;
    let name = &traffic.header.model;
    let requests = u64::try_from(traffic.requests.len()).unwrap_or(u64::MAX);
    if requests == 0 {
        return Err(format!("no request to model '{name}' is recorded"));
    }
    if requests.saturating_mul(u64::from(options.repeat())) > REQUESTS_MAX {
        return Err(format!("more than {REQUESTS_MAX} requests would be simulated"));
    }
    let costs = LearnedCosts::new(&traffic.executions)?.sharing(options.processors);
    let before = Configured::recorded(&traffic.header)?;
    let mut after = match &options.config {
        Some(path) => before.clone().with_file(path)?,
        None => before.clone(),
    };
    after.change(&options.changes)?;
    let deadline_ns = options.deadline_ns();
    let usual = LoadOptions { load: 1.0, repeat: 1, deadline_ns };
    let load = LoadOptions { load: options.load, repeat: options.repeat(), ..usual };
    Ok(Comparison {
        recorded: Column::new(before.clone(), 1.0, recorded(&traffic, deadline_ns)),
        configured: Column::new(before.clone(), 1.0, run_one(&before, &traffic, usual, &costs)),
        simulated: Column::new(after.clone(), load.load, run_one(&after, &traffic, load, &costs)),
        learned: costs.sizes(),
        traffic,
    })
}

fn run_one(
    configured: &Configured,
    traffic: &Traffic,
    load: LoadOptions,
    costs: &LearnedCosts,
) -> Report {
    let mut costs = costs.clone();
    let deadline_ns = load.deadline_ns.min(configured.objective_ns());
    let padded = configured.padded_dims(&traffic.header);
    let load = arrivals(traffic, &LoadOptions { deadline_ns, ..load }, &padded);
    simulate(&configured.scheduling, configured.instances, &load, |one| costs.draw(one))
}

/// The files of one recording.
fn read(files: &[String]) -> Result<Traffic, String> {
    let read = |name: &String| -> Result<Traffic, String> {
        let file = File::open(name).map_err(|error| format!("can't read '{name}': {error}"))?;
        Traffic::read(&mut BufReader::new(file)).map_err(|error| format!("'{name}': {error}"))
    };
    let mut all = files.iter().map(read);
    let mut traffic = all.next().ok_or("a file of recorded traffic is missing")??;
    all.try_for_each(|next| traffic.join(next?))?;
    Ok(traffic)
}
