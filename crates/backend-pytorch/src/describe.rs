//! Writes a configuration for a model file that has none.
//!
//! The source in a compiled model's package contains the names, types and sizes of the tensors. A
//! TorchScript model contains only the names of its arguments, so the user has to complete an
//! example.

use std::ffi::OsStr;
use std::path::Path;

use galatea_infer::Status;
use galatea_tensor::DataType;

use crate::call_spec;
use crate::native_models::COMPILED;
use crate::package::{CompiledInput, CompiledResult, Package, compiled_inputs, compiled_results};
use crate::torchscript::ScriptSignature;

/// The maximum batch size of a model that doesn't limit it.
const BATCH_MAX: i64 = 1024;

/// The configuration of a model file, to the extent that the file determines it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileDescription {
    /// The text of the configuration.
    Complete(String),
    /// The file doesn't determine everything.
    Incomplete {
        /// The reason, which follows the file's name in an error message.
        missing: &'static str,
        /// The text of a configuration that the user has to correct.
        example: String,
    },
}

/// Describes the file of a compiled model (`.pt2`) or of a TorchScript model.
///
/// # Errors
///
/// `InvalidArgument` if the file isn't such a model.
pub fn describe(path: &Path) -> Result<FileDescription, Status> {
    if path.extension() == Some(OsStr::new("pt2")) {
        return describe_package(path);
    }
    let signature = ScriptSignature::read(path).map_err(|reason| {
        Status::invalid_argument(format!(
            "'{}' is no model of TorchScript ({reason}): save one with `torch.jit.script`, or \
             compile the model to model.pt2 (docs/pytorch.md)",
            path.display()
        ))
    })?;
    Ok(FileDescription::Incomplete {
        missing: "is a model of TorchScript, which doesn't say the types and sizes of its inputs and \
                  outputs",
        example: script_example(&signature),
    })
}

fn describe_package(path: &Path) -> Result<FileDescription, Status> {
    let mut package = Package::open(path)?;
    let source = package.source()?.unwrap_or_default();
    let inputs = compiled_inputs(&source);
    let mut results = compiled_results(&source, &inputs);
    let output_names = call_spec_text(&source, "out_spec_").map(call_spec::output_names);
    let output_names = output_names.and_then(Result::ok).unwrap_or_default();
    if results.len() < output_names.len() {
        results.resize(output_names.len(), CompiledResult::Missing);
    }
    let input_names = call_spec_text(&source, "in_spec_").map(call_spec::input_names);
    let input_names = input_names.and_then(Result::ok).unwrap_or_default();
    let batch = batch_size(&inputs, &results);
    let mut tensors = String::new();
    for (index, input) in inputs.iter().enumerate() {
        let name = name(&input_names, inputs.len(), index, "INPUT");
        let datatype = input.datatype.unwrap_or(DataType::Fp32);
        tensors += &tensor("input", &name, datatype, &input.sizes(), batch);
    }
    let (mut is_complete, mut has_outputs) = (!inputs.is_empty(), false);
    for (index, result) in results.iter().enumerate() {
        let name = name(&output_names, results.len(), index, "OUTPUT");
        let (datatype, dims) = match result {
            CompiledResult::Tensor(found) => (found.datatype, found.dims()),
            CompiledResult::Missing => continue,
            CompiledResult::Unknown => {
                is_complete = false;
                (DataType::Fp32, vec![-1, -1])
            }
        };
        has_outputs = true;
        tensors += &tensor("output", &name, datatype, &dims, batch);
    }
    if is_complete && has_outputs {
        return Ok(FileDescription::Complete(config(COMPILED, batch, &tensors)));
    }
    let missing = if inputs.is_empty() {
        "has no source that says the inputs and outputs of the model"
    } else {
        "doesn't say the types and sizes of all its outputs"
    };
    let example = if inputs.is_empty() {
        let tensor = |kind, name| tensor(kind, name, DataType::Fp32, &[-1, 4], Some(8));
        config(COMPILED, Some(8), &(tensor("input", "INPUT__0") + &tensor("output", "OUTPUT__0")))
    } else {
        config(COMPILED, batch, &tensors)
    };
    Ok(FileDescription::Incomplete { missing, example })
}

/// The text in `in_spec_ = R"([1, {…}])";`.
fn call_spec_text<'a>(source: &'a str, member: &str) -> Option<&'a str> {
    let (_, rest) = source.split_once(&format!(" {member} = R\"("))?;
    rest.split_once(")\";").map(|(text, _)| text)
}

/// A tensor's name: its path if the paths of all tensors are known, otherwise its number.
fn name(paths: &[String], count: usize, index: usize, kind: &str) -> String {
    let path = paths.get(index).filter(|_| paths.len() == count);
    path.cloned().unwrap_or_else(|| format!("{kind}__{index}"))
}

/// The maximum batch size, if the first size of every tensor is the batch size.
fn batch_size(inputs: &[CompiledInput], results: &[CompiledResult]) -> Option<i64> {
    let symbol = inputs.first()?.batch_symbol()?;
    let is_batched = |result: &CompiledResult| match result {
        CompiledResult::Tensor(found) => found.batch_symbol() == Some(symbol),
        CompiledResult::Missing => true,
        CompiledResult::Unknown => false,
    };
    let same = inputs.iter().all(|input| input.batch_symbol() == Some(symbol))
        && results.iter().all(is_batched);
    let largest = inputs.iter().filter_map(CompiledInput::largest_batch).min();
    same.then(|| largest.unwrap_or(BATCH_MAX).clamp(1, BATCH_MAX))
}

fn config(platform: &str, batch: Option<i64>, tensors: &str) -> String {
    let batch = batch.map(|size| format!("max_batch_size: {size}\ndynamic_batching {{ }}\n"));
    format!("platform: \"{platform}\"\n{}{tensors}", batch.unwrap_or_default())
}

/// A tensor in the format of a configuration. If there are batches, its sizes include the batch
/// size.
fn tensor(kind: &str, name: &str, datatype: DataType, dims: &[i64], batch: Option<i64>) -> String {
    let name = name.replace('\\', "\\\\").replace('"', "\\\"");
    let dims = dims.get(usize::from(batch.is_some())..).unwrap_or_default();
    let sizes: Vec<String> = dims.iter().map(i64::to_string).collect();
    let (sizes, reshape) = if sizes.is_empty() {
        // A configuration can't have a tensor without dimensions.
        (String::from("1"), " reshape { shape: [ ] }")
    } else {
        (sizes.join(", "), "")
    };
    let datatype = datatype.config_name();
    format!("{kind} {{ name: \"{name}\" data_type: {datatype} dims: [ {sizes} ]{reshape} }}\n")
}

fn script_example(signature: &ScriptSignature) -> String {
    let has_strings = signature.arguments.iter().any(|(_, kind)| kind.starts_with("List["));
    let batch = if has_strings { None } else { Some(8) };
    let mut tensors = String::new();
    for (name, kind) in &signature.arguments {
        tensors += &if kind.starts_with("Dict[") {
            tensor("input", "KEY", DataType::Fp32, &[-1, 4], batch)
        } else if kind.starts_with("List[") {
            tensor("input", name, DataType::Bytes, &[-1], batch)
        } else {
            tensor("input", name, DataType::Fp32, &[-1, 4], batch)
        };
    }
    for (index, kind) in signature.results.iter().enumerate() {
        let name = format!("OUTPUT__{index}");
        tensors += &if kind.starts_with("List[") {
            tensor("output", &name, DataType::Bytes, &[-1], batch)
        } else {
            tensor("output", &name, DataType::Fp32, &[-1, 2], batch)
        };
    }
    config("pytorch_libtorch", batch, &tensors)
}
