//! `galatea tune`: finds instances, batch sizes, delays and threads for an objective.
//!
//! Execution costs are measured on this machine, a few seconds for each number of instances and
//! threads. Each candidate is then simulated with these costs (`galatea-simulate`), which takes
//! milliseconds. Only the best few are checked on a server, together with the untuned
//! configuration. The winner is printed with the reasons, as the model's own `config.pbtxt` with as
//! few changes as possible.

mod candidate;
mod edit;
mod measure;
mod objective;
mod report;
mod search;
mod server;
mod verify;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use galatea_load::{InputShapes, SampleRequest, ServedModelInterface, fetch_model_interface};
use serde_json::Value;

use self::candidate::{
    Candidate, Resources, ThreadsParameter, instances, resources, without_coalescing,
};
use self::measure::{MeasuredResources, measure, sizes};
use self::objective::Objective;
use self::report::TuneReport;
use self::search::{Search, SimulatedCandidate};
use self::server::TunedServer;
use self::verify::{CheckedCandidate, Verification};
use crate::Arguments;
use crate::console::{ColourMode, Console, ReportFormat};
use crate::simulate::DeriveScheduling;

/// The number of candidates that are checked on a server, in addition to the untuned configuration.
const CHECKED: usize = 5;

/// The maximum number of checked candidates with the same instances and threads. Serving itself
/// takes some processor time, which is not simulated and depends on instances and threads.
const CHECKED_ALIKE: usize = 2;

/// The fraction of the best simulated score below which a candidate is not worth checking.
const PROMISING_SHARE: f64 = 0.7;

/// The minimum gain over the untuned configuration. A smaller gain may be chance, so the untuned
/// configuration is kept.
const GAIN_MIN: f64 = 1.02;

/// The maximum batch size that an option may request.
const BATCH_MAX: u32 = 4096;
/// The maximum number of instances that an option may request.
const INSTANCES_MAX: u32 = 256;
/// The maximum measurement time that an option may request, in seconds.
const SECONDS_MAX: u32 = 3600;

/// The options of `galatea tune`.
#[derive(Debug)]
pub struct TuneOptions {
    model: String,
    flags: Vec<String>,
    objective: Objective,
    rows: u32,
    shapes: InputShapes,
    max_batch: u32,
    instances: Option<u32>,
    duration: Duration,
    output: Option<PathBuf>,
    replaces: bool,
    allows_smaller: bool,
    /// The format of the results.
    pub format: ReportFormat,
}

impl TuneOptions {
    /// Parses the options from these arguments.
    ///
    /// # Errors
    ///
    /// Returns an error if a value is invalid or the model is missing.
    pub fn new(line: Arguments, format: ReportFormat) -> Result<Self, String> {
        let [model] = line.operands.as_slice() else {
            return Err(String::from("one model is needed: a file or the directory of a model"));
        };
        let number = |name: &str, usual: u32, most: u32| match line.option(name) {
            None => Ok(usual),
            Some(text) => {
                let value = text.parse().ok().filter(|number| (1..=most).contains(number));
                value.ok_or_else(|| {
                    format!("'--{name}' takes a number from 1 to {most}, not '{text}'")
                })
            }
        };
        let (rows, max_batch) =
            (number("batch", 1, BATCH_MAX)?, number("max-batch", 32, BATCH_MAX)?);
        if rows > max_batch {
            return Err(format!("requests of {rows} rows don't fit into batches of {max_batch}"));
        }
        let instances = number("instances", 0, INSTANCES_MAX)?;
        let output = line.option("output").map(PathBuf::from);
        let options = Self {
            model: model.clone(),
            objective: Objective::parse(line.option("objective").unwrap_or("throughput"))?,
            rows,
            shapes: line.all("shape").map(crate::bench::shape).collect::<Result<_, _>>()?,
            max_batch,
            instances: (instances > 0).then_some(instances),
            duration: Duration::from_secs(u64::from(number("seconds", 2, SECONDS_MAX)?)),
            replaces: line.has("write"),
            allows_smaller: line.has("allow-smaller-batches"),
            output,
            flags: line.flags,
            format,
        };
        // Fail early, before anything slow.
        options.destination()?;
        Ok(options)
    }

    /// The text of the model's configuration file, if it has one.
    fn file(&self) -> Result<Option<String>, String> {
        let path = Path::new(&self.model).join("config.pbtxt");
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                Ok(None)
            }
            Err(error) => Err(format!("can't read '{}': {error}", path.display())),
        }
    }

    /// The file to write, if any.
    fn destination(&self) -> Result<Option<PathBuf>, String> {
        let own = Path::new(&self.model);
        let path = match (&self.output, self.replaces) {
            (Some(output), _) => output.clone(),
            (None, false) => return Ok(None),
            (None, true) if own.is_dir() => own.join("config.pbtxt"),
            (None, true) => {
                return Err(String::from(
                    "'--write' needs the directory of a model, or '--output'",
                ));
            }
        };
        if path.exists() && !self.replaces {
            let path = path.display();
            return Err(format!("'{path}' exists, and is replaced only with '--write'"));
        }
        Ok(Some(path))
    }
}

/// Tunes the model and renders the findings.
///
/// # Errors
///
/// Returns an error if a measurement fails or the configuration can't be written.
pub fn run(
    options: &TuneOptions,
    colours: ColourMode,
    scheduling_of: DeriveScheduling,
) -> Result<String, String> {
    let console = Console::on_stderr(colours);
    let report = tune(options, console, scheduling_of);
    console.clear_progress();
    let report = report?;
    if let Some(path) = options.destination()? {
        let written = std::fs::write(&path, &report.edited.text);
        written.map_err(|error| format!("can't write '{}': {error}", path.display()))?;
    }
    Ok(report.render(options.format))
}

fn tune(
    options: &TuneOptions,
    console: Console,
    scheduling_of: DeriveScheduling,
) -> Result<TuneReport, String> {
    console.show_step("starting a server");
    let file = options.file()?;
    let mut server = TunedServer::start(&options.model, &options.flags)?;
    edit::forget_completed(&mut server.config, file.as_deref());
    let model = fetch_model_interface(&server.target, &server.model)?;
    check(&model, options)?;
    let sample = SampleRequest::new(&model, u64::from(options.rows), &options.shapes)?;
    let measured = measure_all(options, &server, &model, console)?;
    let search = Search {
        objective: options.objective,
        scheduling_of,
        rows: options.rows,
        shapes: &row_shapes(&model, &sample),
        config: &server.config,
        capacity: 0.0,
    };
    let searched = search_all(search, &measured, options.allows_smaller, console)?;
    let (count, smaller) = (searched.count, searched.smaller.clone());
    let checked = check_best(options, &server, &sample, searched, console)?;
    let found = TuningResult { measured, simulated: count, smaller, checked, file };
    TuneReport::new(options, &server, found)
}

/// The input shapes of a request, without the row dimension.
fn row_shapes(model: &ServedModelInterface, sample: &SampleRequest) -> InputShapes {
    let rows = usize::from(model.has_batches);
    let row = |shape: &[u64]| shape.iter().skip(rows).copied().collect();
    sample.inputs.iter().map(|input| (input.name.clone(), row(&input.shape))).collect()
}

/// The results of a tuning run.
struct TuningResult {
    measured: Vec<MeasuredResources>,
    simulated: usize,
    /// The best candidate with smaller batches, if smaller batches are not allowed.
    smaller: Option<SimulatedCandidate>,
    /// The checked candidates, best first.
    checked: Vec<CheckedCandidate>,
    /// The file with the untuned configuration.
    file: Option<String>,
}

fn check(model: &ServedModelInterface, options: &TuneOptions) -> Result<(), String> {
    let name = &model.name;
    if model.is_decoupled {
        return Err(format!("model '{name}' is decoupled, and can't be tuned"));
    }
    if model.has_sequences {
        return Err(format!("model '{name}' has a sequence batcher, which is not simulated"));
    }
    if !model.has_batches && options.rows > 1 {
        return Err(format!("model '{name}' does not take batches"));
    }
    Ok(())
}

fn processors() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(1))
}

/// Measures every number of instances and threads.
fn measure_all(
    options: &TuneOptions,
    server: &TunedServer,
    model: &ServedModelInterface,
    console: Console,
) -> Result<Vec<MeasuredResources>, String> {
    let processors = processors();
    let has_threads = ThreadsParameter::of(&server.config).is_some();
    let most = options.instances.unwrap_or(processors);
    let mut all = resources(most, processors, has_threads);
    let usual = usual_resources(&server.config);
    if !all.contains(&usual) {
        all.push(usual);
    }
    let usual_batch = usual_batch(&server.config);
    let largest = if model.has_batches { options.max_batch.max(usual_batch) } else { 1 };
    let sizes = sizes(largest, usual_batch);
    let mut measured = Vec::new();
    for one in all {
        console.show_step(&format!("measuring {}", one.text()));
        measured.push(measure(server, model, &options.shapes, one, &sizes)?);
    }
    Ok(measured)
}

/// The instances and threads of the untuned configuration.
fn usual_resources(config: &Value) -> Resources {
    Resources { instances: instances(config), threads: None }
}

fn usual_batch(config: &Value) -> u32 {
    let size = config["max_batch_size"].as_u64().unwrap_or(0);
    u32::try_from(size).unwrap_or(u32::MAX).clamp(1, BATCH_MAX)
}

/// The untuned configuration, to the extent that it can be expressed as a candidate.
fn usual(config: &Value) -> Candidate {
    let (resources, max_batch) = (usual_resources(config), usual_batch(config));
    Candidate { resources, max_batch, delay_us: 0, objective_us: None }
}

/// The measurements with the untuned configuration's instances.
fn usual_costs<'a>(
    config: &Value,
    measured: &'a [MeasuredResources],
) -> Result<&'a MeasuredResources, String> {
    let resources = usual_resources(config);
    let found = measured.iter().find(|one| one.resources == resources);
    found.ok_or_else(|| String::from("the configuration's own instances were not measured"))
}

/// The candidates that the search found.
struct SearchResult {
    best: Vec<SimulatedCandidate>,
    count: usize,
    /// The best candidate with smaller batches, if smaller batches are not allowed but would be
    /// better.
    smaller: Option<SimulatedCandidate>,
    /// The untuned configuration.
    usual: SimulatedCandidate,
}

/// Simulates every candidate and returns the best few, with different settings.
fn search_all(
    mut search: Search<'_>,
    measured: &[MeasuredResources],
    allows_smaller: bool,
    console: Console,
) -> Result<SearchResult, String> {
    let config = search.config;
    let all: Vec<(Candidate, &MeasuredResources)> = measured
        .iter()
        .flat_map(|one| search.candidates(one).into_iter().map(move |candidate| (candidate, one)))
        .collect();
    // All candidates get the same overload.
    if matches!(search.objective, Objective::Goodput { .. }) {
        for (candidate, measured) in &all {
            search.capacity = search.capacity.max(search.saturated(*candidate, measured)?);
        }
    }
    console.show_step(&format!("simulating {} configurations", all.len()));
    let mut found = Vec::new();
    for (number, (candidate, measured)) in all.iter().enumerate() {
        console.show_progress(&format!("simulating {} of {}", number + 1, all.len()));
        found.push(search.evaluate(*candidate, measured)?);
    }
    let is_tried = |one: &SimulatedCandidate| allows_smaller || one.candidate.keeps(config);
    let (found, smaller): (Vec<SimulatedCandidate>, Vec<SimulatedCandidate>) =
        found.into_iter().partition(is_tried);
    // Among equal candidates, prefers the one with fewer resources.
    let best = best_few(found);
    let least = best.iter().map(|one| one.score).fold(0.0, f64::max) * GAIN_MIN;
    let smaller = smaller.into_iter().max_by(|one, other| one.score.total_cmp(&other.score));
    let smaller = smaller.filter(|one| one.score > least);
    let mut usual =
        search.evaluate_config(usual(config), config, usual_costs(config, measured)?)?;
    if matches!(search.objective, Objective::Goodput { .. }) {
        usual.rate = best.iter().map(|found| found.rate).fold(usual.rate, f64::max);
    }
    Ok(SearchResult { best, count: all.len(), smaller, usual })
}

/// Selects the best few. The best candidate for each combination of instances and threads comes
/// first.
fn best_few(mut found: Vec<SimulatedCandidate>) -> Vec<SimulatedCandidate> {
    found.sort_by(|one, other| other.score.total_cmp(&one.score));
    let least = found.first().map_or(0.0, |best| best.score * PROMISING_SHARE);
    let mut seen: BTreeMap<Resources, usize> = BTreeMap::new();
    let mut ranked: Vec<(usize, SimulatedCandidate)> = found
        .into_iter()
        .filter(|one| one.score >= least)
        .map(|one| {
            let rank = seen.entry(one.candidate.resources).or_default();
            *rank += 1;
            (*rank, one)
        })
        .filter(|(rank, _)| *rank <= CHECKED_ALIKE)
        .collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.truncate(CHECKED);
    ranked.into_iter().map(|(_, one)| one).collect()
}

/// Checks the best candidates on a server, and the untuned configuration at the same rate. The best
/// measured result comes first.
fn check_best(
    options: &TuneOptions,
    server: &TunedServer,
    sample: &SampleRequest,
    searched: SearchResult,
    console: Console,
) -> Result<Vec<CheckedCandidate>, String> {
    let verification = Verification {
        server,
        objective: options.objective,
        sample,
        rows: options.rows,
        duration: options.duration,
    };
    let mut checked = Vec::new();
    for found in searched.best {
        console.show_step(&format!("checking {}", found.candidate.text()));
        let config = without_coalescing(found.candidate.apply(&server.config));
        checked.push(verification.verify(found, &config, false)?);
    }
    console.show_step("checking the configuration as it is");
    let as_it_is = without_coalescing(server.config.clone());
    checked.push(verification.verify(searched.usual, &as_it_is, true)?);
    checked.sort_by(|one, other| rank(other).total_cmp(&rank(one)));
    Ok(checked)
}

/// The score used to compare configurations: a small gain is not worth a change.
fn rank(one: &CheckedCandidate) -> f64 {
    if one.is_default { one.score * GAIN_MIN } else { one.score }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &[(&'static str, &str)], operands: &[&str]) -> Result<TuneOptions, String> {
        let line = Arguments {
            flags: Vec::new(),
            options: options.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
            operands: operands.iter().map(|text| String::from(*text)).collect(),
        };
        TuneOptions::new(line, ReportFormat::Text)
    }

    #[test]
    fn arguments_are_checked_before_anything_takes_long() {
        for (options, operands, part) in [
            (&[][..], &[][..], "one model is needed"),
            (&[], &["a", "b"], "one model is needed"),
            (&[("objective", "p99")], &["a"], "'--objective' is throughput"),
            (&[("batch", "64")], &["a"], "64 rows don't fit into batches of 32"),
            (&[("instances", "0")], &["a"], "'--instances' takes a number from 1 to 256"),
            (&[("write", "")], &["a.onnx"], "'--write' needs the directory of a model"),
            (&[("output", "/")], &["a"], "'/' exists, and is replaced only with '--write'"),
            (&[("shape", "x")], &["a"], "'--shape' is NAME:SIZE"),
        ] {
            let error = parse(options, operands).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        assert!(parse(&[], &["a"]).is_ok());
    }

    #[test]
    fn different_instances_and_threads_are_checked() {
        let one = |instances, max_batch, score| {
            let resources = Resources { instances, threads: None };
            let candidate = Candidate { resources, max_batch, delay_us: 0, objective_us: None };
            SimulatedCandidate { candidate, score, rate: 0.0 }
        };
        let many = (1..=9).map(|size| one(1, size, 100.0 + f64::from(size)));
        let few = best_few(many.chain((2..=6).map(|instances| one(instances, 1, 90.0))).collect());
        let found: Vec<(u32, u32)> = few
            .iter()
            .map(|one| (one.candidate.resources.instances, one.candidate.max_batch))
            .collect();
        assert_eq!(found, [(1, 9), (2, 1), (3, 1), (4, 1), (5, 1)]);
        let few = best_few((1..=9).map(|size| one(1, size, f64::from(size))).collect());
        assert_eq!(few.len(), CHECKED_ALIKE);
        let few = best_few((1..=9).map(|count| one(count, 1, 10.0 * f64::from(count))).collect());
        assert_eq!(few.len(), 3, "those of 70, 80 and 90");
    }

    #[test]
    fn the_instances_of_all_groups_count() {
        let config = serde_json::json!({ "instance_group": [{ "count": 2 }, { "count": 1 }] });
        assert_eq!(usual_resources(&config).instances, 3);
        assert_eq!(usual_resources(&Value::Null).instances, 1);
    }

    #[test]
    fn what_gains_little_is_not_worth_a_change() {
        let of = |score, is_default| {
            let resources = Resources { instances: 1, threads: None };
            let candidate = Candidate { resources, max_batch: 1, delay_us: 0, objective_us: None };
            let found = SimulatedCandidate { candidate, score, rate: 0.0 };
            CheckedCandidate { found, score, latency: None, is_default, remark: None }
        };
        assert!(rank(&of(100.0, true)) > rank(&of(101.0, false)));
        assert!(rank(&of(100.0, true)) < rank(&of(103.0, false)));
    }
}
