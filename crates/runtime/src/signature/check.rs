//! The parts that are common to all comparisons of a configuration with its model.

use galatea_config::ModelSpec;
use galatea_infer::Status;
use galatea_tensor::DataType;

use crate::configured::{DisplayDims, added_input_count, full_dims};
use crate::interface::{SessionInterface, TensorInfo};

/// A configuration and the model that it is compared with.
pub(super) struct SignatureCheck<'a> {
    pub(super) spec: &'a ModelSpec,
    pub(super) interface: &'a SessionInterface,
}

/// The sizes that a configuration may specify for a variable size in the model.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum VariableSize {
    /// The configuration may specify a fixed size.
    MayBeFixed,
    /// The configuration must leave the size variable, because clients rely on it.
    MustStayVariable,
}

impl SignatureCheck<'_> {
    pub(super) fn refuse<T>(&self, reason: &str) -> Result<T, Status> {
        Err(Status::invalid_argument(format!(
            "unable to load model '{}', {reason}",
            self.spec.name
        )))
    }

    pub(super) const fn batched(&self) -> bool {
        self.spec.max_batch_size > 0
    }

    /// Checks that the configuration lists every input without a default.
    pub(super) fn input_count(&self) -> Result<(), Status> {
        let configured = self.spec.inputs.iter().filter(|input| !input.optional).count();
        let expected = configured + added_input_count(self.spec);
        let provided = self.interface.required_inputs;
        if expected == provided {
            return Ok(());
        }
        self.refuse(&format!(
            "configuration expects {expected} inputs, model provides {provided}: {}",
            names(self.required_inputs())
        ))
    }

    fn required_inputs(&self) -> impl Iterator<Item = &TensorInfo> {
        self.interface.required_tensors().iter()
    }

    /// Finds a request input, with or without a default.
    pub(super) fn find_input(&self, name: &str) -> Result<(usize, &TensorInfo), Status> {
        let tensors = &self.interface.inputs;
        find(tensors.iter(), name).ok_or_else(|| {
            Status::invalid_argument(format!(
                "unexpected inference input '{name}', allowed inputs are: {}",
                names(tensors.iter())
            ))
        })
    }

    /// Finds an input without a default that the server supplies. `role` describes its purpose in
    /// the error.
    pub(super) fn find_added_input(
        &self,
        role: &str,
        name: &str,
    ) -> Result<(usize, &TensorInfo), Status> {
        find(self.required_inputs(), name).ok_or_else(|| {
            Status::invalid_argument(format!(
                "unable to load model '{}', configuration specified {role} '{name}', but model \
                 does not provide that input; it provides: {}",
                self.spec.name,
                names(self.required_inputs())
            ))
        })
    }

    pub(super) fn find_output(&self, name: &str) -> Result<(usize, &TensorInfo), Status> {
        let tensors = &self.interface.outputs;
        find(tensors.iter(), name).ok_or_else(|| {
            Status::invalid_argument(format!(
                "unexpected inference output '{name}', allowed outputs are: {}",
                names(tensors.iter())
            ))
        })
    }

    pub(super) fn datatype(
        &self,
        role: &str,
        name: &str,
        datatype: DataType,
        tensor: &TensorInfo,
    ) -> Result<(), Status> {
        if tensor.element.datatype() == Some(datatype) {
            return Ok(());
        }
        let provided = tensor.element.config_name()?;
        let expected = datatype.config_name();
        self.refuse(&format!(
            "configuration expects datatype {expected} for {role} '{name}', model provides \
             {provided}"
        ))
    }

    pub(super) fn dims(
        &self,
        name: &str,
        dims: &[i64],
        tensor: &TensorInfo,
        variable_size: VariableSize,
    ) -> Result<(), Status> {
        if self.batched() && tensor.dims.first() != Some(&-1) {
            return Err(self.no_batch_dimension(name, tensor));
        }
        if tensor.dims.is_empty() {
            return self.scalar(name, dims);
        }
        let full = full_dims(self.spec, dims);
        let fits = |(model, configured): (&i64, &i64)| {
            model == configured || (*model == -1 && variable_size == VariableSize::MayBeFixed)
        };
        if full.len() == tensor.dims.len() && tensor.dims.iter().zip(&full).all(fits) {
            return Ok(());
        }
        Err(self.dims_mismatch(name, &full, tensor))
    }

    pub(super) fn no_batch_dimension(&self, name: &str, tensor: &TensorInfo) -> Status {
        Status::invalid_argument(format!(
            "model '{}', tensor '{name}': for the model to support batching the shape should have \
             at least 1 dimension and the first dimension must be -1; but shape expected by the \
             model is {}",
            self.spec.name,
            DisplayDims(&tensor.dims)
        ))
    }

    pub(super) fn dims_mismatch(&self, name: &str, full: &[i64], tensor: &TensorInfo) -> Status {
        let reason = if self.batched() {
            "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor \
             shape, making complete shape"
        } else {
            "shape"
        };
        Status::invalid_argument(format!(
            "model '{}', tensor '{name}': the model expects {} dimensions (shape {}) but the model \
             configuration specifies {} dimensions ({reason} {})",
            self.spec.name,
            tensor.dims.len(),
            DisplayDims(&tensor.dims),
            full.len(),
            DisplayDims(full)
        ))
    }

    pub(super) fn scalar(&self, name: &str, dims: &[i64]) -> Result<(), Status> {
        if dims.iter().all(|&dim| dim == 1) {
            return Ok(());
        }
        self.refuse(&format!(
            "scalar tensor '{name}', should only provide 1 in the model configuration when the \
             model doesn't support batching. Model configuration provided: {}.",
            DisplayDims(dims)
        ))
    }
}

fn find<'a>(
    tensors: impl Iterator<Item = &'a TensorInfo>,
    name: &str,
) -> Option<(usize, &'a TensorInfo)> {
    tensors.enumerate().find(|(_, tensor)| tensor.name == name)
}

fn names<'a>(tensors: impl Iterator<Item = &'a TensorInfo>) -> String {
    let mut names: Vec<&str> = tensors.map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    names.join(", ")
}
