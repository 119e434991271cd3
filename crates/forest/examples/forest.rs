//! Predicts the rows of a file, for comparison with the libraries that wrote the models.
//!
//! - `forest predict FORMAT MODEL ROWS OUTPUT` writes predictions
//! - `forest margins …` writes the untransformed sums
//! - `forest explain …` writes feature contributions
//! - `forest time FORMAT MODEL ROWS COUNT…` prints the minimum and median time in microseconds to
//!   predict COUNT rows
//!
//! Row and output files contain 32-bit floats without a header.

use std::error::Error;
use std::time::{Duration, Instant};

use galatea_forest::{Explainer, Forest, ModelFormat, read_forest};

/// The measurement time for each row count.
const MEASUREMENT: Duration = Duration::from_secs(2);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [command, format, model, rows, rest @ ..] = &*arguments else {
        return Err(
            "usage: forest predict|margins|explain|time FORMAT MODEL ROWS OUTPUT|COUNT...".into()
        );
    };
    let forest = read_forest(format_of(format)?, &std::fs::read(model)?)?;
    let rows = numbers(&std::fs::read(rows)?);
    let count =
        rows.len().checked_div(forest.feature_count()).ok_or("the model has no features")?;
    match *command {
        "predict" => write(rest, forest.outputs_per_row() * count, |output| {
            Ok(forest.predict(&rows, count, output, 1)?)
        }),
        "margins" => write(rest, forest.outputs_per_row() * count, |output| {
            Ok(forest.margins(&rows, count, output, 1)?)
        }),
        "explain" => {
            let explainer = Explainer::new(&forest)?;
            write(rest, explainer.outputs_per_row() * count, |output| {
                Ok(explainer.explain(&rows, count, output)?)
            })
        }
        "time" => rest.iter().try_for_each(|count| time(&forest, &rows, count.parse()?)),
        other => Err(format!("unknown command {other}").into()),
    }
}

fn format_of(name: &str) -> Result<ModelFormat, Box<dyn Error>> {
    Ok(match name {
        "xgboost" => ModelFormat::XgboostLegacy,
        "xgboost_json" => ModelFormat::XgboostJson,
        "xgboost_ubj" => ModelFormat::XgboostUbjson,
        "lightgbm" => ModelFormat::Lightgbm,
        "treelite_checkpoint" => ModelFormat::Treelite,
        other => return Err(format!("unknown format {other}").into()),
    })
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn write(
    arguments: &[&str],
    length: usize,
    compute: impl FnOnce(&mut [f32]) -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let [path] = arguments else { return Err("expected one output".into()) };
    let mut output = vec![0.0; length];
    compute(&mut output)?;
    let bytes: Vec<u8> = output.iter().flat_map(|value| value.to_le_bytes()).collect();
    Ok(std::fs::write(path, bytes)?)
}

/// Prints the minimum and median prediction time. Each prediction gets different rows than the
/// previous one.
#[expect(clippy::print_stdout, reason = "this is a measurement")]
fn time(forest: &Forest, rows: &[f32], count: usize) -> Result<(), Box<dyn Error>> {
    let mut output = vec![0.0; count * forest.outputs_per_row()];
    let mut times = Vec::new();
    let begin = Instant::now();
    for part in rows.chunks_exact(count * forest.feature_count()).cycle() {
        let before = Instant::now();
        forest.predict(part, count, &mut output, 1)?;
        times.push(before.elapsed());
        if begin.elapsed() > MEASUREMENT {
            break;
        }
    }
    times.sort_unstable();
    let microseconds = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1e6);
    let least = microseconds(times.first());
    let middle = microseconds(times.get(times.len() / 2));
    println!("{count} {least:.1} {middle:.1}");
    Ok(())
}
