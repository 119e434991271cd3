//! Inputs and outputs for the sequence batcher: controls and states.

use std::sync::Arc;

use galatea_config::{ControlInputSpec, StateSpec};
use galatea_infer::Status;

use super::check::SignatureCheck;
use super::plans::{InputLayout, InputPlan, OutputPlan, scalar_shape};
use crate::configured::{DisplayDims, full_dims};
use crate::interface::TensorInfo;

impl SignatureCheck<'_> {
    /// Plans a control, which has one element per request.
    pub(super) fn control(&self, control: &ControlInputSpec) -> Result<InputPlan, Status> {
        let ControlInputSpec { name, datatype, .. } = control;
        let (index, tensor) = self.find_added_input("sequence control", name)?;
        self.batch_dimension(name, tensor)?;
        let dims = tensor.dims.get(usize::from(self.batched())..).unwrap_or_default();
        if dims != [1] {
            return self.refuse(&format!(
                "sequence control '{name}' in model has dims {} but dims [1] is expected",
                DisplayDims(dims)
            ));
        }
        if tensor.element.datatype() != Some(*datatype) {
            return self.refuse(&format!(
                "sequence control '{name}', the model expects data-type {} but the model \
                 configuration specifies data-type {}",
                tensor.element.config_name()?,
                datatype.config_name()
            ));
        }
        let layout = InputLayout::Rows;
        let (name, datatype) = (name.clone(), *datatype);
        Ok(InputPlan { name, datatype, index, layout, is_state: false, is_padded: false })
    }

    pub(super) fn state_input(&self, state: &StateSpec) -> Result<InputPlan, Status> {
        let StateSpec { input_name: name, datatype, dims, .. } = state;
        let (index, tensor) = self.find_added_input("input state", name)?;
        self.datatype("input state", name, *datatype, tensor)?;
        self.state_dims(name, dims, tensor)?;
        let layout = InputLayout::of_rank(tensor.dims.len());
        let (name, datatype) = (name.clone(), *datatype);
        Ok(InputPlan { name, datatype, index, layout, is_state: true, is_padded: false })
    }

    /// The output that a state comes from, as an output that the configuration doesn't list.
    pub(super) fn state_output(&self, state: &StateSpec) -> Result<OutputPlan, Status> {
        let StateSpec { output_name: name, datatype, dims, .. } = state;
        let (index, tensor) = self.find_output(name)?;
        self.datatype("output state", name, *datatype, tensor)?;
        self.state_dims(name, dims, tensor)?;
        let is_scalar = tensor.dims.is_empty();
        Ok(OutputPlan {
            name: Arc::from(name.as_str()),
            datatype: *datatype,
            index,
            scalar_shape: is_scalar.then(|| scalar_shape(dims)).transpose()?,
            is_visible: false,
            is_state: true,
            grows_in: state.is_growable.then(|| Arc::from(state.input_name.as_str())),
            padded_input: None,
            is_continuation: false,
            scatter: None,
        })
    }

    /// Checks a state's dimensions. Clients don't see a state's shape, so either side may leave a
    /// size variable.
    fn state_dims(&self, name: &str, dims: &[i64], tensor: &TensorInfo) -> Result<(), Status> {
        self.batch_dimension(name, tensor)?;
        if tensor.dims.is_empty() {
            let ones: Vec<i64> = dims.iter().map(|&dim| if dim == -1 { 1 } else { dim }).collect();
            return self.scalar(name, &ones);
        }
        let model = tensor.dims.get(usize::from(self.batched())..).unwrap_or_default();
        let fits = |(model, configured): (&i64, &i64)| {
            model == configured || *model == -1 || *configured == -1
        };
        if model.len() == dims.len() && model.iter().zip(dims).all(fits) {
            return Ok(());
        }
        Err(self.dims_mismatch(name, &full_dims(self.spec, dims), tensor))
    }

    /// Checks that the model accepts every batch size that the configuration allows.
    fn batch_dimension(&self, name: &str, tensor: &TensorInfo) -> Result<(), Status> {
        match tensor.dims.first() {
            _ if !self.batched() => Ok(()),
            Some(-1) => Ok(()),
            Some(1) if self.spec.max_batch_size == 1 => Ok(()),
            Some(_) | None => Err(self.no_batch_dimension(name, tensor)),
        }
    }
}
