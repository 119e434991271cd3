//! Flags that others replace.

use super::value;
use super::{Flag, Group};

pub(super) const GROUP: Group = Group {
    title: "DEPRECATED",
    flags: &[
        STRICT_MODEL_CONFIG,
        super::cache::RESPONSE_CACHE_BYTE_SIZE,
        super::tracing::TRACE_FILE,
        super::tracing::TRACE_LEVEL,
        super::tracing::TRACE_RATE,
        super::tracing::TRACE_COUNT,
        super::tracing::TRACE_LOG_FREQUENCY,
    ],
};

const STRICT_MODEL_CONFIG: Flag = Flag {
    name: "strict-model-config",
    argument: Some("boolean"),
    default: "false",
    help: "True is the same as --disable-auto-complete-config.",
    apply: |settings, value| {
        let is_strict = value::boolean(value)?;
        if is_strict {
            settings.auto_complete_config = false;
        }
        settings.strict_model_config = Some(is_strict);
        Ok(())
    },
};
