//! Checks the name, backend, platform, model file and version policy.

use galatea_protocol::inference::ModelConfig;
use galatea_protocol::inference::model_version_policy::PolicyChoice;

use crate::identity::{backend_has_platforms, backend_of_platform, is_ensemble};
use galatea_config_message::{Diagnostic, Diagnostics, bounded};

pub(super) fn check(config: &ModelConfig, diagnostics: &mut Diagnostics) {
    if config.name.is_empty() {
        let text = "model configuration must specify 'name'";
        diagnostics.push(|| Diagnostic::at_poll("name", text));
    } else if !is_model_name(&config.name) {
        let shown = config.name.escape_debug();
        let text = bounded!("'{shown}' can not be the name of a model");
        diagnostics.push(|| Diagnostic {
            expected: Some("a name without slashes and control characters".into()),
            ..Diagnostic::about("name", text)
        });
    }
    check_backend(config, diagnostics);
    check_versions(config, diagnostics);
    check_metric_tags(config, diagnostics);
}

/// Returns true for a valid model name, which is also a directory name and appears in log lines.
fn is_model_name(name: &str) -> bool {
    name != "." && name != ".." && !name.contains('/') && !name.chars().any(char::is_control)
}

/// Returns true for a plain name: a backend's name also becomes part of library names.
fn is_plain_name(name: &str) -> bool {
    is_model_name(name) && !name.contains('\\')
}

/// Returns true if a path is relative and never leaves its directory; it may be empty.
pub(super) fn is_path_beneath(path: &str) -> bool {
    let parts = |part: &str| part != "..";
    !path.starts_with('/') && !path.chars().any(char::is_control) && path.split('/').all(parts)
}

fn check_backend(config: &ModelConfig, diagnostics: &mut Diagnostics) {
    let name = &config.name;
    let platform = &config.platform;
    if config.backend.is_empty() {
        if !is_ensemble(platform) {
            let shown = platform.escape_debug();
            let text = if platform.is_empty() {
                bounded!("must specify 'platform' or 'backend' for '{name}'")
            } else {
                bounded!("unexpected platform type '{shown}' for {name}")
            };
            diagnostics.push(|| Diagnostic {
                expected: Some("a 'backend', or a 'platform' that implies one".into()),
                ..Diagnostic::at_poll("platform", text)
            });
        }
        return;
    }
    if !is_plain_name(&config.backend) {
        let shown = config.backend.escape_debug();
        let text = bounded!("'{shown}' can not be the name of a backend");
        diagnostics.push(|| Diagnostic::about("backend", text));
    } else if is_ensemble(platform) {
        let text = bounded!(
            "Ensemble model '{name}' must have platform type '{platform}' and empty backend type"
        );
        diagnostics.push(|| Diagnostic::at_poll("backend", text));
    } else if backend_has_platforms(&config.backend)
        && backend_of_platform(platform) != Some(config.backend.as_str())
    {
        let shown = platform.escape_debug();
        let text =
            bounded!("unexpected 'platform' and 'backend' pair, got:{shown}, {}", config.backend);
        diagnostics.push(|| Diagnostic::at_poll("platform", text));
    }
}

/// Checks the tags, which become metric labels: an invalid label makes the whole metrics page
/// invalid.
fn check_metric_tags(config: &ModelConfig, diagnostics: &mut Diagnostics) {
    let is_label = |key: &str| {
        !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    for key in config.metric_tags.keys().filter(|key| !is_label(key)) {
        let text = bounded!("'{}' can not be the label of a metric", key.escape_debug());
        diagnostics.push(|| Diagnostic {
            expected: Some("a key of letters, digits and underscores".into()),
            ..Diagnostic::about("metric_tags", text)
        });
    }
}

fn check_versions(config: &ModelConfig, diagnostics: &mut Diagnostics) {
    let choice = config.version_policy.as_ref().and_then(|policy| policy.policy_choice.as_ref());
    match choice {
        Some(PolicyChoice::Specific(specific)) => {
            for (index, version) in specific.versions.iter().enumerate() {
                if *version < 0 {
                    let text = bounded!("there is no version {version} of {}", config.name);
                    let path = bounded!("version_policy.specific.versions[{index}]");
                    diagnostics.push(|| Diagnostic::new_tolerated(path, text));
                }
            }
        }
        Some(PolicyChoice::Latest(_) | PolicyChoice::All(_)) | None => {}
    }
}
