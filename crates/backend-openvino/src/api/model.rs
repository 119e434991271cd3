//! Models that have been read.

use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::Arc;

use galatea_infer::Status;
use galatea_runtime::{ElementKind, SessionInterface, TensorInfo, c_string};
use galatea_tensor::DataType;

use super::element;
use super::functions::{OvStatus, PortByName, RawModel, RawPort};
use super::handle::Handle;
use super::library::{Library, text};
use super::preprocess::{self, Conversion};
use super::shape::{OvDimension, OvPartialShape};

/// The description of a tensor that no configuration can list.
pub(crate) const VARIABLE_RANK: &str = "a variable number of dimensions, which is unsupported";

/// A model that has been read and can still be changed.
pub(crate) struct Model {
    raw: Handle<RawModel>,
    library: Arc<Library>,
}

/// An input or output of a model.
pub(crate) struct Port {
    pub(crate) name: String,
    /// The library's number for the type, which requests may not support.
    pub(super) number: c_int,
    /// The bounds of the sizes; `None` if the number of dimensions is variable.
    pub(crate) bounds: Option<Vec<OvDimension>>,
    /// False if the library has no name for the tensor, which then has its position as a name.
    pub(super) is_named: bool,
    /// The input that an output with a name is identical to, if there is no operator between them.
    pub(super) source: Option<usize>,
}

impl Port {
    /// The sizes, with -1 for a variable size; empty if the number of dimensions is variable.
    pub(super) fn dims(&self) -> Vec<i64> {
        self.bounds.iter().flatten().map(|bounds| bounds.size()).collect()
    }

    /// The element type, if requests may have it.
    pub(crate) fn datatype(&self) -> Option<DataType> {
        element::datatype(self.number)
    }

    pub(crate) fn is_scalar(&self) -> bool {
        self.bounds.as_ref().is_some_and(Vec::is_empty)
    }

    #[cfg(test)]
    pub(crate) fn of(name: &str, datatype: DataType, bounds: Option<Vec<OvDimension>>) -> Self {
        Self {
            name: name.to_owned(),
            number: element::number(datatype).unwrap(),
            bounds,
            is_named: true,
            source: None,
        }
    }
}

/// An input or output whose type is changed.
pub(crate) struct TypeChange<'a> {
    pub(crate) index: usize,
    pub(crate) name: &'a str,
    pub(crate) datatype: DataType,
}

/// The functions that list a model's inputs or outputs.
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

    /// The model's inputs, all of which are required.
    pub(crate) fn inputs(&self) -> Result<Vec<Port>, Status> {
        let functions = self.library.api().functions();
        self.list(&PortFunctions {
            side: "input",
            count: functions.ov_model_inputs_size,
            by_index: functions.ov_model_const_input_by_index,
        })
    }

    /// The model's outputs.
    pub(crate) fn outputs(&self) -> Result<Vec<Port>, Status> {
        let functions = self.library.api().functions();
        let mut outputs = self.list(&PortFunctions {
            side: "output",
            count: functions.ov_model_outputs_size,
            by_index: functions.ov_model_const_output_by_index,
        })?;
        let inputs = self.inputs()?;
        for output in outputs.iter_mut().filter(|output| output.is_named) {
            // A name belongs to only one tensor.
            let alias = self.input_alias(&output.name);
            let is_same =
                |input: &Port| alias.as_ref() == Some(&input.name) && input.number == output.number;
            output.source = inputs.iter().position(is_same);
        }
        Ok(outputs)
    }

    /// The name in [`Self::inputs`] of an input, which may have several names; `None` if no input
    /// has this name.
    pub(crate) fn input_alias(&self, name: &str) -> Option<String> {
        self.alias(self.library.api().functions().ov_model_const_input_by_name, name)
    }

    /// The same for outputs.
    pub(crate) fn output_alias(&self, name: &str) -> Option<String> {
        self.alias(self.library.api().functions().ov_model_const_output_by_name, name)
    }

    fn alias(&self, by_name: PortByName, name: &str) -> Option<String> {
        let api = self.library.api();
        let name = c_string(name, "the name of a tensor").ok()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the model is alive, the name lives during the call, the out pointer is valid.
        let find = || unsafe { by_name(self.as_ptr(), name.as_ptr(), &raw mut raw) };
        if api.probe(find) != 0 {
            return None;
        }
        // SAFETY: the named function frees the port, which the call above has stored.
        let port = unsafe {
            Handle::create(
                api,
                api.functions().ov_output_const_port_free,
                "finding a tensor",
                |out| {
                    *out = raw;
                    0
                },
            )
        };
        self.name(&port.ok()?)
    }

    pub(crate) fn interface(&self) -> Result<SessionInterface, Status> {
        let info = |port: Port| {
            // A configuration that doesn't list such a tensor can still serve the model.
            let element = match &port.bounds {
                Some(_) => element::kind(port.number),
                None => ElementKind::Unknown(String::from(VARIABLE_RANK)),
            };
            TensorInfo { dims: port.dims(), name: port.name, element }
        };
        let inputs: Vec<TensorInfo> = self.inputs()?.into_iter().map(info).collect();
        let outputs = self.outputs()?.into_iter().map(info).collect();
        Ok(SessionInterface { required_inputs: inputs.len(), inputs, outputs })
    }

    fn list(&self, functions: &PortFunctions) -> Result<Vec<Port>, Status> {
        let mut count = 0;
        // SAFETY: the model is alive, the out pointer valid.
        let get = || unsafe { (functions.count)(self.as_ptr(), &raw mut count) };
        self.library.api().load(&format!("getting {} infos", functions.side), get)?;
        (0..count).map(|index| self.port(functions, index)).collect()
    }

    fn port(&self, functions: &PortFunctions, index: usize) -> Result<Port, Status> {
        let api = self.library.api();
        let free = api.functions().ov_output_const_port_free;
        // SAFETY: the model is alive, the index within the count; the named function frees the
        // port.
        let port = unsafe {
            Handle::load(api, free, &format!("getting {} infos", functions.side), |out| {
                (functions.by_index)(self.as_ptr(), index, out)
            })?
        };
        // A tensor may have no name, in which case asking for the name fails.
        let unnamed = || format!("{}__{index}", functions.side.to_ascii_uppercase());
        let name = self.name(&port).filter(|name| !name.is_empty());
        let (is_named, name) = (name.is_some(), name.unwrap_or_else(unnamed));
        let mut number = 0;
        // SAFETY: the port is alive, the out pointer valid for the enumeration's integer.
        let get = || unsafe {
            (api.functions().ov_port_get_element_type)(port.as_ptr(), &raw mut number)
        };
        api.load(&format!("getting {} infos", functions.side), get)?;
        let bounds = self.bounds(&port, functions.side, &name)?;
        Ok(Port { name, number, bounds, is_named, source: None })
    }

    fn name(&self, port: &Handle<RawPort>) -> Option<String> {
        let api = self.library.api();
        let mut raw: *mut c_char = ptr::null_mut();
        // SAFETY: the port is alive, the out pointer valid; the name is the caller's to free.
        unsafe {
            let get = api.functions().ov_port_get_any_name;
            if api.probe(|| get(port.as_ptr(), &raw mut raw)) != 0 {
                return None;
            }
            let name = text(raw);
            if !raw.is_null() {
                (api.functions().ov_free)(raw);
            }
            Some(name)
        }
    }

    fn bounds(
        &self,
        port: &Handle<RawPort>,
        side: &str,
        name: &str,
    ) -> Result<Option<Vec<OvDimension>>, Status> {
        let api = self.library.api();
        let mut shape = OvPartialShape::EMPTY;
        // SAFETY: the port is alive, the out pointer valid; the shape is read before it is freed.
        unsafe {
            let get = api.functions().ov_port_get_partial_shape;
            let doing = format!("retrieving original shapes from {side} {name}");
            api.load(&doing, || get(port.as_ptr(), &raw mut shape))?;
            let bounds = shape.bounds();
            (api.functions().ov_partial_shape_free)(&raw mut shape);
            Ok(bounds)
        }
    }

    /// Changes the shapes of inputs, which are identified by their indices. `doing` describes the
    /// change in an error.
    pub(crate) fn reshape(
        &mut self,
        shapes: &[(usize, Vec<OvDimension>)],
        doing: &str,
    ) -> Result<(), Status> {
        let api = self.library.api();
        let indices: Vec<usize> = shapes.iter().map(|(index, _)| *index).collect();
        let shapes: Vec<OvPartialShape> =
            shapes.iter().map(|(_, bounds)| OvPartialShape::borrowed(bounds)).collect();
        // SAFETY: the model is alive and borrowed exclusively; indices and shapes are arrays of
        // this length, which are only read.
        let set = || unsafe {
            let reshape = api.functions().ov_model_reshape_by_port_indexes;
            reshape(self.as_ptr(), indices.as_ptr(), shapes.as_ptr(), shapes.len())
        };
        api.load(doing, set)
    }

    /// Changes the types of inputs and outputs. The library converts the elements.
    pub(crate) fn convert(
        &mut self,
        inputs: &[TypeChange<'_>],
        outputs: &[TypeChange<'_>],
    ) -> Result<(), Status> {
        fn conversions<'a>(changes: &[TypeChange<'a>]) -> Vec<Conversion<'a>> {
            let known = changes.iter().filter_map(|change| {
                let number = element::number(change.datatype)?;
                Some(Conversion { index: change.index, name: change.name, number })
            });
            known.collect()
        }
        if !inputs.is_empty() || !outputs.is_empty() {
            let (inputs, outputs) = (conversions(inputs), conversions(outputs));
            self.raw = preprocess::convert(&self.library, &self.raw, &inputs, &outputs)?;
        }
        Ok(())
    }
}
