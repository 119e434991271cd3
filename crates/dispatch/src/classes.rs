//! The labels of a model's outputs, for clients that want outputs as classes.

use std::collections::BTreeMap;
use std::sync::Arc;

use galatea_backend::{ExpectedFileSize, ModelFiles};
use galatea_config::{ModelSpec, OutputSpec};
use galatea_infer::{ClassLabels, ModelClasses, Status};

use crate::ComposingVersions;

/// Reads the label files that a configuration names. An ensemble's output that
/// has none has the labels of the step's output that it is.
///
/// # Errors
///
/// As of reading a file of the model, with the output in front.
pub(crate) fn model_classes(
    spec: &ModelSpec,
    files: &dyn ModelFiles,
    composing: Option<&dyn ComposingVersions>,
) -> Result<Arc<ModelClasses>, Status> {
    let mut labels = BTreeMap::new();
    for output in &spec.outputs {
        if !output.label_filename.is_empty() {
            let own = read(output, files).map_err(|status| {
                status.prefixed(format_args!("labels of output '{}': ", output.name))
            })?;
            labels.insert(output.name.clone(), Arc::new(own));
        }
    }
    if let Some(composing) = composing {
        inherit(&mut labels, spec, composing);
    }
    Ok(Arc::new(ModelClasses::new(spec.max_batch_size > 0, labels)))
}

fn read(output: &OutputSpec, files: &dyn ModelFiles) -> Result<ClassLabels, Status> {
    let size = ExpectedFileSize::AtMost(ClassLabels::BYTES_MAX);
    let text = files.read_beside_versions(&output.label_filename, size)?;
    ClassLabels::from_lines(text)
        .ok_or_else(|| Status::invalid_argument(format!("'{}' is too long", output.label_filename)))
}

/// Each tensor of an ensemble is the output of one step, so that there is no
/// choice of labels.
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
                && let Some(inherited) = model.classes.labels(inner)
                && is_output()
            {
                labels.insert(outer.clone(), inherited.clone());
            }
        }
    }
}
