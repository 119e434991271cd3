//! The modules of a sentence-transformers model.

use serde_json::Value;

use crate::directory::{TextModelFiles, read_json};
use crate::error::TextModelError;

const FILE: &str = "modules.json";

/// The kinds of modules whose results are sparse embeddings.
const SPARSE: [&str; 6] = [
    "MLMTransformer",
    "SpladePooling",
    "SparseAutoEncoder",
    "CSRSparsity",
    "SparseStaticEmbedding",
    "IDF",
];
/// The kinds of modules that a model can have.
const SUPPORTED: [&str; 4] = ["Transformer", "Pooling", "Dense", "Normalize"];

/// The modules of a model, in their only order: the network, pooling, dense layers, scaling.
#[derive(Clone, Debug, Default)]
pub(crate) struct Modules {
    /// True if the model has a list of modules.
    pub(crate) is_listed: bool,
    /// The directory of the network and its tokenizer.
    pub(crate) transformer: String,
    /// The directory of the pooling module.
    pub(crate) pooling: Option<String>,
    /// The directories of the dense layers.
    pub(crate) dense: Vec<String>,
    pub(crate) normalizes: bool,
}

impl Modules {
    pub(crate) fn read(files: &dyn TextModelFiles) -> Result<Self, TextModelError> {
        let listed = match read_json(files, FILE)? {
            Value::Null => return Ok(Self::default()),
            Value::Array(listed) => listed,
            _ => return Err(TextModelError::new(FILE, "the file is not a list of modules")),
        };
        let mut modules = Self { is_listed: true, ..Self::default() };
        for (index, module) in listed.iter().enumerate() {
            let text = |key: &str| module.get(key).and_then(Value::as_str);
            let missing = || {
                let problem = format!("module {index} has no 'path' that is a string");
                TextModelError::new(FILE, problem)
            };
            let path = text("path").ok_or_else(missing)?.to_owned();
            let kind = text("type").unwrap_or_default();
            modules.add(index, kind, path).map_err(|problem| {
                let kind = kind.escape_debug();
                let problem = format!("module {index} of the type '{kind}' {problem}");
                TextModelError::new(FILE, problem)
            })?;
        }
        Ok(modules)
    }

    /// Adds a module, or returns the reason why it can't be served.
    fn add(&mut self, index: usize, kind: &str, path: String) -> Result<(), String> {
        let kind = kind.rsplit('.').next().unwrap_or_default();
        let is_after_pooling = self.pooling.is_some() && !self.normalizes;
        match kind {
            "Transformer" if index == 0 => self.transformer = path,
            "Pooling" if self.pooling.is_none() && !self.normalizes => self.pooling = Some(path),
            "Dense" if is_after_pooling => self.dense.push(path),
            "Normalize" => self.normalizes = true,
            _ if SUPPORTED.contains(&kind) => {
                return Err(String::from(
                    "is not supported there: the order is Transformer, Pooling, Dense, Normalize",
                ));
            }
            _ if SPARSE.contains(&kind) => {
                return Err(String::from("is not supported: its embeddings are sparse"));
            }
            _ => {
                let supported = SUPPORTED.join(", ");
                return Err(format!("is not supported: the supported types are {supported}"));
            }
        }
        Ok(())
    }
}
