//! The response cache that the settings ask for.

use std::sync::Arc;

use galatea_backend::ResponseCache;
use galatea_backend_plugin::CacheLibrary;
use galatea_dispatch::LocalCache;
use galatea_infer::Status;
use serde_json::{Map, Value};

use crate::flags::Settings;

/// The cache that is built in.
pub(crate) const LOCAL: &str = "local";
const SIZE: &str = "size";

/// Makes the cache, if one is asked for. A library wins over the cache that is built in.
///
/// # Errors
///
/// What is wrong with its configuration or its library.
pub(crate) fn make(settings: &Settings) -> Result<Option<Arc<dyn ResponseCache>>, Status> {
    let Some(chosen) = &settings.cache else { return Ok(None) };
    let directory = &settings.cache_directory;
    if chosen.name == LOCAL && CacheLibrary::find(directory, LOCAL)?.is_none() {
        let byte_size = local_byte_size(&chosen.config).map_err(|reason| {
            Status::invalid_argument(format!("the local response cache {reason}"))
        })?;
        return Ok(Some(Arc::new(LocalCache::new(byte_size))));
    }
    Ok(Some(Arc::new(CacheLibrary::open(directory, &chosen.name, &chosen.config)?)))
}

/// The size in the local cache's configuration: a text or a number.
fn local_byte_size(config: &str) -> Result<usize, String> {
    let settings: Map<String, Value> = serde_json::from_str(config)
        .map_err(|error| format!("has a bad configuration: {error}"))?;
    if let Some(other) = settings.keys().find(|key| *key != SIZE) {
        return Err(format!("has no setting '{other}', only '{SIZE}'"));
    }
    let value = settings.get(SIZE).ok_or_else(|| format!("needs its setting '{SIZE}'"))?;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match text.parse() {
        Ok(0) => Err(String::from("has at least 1 byte. Got 0")),
        Ok(byte_size) => Ok(byte_size),
        Err(_) => Err(format!("has a number of bytes as its '{SIZE}'. Got {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_cache_needs_a_size() {
        for config in [r#"{"size":"7"}"#, r#"{"size": 7}"#] {
            assert_eq!(local_byte_size(config), Ok(7));
        }
        for (config, reason) in [
            ("{}", "needs its setting 'size'"),
            (r#"{"size":"0"}"#, "at least 1 byte"),
            (r#"{"size":"-1"}"#, "Got -1"),
            (r#"{"size":[]}"#, "Got []"),
            (r#"{"size":"7","hosts":"1"}"#, "no setting 'hosts', only 'size'"),
        ] {
            let error = local_byte_size(config).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
