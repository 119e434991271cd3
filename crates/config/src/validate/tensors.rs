//! Checks the names, types and shapes of inputs and outputs.

use std::collections::BTreeSet;

use galatea_protocol::inference::{ModelConfig, ModelTensorReshape, model_input};
use galatea_tensor::DataType;

use galatea_config_message::{BoundedText, Diagnostic, Diagnostics, TritonDetectionStage, bounded};

/// A variable dimension.
pub(super) const ANY: i64 = -1;

/// The platform that supports shape tensors and non-linear formats.
pub(crate) const TENSORRT_PLATFORM: &str = "tensorrt_plan";

/// The common fields of inputs and outputs.
struct TensorView<'a> {
    path: BoundedText,
    side: &'static str,
    name: &'a str,
    data_type: i32,
    dims: &'a [i64],
    reshape: Option<&'a ModelTensorReshape>,
    is_shape_tensor: bool,
    is_non_linear: bool,
}

/// The model to which a tensor belongs.
struct ModelView<'a> {
    name: &'a str,
    platform: &'a str,
    batches: bool,
}

pub(super) fn check(config: &ModelConfig, diagnostics: &mut Diagnostics) {
    let model = ModelView {
        name: &config.name,
        platform: &config.platform,
        batches: config.max_batch_size != 0,
    };
    let inputs = inputs(config);
    let outputs = outputs(config);
    for tensors in [&inputs, &outputs] {
        let mut names = BTreeSet::new();
        for tensor in tensors {
            check_tensor(&model, tensor, diagnostics);
            if !tensor.name.is_empty() && !names.insert(tensor.name) {
                let diagnostic = about(&model, tensor, "name", "is specified more than once");
                diagnostics
                    .push(|| Diagnostic { stage: TritonDetectionStage::Never, ..diagnostic });
            }
        }
    }
    for (input, tensor) in config.input.iter().zip(&inputs) {
        if input.format() != model_input::Format::None && input.dims.len() != 3 {
            let text = bounded!("model input NHWC/NCHW require 3 dims for {}", config.name);
            diagnostics.push(|| Diagnostic::about(bounded!("{}.format", tensor.path), text));
        }
    }
}

fn inputs(config: &ModelConfig) -> Vec<TensorView<'_>> {
    let numbered = config.input.iter().enumerate();
    numbered
        .map(|(index, input)| TensorView {
            path: bounded!("input[{index}]"),
            side: "input",
            name: &input.name,
            data_type: input.data_type,
            dims: &input.dims,
            reshape: input.reshape.as_ref(),
            is_shape_tensor: input.is_shape_tensor,
            is_non_linear: input.is_non_linear_format_io,
        })
        .collect()
}

fn outputs(config: &ModelConfig) -> Vec<TensorView<'_>> {
    let numbered = config.output.iter().enumerate();
    numbered
        .map(|(index, output)| TensorView {
            path: bounded!("output[{index}]"),
            side: "output",
            name: &output.name,
            data_type: output.data_type,
            dims: &output.dims,
            reshape: output.reshape.as_ref(),
            is_shape_tensor: output.is_shape_tensor,
            is_non_linear: output.is_non_linear_format_io,
        })
        .collect()
}

/// Reports `text` about a field of a tensor.
fn report(
    diagnostics: &mut Diagnostics,
    model: &ModelView<'_>,
    tensor: &TensorView<'_>,
    field: &str,
    text: &str,
) {
    diagnostics.push(|| about(model, tensor, field, text));
}

fn about(model: &ModelView<'_>, tensor: &TensorView<'_>, field: &str, text: &str) -> Diagnostic {
    let path = bounded!("{}.{field}", tensor.path);
    let name = tensor.name.escape_debug();
    let subject =
        if tensor.name.is_empty() { BoundedText::default() } else { bounded!("'{name}' ") };
    let text = bounded!("model {} {subject}{text} for {}", tensor.side, model.name);
    Diagnostic::about(path, text)
}

fn check_tensor(model: &ModelView<'_>, tensor: &TensorView<'_>, diagnostics: &mut Diagnostics) {
    if tensor.name.is_empty() {
        report(diagnostics, model, tensor, "name", "must specify 'name'");
    }
    if DataType::from_config_number(tensor.data_type).is_none() {
        report(diagnostics, model, tensor, "data_type", "must specify 'data_type'");
    }
    if tensor.dims.is_empty() {
        report(diagnostics, model, tensor, "dims", "must specify 'dims'");
    }
    let usable = check_dims(model, tensor, diagnostics);
    if let Some(reshape) = tensor.reshape {
        check_reshape(model, tensor, &reshape.shape, usable, diagnostics);
    }
    if tensor.is_shape_tensor && model.platform != TENSORRT_PLATFORM {
        let text = "shape tensors are only supported for TensorRT platform";
        let text = bounded!("{text} for {}", model.name);
        diagnostics.push(|| Diagnostic::about(bounded!("{}.is_shape_tensor", tensor.path), text));
    }
    let wrong = if !tensor.is_non_linear {
        return;
    } else if model.platform != TENSORRT_PLATFORM {
        "Non-linear IO format is only supported for the TensorRT platform".into()
    } else if tensor.dims.len() != 3 {
        bounded!("Non-linear IO format {} requires 3 dims", tensor.side)
    } else {
        return;
    };
    let text = bounded!("{wrong} for {}", model.name);
    diagnostics
        .push(|| Diagnostic::about(bounded!("{}.is_non_linear_format_io", tensor.path), text));
}

/// Checks the dimensions. Returns true if the shape is valid.
fn check_dims(
    model: &ModelView<'_>,
    tensor: &TensorView<'_>,
    diagnostics: &mut Diagnostics,
) -> bool {
    let mut usable = !tensor.dims.is_empty();
    for (index, dim) in tensor.dims.iter().enumerate() {
        if *dim < 1 && *dim != ANY {
            let text =
                "dimension must be integer >= 1, or -1 to indicate a variable-size dimension";
            report(diagnostics, model, tensor, &bounded!("dims[{index}]"), text);
            usable = false;
        }
    }
    if usable && fixed_runs(tensor.dims).is_none() {
        report(diagnostics, model, tensor, "dims", "has more elements than any tensor can have");
        usable = false;
    }
    usable
}

fn check_reshape(
    model: &ModelView<'_>,
    tensor: &TensorView<'_>,
    shape: &[i64],
    dims_usable: bool,
    diagnostics: &mut Diagnostics,
) {
    if shape.is_empty() && !model.batches {
        let text = "cannot have empty reshape for non-batching model as scalar tensors are not \
                    supported";
        return report(diagnostics, model, tensor, "reshape", text);
    }
    let mut usable = dims_usable;
    for (index, dim) in shape.iter().enumerate() {
        if *dim < 1 && *dim != ANY {
            let text = "reshape dimensions must be integer >= 1, or -1 to indicate a variable-size \
                        dimension";
            report(diagnostics, model, tensor, &bounded!("reshape.shape[{index}]"), text);
            usable = false;
        }
    }
    if !usable {
        return;
    }
    let different = "has different size for dims and reshape";
    match (fixed_runs(tensor.dims), fixed_runs(shape)) {
        (Some(dims), Some(reshape)) if dims.len() == reshape.len() => {
            if dims != reshape {
                report(diagnostics, model, tensor, "reshape.shape", different);
            }
        }
        (Some(dims), Some(reshape)) if dims.len() > 1 && reshape.len() > 1 => {
            let text = "has different number of variable-size dimensions for dims and reshape";
            report(diagnostics, model, tensor, "reshape.shape", text);
        }
        (Some(_) | None, Some(_) | None) => {
            report(diagnostics, model, tensor, "reshape.shape", different);
        }
    }
}

/// The element counts of the runs of fixed dimensions between variable dimensions; `None` if a
/// count or the product of the counts overflows.
pub(super) fn fixed_runs(dims: &[i64]) -> Option<Vec<i64>> {
    let fixed_runs: Vec<i64> = dims
        .split(|dim| *dim == ANY)
        .map(|run| run.iter().try_fold(1_i64, |count, dim| count.checked_mul(*dim)))
        .collect::<Option<_>>()?;
    fixed_runs.iter().try_fold(1_i64, |count, run| count.checked_mul(*run))?;
    Some(fixed_runs)
}
