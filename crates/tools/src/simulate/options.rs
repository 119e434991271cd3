//! The arguments of `galatea simulate`.

use super::settings::SchedulingChanges;
use crate::Arguments;
use crate::console::ReportFormat;

/// The maximum number of instances.
const INSTANCES_MAX: u64 = 10_000;
/// The maximum number of clients.
const CLIENTS_MAX: u64 = 1_000_000;
/// The maximum batch size.
const BATCH_MAX: u64 = 1 << 20;
/// The maximum time: a day, in microseconds.
const TIME_MAX: u64 = 86_400_000_000;

/// The options of `galatea simulate`.
#[derive(Debug)]
pub struct SimulateOptions {
    pub(super) files: Vec<String>,
    pub(super) load: f64,
    repeat: Option<u32>,
    pub(super) changes: SchedulingChanges,
    deadline_us: Option<u64>,
    pub(super) processors: u32,
    /// The number of closed-loop clients. 0 means an open loop, and `None` uses the number from the
    /// recording.
    pub(super) clients: Option<u32>,
    pub(super) config: Option<String>,
    /// The format of the results.
    pub format: ReportFormat,
}

impl SimulateOptions {
    /// Parses the options from these arguments.
    ///
    /// # Errors
    ///
    /// Returns an error if a value is invalid or a file is missing.
    pub fn new(line: Arguments, format: ReportFormat) -> Result<Self, String> {
        let number = |name: &str, least: u64, most: u64| -> Result<Option<u64>, String> {
            let Some(text) = line.option(name) else { return Ok(None) };
            let value = text.parse().ok().filter(|number| (least..=most).contains(number));
            let wrong =
                || format!("'--{name}' takes a number from {least} to {most}, not '{text}'");
            value.map(Some).ok_or_else(wrong)
        };
        let small = |name: &str, least: u64, most: u64| -> Result<Option<u32>, String> {
            Ok(number(name, least, most)?.and_then(|value| u32::try_from(value).ok()))
        };
        let changes = SchedulingChanges {
            instances: small("instances", 1, INSTANCES_MAX)?,
            max_batch: small("max-batch", 0, BATCH_MAX)?,
            delay_us: number("delay", 0, TIME_MAX)?,
            preferred: line.option("preferred").map(sizes).transpose()?,
            queue_size: small("queue-size", 1, u64::from(u32::MAX))?,
            timeout_us: number("timeout", 1, TIME_MAX)?,
            objective_us: number("objective", 1, TIME_MAX)?,
        };
        if line.operands.is_empty() {
            return Err(String::from("a file of recorded traffic is missing"));
        }
        Ok(Self {
            load: line.option("load").map_or(Ok(1.0), factor)?,
            repeat: small("repeat", 1, 1_000_000)?,
            changes,
            deadline_us: number("deadline", 1, TIME_MAX)?,
            processors: small("processors", 1, INSTANCES_MAX)?.unwrap_or(0),
            clients: small("clients", 0, CLIENTS_MAX)?,
            config: line.option("config").map(String::from),
            files: line.operands,
            format,
        })
    }

    /// The number of times that the recording is replayed. By default, the simulated time matches
    /// the recorded time, so a higher load doesn't shorten the simulation.
    pub(super) fn repeat(&self) -> u32 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 1000")]
        let usual = self.load.ceil().max(1.0) as u32;
        self.repeat.unwrap_or(usual)
    }

    /// The deadline for responses.
    pub(super) fn deadline_ns(&self) -> u64 {
        let time = self.deadline_us.or(self.changes.objective_us);
        time.map_or(u64::MAX, |time| time.saturating_mul(1_000))
    }
}

fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| (0.001..=1000.0).contains(factor));
    factor.ok_or_else(|| format!("'--load' takes a factor from 0.001 to 1000, not '{text}'"))
}

fn sizes(text: &str) -> Result<Vec<u32>, String> {
    let sizes: Result<Vec<u32>, _> = text.split(',').map(str::parse).collect();
    let sizes = sizes.ok().filter(|sizes| sizes.iter().all(|size| *size > 0));
    sizes.ok_or_else(|| format!("'--preferred' takes batch sizes such as 4,8, not '{text}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &[(&'static str, &str)], files: &[&str]) -> Result<SimulateOptions, String> {
        let line = Arguments {
            flags: Vec::new(),
            options: options.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
            operands: files.iter().map(|file| String::from(*file)).collect(),
        };
        SimulateOptions::new(line, ReportFormat::Text)
    }

    #[test]
    fn a_higher_load_is_played_more_often() {
        let options = parse(&[("load", "1.5"), ("objective", "3")], &["a"]).unwrap();
        assert_eq!((options.repeat(), options.deadline_ns()), (2, 3_000));
        let options = parse(&[("repeat", "5"), ("preferred", "4,8")], &["a"]).unwrap();
        assert_eq!((options.repeat(), options.deadline_ns()), (5, u64::MAX));
        assert_eq!(options.changes.preferred, Some(vec![4, 8]));
    }

    #[test]
    fn values_out_of_range_are_named() {
        for (options, files, part) in [
            (&[][..], &[][..], "a file of recorded traffic is missing"),
            (&[("load", "0")], &["a"], "'--load' takes a factor from 0.001 to 1000, not '0'"),
            (&[("load", "x")], &["a"], "not 'x'"),
            (&[("instances", "0")], &["a"], "'--instances' takes a number from 1 to 10000"),
            (&[("preferred", "4,0")], &["a"], "'--preferred' takes batch sizes such as 4,8"),
            (&[("delay", "-1")], &["a"], "'--delay' takes a number from 0"),
        ] {
            let error = parse(options, files).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
