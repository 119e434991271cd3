//! The two model formats.

use galatea_infer::Status;

/// The format of a model.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModelFormat {
    /// A directory with a graph, its signatures and its weights.
    SavedModel,
    /// A file with a graph; only the configuration specifies its inputs and outputs.
    GraphDef,
}

impl ModelFormat {
    /// The format for a platform name.
    ///
    /// # Errors
    ///
    /// `InvalidArgument`, with Triton's text, for any other platform.
    pub(crate) fn of_platform(platform: &str, model: &str) -> Result<Self, Status> {
        match platform {
            "tensorflow_savedmodel" => Ok(Self::SavedModel),
            "tensorflow_graphdef" => Ok(Self::GraphDef),
            _ => Err(Status::invalid_argument(format!(
                "platform {platform} not supported for TensorFlow model '{model}'"
            ))),
        }
    }

    /// The default name of a version's file or directory.
    pub(crate) const fn default_name(self) -> &'static str {
        match self {
            Self::SavedModel => "model.savedmodel",
            Self::GraphDef => "model.graphdef",
        }
    }
}
