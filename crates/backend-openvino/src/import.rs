//! Models of other frameworks, which those frameworks' backends hand over.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use galatea_backend::{ExecutionPredictability, Model as LoadedModel, ModelHost};
use galatea_config::ModelSpec;
use galatea_infer::Status;
use galatea_runtime::{
    ElementKind, ImportedModel, ImportedTensor, ImportingLibrary, ModelImporter, OpenedModel,
    RuntimeModel, SessionInterface, SessionSource, TensorInfo,
};

use crate::api::{BatchRows, Model, OvDimension, Port};
use crate::backend::OpenVinoBackend;
use crate::parameters::{ModelParameters, NUM_THREADS, PRECISION_HINT};
use crate::session::OpenVinoSession;
use crate::source::{OpenVinoSource, SharedModel};

impl ModelImporter for OpenVinoBackend {
    fn description(&self) -> String {
        format!("OpenVINO {}", self.library.version())
    }

    fn load_imported(
        &self,
        model: ImportedModel,
        spec: Arc<ModelSpec>,
        host: Arc<dyn ModelHost>,
    ) -> Result<Box<dyn LoadedModel>, Status> {
        let source = OpenVinoSource {
            library: self.library.clone(),
            path: model.path.clone(),
            spec: spec.clone(),
            parameters: parameters(model.thread_count)?,
            host: host.clone(),
        };
        let source = ImportedSource { source, model };
        let loaded = RuntimeModel::load(source, self.machine.clone(), spec, host);
        Ok(Box::new(loaded.map_err(|status| brief(&status))?))
    }
}

/// The parameters of an imported model. Other frameworks compute with the tensors' own precision.
fn parameters(thread_count: u32) -> Result<ModelParameters, Status> {
    let mut values = BTreeMap::from([(PRECISION_HINT.to_owned(), String::from("F32"))]);
    if thread_count > 0 {
        values.insert(NUM_THREADS.to_owned(), thread_count.to_string());
    }
    ModelParameters::parse(&values)
}

/// Opens the sessions of an imported model.
struct ImportedSource {
    source: OpenVinoSource,
    model: ImportedModel,
}

impl SessionSource for ImportedSource {
    type Shared = Arc<SharedModel>;
    type Session = OpenVinoSession;

    fn open_shared(&self) -> Result<OpenedModel<Self::Shared>, Status> {
        let core = self.source.core()?;
        let mut model = core.read_model(&self.source.path)?;
        let interface = self.interface(&mut model)?;
        let session = self.source.compile(&core, &model, BatchRows::Variable)?;
        let guarantee = ExecutionPredictability::NonBlocking;
        Ok(OpenedModel { session, interface, guarantee })
    }

    fn session(&self, shared: Self::Shared) -> Result<OpenVinoSession, Status> {
        self.source.session(shared)
    }

    fn underlying(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        let library = &self.source.library;
        let (version, file) = (library.version().to_owned(), library.file().fingerprint().cloned());
        Some(Arc::new(ImportingLibrary { version, file }))
    }
}

impl ImportedSource {
    /// The tensors that the other backend describes, in the model's own order. Inputs of unknown
    /// rank, which OpenVINO can't execute, get the sizes in the description.
    fn interface(&self, model: &mut Model) -> Result<SessionInterface, Status> {
        let (inputs, outputs) = (model.inputs()?, model.outputs()?);
        let input_tensors =
            assign(&inputs, &self.model.inputs, "input", |name| model.input_alias(name))?;
        let output_tensors =
            assign(&outputs, &self.model.outputs, "output", |name| model.output_alias(name))?;
        let mut shapes = Vec::new();
        for (index, (port, tensor)) in inputs.iter().zip(&input_tensors).enumerate() {
            let Some(tensor) = tensor else {
                let text = format!("the graph needs the input '{}'", port.name);
                return Err(Status::unsupported(text));
            };
            if port.bounds.is_none() {
                shapes.push((index, tensor.dims.iter().map(|&dim| OvDimension::of(dim)).collect()));
            }
        }
        if !shapes.is_empty() {
            model.reshape(&shapes, "setting the shapes of inputs")?;
        }
        Ok(SessionInterface {
            required_inputs: inputs.len(),
            inputs: described(&inputs, &input_tensors),
            outputs: described(&outputs, &output_tensors),
        })
    }
}

/// The tensor for each port of the model; `None` for a port that isn't needed.
///
/// # Errors
///
/// An error if a tensor has no port, or a port of a different type.
fn assign<'a>(
    ports: &[Port],
    tensors: &'a [ImportedTensor],
    role: &str,
    alias: impl Fn(&str) -> Option<String>,
) -> Result<Vec<Option<&'a ImportedTensor>>, Status> {
    let mut assigned: Vec<Option<&ImportedTensor>> = ports.iter().map(|_| None).collect();
    for tensor in tensors {
        // A frozen graph has names such as `x:0`.
        let names = [&tensor.name, &tensor.graph_name, &format!("{}:0", tensor.graph_name)];
        let alias = names.into_iter().find_map(|name| alias(name));
        // Outputs that are the same tensor have the same names, but separate ports.
        let mut free = assigned.iter_mut().zip(ports).filter(|(place, _)| place.is_none());
        let found = free.find(|(_, port)| alias.as_ref() == Some(&port.name));
        let (place, port) = found.ok_or_else(|| {
            Status::unsupported(format!("the graph has no {role} '{}' of its own", tensor.name))
        })?;
        if port.datatype() != Some(tensor.datatype) {
            return Err(Status::unsupported(format!(
                "the {role} '{}' has another type than {}",
                tensor.name,
                tensor.datatype.config_name()
            )));
        }
        *place = Some(tensor);
    }
    Ok(assigned)
}

/// The model's tensors, according to the description.
fn described(ports: &[Port], tensors: &[Option<&ImportedTensor>]) -> Vec<TensorInfo> {
    let describe = |(port, tensor): (&Port, &Option<&ImportedTensor>)| match tensor {
        Some(tensor) => TensorInfo {
            name: tensor.name.clone(),
            element: ElementKind::Known(tensor.datatype),
            // A description may not distinguish a scalar from a tensor of any shape.
            dims: if port.is_scalar() { Vec::new() } else { tensor.dims.clone() },
        },
        // No configuration lists this tensor.
        None => TensorInfo {
            name: String::new(),
            element: ElementKind::Unknown(String::from("an output that is not described")),
            dims: Vec::new(),
        },
    };
    ports.iter().zip(tensors).map(describe).collect()
}

/// Shortens the error of a load to the summary of what wasn't converted, if there is one, without
/// the locations in OpenVINO's sources.
fn brief(status: &Status) -> Status {
    let lines = status.message().lines().map(str::trim);
    let summary = lines.skip_while(|line| *line != "Summary:").skip(1);
    let reasons = summary.map_while(|line| line.strip_prefix("-- "));
    let reasons = reasons.collect::<Vec<_>>().join("; ");
    if reasons.is_empty() { status.clone() } else { Status::new(status.code(), reasons) }
}

#[cfg(test)]
mod tests {
    use galatea_tensor::DataType;

    use super::*;

    fn tensor(name: &str, graph_name: &str) -> ImportedTensor {
        let (name, graph_name) = (name.to_owned(), graph_name.to_owned());
        ImportedTensor { name, graph_name, datatype: DataType::Fp32, dims: vec![-1] }
    }

    fn port(name: &str) -> Port {
        Port::of(name, DataType::Fp32, Some(vec![OvDimension::of(-1)]))
    }

    /// The names assigned to ports; a port can be found by any of its names.
    fn assigned(
        ports: &[&[&str]],
        tensors: &[ImportedTensor],
    ) -> Result<Vec<Option<String>>, String> {
        let first: Vec<Port> = ports.iter().map(|names| port(names[0])).collect();
        let alias = |name: &str| {
            let names = ports.iter().find(|names| names.contains(&name))?;
            Some(names[0].to_owned())
        };
        let found = assign(&first, tensors, "output", alias);
        let found = found.map_err(|status| status.message().to_owned())?;
        Ok(found.into_iter().map(|tensor| tensor.map(|one| one.name.clone())).collect())
    }

    #[test]
    fn tensors_find_their_ports_by_any_name() {
        let some = |name: &str| Some(name.to_owned());
        let two = [tensor("y", "call:0"), tensor("after", "call:1")];
        assert_eq!(
            assigned(&[&["y"], &["z"], &["after"]], &two),
            Ok(vec![some("y"), None, some("after")])
        );
        // Two outputs that are the same tensor.
        let same: &[&str] = &["after", "y"];
        assert_eq!(assigned(&[same, same], &two), Ok(vec![some("y"), some("after")]));
        assert_eq!(
            assigned(&[same], &two),
            Err(String::from("the graph has no output 'after' of its own"))
        );
        // A frozen graph.
        let node = [tensor("relu", "relu")];
        assert_eq!(assigned(&[&["other:0", "relu:0"]], &node), Ok(vec![some("relu")]));
    }

    #[test]
    fn types_are_those_of_the_description() {
        let mut other = tensor("y", "y");
        other.datatype = DataType::Int32;
        assert_eq!(
            assigned(&[&["y"]], &[other]),
            Err(String::from("the output 'y' has another type than TYPE_INT32"))
        );
    }

    #[test]
    fn failures_name_the_operators() {
        let text = "Exception from a.cpp:1:\nModel wasn't fully converted.\nSummary:\n\
                    -- Conversion is failed for: HashTableV2\n\
                    -- No conversion rule found for operations: ReduceJoin\nTo facilitate";
        let found = brief(&Status::internal(text));
        assert_eq!(
            found.message(),
            "Conversion is failed for: HashTableV2; No conversion rule found for operations: \
             ReduceJoin"
        );
        assert_eq!(brief(&Status::internal("other")).message(), "other");
    }

    #[test]
    fn models_keep_the_precision_of_their_framework() {
        let one = parameters(0).unwrap();
        assert_eq!(one.properties, [("INFERENCE_PRECISION_HINT", String::from("f32"))]);
        let two = parameters(2).unwrap();
        assert!(two.properties.contains(&("INFERENCE_NUM_THREADS", String::from("2"))));
    }
}
