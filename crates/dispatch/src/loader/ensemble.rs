//! Loading steps that only ensembles need.

use galatea_backend::LogLevel;
use galatea_config::{ComposingModel, ModelSpec, validate_ensemble};
use galatea_infer::Status;
use galatea_policy::model_id;

use super::{ModelDefinition, VersionLoader};
use crate::cache::VersionFingerprint;
use crate::version::ComposingVersions;

impl VersionLoader {
    /// Checks that the models in an ensemble's steps fit together, before the ensemble has a
    /// version. `composing` contains the versions that the ensemble would execute.
    ///
    /// # Errors
    ///
    /// The first mismatch, in Triton's words. Other configuration errors are reported when a
    /// version is loaded.
    pub fn check_ensemble(
        &self,
        definition: &ModelDefinition,
        composing: &dyn ComposingVersions,
    ) -> Result<(), Status> {
        let Ok(mut spec) = definition.draft.clone().into_validated_spec(&definition.support) else {
            return Ok(());
        };
        self.validate(definition, &format!("'{}'", definition.id()), composing, &mut spec)
    }

    /// Checks an ensemble's specification, and adds the settings that follow from its models.
    pub(super) fn complete_ensemble(
        &self,
        definition: &ModelDefinition,
        version: &str,
        composing: &dyn ComposingVersions,
        spec: &mut ModelSpec,
    ) -> Result<(), Status> {
        let was_cached = spec.response_cache;
        self.validate(definition, version, composing, spec)?;
        if was_cached && !spec.response_cache {
            let line = format_args!(
                "{version}: the response cache is not used, because the ensemble is decoupled"
            );
            self.log.write(LogLevel::Warning, line);
        }
        spec.set_composing_namespaces(|name| {
            composing.version(name, None)?.namespace().map(str::to_owned)
        });
        Ok(())
    }

    /// Validates the ensemble; `what` names the subject in the log.
    fn validate(
        &self,
        definition: &ModelDefinition,
        what: &str,
        composing: &dyn ComposingVersions,
        spec: &mut ModelSpec,
    ) -> Result<(), Status> {
        validate_ensemble(&definition.id(), spec, |name| composing_model(composing, name))
            .map_err(|errors| self.refused(what, &definition.draft.add_error_positions(errors)))
    }
}

/// Returns the newest version of a step's model.
fn composing_model(composing: &dyn ComposingVersions, name: &str) -> Option<ComposingModel> {
    let version = composing.version(name, None)?;
    let id = model_id(version.namespace(), name).to_string();
    Some(ComposingModel { id, spec: version.spec().clone() })
}

/// The fingerprints of composing versions, in their order.
pub(super) fn fingerprints_of(
    composing: Option<&dyn ComposingVersions>,
) -> Vec<Option<VersionFingerprint>> {
    let versions = composing.map(|composing| composing.versions()).unwrap_or_default();
    versions.into_iter().map(|version| version.fingerprint).collect()
}
