//! A model's parameters, read as Triton's backend reads them.

use std::collections::BTreeMap;

use galatea_infer::Status;
use galatea_runtime::OnOff;
use galatea_runtime::parameters::{bool_parameter, integer_parameter};

/// A model's parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelParameters {
    /// False if the graph is executed without optimization (`DISABLE_OPTIMIZED_EXECUTION`).
    pub(crate) is_optimized: bool,
    /// True if no gradients are recorded (`INFERENCE_MODE`).
    pub(crate) inference_mode: bool,
    /// True if the instances share one loaded model (`ENABLE_WEIGHT_SHARING`).
    pub(crate) shares_weights: bool,
    pub(crate) jit_profiling: Option<bool>,
    pub(crate) jit_executor: Option<bool>,
    pub(crate) tensor_fuser: Option<bool>,
    /// The number of threads per operation.
    pub(crate) intra_op_threads: Option<i32>,
    /// The number of threads for independent operations.
    pub(crate) inter_op_threads: Option<i32>,
    /// The specified parameters that affect only GPUs.
    pub(crate) for_gpus: Vec<&'static str>,
}

/// The parameters that affect only GPUs.
const FOR_GPUS: [&str; 3] = ["DISABLE_CUDNN", "ENABLE_CACHE_CLEANING", "CACHE_CLEANING_ENABLED"];

/// The parameters that affect only TorchScript's interpreter, which a compiled model doesn't use.
const FOR_TORCHSCRIPT: [&str; 7] = [
    "INFERENCE_MODE",
    "DISABLE_OPTIMIZED_EXECUTION",
    "ENABLE_JIT_EXECUTOR",
    "ENABLE_JIT_PROFILING",
    "ENABLE_TENSOR_FUSER",
    "ENABLE_WEIGHT_SHARING",
    "INTER_OP_THREAD_COUNT",
];

impl ModelParameters {
    /// Parses the parameters.
    ///
    /// # Errors
    ///
    /// `InvalidArgument`, with Triton's text, for a value of the wrong kind.
    pub(crate) fn parse(values: &BTreeMap<String, String>) -> Result<Self, Status> {
        let flag = |key: &str| -> Result<Option<bool>, Status> {
            Ok(bool_parameter(values, key)?.map(|value| value == OnOff::On))
        };
        let threads = |key: &str| -> Result<Option<i32>, Status> {
            Ok(integer_parameter(values, key)?.filter(|&count| count > 0))
        };
        let mut for_gpus = Vec::new();
        for key in FOR_GPUS {
            if flag(key)?.is_some() {
                for_gpus.push(key);
            }
        }
        Ok(Self {
            is_optimized: !flag("DISABLE_OPTIMIZED_EXECUTION")?.unwrap_or(false),
            inference_mode: flag("INFERENCE_MODE")?.unwrap_or(true),
            shares_weights: flag("ENABLE_WEIGHT_SHARING")?.unwrap_or(false),
            jit_profiling: flag("ENABLE_JIT_PROFILING")?,
            jit_executor: flag("ENABLE_JIT_EXECUTOR")?,
            tensor_fuser: flag("ENABLE_TENSOR_FUSER")?,
            intra_op_threads: threads("INTRA_OP_THREAD_COUNT")?,
            inter_op_threads: threads("INTER_OP_THREAD_COUNT")?,
            for_gpus,
        })
    }

    /// A warning for each specified parameter that has no effect on a compiled model on a CPU.
    pub(crate) fn compiled_model_warnings(&self, values: &BTreeMap<String, String>) -> Vec<String> {
        let given = |key: &&str| values.contains_key(*key);
        let torchscript = FOR_TORCHSCRIPT.into_iter().filter(given).map(|key| {
            format!("parameter '{key}' has no effect: it concerns TorchScript's interpreter")
        });
        torchscript.chain(self.warnings()).collect()
    }

    /// A warning for each specified parameter that has no effect on a CPU.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = String> {
        let keys = self.for_gpus.iter();
        keys.map(|key| format!("parameter '{key}' has no effect: it concerns GPUs"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn the_defaults_are_tritons() {
        let found = ModelParameters::parse(&values(&[])).unwrap();
        assert!(found.is_optimized && found.inference_mode && !found.shares_weights);
        let unset = (found.jit_profiling, found.jit_executor, found.tensor_fuser);
        assert_eq!(unset, (None, None, None));
        assert_eq!((found.intra_op_threads, found.inter_op_threads), (None, None));
    }

    #[test]
    fn every_parameter_is_read() {
        let given = values(&[
            ("DISABLE_OPTIMIZED_EXECUTION", "true"),
            ("INFERENCE_MODE", "false"),
            ("ENABLE_WEIGHT_SHARING", "1"),
            ("ENABLE_JIT_PROFILING", "off"),
            ("ENABLE_JIT_EXECUTOR", "0"),
            ("ENABLE_TENSOR_FUSER", "on"),
            ("INTRA_OP_THREAD_COUNT", "3"),
            ("INTER_OP_THREAD_COUNT", "-1"),
            ("DISABLE_CUDNN", "true"),
        ]);
        let found = ModelParameters::parse(&given).unwrap();
        assert!(!found.is_optimized && !found.inference_mode && found.shares_weights);
        let switches = (found.jit_profiling, found.jit_executor, found.tensor_fuser);
        assert_eq!(switches, (Some(false), Some(false), Some(true)));
        // Numbers below 1 leave the default, as in Triton.
        assert_eq!((found.intra_op_threads, found.inter_op_threads), (Some(3), None));
        assert_eq!(found.warnings().count(), 1);
        let warnings = found.compiled_model_warnings(&given);
        assert_eq!(warnings.len(), 8, "{warnings:?}");
    }

    #[test]
    fn wrong_values_are_refused_in_tritons_words() {
        for (key, value, kind) in [
            ("INFERENCE_MODE", "yes", "boolean"),
            ("DISABLE_CUDNN", "", "boolean"),
            ("INTRA_OP_THREAD_COUNT", "two", "integral number"),
        ] {
            let status = ModelParameters::parse(&values(&[(key, value)])).unwrap_err();
            let expected = format!("failed to convert '{value}' to {kind}: parameter '{key}'");
            assert_eq!(status.message(), expected);
        }
    }
}
