//! Server queries and model commands in this process, shared by the C functions and the Python
//! package.

use galatea_codec::documents;
use galatea_control::{LoadParameters, ModelNameMapping};
use galatea_infer::{AccessPass, ParameterValue, Status};

use crate::server::ServerRef;

/// Converts a server's reply to a JSON document.
fn document(json: Vec<u8>) -> Result<String, Status> {
    String::from_utf8(json)
        .map_err(|_| Status::internal("the server made a document that is not UTF-8"))
}

/// A version of `None` means the newest version. The errors are those of
/// [`ServerControl`](galatea_control::ServerControl), plus `Unavailable` for a stopped server.
#[allow(clippy::missing_errors_doc, reason = "said of all of them")]
impl ServerRef {
    /// Returns true if the server is running.
    pub fn is_live(&self) -> Result<bool, Status> {
        Ok(self.check_live()?.control.live(AccessPass::in_process()))
    }

    /// Returns true if the server accepts requests.
    pub fn is_ready(&self) -> Result<bool, Status> {
        Ok(self.check_live()?.control.ready(AccessPass::in_process()).unwrap_or(false))
    }

    /// Returns true if a model accepts requests.
    pub fn model_is_ready(&self, name: &str, version: Option<i64>) -> Result<bool, Status> {
        let control = &self.check_ready()?.control;
        Ok(control.model_ready(AccessPass::in_process(), name, version).unwrap_or(false))
    }

    /// The server's name, version and extensions, as JSON.
    pub fn metadata(&self) -> Result<String, Status> {
        document(documents::encode_server_metadata_json(
            &self.control.server_metadata(AccessPass::in_process()),
        ))
    }

    /// A model's interface, as JSON.
    pub fn model_metadata(&self, name: &str, version: Option<i64>) -> Result<String, Status> {
        let metadata = self.control.model_metadata(AccessPass::in_process(), name, version)?;
        document(documents::encode_model_metadata_json(&metadata))
    }

    /// The statistics of a model, or of all models if the name is empty, as JSON.
    pub fn model_statistics(&self, name: &str, version: Option<i64>) -> Result<String, Status> {
        let name = Some(name).filter(|name| !name.is_empty());
        let control = &self.check_ready()?.control;
        document(documents::encode_statistics_json(&control.statistics(
            AccessPass::in_process(),
            name,
            version,
        )?))
    }

    /// A model's configuration, as JSON.
    pub fn model_config(
        &self,
        name: &str,
        version: Option<i64>,
        config_version: u32,
    ) -> Result<String, Status> {
        if config_version != 1 {
            return Err(Status::invalid_argument(format!(
                "model configuration version {config_version} is not supported, only 1 is"
            )));
        }
        let config = self.control.model_config(AccessPass::in_process(), name, version)?;
        Ok(config.json.clone())
    }

    /// The index of the repositories, as JSON.
    pub fn model_index(&self, only_ready: bool) -> Result<String, Status> {
        let control = &self.check_ready()?.control;
        let index = control.repository_index(AccessPass::in_process(), only_ready)?;
        document(documents::encode_repository_index_json(&index))
    }

    /// Returns true if the first dimension of a model's tensors is the batch dimension.
    pub fn model_supports_batching(
        &self,
        name: &str,
        version: Option<i64>,
    ) -> Result<bool, Status> {
        let config = self.control.model_config(AccessPass::in_process(), name, version)?;
        let config: serde_json::Value = serde_json::from_str(&config.json)
            .map_err(|error| Status::internal(error.to_string()))?;
        let max_batch_size = config.get("max_batch_size").and_then(serde_json::Value::as_i64);
        Ok(max_batch_size.is_some_and(|size| size > 0))
    }

    /// Returns true if a model may send any number of responses per request.
    pub fn model_is_decoupled(&self, name: &str, version: Option<i64>) -> Result<bool, Status> {
        let model = self.control.model_for_inference(AccessPass::in_process(), name, version)?;
        Ok(model.is_decoupled())
    }

    /// Loads a model and waits until loading completes.
    pub fn load_model(&self, name: &str, parameters: LoadParameters) -> Result<(), Status> {
        self.check_ready()?.control.load_model(AccessPass::in_process(), name, parameters)
    }

    /// Takes a model out of service, and optionally also the models that only this one requires.
    pub fn unload_model(&self, name: &str, unload_dependents: bool) -> Result<(), Status> {
        self.check_ready()?.control.unload_model(AccessPass::in_process(), name, unload_dependents)
    }

    /// Adds a repository whose directory names may differ from the model names.
    pub fn register_repository(
        &self,
        path: &str,
        names: &[ModelNameMapping],
    ) -> Result<(), Status> {
        for (index, mapping) in names.iter().enumerate() {
            if names.iter().take(index).any(|known| known.name == mapping.name) {
                return Err(Status::invalid_argument(format!(
                    "failed to register '{path}', there is a conflicting mapping for '{}'",
                    mapping.name
                )));
            }
        }
        self.control.register_repository(AccessPass::in_process(), path, names)
    }

    /// Removes a repository.
    pub fn unregister_repository(&self, path: &str) -> Result<(), Status> {
        self.control.unregister_repository(AccessPass::in_process(), path)
    }
}

/// A load parameter's value.
#[derive(Copy, Clone, Debug)]
pub enum LoadParameterValue<'a> {
    /// A string, a number or a boolean.
    Value(&'a ParameterValue),
    /// A file's contents.
    Bytes(&'a [u8]),
}

/// Adds a load parameter or returns the reason why it is invalid. As in Triton, the first
/// configuration takes effect, and unknown parameters after it aren't read.
///
/// # Errors
///
/// The reason, for [`load_parameter_error`].
pub fn add_load_parameter(
    load: &mut LoadParameters,
    name: &str,
    value: LoadParameterValue<'_>,
) -> Result<(), String> {
    match (value, name.strip_prefix("file:")) {
        (LoadParameterValue::Value(ParameterValue::String(config)), None) if name == "config" => {
            load.config.get_or_insert_with(|| config.clone());
            Ok(())
        }
        (LoadParameterValue::Bytes(bytes), Some(path)) => {
            load.files.push((path.to_owned(), bytes.to_vec()));
            Ok(())
        }
        (_, Some(_)) => Err(format!("File parameter '{name}' must have bytes type for its value")),
        (_, None) if load.config.is_some() => Ok(()),
        (value, None) => {
            let kind = match value {
                LoadParameterValue::Value(ParameterValue::String(_)) => "STRING",
                LoadParameterValue::Value(ParameterValue::Int64(_)) => "INT",
                LoadParameterValue::Value(ParameterValue::Bool(_)) => "BOOL",
                LoadParameterValue::Value(ParameterValue::Double(_)) => "DOUBLE",
                LoadParameterValue::Bytes(_) => "BYTES",
            };
            Err(format!("Unrecognized load parameter '{name}' with type '{kind}'"))
        }
    }
}

/// The error for loading a model with an invalid parameter.
#[must_use]
pub fn load_parameter_error(name: &str, reason: &str) -> Status {
    Status::internal(format!(
        "failed to load '{name}', failed to poll from model repository: {reason}"
    ))
}
