//! Checks a model's metrics, even if histograms are not recorded.

use galatea_protocol::inference::ModelConfig;
use galatea_protocol::inference::model_metrics::metric_control::MetricOptions;

use galatea_config_message::{Diagnostic, Diagnostics, bounded};

pub(super) fn check(config: &ModelConfig, diagnostics: &mut Diagnostics) {
    let controls = config.model_metrics.iter().flat_map(|metrics| &metrics.metric_control);
    for (index, control) in controls.enumerate() {
        let path = bounded!("model_metrics.metric_control[{index}]");
        let family = control.metric_identifier.as_ref().map(|identifier| &identifier.family);
        let (path, text) = match (family, &control.metric_options) {
            (None, _) => (path, "metric control must specify 'metric_identifier'"),
            (Some(family), _) if family.is_empty() => (
                bounded!("{path}.metric_identifier.family"),
                "metric identifier must specify non-empty 'family'",
            ),
            (Some(_), None) => (path, "metric control must specify 'histogram_options'"),
            (Some(_), Some(MetricOptions::HistogramOptions(options))) => {
                if !options.buckets.is_empty() {
                    continue;
                }
                (
                    bounded!("{path}.histogram_options.buckets"),
                    "histogram options must specify non-empty 'buckets'",
                )
            }
        };
        diagnostics.push(|| Diagnostic::about(path, text));
    }
}

#[cfg(test)]
mod tests {
    use crate::SupportedFeatures;
    use crate::testing::read_config;

    #[track_caller]
    fn check(control: &str, expected: Option<&str>) {
        let text =
            format!("backend: 'identity' model_metrics {{ metric_control {{ {control} }} }}");
        let mut draft = read_config("f", &text).unwrap();
        draft.resolve_name_and_backend("m", &[]).unwrap();
        let error = draft
            .into_validated_spec(&SupportedFeatures::default())
            .err()
            .map(|errors| errors.to_string());
        match (&error, expected) {
            (None, None) => {}
            (Some(error), Some(expected)) if error.ends_with(expected) => {}
            _ => panic!("{control}: {error:?}"),
        }
    }

    #[test]
    fn controls_of_metrics_have_a_family_and_buckets() {
        check("", Some("metric control must specify 'metric_identifier'"));
        check("metric_identifier { }", Some("metric identifier must specify non-empty 'family'"));
        let family = "metric_identifier { family: 'x' }";
        check(family, Some("metric control must specify 'histogram_options'"));
        check(
            &format!("{family} histogram_options {{ }}"),
            Some("histogram options must specify non-empty 'buckets'"),
        );
        check(&format!("{family} histogram_options {{ buckets: [ 3, -1, 3 ] }}"), None);
    }
}
