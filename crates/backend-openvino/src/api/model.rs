//! Models that were read.

use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::Arc;

use galatea_infer::Status;
use galatea_runtime::{Interface, TensorInfo};

use super::element;
use super::functions::{OvStatus, RawModel, RawPort};
use super::handle::Handle;
use super::library::{Library, c_string, text};
use super::shape::{OvDimension, OvPartialShape};

/// A model that was read and can still be changed.
pub(crate) struct Model {
    raw: Handle<RawModel>,
    library: Arc<Library>,
}

/// The functions that list one side of a model.
struct PortFunctions {
    side: &'static str,
    count: unsafe extern "C" fn(*const RawModel, *mut usize) -> OvStatus,
    by_index: unsafe extern "C" fn(*const RawModel, usize, *mut *mut RawPort) -> OvStatus,
}

impl Model {
    pub(super) const fn new(raw: Handle<RawModel>, library: Arc<Library>) -> Self {
        Self { raw, library }
    }

    pub(super) const fn as_ptr(&self) -> *mut RawModel {
        self.raw.as_ptr()
    }

    /// The model's inputs, all of which are required, and its outputs.
    pub(crate) fn interface(&self) -> Result<Interface, Status> {
        let functions = self.library.api().functions();
        let inputs = self.list(&PortFunctions {
            side: "input",
            count: functions.ov_model_inputs_size,
            by_index: functions.ov_model_const_input_by_index,
        })?;
        let outputs = self.list(&PortFunctions {
            side: "output",
            count: functions.ov_model_outputs_size,
            by_index: functions.ov_model_const_output_by_index,
        })?;
        Ok(Interface { required_inputs: inputs.len(), inputs, outputs })
    }

    fn list(&self, functions: &PortFunctions) -> Result<Vec<TensorInfo>, Status> {
        let mut count = 0;
        // SAFETY: the model is alive, the out pointer valid.
        let status = unsafe { (functions.count)(self.as_ptr(), &raw mut count) };
        self.library.api().check(status, "getting its tensors")?;
        (0..count).map(|index| self.info(functions, index)).collect()
    }

    fn info(&self, functions: &PortFunctions, index: usize) -> Result<TensorInfo, Status> {
        let api = self.library.api();
        let free = api.functions().ov_output_const_port_free;
        // SAFETY: the model is alive, the index within the count; the named function frees the
        // port.
        let port = unsafe {
            Handle::create(api, free, "getting a tensor", |out| {
                (functions.by_index)(self.as_ptr(), index, out)
            })?
        };
        let name = self.name(&port).map_err(|status| {
            let which = format!("{} {index} has no name, which is needed: ", functions.side);
            status.prefixed(which)
        })?;
        let mut number = 0;
        // SAFETY: the port is alive, the out pointer valid for the enumeration's integer.
        let status =
            unsafe { (api.functions().ov_port_get_element_type)(port.as_ptr(), &raw mut number) };
        api.check(status, "getting a type")?;
        let dims = self.dims(&port)?.ok_or_else(|| {
            Status::unsupported(format!("tensor '{name}' has a variable number of dimensions"))
        })?;
        Ok(TensorInfo { name, element: element::kind(number), dims })
    }

    fn name(&self, port: &Handle<RawPort>) -> Result<String, Status> {
        let api = self.library.api();
        let mut raw: *mut c_char = ptr::null_mut();
        // SAFETY: the port is alive, the out pointer valid; the name is the caller's to free.
        unsafe {
            let status = (api.functions().ov_port_get_any_name)(port.as_ptr(), &raw mut raw);
            api.check(status, "getting a name")?;
            let name = text(raw);
            if !raw.is_null() {
                (api.functions().ov_free)(raw);
            }
            Ok(name)
        }
    }

    fn dims(&self, port: &Handle<RawPort>) -> Result<Option<Vec<i64>>, Status> {
        let api = self.library.api();
        let mut shape = OvPartialShape::EMPTY;
        // SAFETY: the port is alive, the out pointer valid; the shape is read before it is freed.
        unsafe {
            let status = (api.functions().ov_port_get_partial_shape)(port.as_ptr(), &raw mut shape);
            api.check(status, "retrieving original shapes")?;
            let dims = shape.dims();
            (api.functions().ov_partial_shape_free)(&raw mut shape);
            Ok(dims)
        }
    }

    /// Gives inputs other shapes; -1 is a variable size.
    pub(crate) fn reshape(&mut self, shapes: &[(String, Vec<i64>)]) -> Result<(), Status> {
        let api = self.library.api();
        let owned: Vec<CString> =
            shapes.iter().map(|(name, _)| c_string(name, "a name")).collect::<Result<_, _>>()?;
        let mut names: Vec<*const c_char> = owned.iter().map(|name| name.as_ptr()).collect();
        let dims: Vec<Vec<OvDimension>> = shapes
            .iter()
            .map(|(_, dims)| dims.iter().map(|&dim| OvDimension::of(dim)).collect())
            .collect();
        let shapes: Vec<OvPartialShape> =
            dims.iter().map(|dims| OvPartialShape::borrowed(dims)).collect();
        // SAFETY: the model is alive and borrowed exclusively; names and shapes are arrays of this
        // length, which are only read.
        let status = unsafe {
            let reshape = api.functions().ov_model_reshape;
            reshape(self.as_ptr(), names.as_mut_ptr(), shapes.as_ptr(), shapes.len())
        };
        api.check(status, "reshaping its inputs")
    }
}
