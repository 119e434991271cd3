//! Servers in this process and their doors.

use std::sync::Arc;

use galatea::InProcessServer;
use galatea_capi::calls::{LoadParameterValue, add_load_parameter, load_parameter_error};
use galatea_capi::{ReservedServerPointer, ServerCreateOptions, ServerRef};
use galatea_control::{LoadParameters, ModelNameMapping};
use galatea_infer::{ParameterValue, Status};
use galatea_stdx::Lock;
use pyo3::prelude::*;

use crate::errors::raise;
use crate::request::{self, Request, RequestValues, version};
use crate::response::Value;

/// A server in this process.
#[pyclass(frozen, module = "galatea._galatea")]
pub(crate) struct Server(Arc<AddressedServer>);

/// A server and the address that identifies it to backends.
struct AddressedServer {
    address: ReservedServerPointer,
    server: InProcessServer,
}

impl Server {
    /// Calls the server without holding the interpreter lock.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&ServerRef) -> Result<T, Status> + Send,
    ) -> PyResult<T> {
        py.detach(|| call(&self.0.address.server_ref()?)).map_err(raise)
    }
}

/// Stops the server on a separate thread, because the thread that drops the last reference must not
/// wait.
impl Drop for Server {
    fn drop(&mut self) {
        let made = self.0.clone();
        let stop = move || {
            // A program that drops a server without stopping it doesn't need the result.
            let _ = made.address.stop();
        };
        let _ = std::thread::Builder::new().name(String::from("stop")).spawn(stop);
    }
}

#[pymethods]
impl Server {
    /// Creates a server and waits until its models have been loaded.
    #[new]
    fn new(
        py: Python<'_>,
        flags: Vec<String>,
        cache: Option<(String, String)>,
        host_policies: Vec<[String; 3]>,
    ) -> PyResult<Self> {
        let options = ServerCreateOptions { flags, cache, host_policies };
        let made = py.detach(|| {
            let address = ReservedServerPointer::new();
            let server = galatea::make_in_process(&options, &address)?;
            Ok(AddressedServer { address, server })
        });
        made.map(|made| Self(Arc::new(made))).map_err(raise)
    }

    /// The server's address for C calls.
    fn address(&self) -> usize {
        self.0.address.pointer().expose_provenance()
    }

    /// Stops the server and waits until it has stopped.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.address.stop()).map_err(raise)
    }

    fn is_live(&self, py: Python<'_>) -> PyResult<bool> {
        self.call(py, ServerRef::is_live)
    }

    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        self.call(py, ServerRef::is_ready)
    }

    fn model_is_ready(&self, py: Python<'_>, name: &str, number: i64) -> PyResult<bool> {
        self.call(py, |server| server.model_is_ready(name, version(number)))
    }

    fn metadata(&self, py: Python<'_>) -> PyResult<String> {
        self.call(py, ServerRef::metadata)
    }

    fn model_metadata(&self, py: Python<'_>, name: &str, number: i64) -> PyResult<String> {
        self.call(py, |server| server.model_metadata(name, version(number)))
    }

    fn model_statistics(&self, py: Python<'_>, name: &str, number: i64) -> PyResult<String> {
        self.call(py, |server| server.model_statistics(name, version(number)))
    }

    fn model_config(
        &self,
        py: Python<'_>,
        name: &str,
        number: i64,
        config_version: u32,
    ) -> PyResult<String> {
        self.call(py, |server| server.model_config(name, version(number), config_version))
    }

    fn model_index(&self, py: Python<'_>, only_ready: bool) -> PyResult<String> {
        self.call(py, |server| server.model_index(only_ready))
    }

    fn model_batches(&self, py: Python<'_>, name: &str, number: i64) -> PyResult<bool> {
        self.call(py, |server| server.model_supports_batching(name, version(number)))
    }

    fn model_is_decoupled(&self, py: Python<'_>, name: &str, number: i64) -> PyResult<bool> {
        self.call(py, |server| server.model_is_decoupled(name, version(number)))
    }

    fn load_model(
        &self,
        py: Python<'_>,
        name: &str,
        parameters: Vec<(String, LoadParameter)>,
    ) -> PyResult<()> {
        let mut load = LoadParameters::default();
        for (parameter, value) in parameters {
            let added = match value {
                LoadParameter::Bytes(bytes) => {
                    add_load_parameter(&mut load, &parameter, LoadParameterValue::Bytes(&bytes))
                }
                LoadParameter::Value(value) => {
                    let value = ParameterValue::from(value);
                    add_load_parameter(&mut load, &parameter, LoadParameterValue::Value(&value))
                }
            };
            added.map_err(|reason| raise(load_parameter_error(name, &reason)))?;
        }
        self.call(py, |server| server.load_model(name, load))
    }

    fn unload_model(&self, py: Python<'_>, name: &str, unload_dependents: bool) -> PyResult<()> {
        self.call(py, |server| server.unload_model(name, unload_dependents))
    }

    fn register_repository(
        &self,
        py: Python<'_>,
        path: &str,
        names: Vec<(String, String)>,
    ) -> PyResult<()> {
        let mapping = |(directory, name)| ModelNameMapping { directory, name };
        let names: Vec<ModelNameMapping> = names.into_iter().map(mapping).collect();
        self.call(py, |server| server.register_repository(path, &names))
    }

    fn unregister_repository(&self, py: Python<'_>, path: &str) -> PyResult<()> {
        self.call(py, |server| server.unregister_repository(path))
    }

    fn poll(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, ServerRef::poll_repositories)
    }

    fn metrics(&self, py: Python<'_>) -> PyResult<String> {
        self.call(py, |server| Ok((server.metrics)()))
    }

    /// Hands a request to the server.
    fn infer(&self, py: Python<'_>, values: RequestValues) -> PyResult<Request> {
        self.call(py, |server| request::infer(server, values))
    }

    /// Opens the doors that the command-line flags enable.
    fn open(&self, py: Python<'_>, flags: Vec<String>) -> PyResult<Frontend> {
        let opened = py.detach(|| self.0.server.open_frontend(&flags)).map_err(raise)?;
        Ok(Frontend(Lock::new(Some(opened))))
    }
}

/// A load parameter's value.
#[derive(FromPyObject)]
enum LoadParameter {
    Bytes(Vec<u8>),
    Value(Value),
}

/// A server's open doors.
#[pyclass(frozen, module = "galatea._galatea")]
pub(crate) struct Frontend(Lock<Option<galatea::Frontend>>);

#[pymethods]
impl Frontend {
    /// The first door's port.
    #[getter]
    fn port(&self) -> Option<u16> {
        self.0.lock("read the port").as_ref().and_then(galatea::Frontend::port)
    }

    /// Closes the doors. Requests on their connections are cancelled.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| {
            let open = self.0.lock("close the doors").take();
            drop(open);
        });
    }
}

/// Closes the doors without holding the interpreter lock.
impl Drop for Frontend {
    fn drop(&mut self) {
        let open = self.0.get_mut().take();
        Python::attach(|py| py.detach(|| drop(open)));
    }
}
