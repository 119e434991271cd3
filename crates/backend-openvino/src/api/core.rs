//! The object that reads and compiles models.

use std::ffi::CStr;
use std::path::Path;
use std::sync::Arc;

use galatea_infer::Status;
use galatea_runtime::{c_string, path_string};

use super::functions::{RawCompiledModel, RawCore};
use super::handle::Handle;
use super::library::{Library, text};
use super::model::Model;
use crate::variables_index;

/// The object that reads and compiles models. Each model has its own, so that one model's
/// properties don't affect another.
pub(crate) struct Core {
    raw: Handle<RawCore>,
    library: Arc<Library>,
}

/// A model that is compiled for a device. Each instance executes it with its own infer request.
pub(crate) struct CompiledModel {
    pub(super) raw: Handle<RawCompiledModel>,
    pub(super) library: Arc<Library>,
}

// SAFETY: the library documents that any thread may use a core.
unsafe impl Send for Core {}
// SAFETY: the library documents that any thread may use a compiled model, several at a time.
unsafe impl Send for CompiledModel {}
// SAFETY: as above; after construction a compiled model only makes infer requests.
unsafe impl Sync for CompiledModel {}

impl CompiledModel {
    /// The value of a property; `None` if the device doesn't have the property.
    pub(crate) fn property(&self, key: &CStr) -> Option<String> {
        let functions = self.library.api().functions();
        let mut value = std::ptr::null_mut();
        // SAFETY: the model is alive, the key lives during the call, and the value is the caller's to
        // free.
        let value = unsafe {
            let get_property = functions.ov_compiled_model_get_property;
            let _ = self
                .library
                .api()
                .probe(|| get_property(self.raw.as_ptr(), key.as_ptr(), &raw mut value));
            let copy = text(value);
            if !value.is_null() {
                (functions.ov_free)(value);
            }
            copy
        };
        Some(value).filter(|value| !value.is_empty())
    }
}

impl Core {
    pub(crate) fn new(library: Arc<Library>) -> Result<Self, Status> {
        let api = library.api();
        let functions = api.functions();
        // SAFETY: the constructor stores a core, which the named function frees.
        let raw = unsafe {
            Handle::load(api, functions.ov_core_free, "creating a core", |out| {
                (functions.ov_core_create)(out)
            })?
        };
        Ok(Self { raw, library })
    }

    /// Adds the operators of a library, or none if the path is empty.
    pub(crate) fn add_extension(&self, path: &str) -> Result<(), Status> {
        if path.is_empty() {
            return Ok(());
        }
        let api = self.library.api();
        let path = c_string(path, "CPU_EXTENSION_PATH")?;
        // SAFETY: the core is alive, the path lives during the call. The server's operator trusts
        // the model's configuration to specify a library.
        let add =
            || unsafe { (api.functions().ov_core_add_extension)(self.raw.as_ptr(), path.as_ptr()) };
        // The two spaces in the text match Triton's.
        api.load(" loading custom CPU extensions", add)
    }

    /// Loads a device's plug-in, so that the plug-in checks properties when they are set. An
    /// unknown device is only refused later.
    pub(crate) fn load_device(&self, device: &str) -> Result<(), Status> {
        let device = c_string(device, "a device's name")?;
        let functions = self.library.api().functions();
        let mut value = std::ptr::null_mut();
        // SAFETY: the core is alive, the strings live during the call, and the value is the
        // caller's to free.
        unsafe {
            let get_property = functions.ov_core_get_property;
            let key = c"FULL_DEVICE_NAME".as_ptr();
            let _ = self
                .library
                .api()
                .probe(|| get_property(self.raw.as_ptr(), device.as_ptr(), key, &raw mut value));
            if !value.is_null() {
                (functions.ov_free)(value);
            }
        }
        Ok(())
    }

    /// Sets a device property.
    pub(crate) fn set_property(&self, device: &str, key: &str, value: &str) -> Result<(), Status> {
        let api = self.library.api();
        let (device, key) = (c_string(device, "a device's name")?, c_string(key, "a property")?);
        let value = c_string(value, "a property's value")?;
        // SAFETY: the core is alive; the function takes a name and a value, both strings that live
        // during the call.
        let set = || unsafe {
            let set_property = api.functions().ov_core_set_property;
            set_property(self.raw.as_ptr(), device.as_ptr(), key.as_ptr(), value.as_ptr())
        };
        api.load("configuring openvino core", set)
    }

    /// Reads the model at `path`.
    pub(crate) fn read_model(&self, path: &Path) -> Result<Model, Status> {
        if !variables_index::is_sound(path) {
            let text = "openvino error in reading model : the file variables.index is damaged";
            return Err(Status::internal(text));
        }
        let api = self.library.api();
        let functions = api.functions();
        let path = path_string(path)?;
        // SAFETY: the core is alive, the path lives during the call; without a path of weights the
        // library finds them beside the model. The named function frees the model.
        let raw = unsafe {
            Handle::load(api, functions.ov_model_free, "reading model", |out| {
                let read_model = functions.ov_core_read_model;
                read_model(self.raw.as_ptr(), path.as_ptr(), std::ptr::null(), out)
            })?
        };
        Ok(Model::new(raw, self.library.clone()))
    }

    /// Compiles a model for a device.
    pub(crate) fn compile_model(
        &self,
        model: &Model,
        device: &str,
        may_batch: bool,
    ) -> Result<CompiledModel, Status> {
        let api = self.library.api();
        let functions = api.functions();
        let device = c_string(device, "TARGET_DEVICE")?;
        let hint = if may_batch { c"YES" } else { c"NO" };
        // SAFETY: core and model are alive, the name lives during the call, and two strings follow,
        // as the number says. The named function frees the compiled model.
        let raw = unsafe {
            Handle::load(api, functions.ov_compiled_model_free, "loading model", |out| {
                let compile_model = functions.ov_core_compile_model;
                let (core, model, device) = (self.raw.as_ptr(), model.as_ptr(), device.as_ptr());
                let key = c"ALLOW_AUTO_BATCHING".as_ptr();
                compile_model(core, model, device, 2, out, key, hint.as_ptr())
            })?
        };
        Ok(CompiledModel { raw, library: self.library.clone() })
    }
}
