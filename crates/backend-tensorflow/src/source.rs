//! A model's sessions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use galatea_backend::{LogLevel, ModelHost};
use galatea_config::{InstanceKind, ModelSpec};
use galatea_infer::Status;
use galatea_runtime::configured::{ConfiguredTensor, configured_inputs, configured_outputs};
use galatea_runtime::{
    ElementKind, OnOff, OpenedModel, SessionInterface, SessionSource, TensorInfo,
};
use galatea_stdx::Lock;
use galatea_tensor::DataType;
use prost::Message as _;

use crate::api::{GraphSession, Library, TensorName};
use crate::graph::{GraphFacts, KnownOperators, NodeNames};
use crate::messages::{GraphDef, NodeDef};
use crate::model_format::ModelFormat;
use crate::parameters::ModelParameters;
use crate::saved_model::{self, Signature, SignatureTensor};
use crate::session::{Combinations, LoadedGraph, TensorFlowSession};
use crate::{node_devices, session_config, validation};

/// Opens the sessions of one model version.
pub(crate) struct TensorFlowSource {
    pub(crate) library: Arc<Library>,
    /// The model's directory or file.
    pub(crate) path: PathBuf,
    pub(crate) spec: Arc<ModelSpec>,
    pub(crate) format: ModelFormat,
    pub(crate) parameters: ModelParameters,
    pub(crate) soft_placement: OnOff,
    /// The nodes that run once after loading.
    pub(crate) init_ops: Vec<String>,
    /// True if the model uses operators that TensorFlow doesn't define.
    pub(crate) has_own_operators: bool,
    pub(crate) host: Arc<dyn ModelHost>,
}

/// The sessions of a model. As in Triton, instances share a session, and therefore its variables,
/// only if the configuration says so.
pub(crate) struct SessionPool {
    /// The tensors of the first session, whose indices apply to all sessions.
    signature: Signature,
    facts: GraphFacts,
    newest: Lock<SharingGroup>,
}

/// Instances that share a session.
struct SharingGroup {
    /// The session, once it is open.
    graph: Arc<OnceLock<Result<Arc<LoadedGraph>, Status>>>,
    /// The number of instances that use the session or are waiting for it.
    instances: u32,
}

impl SessionPool {
    /// Returns the session slot for another instance.
    fn reserve(&self, instances_max: u32) -> Arc<OnceLock<Result<Arc<LoadedGraph>, Status>>> {
        let mut newest = self.newest.lock("reserve a session");
        let is_failed = matches!(newest.graph.get(), Some(Err(_)));
        if is_failed || newest.instances >= instances_max {
            *newest = SharingGroup { graph: Arc::default(), instances: 0 };
        }
        newest.instances = newest.instances.saturating_add(1);
        newest.graph.clone()
    }

    /// Checks that a later session has the same tensors as the first one and runs in the same way.
    fn check(&self, signature: &Signature, facts: GraphFacts, model: &str) -> Result<(), Status> {
        if self.signature.has_tensors_of(signature) && self.facts.guarantee == facts.guarantee {
            return Ok(());
        }
        Err(Status::unavailable(format!(
            "the files of model '{model}' changed while it was loaded: another session has other \
             tensors or operators"
        )))
    }
}

/// A graph in a session, with the facts from its file.
struct OpenedGraph {
    session: GraphSession,
    signature: Signature,
    facts: GraphFacts,
}

impl SessionSource for TensorFlowSource {
    type Shared = Arc<SessionPool>;
    type Session = TensorFlowSession;

    fn open_shared(&self) -> Result<OpenedModel<Self::Shared>, Status> {
        let (graph, signature) = self.open()?;
        let (interface, facts) = (interface(&signature, &self.spec), graph.facts);
        let newest = SharingGroup { graph: Arc::new(Ok(Arc::new(graph)).into()), instances: 0 };
        let pool = SessionPool { signature, facts, newest: Lock::new(newest) };
        Ok(OpenedModel { session: Arc::new(pool), interface, guarantee: facts.guarantee })
    }

    fn session(&self, shared: Self::Shared) -> Result<TensorFlowSession, Status> {
        let place = shared.reserve(self.parameters.session_share_count);
        let open = || {
            let (graph, signature) = self.open()?;
            shared.check(&signature, graph.facts, &self.spec.name)?;
            Ok(Arc::new(graph))
        };
        let graph = place.get_or_init(open).clone()?;
        Ok(TensorFlowSession { library: self.library.clone(), graph })
    }
}

impl TensorFlowSource {
    /// Opens a session, and compares the model with its configuration.
    fn open(&self) -> Result<(LoadedGraph, Signature), Status> {
        let path = self.path.as_path();
        let OpenedGraph { session, signature, facts } = match self.format {
            ModelFormat::SavedModel => self.open_saved_model(path)?,
            ModelFormat::GraphDef => self.open_graph(path)?,
        };
        let signature = used_signature(signature, &self.spec);
        let names = |tensors: &[SignatureTensor]| {
            let name = |tensor: &SignatureTensor| self.graph_tensor(&session, tensor);
            tensors.iter().map(name).collect::<Result<Vec<TensorName>, Status>>()
        };
        let (inputs, outputs) = (names(&signature.inputs)?, names(&signature.outputs)?);
        for name in &self.init_ops {
            session.run_operation(name)?;
        }
        let combinations = Combinations::default();
        let graph = LoadedGraph { session, inputs, outputs, facts, combinations };
        Ok((graph, signature))
    }

    fn graph_tensor(
        &self,
        session: &GraphSession,
        tensor: &SignatureTensor,
    ) -> Result<TensorName, Status> {
        session.tensor(&tensor.graph_name)?.ok_or_else(|| {
            Status::internal(format!(
                "unable to load model '{}', tensor '{}' is '{}', which is not in the graph",
                self.spec.name, tensor.name, tensor.graph_name
            ))
        })
    }

    /// Facts about a graph. Operators from a library that another model opened are also available.
    fn facts(&self, graph: &GraphDef, signature: &Signature) -> GraphFacts {
        let known = if self.has_own_operators || self.library.has_opened_operators() {
            KnownOperators::FromLibraries
        } else {
            KnownOperators::Standard
        };
        let facts = GraphFacts::of(graph, known);
        if !self.parameters.has_one_thread() {
            return facts;
        }
        let outputs = signature.outputs.iter().map(|tensor| tensor.graph_name.as_str());
        facts.executed_by_caller(graph, outputs)
    }

    fn config(&self) -> Vec<u8> {
        let graph_level = self.spec.optimization.graph_level;
        session_config::encode(&self.parameters, self.soft_placement, graph_level)
    }

    fn open_saved_model(&self, path: &Path) -> Result<OpenedGraph, Status> {
        let tag = saved_model::tag(&self.parameters.graph_tag);
        let before = saved_model::file_fingerprint(path);
        let read = saved_model::read_meta_graph(path, tag);
        let (session, message) =
            GraphSession::of_saved_model(&self.library, path, tag, &self.config(), read.is_none())?;
        // The rules for tensor memory follow from the graph, which must be the same one.
        if saved_model::file_fingerprint(path) != before {
            return Err(Status::unavailable(format!(
                "the files of model '{}' changed while it was loaded",
                self.spec.name
            )));
        }
        let meta_graph = match read {
            Some(meta_graph) => meta_graph,
            None => saved_model::decode_meta_graph(&message.unwrap_or_default())?,
        };
        let configured = &self.parameters.signature;
        let (signature, warning) = saved_model::signature(&meta_graph, configured, &self.spec.name)
            .map_err(Status::internal)?;
        if let Some(warning) = warning {
            self.host.log(LogLevel::Warning, &warning);
        }
        validation::check_signature(&self.spec, &signature)?;
        let facts = match &meta_graph.graph {
            Some(graph) => self.facts(graph, &signature),
            None => self.facts(&GraphDef::default(), &signature),
        };
        Ok(OpenedGraph { session, signature, facts })
    }

    fn open_graph(&self, path: &Path) -> Result<OpenedGraph, Status> {
        let (mut bytes, graph) = read_graph(path, &self.spec.name)?;
        // If the model has its own placement, the graph determines the devices.
        let groups = self.spec.instance_groups.iter();
        let is_placed = groups.clone().any(|group| group.kind == InstanceKind::Model);
        let device = (!is_placed).then_some("/cpu:0");
        if !is_placed {
            let cleared = node_devices::without_other_devices(&bytes, &graph);
            bytes = cleared.map_err(|_| unreadable(path))?.unwrap_or(bytes);
        }
        let probe = with_probe(&mut bytes, &graph);
        let session = GraphSession::of_graph(&self.library, &bytes, device, &self.config())?;
        // The library places the nodes before the first run. As in Triton, the load fails if a node
        // can't be placed.
        session.run_operation(&probe)?;
        validation::check_graph(&self.spec, &NodeNames::of(&graph))?;
        let signature = configured_signature(&self.spec);
        let facts = self.facts(&graph, &signature);
        Ok(OpenedGraph { session, signature, facts })
    }
}

/// Reads a graph. Also returns its encoded form.
pub(crate) fn read_graph(path: &Path, model: &str) -> Result<(Vec<u8>, GraphDef), Status> {
    let bytes = std::fs::read(path).map_err(|error| {
        Status::internal(format!("failed to open/read file '{}': {error}", path.display()))
    })?;
    let graph = GraphDef::decode(bytes.as_slice()).map_err(|_| unreadable(path))?;
    if graph.nodes.is_empty() {
        return Err(Status::internal(format!("model {model} has an empty network")));
    }
    Ok((bytes, graph))
}

fn unreadable(path: &Path) -> Status {
    Status::internal(format!("Can't parse {} as binary proto", path.display()))
}

/// A name for new nodes, which no name in the graph begins with.
pub(crate) fn unused_name(graph: &GraphDef, name: &str) -> String {
    let mut name = name.to_owned();
    while graph.nodes.iter().any(|node| node.name.starts_with(&name)) {
        name.push('_');
    }
    name
}

/// Adds a node without effect to an encoded graph, and returns its name.
fn with_probe(bytes: &mut Vec<u8>, graph: &GraphDef) -> String {
    let name = unused_name(graph, "galatea_probe");
    let operator = String::from("NoOp");
    let node = NodeDef { name: name.clone(), operator, ..NodeDef::default() };
    // Concatenating two encoded messages merges them.
    bytes.extend(GraphDef { nodes: vec![node], library: None }.encode_to_vec());
    name
}

/// The tensors of a signature that runs exchange, with the configuration's dimensions where the
/// model specifies none. The inputs that requests may omit come last.
pub(crate) fn used_signature(signature: Signature, spec: &ModelSpec) -> Signature {
    let signature = signature.with_outputs(|name| is_used_output(spec, name));
    required_first(with_configured_dims(signature, spec), spec)
}

/// Returns true if a run may compute an output: the configuration lists it, or it is a state.
fn is_used_output(spec: &ModelSpec, name: &str) -> bool {
    let is_state = spec.sequence_states().iter().any(|state| state.output_name == name);
    is_state || spec.output(name).is_some()
}

/// The tensors that a configuration specifies for a graph without signatures.
pub(crate) fn configured_signature(spec: &ModelSpec) -> Signature {
    let tensors = |all: Vec<ConfiguredTensor>| {
        let by_name: BTreeMap<String, DataType> =
            all.into_iter().map(|one| (one.name, one.datatype)).collect();
        let tensor = |(name, datatype): (String, DataType)| SignatureTensor {
            graph_name: name.clone(),
            name,
            datatype,
            dims: Vec::new(),
        };
        by_name.into_iter().map(tensor).collect()
    };
    Signature {
        inputs: tensors(configured_inputs(spec)),
        outputs: tensors(configured_outputs(spec)),
    }
}

/// The signature in which tensors of unknown rank have the configuration's dimensions, as in
/// Triton.
fn with_configured_dims(mut signature: Signature, spec: &ModelSpec) -> Signature {
    let complete = |tensors: &mut [SignatureTensor], configured: &[ConfiguredTensor]| {
        for tensor in tensors.iter_mut().filter(|tensor| tensor.dims.is_empty()) {
            let known = configured.iter().find(|one| one.name == tensor.name);
            tensor.dims = known.map_or_else(Vec::new, |one| one.dims.clone());
        }
    };
    complete(&mut signature.inputs, &configured_inputs(spec));
    complete(&mut signature.outputs, &configured_outputs(spec));
    signature
}

fn is_optional(spec: &ModelSpec, tensor: &SignatureTensor) -> bool {
    spec.input(&tensor.name).is_some_and(|input| input.optional)
}

/// The signature with the inputs reordered so that the optional ones come last.
fn required_first(mut signature: Signature, spec: &ModelSpec) -> Signature {
    signature.inputs.sort_by_key(|tensor| is_optional(spec, tensor));
    signature
}

fn interface(signature: &Signature, spec: &ModelSpec) -> SessionInterface {
    let info = |tensor: &SignatureTensor| TensorInfo {
        name: tensor.name.clone(),
        element: ElementKind::Known(tensor.datatype),
        dims: tensor.dims.clone(),
    };
    let optional = signature.inputs.iter().filter(|tensor| is_optional(spec, tensor)).count();
    SessionInterface {
        required_inputs: signature.inputs.len() - optional,
        inputs: signature.inputs.iter().map(info).collect(),
        outputs: signature.outputs.iter().map(info).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(name: &str, dims: &[i64]) -> Signature {
        let (name, dims) = (name.to_owned(), dims.to_vec());
        let tensor =
            SignatureTensor { graph_name: name.clone(), name, datatype: DataType::Fp32, dims };
        Signature { inputs: vec![tensor.clone()], outputs: vec![tensor] }
    }

    fn pool() -> SessionPool {
        SessionPool {
            signature: signature("a", &[1]),
            facts: GraphFacts::of(&GraphDef::default(), KnownOperators::Standard),
            newest: Lock::new(SharingGroup { graph: Arc::default(), instances: 0 }),
        }
    }

    #[test]
    fn instances_share_a_session_as_far_as_the_configuration_says() {
        let pool = pool();
        // No session is open yet, and a reservation doesn't wait for one.
        let places: Vec<_> = (0..5).map(|_| pool.reserve(2)).collect();
        for (index, shares) in [true, false, true, false].into_iter().enumerate() {
            assert_eq!(Arc::ptr_eq(&places[index], &places[index + 1]), shares, "{index}");
        }
    }

    #[test]
    fn a_session_that_failed_is_opened_again() {
        let pool = pool();
        let first = pool.reserve(4);
        assert!(first.get_or_init(|| Err(Status::internal("x"))).is_err());
        assert!(!Arc::ptr_eq(&first, &pool.reserve(4)));
    }

    #[test]
    fn a_later_session_has_the_tensors_of_the_first() {
        let pool = pool();
        assert_eq!(pool.check(&signature("a", &[1]), pool.facts, "m"), Ok(()));
        for other in [signature("b", &[1]), signature("a", &[2]), Signature::default()] {
            let status = pool.check(&other, pool.facts, "m").unwrap_err();
            assert!(status.message().starts_with("the files of model 'm' changed"), "{status:?}");
        }
        let waits = GraphFacts::of(&GraphDef::default(), KnownOperators::FromLibraries);
        assert!(pool.check(&signature("a", &[1]), waits, "m").is_err());
    }

    #[test]
    fn the_probe_has_a_name_of_its_own() {
        let node = |name: &str| {
            let (name, operator) = (name.to_owned(), String::from("NoOp"));
            NodeDef { name, operator, ..NodeDef::default() }
        };
        let graph = GraphDef { nodes: vec![node("galatea_probe"), node("x")], library: None };
        let mut bytes = graph.encode_to_vec();
        let name = with_probe(&mut bytes, &graph);
        assert_eq!(name, "galatea_probe_");
        let names: Vec<String> = GraphDef::decode(bytes.as_slice())
            .unwrap()
            .nodes
            .into_iter()
            .map(|node| node.name)
            .collect();
        assert_eq!(names, ["galatea_probe", "x", "galatea_probe_"]);
    }
}
