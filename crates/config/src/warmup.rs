//! What the configuration says about requests that are executed before a model
//! serves.

use galatea_protocol::inference::model_warmup::Input;
use galatea_protocol::inference::model_warmup::input::InputDataType;
use galatea_protocol::inference::{ModelConfig, ModelWarmup};
use galatea_tensor::DataType;

/// A batch that each instance executes before its model serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmupSample {
    /// What messages call it.
    pub name: String,
    /// How many requests of one element are executed at once; with 0 the sample
    /// is skipped, as in Triton.
    pub batch_size: u32,
    /// How often it is executed, at least once.
    pub count: u32,
    /// The tensors of each request. Inputs that the sequence batcher fills in
    /// may be among them.
    pub inputs: Vec<WarmupInput>,
}

/// A tensor of a [`WarmupSample`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmupInput {
    /// The model's input.
    pub name: String,
    /// The type of its elements.
    pub datatype: DataType,
    /// Its shape without the batch dimension; no -1.
    pub dims: Vec<i64>,
    /// Where its elements come from.
    pub content: WarmupContent,
}

/// Where the elements of a warmup tensor come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WarmupContent {
    /// They are zeros, or empty strings.
    Zero,
    /// They are anything; strings are empty.
    Random,
    /// They are the contents of a file in the model's directory `warmup`.
    File(String),
}

/// The samples; an error is the path of what can not be one.
pub(crate) fn samples(message: &ModelConfig) -> Result<Vec<WarmupSample>, String> {
    let numbered = message.model_warmup.iter().enumerate();
    numbered.map(|(index, one)| sample(one, &format!("model_warmup[{index}]"))).collect()
}

fn sample(message: &ModelWarmup, path: &str) -> Result<WarmupSample, String> {
    // A sample that is skipped may be half written.
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
