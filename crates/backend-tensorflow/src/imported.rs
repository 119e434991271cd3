//! Models that are executed by a runtime other than TensorFlow's library.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use galatea_backend::{LogLevel, Model, ModelHost};
use galatea_config::ModelSpec;
use galatea_infer::Status;
use galatea_runtime::{ImportedModel, ImportedTensor, ModelImporter, RuntimeOnDemand};
use galatea_tensor::DataType;
use prost::Message as _;

use crate::choice::RuntimeParameter;
use crate::graph::NodeNames;
use crate::messages::{AttrValue, GraphDef, NodeDef};
use crate::model_format::ModelFormat;
use crate::parameters::ModelParameters;
use crate::portability::{
    narrowed_types, obstacle_in_configuration, obstacle_in_graph, without_effect,
};
use crate::saved_model::{self, Signature, SignatureTensor};
use crate::source::{configured_signature, read_graph, unused_name, used_signature};
use crate::{element, validation};

/// A load with another runtime.
pub(crate) struct ModelImport<'a> {
    pub(crate) spec: &'a Arc<ModelSpec>,
    pub(crate) parameters: &'a ModelParameters,
    pub(crate) format: ModelFormat,
    /// The model's directory or file.
    pub(crate) path: &'a Path,
    /// The directory for a copy of a graph.
    pub(crate) temporary_folder: &'a Path,
    pub(crate) host: &'a Arc<dyn ModelHost>,
}

/// The reason why the other runtime doesn't execute a model.
pub(crate) enum ImportError {
    /// The configuration contradicts the model, so no runtime executes it.
    Refused(Status),
    /// TensorFlow's library may execute the model.
    Impossible(Status),
}

/// A model's tensors, and the file that the other runtime reads if it isn't the model's own file.
type Described = (Signature, Option<TemporaryFile>);

impl From<Status> for ImportError {
    fn from(status: Status) -> Self {
        Self::Refused(status)
    }
}

fn impossible(reason: impl Into<String>) -> ImportError {
    ImportError::Impossible(Status::unsupported(reason.into()))
}

impl ModelImport<'_> {
    /// Compares the model with its configuration, with Triton's error texts, and loads it.
    pub(crate) fn load(
        &self,
        importer: &RuntimeOnDemand<dyn ModelImporter>,
    ) -> Result<Box<dyn Model>, ImportError> {
        if let Some(obstacle) = obstacle_in_configuration(self.spec, self.parameters) {
            return Err(impossible(obstacle));
        }
        let (signature, copy) = match self.format {
            ModelFormat::SavedModel => self.saved_model()?,
            ModelFormat::GraphDef => self.graph()?,
        };
        let narrowed = narrowed_types(&signature);
        let is_wanted = self.parameters.runtime == RuntimeParameter::OpenVino;
        if narrowed.contains(&DataType::Fp64) && !is_wanted {
            return Err(impossible("it computes FP64 with 32 bits"));
        }
        let importer = importer.get().map_err(ImportError::Impossible)?;
        let model = ImportedModel {
            path: copy.as_ref().map_or(self.path, |copy| &copy.0).to_path_buf(),
            inputs: signature.inputs.into_iter().map(imported).collect(),
            outputs: signature.outputs.into_iter().map(imported).collect(),
            thread_count: u32::try_from(self.parameters.intra_threads).unwrap_or(0),
        };
        let loaded = importer.load_imported(model, self.spec.clone(), self.host.clone());
        let loaded = loaded.map_err(ImportError::Impossible)?;
        self.log(&importer.description(), &narrowed);
        Ok(loaded)
    }

    /// Logs which settings are followed only by TensorFlow's library, and which results may differ.
    fn log(&self, runtime: &str, narrowed: &[DataType]) {
        for datatype in narrowed {
            let line =
                format!("model '{}': {runtime} computes {datatype} with 32 bits", self.spec.name);
            self.host.log(LogLevel::Warning, &line);
        }
        let settings = without_effect(self.spec, self.parameters).join(", ");
        if !settings.is_empty() {
            let line = format!(
                "model '{}': {settings} has no effect, because {runtime} executes the model",
                self.spec.name
            );
            self.host.log(LogLevel::Warning, &line);
        }
    }

    fn saved_model(&self) -> Result<Described, ImportError> {
        let tag = saved_model::tag(&self.parameters.graph_tag);
        let Some(meta_graph) = saved_model::read_meta_graph(self.path, tag) else {
            return Err(impossible("only TensorFlow reads this form of saved_model.pb"));
        };
        let configured = &self.parameters.signature;
        let (signature, warning) = saved_model::signature(&meta_graph, configured, &self.spec.name)
            .map_err(Status::internal)?;
        if warning.is_some() {
            return Err(impossible("it executes no signature but 'serving_default'"));
        }
        validation::check_signature(self.spec, &signature)?;
        let signature = used_signature(signature, self.spec);
        check_operators(&meta_graph.graph.unwrap_or_default(), &signature)?;
        Ok((signature, None))
    }

    /// A graph, with a copy whose only outputs are the configured ones, because the other runtime
    /// treats exactly those nodes as outputs that no other node reads. The copy also has the
    /// extension by which the other runtime recognizes the format.
    fn graph(&self) -> Result<Described, ImportError> {
        let (mut bytes, graph) = read_graph(self.path, &self.spec.name)?;
        validation::check_graph(self.spec, &NodeNames::of(&graph))?;
        let mut signature = used_signature(configured_signature(self.spec), self.spec);
        check_operators(&graph, &signature)?;
        add_outputs(&mut bytes, &graph, &mut signature.outputs);
        let copy = TemporaryFile::new(self.temporary_folder, &bytes).map_err(|error| {
            let folder = self.temporary_folder.display();
            impossible(format!("its copy of the graph can't be written to '{folder}': {error}"))
        })?;
        Ok((signature, Some(copy)))
    }
}

fn check_operators(graph: &GraphDef, signature: &Signature) -> Result<(), ImportError> {
    obstacle_in_graph(graph, signature).map_or(Ok(()), |obstacle| Err(impossible(obstacle)))
}

fn imported(tensor: SignatureTensor) -> ImportedTensor {
    let SignatureTensor { name, graph_name, datatype, dims } = tensor;
    ImportedTensor { name, graph_name, datatype, dims }
}

/// Adds a node for each output, which no other node reads, to an encoded graph.
fn add_outputs(bytes: &mut Vec<u8>, graph: &GraphDef, outputs: &mut [SignatureTensor]) {
    let prefix = unused_name(graph, "galatea_output");
    let mut nodes = Vec::with_capacity(outputs.len());
    for (index, output) in outputs.iter_mut().enumerate() {
        let name = format!("{prefix}_{index}");
        let read = std::mem::replace(&mut output.graph_name, name.clone());
        let datatype = element::number(output.datatype).unwrap_or_default();
        let value = AttrValue { datatype, ..AttrValue::default() };
        nodes.push(NodeDef {
            name,
            operator: String::from("Identity"),
            inputs: vec![read],
            attributes: [(String::from("T"), value)].into(),
            ..NodeDef::default()
        });
    }
    // A message followed by another is the union of the two.
    bytes.extend(GraphDef { nodes, library: None }.encode_to_vec());
}

/// A file that is removed when the value is dropped.
struct TemporaryFile(PathBuf);

impl TemporaryFile {
    /// Writes a file that only this user can read.
    fn new(folder: &Path, bytes: &[u8]) -> std::io::Result<Self> {
        let id = std::process::id();
        for number in 0..u32::MAX {
            let path = folder.join(format!("galatea_tensorflow_{id}_{number}.pb"));
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(mut file) => {
                    let file_on_disk = Self(path);
                    file.write_all(bytes)?;
                    return Ok(file_on_disk);
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // If this fails, the file is left to the system, which cleans up temporary files.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_become_nodes_that_no_node_reads() {
        let node = |name: &str| NodeDef { name: name.to_owned(), ..NodeDef::default() };
        let graph = GraphDef { nodes: vec![node("relu"), node("galatea_output_0")], library: None };
        let mut bytes = graph.encode_to_vec();
        let mut outputs = [SignatureTensor {
            name: String::from("relu"),
            graph_name: String::from("relu"),
            datatype: DataType::Int64,
            dims: Vec::new(),
        }];
        add_outputs(&mut bytes, &graph, &mut outputs);
        assert_eq!(outputs[0].graph_name, "galatea_output___0");
        let read = GraphDef::decode(bytes.as_slice()).unwrap();
        let added = read.nodes.last().unwrap();
        assert_eq!(
            (added.name.as_str(), added.operator.as_str()),
            ("galatea_output___0", "Identity")
        );
        assert_eq!(
            (added.inputs.as_slice(), added.attributes["T"].datatype),
            (["relu".to_owned()].as_slice(), 9)
        );
    }

    #[test]
    fn temporary_files_have_names_of_their_own() {
        let folder = std::env::temp_dir();
        let files = [b"a", b"b"].map(|bytes| TemporaryFile::new(&folder, bytes).unwrap());
        let paths = files.each_ref().map(|file| file.0.clone());
        assert_eq!(paths.each_ref().map(|path| fs::read(path).unwrap()), [b"a", b"b"]);
        drop(files);
        assert!(!paths.iter().any(|path| path.exists()));
    }
}
