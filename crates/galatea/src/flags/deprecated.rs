//! Deprecated flags that other flags replace.

use super::Group;
use super::flag::Flag;

pub(super) const GROUP: Group = Group {
    title: "DEPRECATED",
    flags: &[
        &[Flag::decision(
            "strict-model-config",
            "True is the same as --disable-auto-complete-config.",
            |settings| Some(settings.strict_model_config.unwrap_or_default()),
            |settings, is_strict| {
                if is_strict {
                    settings.auto_complete_config = false;
                }
                settings.strict_model_config = Some(is_strict);
            },
        )],
        super::cache::FLAGS,
        super::tracing::FLAGS,
    ],
};
