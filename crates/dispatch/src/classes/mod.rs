//! The labels of a model's outputs, for clients that request classification.
//!
//! Only the door turns outputs into classes; the scheduler, the cache and the backend don't know
//! about them. The door needs the labels of the version that executed the request, so the request
//! carries an empty cell, which the version fills on receiving the request.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use galatea_backend::{FileReadLimit, ModelFiles};
use galatea_config::{ModelSpec, OutputSpec};
use galatea_infer::{ClassLabels, ClassificationInfo, Status};

use crate::version::ComposingVersions;

/// Reads a configuration's label files. An ensemble output without a label file inherits the labels
/// of the step output that produces it.
///
/// # Errors
///
/// The error for a file that can't be read, including the name of its output.
pub(crate) fn read_classes(
    spec: &ModelSpec,
    files: &dyn ModelFiles,
    composing: Option<&dyn ComposingVersions>,
) -> Result<Arc<ClassificationInfo>, Status> {
    let mut labels = BTreeMap::new();
    for output in &spec.outputs {
        if !output.label_filename.is_empty() {
            let labels_of_file = read(output, files).map_err(|status| {
                status.prefixed(format_args!("labels of output '{}': ", output.name))
            })?;
            labels.insert(output.name.clone(), Arc::new(labels_of_file));
        }
    }
    if let Some(composing) = composing {
        inherit(&mut labels, spec, composing);
    }
    Ok(Arc::new(ClassificationInfo::new(spec.max_batch_size > 0, labels)))
}

fn read(output: &OutputSpec, files: &dyn ModelFiles) -> Result<ClassLabels, Status> {
    let size = FileReadLimit::AtMost(ClassLabels::BYTES_MAX);
    let text = files.read_in_model_directory(&output.label_filename, size)?;
    ClassLabels::from_lines(text)
        .ok_or_else(|| Status::invalid_argument(format!("'{}' is too long", output.label_filename)))
}

/// Inherits labels from the steps. Each tensor in an ensemble is the output of exactly one step.
fn inherit(
    labels: &mut BTreeMap<String, Arc<ClassLabels>>,
    spec: &ModelSpec,
    composing: &dyn ComposingVersions,
) {
    let steps = spec.ensemble().map_or(&[][..], |ensemble| &ensemble.steps);
    for step in steps {
        let Some(model) = composing.version(&step.model_name, step.model_version) else { continue };
        for (inner, outer) in &step.output_map {
            let is_output = || spec.outputs.iter().any(|output| output.name == *outer);
            if !labels.contains_key(outer)
                && let Some(inherited) = model.class_labels().labels(inner)
                && is_output()
            {
                labels.insert(outer.clone(), inherited.clone());
            }
        }
    }
}
