//! A model's parameters and the backend's settings, read as Triton reads them.

use std::collections::BTreeMap;

use galatea_infer::Status;
use galatea_runtime::OnOff;
use galatea_runtime::parameters::{
    bool_parameter, default_max_batch_size, integer_parameter, parameter_conversion_error,
};

use crate::choice::{RUNTIME, RuntimeParameter};

const SHARE_COUNT: &str = "MAX_SESSION_SHARE_COUNT";
const INTRA_THREADS: &str = "TF_NUM_INTRA_THREADS";
const INTER_THREADS: &str = "TF_NUM_INTER_THREADS";
const PER_SESSION_THREADS: &str = "TF_USE_PER_SESSION_THREADS";

/// The parameters of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelParameters {
    /// The number of instances that share a session, and therefore its variables.
    pub(crate) session_share_count: u32,
    /// The number of threads that execute one operator; with 0, the library decides.
    pub(crate) intra_threads: i32,
    /// The number of threads that execute different operators. With 0, the library decides; with a
    /// negative number, the calling thread executes them.
    pub(crate) inter_threads: i32,
    pub(crate) per_session_threads: bool,
    /// The graph's tag; empty for the default tag.
    pub(crate) graph_tag: String,
    /// The signature; empty for the default signature.
    pub(crate) signature: String,
    /// The file that lists the nodes to run after loading; empty if there is none.
    pub(crate) init_ops_file: String,
    /// The runtime that should execute the model.
    pub(crate) runtime: RuntimeParameter,
}

impl ModelParameters {
    pub(crate) fn parse(values: &BTreeMap<String, String>, model: &str) -> Result<Self, Status> {
        let text = |key: &str| values.get(key).cloned().unwrap_or_default();
        let refusal = |key: &str, kind: &str| {
            Status::invalid_argument(format!(
                "parameter '{key}' must be {kind} number for TensorFlow model '{model}'"
            ))
        };
        let share_count = integer_parameter(values, SHARE_COUNT)?.unwrap_or(1);
        let share_count = u32::try_from(share_count).ok().filter(|&count| count > 0);
        let share_count = share_count.ok_or_else(|| refusal(SHARE_COUNT, "positive"))?;
        let intra_threads = integer_parameter(values, INTRA_THREADS)?.unwrap_or(0);
        if intra_threads < 0 {
            return Err(refusal(INTRA_THREADS, "non-negative"));
        }
        Ok(Self {
            session_share_count: share_count,
            intra_threads,
            inter_threads: integer_parameter(values, INTER_THREADS)?.unwrap_or(0),
            per_session_threads: bool_parameter(values, PER_SESSION_THREADS)? == Some(OnOff::On),
            graph_tag: text("TF_GRAPH_TAG"),
            signature: text("TF_SIGNATURE_DEF"),
            init_ops_file: text("TF_INIT_OPS_FILE"),
            runtime: RuntimeParameter::parse(&text(RUNTIME), model)?,
        })
    }
}

impl ModelParameters {
    /// Returns true if at most one thread executes the operators of a run.
    pub(crate) const fn has_one_thread(&self) -> bool {
        self.inter_threads == 1 || self.inter_threads < 0
    }
}

/// The backend's settings from the command line.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackendSettings {
    /// The batch size for completed configurations; with 0, none is set.
    pub(crate) default_max_batch_size: i32,
    /// Permits an operator to execute on a device other than the one that the graph specifies.
    pub(crate) soft_placement: OnOff,
}

impl BackendSettings {
    pub(crate) fn parse(values: &BTreeMap<String, String>) -> Result<Self, Status> {
        check_version(values)?;
        if let Some(text) = values.get("gpu-memory-fraction")
            && !begins_with_number(text)
        {
            return Err(parameter_conversion_error("gpu-memory-fraction", text, "double number"));
        }
        Ok(Self {
            default_max_batch_size: batch_size(values)?,
            soft_placement: bool_parameter(values, "allow-soft-placement")?.unwrap_or(OnOff::On),
        })
    }
}

/// The batch size for completed configurations. As in Triton, a negative number disables batching.
fn batch_size(values: &BTreeMap<String, String>) -> Result<i32, Status> {
    match integer_parameter(values, "default-max-batch-size")? {
        Some(size) if size < 0 => Ok(0),
        _ => default_max_batch_size(values),
    }
}

/// Checks the setting that used to choose between two major versions of the library.
fn check_version(values: &BTreeMap<String, String>) -> Result<(), Status> {
    match values.get("version").map(String::as_str) {
        None | Some("2") => Ok(()),
        Some("1") => Err(Status::invalid_argument(
            "starting from 23.04, Triton no longer supports Tensorflow 1. Please switch to \
             Tensorflow 2.",
        )),
        Some(other) => Err(Status::invalid_argument(format!(
            "unexpected TensorFlow library version '{other}', expects 2."
        ))),
    }
}

/// Returns true if `std::stod` finds a number at the start of the string.
fn begins_with_number(text: &str) -> bool {
    let text = text.trim_start_matches([' ', '\t', '\n', '\u{b}', '\u{c}', '\r']);
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let lower = unsigned.to_ascii_lowercase();
    let digits = unsigned.strip_prefix('.').unwrap_or(unsigned);
    digits.starts_with(|first: char| first.is_ascii_digit())
        || lower.starts_with("inf")
        || lower.starts_with("nan")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn parse(pairs: &[(&str, &str)]) -> Result<ModelParameters, String> {
        ModelParameters::parse(&values(pairs), "m").map_err(|status| status.message().to_owned())
    }

    #[test]
    fn parameters_have_tritons_defaults() {
        let found = parse(&[]).unwrap();
        assert_eq!((found.session_share_count, found.per_session_threads), (1, false));
        assert_eq!((found.intra_threads, found.inter_threads), (0, 0));
        assert_eq!((found.graph_tag, found.signature, found.init_ops_file), Default::default());
    }

    #[test]
    fn parameters_are_read() {
        let found = parse(&[
            ("MAX_SESSION_SHARE_COUNT", "3"),
            ("TF_NUM_INTRA_THREADS", "2"),
            ("TF_NUM_INTER_THREADS", "-1"),
            ("TF_USE_PER_SESSION_THREADS", "True"),
            ("TF_GRAPH_TAG", "t"),
            ("TF_SIGNATURE_DEF", "s"),
            ("TF_INIT_OPS_FILE", "i.json"),
        ]);
        let found = found.unwrap();
        assert_eq!((found.session_share_count, found.per_session_threads), (3, true));
        assert_eq!((found.intra_threads, found.inter_threads), (2, -1));
        let expected = ("t".to_owned(), "s".to_owned(), "i.json".to_owned());
        assert_eq!((found.graph_tag, found.signature, found.init_ops_file), expected);
    }

    #[test]
    fn wrong_parameters_are_refused_in_tritons_words() {
        for (key, value, expected) in [
            ("MAX_SESSION_SHARE_COUNT", "0", "must be positive number for TensorFlow model 'm'"),
            ("MAX_SESSION_SHARE_COUNT", "-2", "must be positive number for TensorFlow model 'm'"),
            ("TF_NUM_INTRA_THREADS", "-1", "must be non-negative number for TensorFlow model 'm'"),
        ] {
            assert_eq!(parse(&[(key, value)]), Err(format!("parameter '{key}' {expected}")));
        }
        // The first parameter is reported first.
        let both = [("MAX_SESSION_SHARE_COUNT", "0"), ("TF_NUM_INTRA_THREADS", "-1")];
        let text = parse(&both).unwrap_err();
        assert!(text.starts_with("parameter 'MAX_SESSION_SHARE_COUNT'"), "{text}");
        let text = parse(&[("TF_NUM_INTER_THREADS", "x")]).unwrap_err();
        assert!(text.starts_with("failed to convert 'x' to integral number"), "{text}");
        let text = parse(&[("TF_USE_PER_SESSION_THREADS", "yes")]).unwrap_err();
        assert!(text.starts_with("failed to convert 'yes' to boolean"), "{text}");
    }

    #[test]
    fn settings_are_read_as_triton_reads_them() {
        let read = |pairs: &[(&str, &str)]| {
            BackendSettings::parse(&values(pairs)).map_err(|status| status.message().to_owned())
        };
        let usual = BackendSettings { default_max_batch_size: 4, soft_placement: OnOff::On };
        assert_eq!(read(&[("version", "2"), ("gpu-memory-fraction", " .5x")]), Ok(usual));
        let strict = BackendSettings { soft_placement: OnOff::Off, ..usual };
        assert_eq!(read(&[("allow-soft-placement", "false")]), Ok(strict));
        let unbatched = BackendSettings { default_max_batch_size: 0, ..usual };
        assert_eq!(read(&[("default-max-batch-size", "-3")]), Ok(unbatched));
        for (key, value, expected) in [
            ("version", "1", "starting from 23.04, Triton no longer supports Tensorflow 1."),
            ("version", "3", "unexpected TensorFlow library version '3', expects 2."),
            ("gpu-memory-fraction", "x", "failed to convert 'x' to double number"),
            ("allow-soft-placement", "2", "failed to convert '2' to boolean"),
        ] {
            let text = read(&[(key, value)]).unwrap_err();
            assert!(text.starts_with(expected), "{text}");
        }
    }
}
