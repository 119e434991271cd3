//! Functions for responses.

use core::ffi::c_char;

use galatea_abi::{
    TRITONBACKEND_Output, TRITONBACKEND_Request, TRITONBACKEND_Response,
    TRITONBACKEND_ResponseFactory, TRITONSERVER_DataType, TRITONSERVER_Error,
};
use galatea_c_objects::error::borrow_c_error;
use galatea_c_objects::names::data_type_from_c;
use galatea_c_objects::{handle, list, pointer};
use galatea_devices::Devices;
use galatea_infer::{Parameter, ParameterValue, Status};
use galatea_stdx::len64;
use galatea_tensor::DataType;

use super::factory::FactoryObject;
use super::output::OutputObject;
use super::{ResponseObject, is_final};
use crate::owned::Owned;
use crate::request::RequestObject;
use crate::tensor_shape::shape_from_c;

/// # Safety
///
/// Same requirements as for every exported function.
unsafe fn object<'a>(response: *mut TRITONBACKEND_Response) -> Result<&'a ResponseObject, Status> {
    // SAFETY: guaranteed by the caller.
    unsafe { handle::borrow(response, "response") }
}

/// # Safety
///
/// Same requirements as for every exported function.
unsafe fn add_parameter(
    response: *mut TRITONBACKEND_Response,
    name: *const c_char,
    value: ParameterValue,
) -> Result<(), Status> {
    // SAFETY: guaranteed by the caller.
    let (response, name) = unsafe { (object(response)?, pointer::required_c_str(name, "name")?) };
    response
        .contents
        .lock("add a parameter")
        .parameters
        .push(Parameter { name: name.to_owned(), value });
    Ok(())
}

/// The destinations for an output's properties.
struct OutputPropertiesOut {
    datatype: *mut TRITONSERVER_DataType,
    shape: *mut *const i64,
    dim_count: *mut u64,
}

/// # Safety
///
/// Same requirements as for every exported function.
unsafe fn write_properties(output: &OutputObject, out: &OutputPropertiesOut) -> Result<(), Status> {
    let dims = output.shape.dims();
    // SAFETY: guaranteed by the caller.
    unsafe {
        pointer::write(out.datatype, output.datatype(), "datatype")?;
        pointer::write(out.shape, dims.as_ptr(), "shape")?;
        pointer::write(out.dim_count, len64(dims.len()), "dim_count")
    }
}

functions! {
    /// Begins a response to a request.
    fn TRITONBACKEND_ResponseNew(
        response: *mut *mut TRITONBACKEND_Response,
        request: *mut TRITONBACKEND_Request,
    ) {
        pointer::write(response, core::ptr::null_mut(), "response")?;
        let request: &RequestObject = handle::borrow(request, "request")?;
        request.check_executed()?;
        let made = ResponseObject::new(request.channel.clone(), request.instance_guard.clone());
        pointer::write(response, handle::into_raw(made), "response")
    }

    /// Begins a response to the request that a factory was created for.
    fn TRITONBACKEND_ResponseNewFromFactory(
        response: *mut *mut TRITONBACKEND_Response,
        factory: *mut TRITONBACKEND_ResponseFactory,
    ) {
        pointer::write(response, core::ptr::null_mut(), "response")?;
        let factory: &FactoryObject = handle::borrow(factory, "factory")?;
        let made = ResponseObject::new(factory.channel.clone(), factory.instance_guard.clone());
        pointer::write(response, handle::into_raw(made), "response")
    }

    /// Deletes an unsent response.
    fn TRITONBACKEND_ResponseDelete(response: *mut TRITONBACKEND_Response) {
        handle::delete::<ResponseObject>(response, "response")
    }

    /// Adds a parameter to a response.
    fn TRITONBACKEND_ResponseSetStringParameter(
        response: *mut TRITONBACKEND_Response,
        name: *const c_char,
        value: *const c_char,
    ) {
        let value = pointer::required_c_str(value, "value")?.to_owned();
        add_parameter(response, name, ParameterValue::String(value))
    }

    /// Adds a parameter to a response.
    fn TRITONBACKEND_ResponseSetIntParameter(
        response: *mut TRITONBACKEND_Response,
        name: *const c_char,
        value: i64,
    ) {
        add_parameter(response, name, ParameterValue::Int64(value))
    }

    /// Adds a parameter to a response.
    fn TRITONBACKEND_ResponseSetBoolParameter(
        response: *mut TRITONBACKEND_Response,
        name: *const c_char,
        value: bool,
    ) {
        add_parameter(response, name, ParameterValue::Bool(value))
    }

    /// Adds a parameter to a response.
    fn TRITONBACKEND_ResponseSetDoubleParameter(
        response: *mut TRITONBACKEND_Response,
        name: *const c_char,
        value: f64,
    ) {
        add_parameter(response, name, ParameterValue::Double(value))
    }

    /// Adds an output to a response. The plug-in requests the output's memory afterwards.
    fn TRITONBACKEND_ResponseOutput(
        response: *mut TRITONBACKEND_Response,
        output: *mut *mut TRITONBACKEND_Output,
        name: *const c_char,
        datatype: TRITONSERVER_DataType,
        shape: *const i64,
        dims_count: u32,
    ) {
        pointer::write(output, core::ptr::null_mut(), "output")?;
        let response = object(response)?;
        let name = pointer::required_c_str(name, "name")?;
        let datatype = data_type_from_c(datatype)
            .ok_or_else(|| Status::invalid_argument(format!("output '{name}' has no datatype")))?;
        let shape = shape_from_c(shape, dims_count, name)?;
        let model = response.instance_guard.model();
        let model = model.ok_or_else(|| Status::internal("a response without a model"))?;
        let serving = model.serving()?;
        let known = serving.outputs.iter().find(|known| &***known == name).ok_or_else(|| {
            Status::invalid_argument(format!(
                "unexpected inference output '{name}' for model '{}'",
                serving.name
            ))
        })?;
        let takes = response.channel.takes_on_device(name) && datatype != DataType::Bytes;
        let devices = if takes { model.info.backend.devices.clone() } else { Devices::default() };
        let made = Owned::new(OutputObject::new(known.clone(), datatype, shape, devices));
        let address = made.address();
        response.contents.lock("add an output").outputs.push(made);
        pointer::write(output, address, "output")
    }

    /// Sends a response or, instead, an error. The response is consumed even if the call fails. The
    /// backend keeps ownership of the error.
    fn TRITONBACKEND_ResponseSend(
        response: *mut TRITONBACKEND_Response,
        send_flags: u32,
        error: *mut TRITONSERVER_Error,
    ) {
        let response: ResponseObject = handle::take(response, "response")?;
        let failed = borrow_c_error(error);
        let (channel, _in_use, made) = response.into_response();
        channel.send(failed.and(made), is_final(send_flags))
    }

    /// Returns the type and shape of an output of a response.
    fn TRITONBACKEND_InferenceResponseOutputByName(
        response: *mut TRITONBACKEND_Response,
        name: *const c_char,
        datatype: *mut TRITONSERVER_DataType,
        shape: *mut *const i64,
        dim_count: *mut u64,
    ) {
        let name = pointer::required_c_str(name, "name")?;
        let contents = object(response)?.contents.lock("find an output");
        let mut outputs = contents.outputs.iter().filter_map(Owned::get);
        let output = outputs.find(|output| &*output.name == name);
        let output = output
            .ok_or_else(|| Status::not_found(format!("Output name {name} not found.")))?;
        write_properties(output, &OutputPropertiesOut { datatype, shape, dim_count })
    }

    /// Returns the name, type and shape of the output at this index.
    fn TRITONBACKEND_InferenceResponseOutput(
        response: *mut TRITONBACKEND_Response,
        index: u32,
        name: *mut *const c_char,
        datatype: *mut TRITONSERVER_DataType,
        shape: *mut *const i64,
        dim_count: *mut u64,
    ) {
        let contents = object(response)?.contents.lock("find an output");
        let output = list::get_u32(&contents.outputs, index);
        let output = output.and_then(Owned::get).ok_or_else(|| {
            Status::invalid_argument(format!(
                "out of bounds index {index}: response has {} outputs",
                contents.outputs.len()
            ))
        })?;
        pointer::write(name, output.c_name(), "name")?;
        write_properties(output, &OutputPropertiesOut { datatype, shape, dim_count })
    }
}
