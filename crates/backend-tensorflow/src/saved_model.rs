//! The signature of a `SavedModel`.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use galatea_backend::FileFingerprint;
use galatea_infer::Status;
use galatea_tensor::DataType;
use prost::Message as _;

use crate::element;
use crate::messages::{MetaGraphDef, SavedModel, SignatureDef, TensorInfo};

/// The tag of the graph to serve, unless the configuration specifies another.
pub(crate) const DEFAULT_TAG: &str = "serve";
/// The signature to serve, unless the configuration specifies another.
pub(crate) const DEFAULT_SIGNATURE: &str = "serving_default";
/// Signatures that don't describe a use of the model.
const INTERNAL_SIGNATURES: [&str; 2] = ["__saved_model_init_op", "__saved_model_train_op"];
/// The file that contains the graphs and their signatures.
const FILE: &str = "saved_model.pb";
/// The largest message that protocol buffers allow.
const FILE_BYTES_MAX: u64 = (1 << 31) - 1;

/// A model's tensors, with the names that clients and the graph use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signature {
    /// The inputs, sorted by name. Triton's order is that of a hash map, which varies.
    pub(crate) inputs: Vec<SignatureTensor>,
    /// The outputs, in the same order.
    pub(crate) outputs: Vec<SignatureTensor>,
}

/// An input or output in a signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SignatureTensor {
    /// The name that clients use.
    pub(crate) name: String,
    /// The tensor's name in the graph, such as `dense/Relu:0`; empty for a sparse or composite
    /// output, which can't be fetched.
    pub(crate) graph_name: String,
    pub(crate) datatype: DataType,
    /// The shape; empty for a scalar and for an unknown rank, which Triton doesn't distinguish.
    pub(crate) dims: Vec<i64>,
}

impl Signature {
    /// The signature with a subset of its outputs.
    pub(crate) fn with_outputs(mut self, is_wanted: impl Fn(&str) -> bool) -> Self {
        self.outputs.retain(|output| is_wanted(&output.name));
        self
    }

    /// Returns true if clients see the same tensors in both, in the same order.
    pub(crate) fn has_tensors_of(&self, other: &Self) -> bool {
        let is_same = |(one, other): (&SignatureTensor, &SignatureTensor)| {
            one.name == other.name && one.datatype == other.datatype && one.dims == other.dims
        };
        let are_same = |some: &[SignatureTensor], others: &[SignatureTensor]| {
            some.len() == others.len() && some.iter().zip(others).all(is_same)
        };
        are_same(&self.inputs, &other.inputs) && are_same(&self.outputs, &other.outputs)
    }
}

/// The tag that selects a graph.
pub(crate) fn tag(configured: &str) -> &str {
    if configured.is_empty() { DEFAULT_TAG } else { configured }
}

/// The fingerprint of the file in a directory; `None` if there is no file.
pub(crate) fn file_fingerprint(directory: &Path) -> Option<FileFingerprint> {
    FileFingerprint::of(&directory.join(FILE))
}

/// Reads the graph with the given tag from the file in a directory. `None` if there is no such file
/// or graph, or if the file is damaged or in another form: the library then decides.
pub(crate) fn read_meta_graph(directory: &Path, tag: &str) -> Option<MetaGraphDef> {
    let mut file = File::open(directory.join(FILE)).ok()?;
    let size = file.metadata().ok()?.len();
    if size > FILE_BYTES_MAX {
        return None;
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).ok()?);
    file.by_ref().take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let model = SavedModel::decode(bytes.as_slice()).ok()?;
    let has_tag = |graph: &MetaGraphDef| graph.info.as_ref().is_some_and(|info| info.tags == [tag]);
    model.meta_graphs.into_iter().find(has_tag)
}

/// A graph's signature, and a warning if it is not the default one.
///
/// # Errors
///
/// An error with Triton's text: the signature doesn't exist, or has a type that requests don't
/// support.
pub(crate) fn signature(
    graph: &MetaGraphDef,
    configured: &str,
    model: &str,
) -> Result<(Signature, Option<String>), String> {
    let wanted = if configured.is_empty() { DEFAULT_SIGNATURE } else { configured };
    let (definition, warning) = match graph.signatures.get(wanted) {
        Some(definition) => (definition, None),
        None => {
            let other = graph.signatures.iter().find(|(name, _)| {
                configured.is_empty() && !INTERNAL_SIGNATURES.contains(&name.as_str())
            });
            let (name, definition) = other.ok_or_else(|| {
                format!("unable to load model '{model}', expected '{wanted}' signature")
            })?;
            let warning = format!(
                "model '{model}' has no signature '{wanted}'; its signature '{name}' is used"
            );
            (definition, Some(warning))
        }
    };
    Ok((tensors(definition, model)?, warning))
}

fn tensors(definition: &SignatureDef, model: &str) -> Result<Signature, String> {
    let convert = |role: &str, (name, info): (&String, &TensorInfo)| {
        let datatype = element::datatype(info.datatype).ok_or_else(|| {
            format!(
                "unable to process {role} '{name}' for '{model}', unsupported datatype '{}'",
                element::name(info.datatype)
            )
        })?;
        // Triton accepts such a model, but each of its runs fails. A run succeeds if it doesn't
        // fetch such an output.
        if info.name.is_empty() && role == "input" {
            return Err(format!(
                "unable to process {role} '{name}' for '{model}', a sparse or composite tensor"
            ));
        }
        let dims = info.shape.iter().flat_map(|shape| &shape.dims).map(|dim| dim.size).collect();
        let (name, graph_name) = (name.clone(), info.name.clone());
        Ok(SignatureTensor { name, graph_name, datatype, dims })
    };
    let inputs = definition.inputs.iter().map(|input| convert("input", input));
    let outputs = definition.outputs.iter().map(|output| convert("output", output));
    Ok(Signature {
        inputs: inputs.collect::<Result<_, String>>()?,
        outputs: outputs.collect::<Result<_, String>>()?,
    })
}

/// Reads the message that the library returned for a loaded model.
pub(crate) fn decode_meta_graph(message: &[u8]) -> Result<MetaGraphDef, Status> {
    MetaGraphDef::decode(message)
        .map_err(|error| Status::internal(format!("the model's description is damaged: {error}")))
}

#[cfg(test)]
mod tests {
    use galatea_config::ConfigDraft;

    use super::*;
    use crate::completion;
    use crate::graph::{GraphFacts, KnownOperators};
    use crate::messages::{Dim, MetaInfoDef, TensorShapeProto};

    fn info(name: &str, datatype: i32, dims: &[i64]) -> TensorInfo {
        let dims = dims.iter().map(|&size| Dim { size }).collect();
        TensorInfo { name: name.to_owned(), datatype, shape: Some(TensorShapeProto { dims }) }
    }

    fn graph(tags: &[&str], signatures: &[&str]) -> MetaGraphDef {
        let tags = tags.iter().map(|&tag| tag.to_owned()).collect();
        let definition = SignatureDef {
            inputs: [("b".into(), info("b:0", 1, &[-1, 3])), ("a".into(), info("a:0", 7, &[]))]
                .into(),
            outputs: [("y".into(), info("f:1", 9, &[2]))].into(),
        };
        let signatures =
            signatures.iter().map(|&name| (name.to_owned(), definition.clone())).collect();
        MetaGraphDef { info: Some(MetaInfoDef { tags }), graph: None, signatures }
    }

    #[test]
    fn a_signature_has_its_tensors_by_name() {
        let (found, warning) = signature(&graph(&[], &["serving_default"]), "", "m").unwrap();
        let names = |tensors: &[SignatureTensor]| {
            let name = |tensor: &SignatureTensor| {
                format!(
                    "{} {} {} {:?}",
                    tensor.name, tensor.graph_name, tensor.datatype, tensor.dims
                )
            };
            tensors.iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(names(&found.inputs), ["a a:0 BYTES []", "b b:0 FP32 [-1, 3]"]);
        assert_eq!(names(&found.outputs), ["y f:1 INT64 [2]"]);
        assert_eq!(warning, None);
    }

    #[test]
    fn another_signature_serves_only_if_none_is_configured() {
        let graph = graph(&[], &["__saved_model_init_op", "predict"]);
        let (_, warning) = signature(&graph, "", "m").unwrap();
        assert!(warning.unwrap().contains("'predict' is used"));
        assert!(signature(&graph, "predict", "m").is_ok());
        let text = "unable to load model 'm', expected 'other' signature";
        assert_eq!(signature(&graph, "other", "m"), Err(text.to_owned()));
        let none = self::graph(&[], &["__saved_model_train_op"]);
        let text = "unable to load model 'm', expected 'serving_default' signature";
        assert_eq!(signature(&none, "", "m"), Err(text.to_owned()));
    }

    #[test]
    fn types_without_a_counterpart_are_refused() {
        let mut graph = graph(&[], &["serving_default"]);
        let outputs = &mut graph.signatures.get_mut("serving_default").unwrap().outputs;
        outputs.insert("z".into(), info("z:0", 20, &[]));
        let text = "unable to process output 'z' for 'm', unsupported datatype 'DT_RESOURCE'";
        assert_eq!(signature(&graph, "", "m"), Err(text.to_owned()));
    }

    #[test]
    fn composite_inputs_are_refused_and_composite_outputs_kept() {
        let mut graph = graph(&[], &["serving_default"]);
        let definition = graph.signatures.get_mut("serving_default").unwrap();
        definition.outputs.insert("z".into(), info("", 1, &[]));
        let (found, _) = signature(&graph, "", "m").unwrap();
        let graph_names: Vec<&str> =
            found.outputs.iter().map(|output| output.graph_name.as_str()).collect();
        assert_eq!(graph_names, ["f:1", ""]);
        let without = found.clone().with_outputs(|name| name == "y");
        assert_eq!(without.outputs.len(), 1);
        assert!(!without.has_tensors_of(&found));
        let definition = graph.signatures.get_mut("serving_default").unwrap();
        definition.inputs.insert("c".into(), info("", 1, &[]));
        let text = "unable to process input 'c' for 'm', a sparse or composite tensor";
        assert_eq!(signature(&graph, "", "m"), Err(text.to_owned()));
    }

    #[test]
    fn the_file_is_searched_by_the_tag() {
        let directory = std::env::temp_dir().join(format!("galatea-tag-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        assert_eq!(read_meta_graph(&directory, "serve"), None);
        let wanted = graph(&["serve"], &["serving_default"]);
        let meta_graphs =
            vec![graph(&["serve", "tpu"], &[]), graph(&["train"], &[]), wanted.clone()];
        let bytes = SavedModel { meta_graphs }.encode_to_vec();
        std::fs::write(directory.join(FILE), &bytes).unwrap();
        assert_eq!(read_meta_graph(&directory, tag("")), Some(wanted));
        assert_eq!(read_meta_graph(&directory, "tpu"), None);
        // A file that is cut short isn't a valid message, or lacks the graph.
        for length in 0..bytes.len() {
            std::fs::write(directory.join(FILE), &bytes[..length]).unwrap();
            assert_eq!(read_meta_graph(&directory, "serve"), None, "{length}");
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }

    /// Damages a message: shortens it, or changes some of its bytes.
    fn mutate(bytes: &mut Vec<u8>, next: &mut impl FnMut(usize) -> usize) {
        if next(4) == 0 {
            bytes.truncate(next(bytes.len()));
        } else {
            for _ in 0..=next(6) {
                let place = next(bytes.len());
                bytes[place] = next(256).to_le_bytes()[0];
            }
        }
    }

    #[test]
    fn damaged_messages_are_read_or_refused() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/tensorflow/models");
        let mut state = 27_u64;
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(state >> 33).unwrap() % below.max(1)
        };
        let mut signatures = 0;
        for model in ["mlp", "types", "strings", "ragged"] {
            let file = models.join(model).join("1/model.savedmodel").join(FILE);
            let whole = std::fs::read(file).unwrap();
            for _ in 0..500 {
                let mut bytes = whole.clone();
                mutate(&mut bytes, &mut next);
                let Ok(message) = SavedModel::decode(bytes.as_slice()) else { continue };
                for graph in message.meta_graphs {
                    let facts = graph.graph.clone().unwrap_or_default();
                    let _ = GraphFacts::of(&facts, KnownOperators::Standard);
                    let Ok((signature, _)) = signature(&graph, "", "m") else { continue };
                    let mut draft = ConfigDraft::empty();
                    let _ = completion::complete(&mut draft, &signature, 4);
                    signatures += 1;
                }
            }
        }
        // Most changes are in the graph.
        assert!(signatures > 200, "{signatures}");
    }
}
