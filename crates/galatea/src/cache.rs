//! The response cache that the settings specify.

use std::sync::Arc;

use galatea_backend::ResponseCache;
use galatea_backend_plugin::PluginResponseCache;
use galatea_dispatch::LocalCache;
use galatea_infer::Status;
use serde_json::{Map, Value};

use crate::flags::Settings;

/// The name of the built-in cache.
pub(crate) const LOCAL: &str = "local";
const SIZE: &str = "size";

/// Creates the cache, if one is requested. A library takes precedence over the built-in cache.
///
/// # Errors
///
/// Returns an error if the cache's configuration is invalid or its library fails.
pub(crate) fn make(settings: &Settings) -> Result<Option<Arc<dyn ResponseCache>>, Status> {
    let Some(chosen) = &settings.cache else { return Ok(None) };
    if chosen.names_others {
        return Err(Status::invalid_argument(
            "found multiple cache configurations, but only a single cache is currently supported",
        ));
    }
    let directory = &settings.cache_directory;
    if chosen.name == LOCAL && PluginResponseCache::find_library(directory, LOCAL)?.is_none() {
        let byte_size = local_byte_size(&chosen.config)?;
        return Ok(Some(Arc::new(LocalCache::new(byte_size))));
    }
    Ok(Some(Arc::new(PluginResponseCache::open(directory, &chosen.name, &chosen.config)?)))
}

/// The size in the local cache's configuration: a string or a number. As in Triton, anything after
/// the digits of a string is ignored, and so are other settings.
fn local_byte_size(config: &str) -> Result<usize, Status> {
    let failed = |reason: &str| format!("Failed to initialize LocalCache: {reason}");
    // As in Triton, a value that isn't an object has no size.
    let settings: Map<String, Value> = serde_json::from_str(config).unwrap_or_default();
    let value = settings.get(SIZE).ok_or_else(|| {
        Status::invalid_argument(failed("config didn't contain a valid 'size' field."))
    })?;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let text = text.trim_ascii_start();
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = digits.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    let byte_size: u64 = digits[..end].parse().map_err(|_| Status::internal(failed("stoull")))?;
    // Triton treats a negative number as a very large one.
    let byte_size = usize::try_from(byte_size)
        .ok()
        .filter(|size| !is_negative && isize::try_from(*size).is_ok());
    match byte_size {
        Some(0) => Err(Status::internal(failed(
            "Could not initialize buffer in basic_managed_external_buffer constructor",
        ))),
        Some(byte_size) => Ok(byte_size),
        None => Err(Status::internal(failed("failed to allocate buffer"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_cache_needs_a_size() {
        for config in
            [r#"{"size":"7"}"#, r#"{"size": 7}"#, r#"{"size":"7x"}"#, r#"{"size":"7","hosts":"1"}"#]
        {
            assert_eq!(local_byte_size(config).map_err(|status| status.to_string()), Ok(7));
        }
        for (config, reason) in [
            ("{}", "config didn't contain a valid 'size' field."),
            ("[7]", "config didn't contain a valid 'size' field."),
            (r#"{"size":"0"}"#, "Could not initialize buffer"),
            (r#"{"size":"-1"}"#, "failed to allocate buffer"),
            (r#"{"size":"x"}"#, "stoull"),
            (r#"{"size":"99999999999999999999"}"#, "stoull"),
        ] {
            let error = local_byte_size(config).unwrap_err().to_string();
            assert!(error.starts_with("Failed to initialize LocalCache: "), "{error}");
            assert!(error.contains(reason), "{error}");
        }
    }
}
