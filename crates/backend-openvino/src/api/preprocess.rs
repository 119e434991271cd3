//! Conversions between the types in a configuration and those in its model, which the library adds
//! to the model.

use std::ffi::c_int;

use galatea_infer::Status;

use super::functions::{OvStatus, RawModel};
use super::handle::Handle;
use super::library::{Api, Library};

/// A tensor whose type is changed.
pub(super) struct Conversion<'a> {
    pub(super) index: usize,
    pub(super) name: &'a str,
    /// The library's number for the new type.
    pub(super) number: c_int,
}

/// Creates the model in which these inputs and outputs have other types. The old model must no
/// longer be used.
pub(super) fn convert(
    library: &Library,
    model: &Handle<RawModel>,
    inputs: &[Conversion<'_>],
    outputs: &[Conversion<'_>],
) -> Result<Handle<RawModel>, Status> {
    let api = library.api();
    let functions = api.functions();
    // SAFETY: the model is alive; the named function frees what the constructor stores.
    let processor = unsafe {
        let free = functions.ov_preprocess_prepostprocessor_free;
        Handle::load(api, free, "creating a processor", |out| {
            (functions.ov_preprocess_prepostprocessor_create)(model.as_ptr(), out)
        })?
    };
    for Conversion { index, name, number } in inputs {
        // SAFETY: the processor is alive, and so are the objects on the way to the type.
        let set = unsafe {
            set_type(
                api,
                (functions.ov_preprocess_input_info_free, &|out| {
                    let get = functions.ov_preprocess_prepostprocessor_get_input_info_by_index;
                    get(processor.as_ptr(), *index, out)
                }),
                (
                    functions.ov_preprocess_input_tensor_info_free,
                    functions.ov_preprocess_input_info_get_tensor_info,
                ),
                |tensor| {
                    (functions.ov_preprocess_input_tensor_info_set_element_type)(tensor, *number)
                },
            )
        };
        set.map_err(|status| of_tensor(status, name))?;
    }
    for Conversion { index, name, number } in outputs {
        // SAFETY: as above.
        let set = unsafe {
            set_type(
                api,
                (functions.ov_preprocess_output_info_free, &|out| {
                    let get = functions.ov_preprocess_prepostprocessor_get_output_info_by_index;
                    get(processor.as_ptr(), *index, out)
                }),
                (
                    functions.ov_preprocess_output_tensor_info_free,
                    functions.ov_preprocess_output_info_get_tensor_info,
                ),
                |tensor| (functions.ov_preprocess_output_set_element_type)(tensor, *number),
            )
        };
        set.map_err(|status| of_tensor(status, name))?;
    }
    // SAFETY: the processor is alive; the named function frees the model.
    unsafe {
        Handle::load(api, functions.ov_model_free, "apply model input preprocessing", |out| {
            (functions.ov_preprocess_prepostprocessor_build)(processor.as_ptr(), out)
        })
    }
}

const SETTING: &str = "setting precision for ";

fn of_tensor(status: Status, name: &str) -> Status {
    let text = status.message().replacen(SETTING, &format!("{SETTING}{name}"), 1);
    Status::new(status.code(), text)
}

/// A function that frees an object, and one that creates it.
type Constructor<'a, T> = (unsafe extern "C" fn(*mut T), &'a dyn Fn(*mut *mut T) -> OvStatus);

/// Sets a tensor's type through the tensor's description, which is part of an input's or output's
/// description.
///
/// # Safety
///
/// The functions must belong together, and the constructor's object must be alive.
unsafe fn set_type<Info, Tensor>(
    api: &Api,
    (free_info, get_info): Constructor<'_, Info>,
    (free_tensor, get_tensor): (
        unsafe extern "C" fn(*mut Tensor),
        unsafe extern "C" fn(*const Info, *mut *mut Tensor) -> OvStatus,
    ),
    mut set: impl FnMut(*mut Tensor) -> OvStatus,
) -> Result<(), Status> {
    // SAFETY: by this function's own contract.
    let info = unsafe { Handle::load(api, free_info, SETTING, get_info)? };
    // SAFETY: by this function's own contract.
    let tensor =
        unsafe { Handle::load(api, free_tensor, SETTING, |out| get_tensor(info.as_ptr(), out))? };
    api.load(SETTING, || set(tensor.as_ptr()))
}
