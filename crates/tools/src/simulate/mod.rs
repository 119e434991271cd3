//! `galatea simulate`: shows how the scheduler would handle recorded traffic under other settings.
//!
//! Three results are shown side by side: the recording; a simulation of the recorded configuration
//! with the recorded arrivals, which shows how far simulations can be trusted; and a simulation
//! with the options. Clients that waited for their responses also do so in simulations.

mod options;
mod report;
mod settings;

use std::fs::File;
use std::io::BufReader;

use galatea_simulate::{
    ClosedLoopClients, ExecutionTimeSampler, Report, TrafficReplayOptions, arrivals_from_traffic,
    recorded_report, simulate_clients, simulate_open_loop,
};
use galatea_traffic::RecordedTraffic;

pub use self::options::SimulateOptions;
use self::report::{Comparison, ReportColumn};
pub use self::settings::DeriveScheduling;
pub(crate) use self::settings::SimulatedScheduler;
use crate::console::{ColourMode, Console};

/// The maximum number of simulated requests.
const REQUESTS_MAX: u64 = 100_000_000;

/// Runs the simulations and renders the findings.
///
/// # Errors
///
/// Returns an error if a file can't be read or the settings can't be simulated.
pub fn run(
    options: &SimulateOptions,
    colours: ColourMode,
    scheduling_of: DeriveScheduling,
) -> Result<String, String> {
    let comparison = compare(options, scheduling_of)?;
    Ok(comparison.render(options.format, Console::on_stdout(colours)))
}

fn compare(
    options: &SimulateOptions,
    scheduling_of: DeriveScheduling,
) -> Result<Comparison, String> {
    let traffic = read(&options.files)?;
    let name = &traffic.header.model;
    let requests = u64::try_from(traffic.requests.len()).unwrap_or(u64::MAX);
    if requests == 0 {
        return Err(format!("no request to model '{name}' is recorded"));
    }
    if requests.saturating_mul(u64::from(options.repeat())) > REQUESTS_MAX {
        return Err(format!("more than {REQUESTS_MAX} requests would be simulated"));
    }
    let costs =
        ExecutionTimeSampler::new(&traffic.executions)?.with_shared_processors(options.processors);
    let before = SimulatedScheduler::recorded(&traffic.header, scheduling_of)?;
    let mut after = match &options.config {
        Some(path) => before.clone().with_file(path)?,
        None => before.clone(),
    };
    after.change(&options.changes)?;
    let deadline_ns = options.deadline_ns();
    let usual = TrafficReplayOptions { load: 1.0, repeat: 1, deadline_ns };
    let load = TrafficReplayOptions { load: options.load, repeat: options.repeat(), ..usual };
    let found = ClosedLoopClients::infer_from(&traffic);
    // The baseline simulates the recording, regardless of the options.
    let own = if options.clients == Some(0) { None } else { found.clone() };
    let asked = match options.clients {
        Some(0) => None,
        Some(count) => Some(match found {
            Some(found) => found.of_count(count),
            None => ClosedLoopClients::new(count, Vec::new()),
        }),
        None => found.map(|clients| clients.scaled_by(load.load)),
    };
    let run = |configured: &SimulatedScheduler, load, clients: Option<&ClosedLoopClients>| {
        run_one(configured, &traffic, load, &costs, clients)
    };
    let (configured, simulated) =
        (run(&before, usual, own.as_ref()), run(&after, load, asked.as_ref()));
    let recorded = recorded_report(&traffic, deadline_ns);
    let clients = [&own, &own, &asked].map(|clients| clients.as_ref().map(|clients| clients.count));
    Ok(Comparison {
        recorded: ReportColumn::new(before.clone(), 1.0, clients[0], recorded),
        configured: ReportColumn::new(before.clone(), 1.0, clients[1], configured),
        simulated: ReportColumn::new(after, load.load, clients[2], simulated),
        learned: costs.execution_counts_by_size(),
        traffic,
    })
}

fn run_one(
    configured: &SimulatedScheduler,
    traffic: &RecordedTraffic,
    load: TrafficReplayOptions,
    costs: &ExecutionTimeSampler,
    clients: Option<&ClosedLoopClients>,
) -> Report {
    let mut costs = costs.clone();
    let deadline_ns = load.deadline_ns.min(configured.objective_ns());
    let padded = configured.padded_dims(&traffic.header);
    let load =
        arrivals_from_traffic(traffic, &TrafficReplayOptions { deadline_ns, ..load }, &padded);
    let (scheduling, instances) = (&configured.scheduling, configured.instances);
    match clients {
        None => simulate_open_loop(scheduling, instances, &load, |one| costs.draw(one)),
        Some(clients) => {
            simulate_clients(scheduling, instances, &load, clients, |one| costs.draw(one))
        }
    }
}

/// Reads the files of one recording.
fn read(files: &[String]) -> Result<RecordedTraffic, String> {
    let read = |name: &String| -> Result<RecordedTraffic, String> {
        let file = File::open(name).map_err(|error| format!("can't read '{name}': {error}"))?;
        RecordedTraffic::read(&mut BufReader::new(file))
            .map_err(|error| format!("'{name}': {error}"))
    };
    let mut all = files.iter().map(read);
    let mut traffic = all.next().ok_or("a file of recorded traffic is missing")??;
    all.try_for_each(|next| traffic.join(next?))?;
    Ok(traffic)
}
