//! Flags for the response cache.

use serde_json::{Map, Value};

use super::flag::{Flag, no_default};
use super::settings::{CacheFlag, CacheSettings};
use super::value::{self, InvalidValue};
use super::{Group, Settings};
use crate::cache::LOCAL;

pub(super) const GROUP: Group = Group {
    title: "Response Cache",
    flags: &[&[
        Flag::other(
            "cache-config",
            "string,string=string",
            no_default,
            "A setting of the response cache, as CACHE,SETTING=VALUE; or all of them as \
             CACHE,{JSON}. The cache 'local' is built in, unless its library is in the cache \
             directory, and its setting 'size' says how many bytes of responses it keeps. Other \
             caches are libraries. Models use the cache if their configuration says \
             response_cache { enable: true }.",
            cache_config,
        ),
        Flag::directory(
            "cache-directory",
            "Where to find response caches that are libraries: that of cache NAME is \
             NAME/libtritoncache_NAME.so in this directory.",
            |settings| &mut settings.cache_directory,
        ),
    ]],
};

/// Adds a note that a unit after a size is ignored, as in Triton.
fn note_unread(settings: &mut Settings, value: &str) {
    let digits = value.bytes().take_while(u8::is_ascii_digit).count();
    let (count, rest) = value.split_at(digits);
    if digits > 0 && !rest.is_empty() {
        settings.add_remark(format!(
            "'--cache-config=local,size={value}' means {count} bytes: '{rest}' is not read, as sizes \
             have no unit"
        ));
    }
}

/// The errors for malformed values, in Triton's words, one of which has quotes.
fn malformed(value: &str) -> InvalidValue {
    const SHAPE: &str = "<cache name>,<setting>=<value>";
    let names_a_cache = value.find(',').is_some_and(|comma| comma > 0);
    InvalidValue(if names_a_cache {
        format!("--cache-config option format is '{SHAPE}'. Got {value}\n")
    } else {
        format!("No cache specified. --cache-config option format is {SHAPE}. Got {value}\n")
    })
}

/// The configuration of the cache that a flag names; initially empty.
fn config_of<'a>(
    settings: &'a mut Settings,
    flag: CacheFlag,
    name: &str,
) -> Result<&'a mut String, InvalidValue> {
    let cache = settings.cache.get_or_insert_with(|| CacheSettings {
        flag,
        name: name.to_owned(),
        config: String::from("{}"),
        names_others: false,
    });
    if cache.flag != flag {
        return Err(InvalidValue(String::from(
            "incompatible flags --response-cache-byte-size and --cache-config both provided. \
             Please provide one or the other.",
        )));
    }
    cache.names_others |= cache.name != name;
    Ok(&mut cache.config)
}

fn check_object(json: &str) -> Result<(), InvalidValue> {
    serde_json::from_str::<Map<String, Value>>(json)
        .map(drop)
        .map_err(|error| InvalidValue(format!("the cache's configuration is not JSON: {error}")))
}

/// Adds or replaces a setting in a configuration. Values are strings, as in Triton.
fn with_setting(config: &str, key: &str, value: &str) -> String {
    let mut settings: Map<String, Value> = serde_json::from_str(config).unwrap_or_default();
    settings.insert(key.to_owned(), Value::from(value));
    Value::from(settings).to_string()
}

pub(super) const FLAGS: &[Flag] = &[Flag::other(
    "response-cache-byte-size",
    "integer",
    no_default,
    "The same as --cache-config=local,size=BYTES.",
    response_cache_byte_size,
)];

fn cache_config(settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
    if let Some((cache, whole)) = value.split_once(',')
        && whole.starts_with('{')
        && !cache.is_empty()
    {
        check_object(whole)?;
        whole.clone_into(config_of(settings, CacheFlag::CacheConfig, cache)?);
        return Ok(());
    }
    let [cache, key, value] = value::setting(value).ok_or_else(|| malformed(value))?;
    let config = config_of(settings, CacheFlag::CacheConfig, cache)?;
    *config = with_setting(config, key, value);
    if cache == LOCAL && key == "size" {
        note_unread(settings, value);
    }
    Ok(())
}

fn response_cache_byte_size(settings: &mut Settings, value: &str) -> Result<(), InvalidValue> {
    settings.add_remark(format!(
        "'--response-cache-byte-size' has been deprecated: use '--cache-config=local,size={value}'"
    ));
    let _: u64 = value::number(value)?;
    let config = config_of(settings, CacheFlag::ResponseCacheByteSize, LOCAL)?;
    *config = with_setting(config, "size", value);
    Ok(())
}
