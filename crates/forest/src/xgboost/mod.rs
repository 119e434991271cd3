//! Reads XGBoost models: documents in JSON or UBJSON, and the older binary format.

mod legacy;
mod objective;
#[cfg(test)]
mod tests;
mod tree;

use crate::shape::Shape;
use crate::value::Value;
use crate::{Forest, ForestTask, Precision, ReadError, json, ubjson};
use objective::Objective;

pub(crate) use legacy::read as read_legacy;

/// Reads a model in JSON.
pub(crate) fn read_json(bytes: &[u8]) -> Result<Forest, ReadError> {
    read_document(&json::read(bytes)?)
}

/// Reads a model in UBJSON.
pub(crate) fn read_ubjson(bytes: &[u8]) -> Result<Forest, ReadError> {
    read_document(&ubjson::read(bytes)?)
}

/// The properties of a model other than its trees, in any of the formats.
struct LearnerHeader {
    features: u32,
    classes: u32,
    targets: u32,
    objective: String,
    /// The base scores: one for all outputs, or one for each. They are predictions rather than
    /// sums, unless `is_margin` is true.
    base_scores: Vec<f64>,
    is_margin: bool,
}

impl LearnerHeader {
    fn shape(&self) -> Result<Shape, ReadError> {
        let objective = Objective::from_name(&self.objective)?;
        let classes = self.classes.max(1);
        let targets = self.targets.max(1);
        if classes > 1 && targets > 1 {
            return Err(ReadError::unsupported(
                "XGBoost does not support multi-target models for multi-class classification",
            ));
        }
        let task = match &*self.objective {
            _ if classes > 1 => ForestTask::MultiClassifier,
            name if name.starts_with("binary:") => ForestTask::BinaryClassifier,
            name if name.starts_with("rank:") => ForestTask::LearningToRank,
            _ => ForestTask::Regressor,
        };
        let to_margin = |score: &f64| match self.is_margin {
            true => *score,
            false => objective.margin(*score),
        };
        Ok(Shape {
            task,
            precision: Precision::Single,
            features: self.features,
            classes: vec![classes; targets.min(TARGETS_MAX) as usize],
            is_average: false,
            postprocessor: objective.postprocessor,
            base_scores: self.base_scores.iter().map(to_margin).collect(),
        })
    }

    /// The target and class of the output that a scalar tree contributes to.
    fn output(&self, group: u32) -> (u32, u32) {
        if self.classes > 1 { (0, group) } else { (group, 0) }
    }
}

/// The maximum number of targets that are represented. The check of outputs refuses a file with
/// more.
const TARGETS_MAX: u32 = 1 << 16;

fn read_document(document: &Value) -> Result<Forest, ReadError> {
    // The document may be wrapped in a pickled model or a checkpoint.
    let document = document.get("Model").unwrap_or(document);
    let learner = field(document, "learner")?;
    let header = read_header(document, learner)?;
    let booster = field(learner, "gradient_booster")?;
    let name = booster.get("name").and_then(Value::text).unwrap_or("gbtree");
    let (booster, weights) = match name {
        "gbtree" => (booster, None),
        "dart" => {
            let weights = booster.get("weight_drop").and_then(Value::numbers);
            let weights = weights.ok_or_else(|| missing("weight_drop"))?;
            (field(booster, "gbtree")?, Some(weights))
        }
        name => {
            return Err(ReadError::unsupported(format!(
                "the booster \"{name}\" has no trees; \"gbtree\" and \"dart\" have"
            )));
        }
    };
    let model = field(booster, "model")?;
    let trees = model.get("trees").and_then(Value::list).ok_or_else(|| missing("trees"))?;
    let groups = model.get("tree_info").and_then(Value::numbers);
    let groups = groups.ok_or_else(|| missing("tree_info"))?;
    if groups.len() != trees.len() || weights.is_some_and(|list| list.len() != trees.len()) {
        return Err(ReadError::malformed(format!(
            "the model has {} trees, but not as many groups or weights",
            trees.len()
        )));
    }
    let read = trees.iter().zip(groups).enumerate().map(|(index, (tree, group))| {
        let weight = weights.and_then(|weights| weights.get(index));
        tree::read(tree, &header, *group, weight.copied())
    });
    Forest::new(header.shape()?, read)
}

fn read_header(document: &Value, learner: &Value) -> Result<LearnerHeader, ReadError> {
    let parameters = field(learner, "learner_model_param")?;
    let objective = learner.get("objective").and_then(|objective| objective.get("name"));
    let version = document.get("version").and_then(Value::numbers).unwrap_or(&[]);
    Ok(LearnerHeader {
        features: count(parameters, "num_feature", None)?,
        classes: count(parameters, "num_class", Some(0))?,
        targets: count(parameters, "num_target", Some(1))?,
        objective: objective.and_then(Value::text).unwrap_or_default().to_owned(),
        base_scores: base_scores(field(parameters, "base_score")?)?,
        is_margin: version.first().is_some_and(|major| *major < 1.0),
    })
}

/// Reads the base score: a number, a number as a string, or, since version 3.1, a list of numbers
/// as a string.
fn base_scores(value: &Value) -> Result<Vec<f64>, ReadError> {
    let invalid = || ReadError::malformed("base_score is not a number or a list of numbers");
    if let Some(numbers) = value.numbers() {
        return Ok(numbers.to_vec());
    }
    let list = value.text().and_then(|text| text.trim().strip_prefix('['));
    let Some(list) = list else {
        return Ok(vec![value.number().ok_or_else(invalid)?]);
    };
    let list = list.strip_suffix(']').ok_or_else(invalid)?;
    list.split(',').map(|item| item.trim().parse().map_err(|_| invalid())).collect()
}

fn field<'a>(value: &'a Value, key: &str) -> Result<&'a Value, ReadError> {
    value.get(key).ok_or_else(|| missing(key))
}

fn missing(key: &str) -> ReadError {
    ReadError::malformed(format!("the XGBoost model has no valid \"{key}\""))
}

fn count(value: &Value, key: &str, default: Option<u32>) -> Result<u32, ReadError> {
    match (value.get(key), default) {
        (None, Some(default)) => Ok(default),
        (value, _) => {
            let index = value.and_then(Value::number).and_then(index);
            index.ok_or_else(|| missing(key))
        }
    }
}

/// Reads a number that is an index or a count.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range and the fraction were checked"
)]
fn index(number: f64) -> Option<u32> {
    ((0.0..=2_147_483_647.0).contains(&number) && number.fract() == 0.0).then_some(number as u32)
}
