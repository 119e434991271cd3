//! The server and its models, as clients see them: metadata, configurations and states.

use galatea_tensor::DataType;

/// The server's name, version and protocol extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerMetadata {
    /// The name from the `--id` flag.
    pub name: String,
    /// The server's version.
    pub version: String,
    /// The protocol extensions, in Triton's order.
    pub extensions: Vec<&'static str>,
}

/// A model's interface, as the metadata endpoints report it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelMetadata {
    /// The model's name.
    pub name: String,
    /// The versions that are ready.
    pub versions: Vec<i64>,
    /// The platform, or the backend's name if the platform is empty.
    pub platform: String,
    /// The inputs, in the configuration's order.
    pub inputs: Vec<TensorMetadata>,
    /// The outputs, in the configuration's order.
    pub outputs: Vec<TensorMetadata>,
}

/// A tensor in a model's interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMetadata {
    /// The tensor's name.
    pub name: String,
    /// The type of its elements.
    pub datatype: DataType,
    /// The dimensions, including the batch dimension; -1 for a variable dimension.
    pub shape: Vec<i64>,
}

/// A model's configuration in the two formats that clients receive, encoded once when the model is
/// loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelConfigDocument {
    /// The JSON that the HTTP endpoint sends.
    pub json: String,
    /// The encoded `inference.ModelConfig` message.
    pub protobuf: Vec<u8>,
}

/// The priorities that a model's requests may have.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct PriorityLevels {
    /// The number of levels; 0 if the model has no priorities.
    pub count: u64,
    /// The priority of requests that specify none, or a priority beyond the last level.
    pub default: u64,
}

impl PriorityLevels {
    /// The effective priority of a request that specifies `priority`.
    #[must_use]
    pub const fn effective_priority(self, priority: u64) -> u64 {
        if priority == 0 || priority > self.count { self.default } else { priority }
    }
}

/// The state of a model version.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ModelState {
    /// Its state is unknown.
    Unknown,
    /// It is serving.
    Ready,
    /// It can't serve.
    Unavailable,
    /// It is being loaded.
    Loading,
    /// It is being unloaded.
    Unloading,
}

impl ModelState {
    /// The name that the protocols use, such as `READY`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Ready => "READY",
            Self::Unavailable => "UNAVAILABLE",
            Self::Loading => "LOADING",
            Self::Unloading => "UNLOADING",
        }
    }
}

/// The parameters of a request to load a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadParameters {
    /// A JSON configuration that replaces the repository's.
    pub config: Option<String>,
    /// Files by their paths in the model's directory. If there are any, they replace all of the
    /// model's files in the repository.
    pub files: Vec<(String, Vec<u8>)>,
}

impl LoadParameters {
    /// Returns true if the parameters change nothing in the repository's model.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.config.is_none() && self.files.is_empty()
    }
}

/// One line of the repository index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepositoryEntry {
    /// The model's name.
    pub name: String,
    /// The version; `None` for a model that has never been loaded.
    pub version: Option<i64>,
    /// The version's state; `None` for a model that has never been loaded.
    pub state: Option<ModelState>,
    /// The reason for the state; may be empty.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::PriorityLevels;

    #[test]
    fn a_priority_that_a_model_lacks_becomes_its_default() {
        let levels = PriorityLevels { count: 5, default: 3 };
        assert_eq!([0, 1, 5, 6].map(|asked| levels.effective_priority(asked)), [3, 1, 5, 3]);
        assert_eq!([0, 1].map(|asked| PriorityLevels::default().effective_priority(asked)), [0, 0]);
    }
}
