//! The warmup samples in a configuration.

use galatea_protocol::inference::model_warmup::Input;
use galatea_protocol::inference::model_warmup::input::InputDataType;
use galatea_protocol::inference::{ModelConfig, ModelWarmup};
use galatea_tensor::DataType;

/// A batch that each instance executes before its model starts serving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmupSample {
    /// The name used in messages.
    pub name: String,
    /// The number of single-element requests in the batch. As in Triton, a sample with 0 is
    /// skipped.
    pub batch_size: u32,
    /// The number of executions, at least 1.
    pub count: u32,
    /// The tensors of each request, including control and state inputs of the sequence
    /// batcher.
    pub inputs: Vec<WarmupInput>,
}

/// A tensor of a [`WarmupSample`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmupInput {
    /// The model's input.
    pub name: String,
    /// The element type.
    pub datatype: DataType,
    /// The shape, without the batch dimension and without -1.
    pub dims: Vec<i64>,
    /// The source of the elements.
    pub content: WarmupContent,
}

/// The source of the elements of a warmup tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WarmupContent {
    /// Zeros, or empty strings.
    Zero,
    /// Random values; strings are empty.
    Random,
    /// The contents of a file in the model's `warmup` directory.
    File(String),
}

/// Converts the samples. An error contains the path of an invalid field.
pub(crate) fn samples(message: &ModelConfig) -> Result<Vec<WarmupSample>, String> {
    let numbered = message.model_warmup.iter().enumerate();
    numbered.map(|(index, one)| sample(one, &format!("model_warmup[{index}]"))).collect()
}

fn sample(message: &ModelWarmup, path: &str) -> Result<WarmupSample, String> {
    // The inputs of a skipped sample may be invalid.
    let inputs = message.inputs.iter().filter(|_| message.batch_size > 0);
    Ok(WarmupSample {
        name: message.name.clone(),
        batch_size: message.batch_size,
        count: message.count.max(1),
        inputs: inputs
            .map(|(name, one)| {
                input(name, one).map_err(|field| format!("{path}.inputs[\"{name}\"].{field}"))
            })
            .collect::<Result<_, _>>()?,
    })
}

fn input(name: &str, message: &Input) -> Result<WarmupInput, &'static str> {
    Ok(WarmupInput {
        name: name.to_owned(),
        datatype: DataType::from_config_number(message.data_type).ok_or("data_type")?,
        dims: message.dims.clone(),
        content: match message.input_data_type.as_ref().ok_or("zero_data")? {
            InputDataType::ZeroData(_) => WarmupContent::Zero,
            InputDataType::RandomData(_) => WarmupContent::Random,
            InputDataType::InputDataFile(file) => WarmupContent::File(file.clone()),
        },
    })
}
