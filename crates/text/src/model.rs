//! A text model, as its directory and its settings describe it.

use std::borrow::Cow;

use serde_json::Value;

use crate::activation::Activation;
use crate::dense::{DenseLayer, DenseSettings};
use crate::directory::{TextModelFiles, join, read_object, read_required, read_tokenizer};
use crate::encoder::{Overflow, TextEncoder, TokenRow};
use crate::error::TextModelError;
use crate::json_object::JsonObject;
use crate::modules::Modules;
use crate::pooling::PoolingSettings;
use crate::prompts::Prompts;
use crate::settings::{TaskKind, TextSettings};

const PROMPTS: &str = "config_sentence_transformers.json";
const CONFIG: &str = "config.json";
const LABELS: &str = "id2label";
const PROMPT_PARAMETER: &str = "parameter 'text_prompt'";

/// The maximum number of tokens of a model whose files don't state one.
const TOKENS_MAX: u64 = 8192;
/// The maximum size of a text with its prompt. Converting a longer text would take many times longer than the
/// network, and almost all of its tokens would be cut off.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// Everything that a model's files and settings say, except for the vocabulary and the network.
#[derive(Clone, Debug)]
pub struct TextDescription {
    /// The kind of model, with its settings.
    pub task: TextTask,
    /// The prompts.
    pub prompts: Prompts,
    /// The length of the network's vectors, if the files state it.
    pub hidden_size: Option<usize>,
    /// The directories that can contain the network, in the order in which to look.
    pub network_folders: Vec<String>,
    tokenizer: String,
    encoder: EncoderSettings,
}

/// Everything about a text model except its network.
#[derive(Debug)]
pub struct TextModel {
    /// The description of the model.
    pub description: TextDescription,
    encoder: TextEncoder,
    dense: Vec<DenseLayer>,
    /// The number of tokens at the beginning of each text that pooling leaves out, if the default
    /// prompt is used.
    default_prompt_tokens: usize,
}

/// The kind of a text model, with the settings of its outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextTask {
    /// Embeddings.
    Embedding(EmbeddingTask),
    /// Scores of a text, or of a pair of texts.
    Scores {
        /// True if the input is a pair.
        is_pair: bool,
        /// The function that converts outputs to scores.
        activation: Activation,
        /// The number of scores; `None` if the files don't state it.
        count: Option<usize>,
    },
}

/// The settings of embeddings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddingTask {
    /// The pooling; `None` if the network's output is already an embedding.
    pub pooling: Option<PoolingSettings>,
    /// The layers after the pooling, each with the inputs that the layer before it returns.
    pub dense: Vec<DenseSettings>,
    /// True if embeddings are scaled to a length of 1.
    pub normalize: bool,
}

impl TextDescription {
    /// Reads the files of a model directory that describe the model.
    ///
    /// # Errors
    ///
    /// An error that states the file or the parameter and what is wrong with it.
    pub fn read(
        files: &dyn TextModelFiles,
        settings: &TextSettings,
    ) -> Result<Self, TextModelError> {
        let modules = Modules::read(files)?;
        let root = modules.transformer.clone();
        let config = read_object(files, &join(&root, CONFIG))?;
        let library = read_object(files, PROMPTS)?;
        let (config, library) =
            (JsonObject::new(CONFIG, &config), JsonObject::new(PROMPTS, &library));
        let encoder = EncoderSettings::read(files, &root, config, settings)?;
        let sources = TaskSources { modules: &modules, config, library };
        let task = sources.task(files, settings)?;
        let mut prompts = Prompts::read(library)?;
        if let Some(name) = &settings.prompt {
            let unknown = |error| TextModelError::new(PROMPT_PARAMETER, format!("{error}"));
            prompts = prompts.with_default(name).map_err(unknown)?;
        } else if task.is_pair() && !sources.is_saved_cross_encoder()? {
            // The default prompt of an embedding model, whose files describe its embeddings.
            prompts = prompts.without_default();
        }
        Ok(Self {
            task,
            prompts,
            hidden_size: config.count("hidden_size")?.and_then(|size| usize::try_from(size).ok()),
            tokenizer: join(&root, "tokenizer.json"),
            network_folders: if root.is_empty() { vec![root] } else { vec![root, String::new()] },
            encoder,
        })
    }
}

impl TextTask {
    /// Returns true if the input is a pair of texts.
    #[must_use]
    pub const fn is_pair(&self) -> bool {
        matches!(self, Self::Scores { is_pair: true, .. })
    }
}

impl EmbeddingTask {
    /// Returns the number of values of an embedding. `pooled` is the number of values that the
    /// pooling returns.
    ///
    /// # Errors
    ///
    /// An error about a layer that takes another number of values.
    pub fn width(&self, pooled: usize) -> Result<usize, TextModelError> {
        self.dense.iter().try_fold(pooled, |width, layer| {
            layer.check_inputs(width)?;
            Ok(layer.outputs)
        })
    }

    /// Returns the number of values of an output that already is an embedding. Such a network
    /// contains the dense layers.
    ///
    /// # Errors
    ///
    /// An error about the output if its length is not that of the last layer's.
    pub fn check_embedding(&self, output: &str, width: usize) -> Result<usize, TextModelError> {
        match self.dense.last() {
            Some(layer) if layer.outputs != width => Err(TextModelError::new(
                format!("the network's output '{output}'"),
                format!(
                    "an embedding has {width} values, but the last dense layer returns {}",
                    layer.outputs
                ),
            )),
            _ => Ok(width),
        }
    }
}

impl TextModel {
    /// Reads the tokenizer and the dense layers of a described model.
    ///
    /// # Errors
    ///
    /// Same as for [`TextDescription::read`].
    pub fn read(
        files: &dyn TextModelFiles,
        description: TextDescription,
    ) -> Result<Self, TextModelError> {
        let path = description.tokenizer.clone();
        let content = read_tokenizer(files, &path)?
            .ok_or_else(|| TextModelError::new(&path, "the file is missing"))?;
        let EncoderSettings { tokens_max, overflow, .. } = description.encoder;
        let encoder = TextEncoder::read(&path, &content, tokens_max, overflow)?;
        let dense = match &description.task {
            TextTask::Embedding(task) if task.pooling.is_some() => {
                let layers = task.dense.iter().cloned();
                layers.map(|layer| DenseLayer::read(files, layer)).collect::<Result<_, _>>()?
            }
            TextTask::Embedding(_) | TextTask::Scores { .. } => Vec::new(),
        };
        let mut model = Self { description, encoder, dense, default_prompt_tokens: 0 };
        // A text and each prompt are converted, so that an invalid tokenizer is found now.
        let prompts = model.description.prompts.texts().chain(["text"]);
        for text in prompts {
            let encoded = model.encoder.encode(text, None);
            encoded.map_err(|error| TextModelError::new(&path, error))?;
        }
        let left_out = model.left_out_tokens(model.description.prompts.default_text());
        model.default_prompt_tokens =
            left_out.map_err(|error| TextModelError::new(&path, error))?;
        Ok(model)
    }

    /// Converts a text to tokens. `prompt` replaces the default prompt. `truncates` replaces the
    /// model's treatment of texts with too many tokens.
    ///
    /// # Errors
    ///
    /// The reason why the text is refused.
    pub fn encode(
        &self,
        text: &str,
        prompt: Option<&str>,
        truncates: Option<bool>,
    ) -> Result<TokenRow, String> {
        let text = self.with_prompt(text, prompt)?;
        self.encode_whole(&self.cased(&text), None, truncates)
    }

    /// Converts a pair of texts to tokens. The prompt is put in front of the first one.
    ///
    /// # Errors
    ///
    /// Same as for [`TextModel::encode`].
    pub fn encode_pair(
        &self,
        (first, second): (&str, &str),
        prompt: Option<&str>,
        truncates: Option<bool>,
    ) -> Result<TokenRow, String> {
        let first = self.with_prompt(first, prompt)?;
        check_size(second)?;
        self.encode_whole(&self.cased(&first), Some(&self.cased(second)), truncates)
    }

    fn with_prompt<'text>(
        &self,
        text: &'text str,
        prompt: Option<&str>,
    ) -> Result<Cow<'text, str>, String> {
        let prompt = prompt.unwrap_or_else(|| self.description.prompts.default_text());
        let what = if prompt.is_empty() { "the text" } else { "the text with its prompt" };
        check_bytes(what, text.len().saturating_add(prompt.len()))?;
        Ok(if prompt.is_empty() { text.into() } else { format!("{prompt}{text}").into() })
    }

    /// Applies the dense layers to several embeddings, one after the other.
    #[must_use]
    pub fn apply_dense(&self, pooled: Vec<f32>) -> Vec<f32> {
        self.dense.iter().fold(pooled, |rows, layer| layer.apply(&rows))
    }

    /// Returns the number of tokens at the beginning of each text that pooling leaves out. `prompt`
    /// replaces the default prompt.
    ///
    /// # Errors
    ///
    /// The reason why the tokenizer can't convert the prompt.
    pub fn prompt_tokens(&self, prompt: Option<&str>) -> Result<usize, String> {
        prompt.map_or(Ok(self.default_prompt_tokens), |prompt| self.left_out_tokens(prompt))
    }

    fn left_out_tokens(&self, prompt: &str) -> Result<usize, String> {
        match &self.description.task {
            TextTask::Embedding(EmbeddingTask { pooling: Some(pooling), .. })
                if !pooling.include_prompt && !prompt.is_empty() =>
            {
                self.encoder.prompt_length(&self.cased(prompt))
            }
            TextTask::Embedding(_) | TextTask::Scores { .. } => Ok(0),
        }
    }

    fn cased<'text>(&self, text: &'text str) -> Cow<'text, str> {
        if self.description.encoder.lowers_case { text.to_lowercase().into() } else { text.into() }
    }

    fn encode_whole(
        &self,
        text: &str,
        second: Option<&str>,
        truncates: Option<bool>,
    ) -> Result<TokenRow, String> {
        let row = self.encoder.encode(text, second)?;
        let refuses = match truncates {
            Some(truncates) => !truncates,
            None => self.description.encoder.overflow == Overflow::Refuse,
        };
        if refuses && self.encoder.was_truncated(&row, text, second)? {
            let limit = self.encoder.tokens_max();
            return Err(format!("the text has more than {limit} tokens"));
        }
        Ok(row)
    }
}

/// Compares the size of a text or a prompt with the limit.
///
/// # Errors
///
/// The size and the limit.
pub fn check_size(text: &str) -> Result<(), String> {
    check_bytes("the text", text.len())
}

fn check_bytes(what: &str, size: usize) -> Result<(), String> {
    if size > TEXT_BYTES_MAX {
        return Err(format!("{what} has {size} bytes, and the limit is {TEXT_BYTES_MAX}"));
    }
    Ok(())
}

/// The settings of the tokenizer that are not in its own file.
#[derive(Copy, Clone, Debug)]
struct EncoderSettings {
    tokens_max: usize,
    overflow: Overflow,
    lowers_case: bool,
}

impl EncoderSettings {
    fn read(
        files: &dyn TextModelFiles,
        root: &str,
        config: JsonObject<'_>,
        settings: &TextSettings,
    ) -> Result<Self, TextModelError> {
        let tokenizer_path = join(root, "tokenizer_config.json");
        let tokenizer = read_object(files, &tokenizer_path)?;
        let tokenizer = JsonObject::new(&tokenizer_path, &tokenizer);
        let sentences_path = join(root, "sentence_bert_config.json");
        let sentences = read_object(files, &sentences_path)?;
        let sentences = JsonObject::new(&sentences_path, &sentences);
        let limits =
            [tokenizer.count("model_max_length")?, config.count("max_position_embeddings")?];
        let stated = sentences.count("max_seq_length")?;
        let stated = stated.or_else(|| limits.into_iter().flatten().min());
        let tokens_max = stated.unwrap_or(TOKENS_MAX);
        let tokens_max = usize::try_from(tokens_max).unwrap_or(usize::MAX);
        let stated = match tokenizer.string("truncation_side")? {
            None | Some("right") => Overflow::TruncateRight,
            Some("left") => Overflow::TruncateLeft,
            Some(_) => return Err(tokenizer.invalid("truncation_side", "is not right or left")),
        };
        Ok(Self {
            tokens_max: settings.tokens_max.unwrap_or(tokens_max),
            overflow: settings.overflow.unwrap_or(stated),
            lowers_case: sentences.boolean("do_lower_case")?.unwrap_or(false),
        })
    }
}

/// The files that describe the outputs.
struct TaskSources<'a> {
    modules: &'a Modules,
    config: JsonObject<'a>,
    library: JsonObject<'a>,
}

impl TaskSources<'_> {
    fn task(
        &self,
        files: &dyn TextModelFiles,
        settings: &TextSettings,
    ) -> Result<TextTask, TextModelError> {
        let kind = match settings.task {
            Some(kind) => kind,
            None => self.kind()?,
        };
        match kind {
            TaskKind::Embedding => {
                refuse_setting(settings.activation.is_some(), "text_activation", "embeddings")?;
                self.embedding(files, settings).map(TextTask::Embedding)
            }
            TaskKind::Classification | TaskKind::CrossEncoder => {
                refuse_setting(settings.pooling.is_some(), "text_pooling", "scores")?;
                refuse_setting(settings.normalize.is_some(), "text_normalize", "scores")?;
                self.scores(settings, kind == TaskKind::CrossEncoder)
            }
        }
    }

    /// Returns the kind of model that the files describe.
    fn kind(&self) -> Result<TaskKind, TextModelError> {
        match self.library.string("model_type")? {
            Some("CrossEncoder") => return Ok(TaskKind::CrossEncoder),
            None | Some("SentenceTransformer") => {}
            Some(other) => {
                let other = other.escape_debug();
                return Err(self.library.error(format!("'model_type' '{other}' is not supported")));
            }
        }
        if self.modules.is_listed || !self.is_classifier() {
            return Ok(TaskKind::Embedding);
        }
        let is_cross_encoder = self.label_count()? == Some(1)
            || self.config.contains("sentence_transformers")
            || self.config.contains("sbert_ce_default_activation_function");
        Ok(if is_cross_encoder { TaskKind::CrossEncoder } else { TaskKind::Classification })
    }

    /// Returns true if sentence-transformers saved the model as a cross-encoder. Of any other
    /// model, it ignores the default prompt when it scores pairs.
    fn is_saved_cross_encoder(&self) -> Result<bool, TextModelError> {
        let kind = self.library.string("model_type")?;
        Ok(self.modules.is_listed && kind == Some("CrossEncoder"))
    }

    fn is_classifier(&self) -> bool {
        let architectures = self.config.get("architectures").and_then(Value::as_array);
        let mut names = architectures.into_iter().flatten().filter_map(Value::as_str);
        names.any(|name| name.ends_with("ForSequenceClassification"))
    }

    fn embedding(
        &self,
        files: &dyn TextModelFiles,
        settings: &TextSettings,
    ) -> Result<EmbeddingTask, TextModelError> {
        let mut pooling = match &self.modules.pooling {
            Some(folder) => {
                let path = join(folder, "config.json");
                Some(PoolingSettings::read(&path, &read_required(files, &path)?)?)
            }
            None if self.modules.is_listed => None,
            // A network without modules gets those that sentence-transformers adds by default.
            None => Some(PoolingSettings::default()),
        };
        if let Some(modes) = &settings.pooling {
            let include_prompt = pooling.is_none_or(|pooling| pooling.include_prompt);
            let replaced = PoolingSettings { modes: modes.clone(), include_prompt };
            pooling = (!modes.is_empty()).then_some(replaced);
        }
        let layers = self.modules.dense.iter().map(|folder| DenseSettings::read(files, folder));
        let normalize = settings.normalize.unwrap_or(self.modules.normalizes);
        let dense = layers.collect::<Result<Vec<_>, _>>()?;
        let task = EmbeddingTask { pooling, dense, normalize };
        if let Some(layer) = task.dense.first() {
            task.width(layer.inputs)?;
        }
        Ok(task)
    }

    fn scores(&self, settings: &TextSettings, is_pair: bool) -> Result<TextTask, TextModelError> {
        let count = self.label_count()?;
        let activation = match settings.activation {
            Some(activation) => activation,
            None => self.activation(is_pair, count)?,
        };
        Ok(TextTask::Scores { is_pair, activation, count })
    }

    /// Returns the function that sentence-transformers applies to the outputs of a cross-encoder,
    /// or that the pipeline of transformers applies to those of a classifier.
    fn activation(
        &self,
        is_pair: bool,
        labels: Option<usize>,
    ) -> Result<Activation, TextModelError> {
        let stated = [
            (CONFIG, self.config.nested("sentence_transformers").string("activation_fn")?),
            (CONFIG, self.config.string("sbert_ce_default_activation_function")?),
            (PROMPTS, self.library.string("activation_fn")?),
        ];
        for (file, path) in stated {
            if let Some(path) = path {
                return Activation::from_python_path(path).ok_or_else(|| {
                    let path = path.escape_debug();
                    let problem = format!(
                        "the activation '{path}' is not supported; the parameter \
                         'text_activation' replaces it"
                    );
                    TextModelError::new(file, problem)
                });
            }
        }
        // Unknown labels are the two that transformers doesn't write down.
        Ok(match (is_pair, labels, self.config.string("problem_type")?) {
            (false, _, Some("regression")) => Activation::Identity,
            (false, _, Some("multi_label_classification")) | (_, Some(1), _) => Activation::Sigmoid,
            (true, ..) => Activation::Identity,
            (false, ..) => Activation::Softmax,
        })
    }

    /// Returns the number of classes; `None` if the file doesn't state it.
    fn label_count(&self) -> Result<Option<usize>, TextModelError> {
        let Some(names) = self.config.get(LABELS) else {
            // The library's own default is two classes; a single one is written down.
            let count = self.config.count("num_labels")?;
            let too_many = || self.config.invalid("num_labels", "exceeds the size of the memory");
            return count.map(|it| usize::try_from(it).map_err(|_| too_many())).transpose();
        };
        let invalid = |problem: &str| self.config.invalid(LABELS, problem);
        let names = names.as_object().ok_or_else(|| invalid("is not an object"))?;
        for index in 0..names.len() {
            if !matches!(names.get(&index.to_string()), Some(Value::String(_) | Value::Number(_))) {
                return Err(invalid(&format!("has no name for the class {index}")));
            }
        }
        Ok(Some(names.len()).filter(|count| *count > 0))
    }
}

fn refuse_setting(is_set: bool, name: &str, output: &str) -> Result<(), TextModelError> {
    if !is_set {
        return Ok(());
    }
    let problem = format!("a model whose outputs are {output} doesn't have this setting");
    Err(TextModelError::new(format!("parameter '{name}'"), problem))
}
