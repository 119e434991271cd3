//! Flags of the response cache.

use super::settings::{CacheFlag, CacheSettings};
use super::value::{self, Refusal};
use super::{Flag, Group, Settings};

pub(super) const GROUP: Group =
    Group { title: "Response Cache", flags: &[CACHE_CONFIG, CACHE_DIRECTORY] };

const CACHE_CONFIG: Flag = Flag {
    name: "cache-config",
    argument: Some("string,string=string"),
    default: "",
    help: "A setting of the response cache, as CACHE,SETTING=VALUE. The cache is 'local', and its \
           setting 'size' says how many bytes of responses it keeps. Models use it if their \
           configuration says response_cache { enable: true }.",
    apply: |settings, value| {
        const SHAPE: &str = "<cache name>,<setting>=<value>";
        let (cache, setting) = value::pair(value, ',', SHAPE)?;
        let (key, value) = value::pair(setting, '=', SHAPE)?;
        if cache != "local" {
            return Err(Refusal::unsupported(format_args!("the response cache '{cache}'")));
        }
        if key != "size" {
            let text = format!("the local response cache has no setting '{key}', only 'size'");
            return Err(Refusal(text));
        }
        set(settings, CacheFlag::CacheConfig, value)
    },
};

const CACHE_DIRECTORY: Flag = Flag {
    name: "cache-directory",
    argument: Some("string"),
    default: "/opt/tritonserver/caches",
    help: "Where to find caches that are libraries. No effect: the local cache is built in.",
    apply: |settings, _| {
        settings.no_effect("cache-directory", "the local cache is built in");
        Ok(())
    },
};

pub(super) const RESPONSE_CACHE_BYTE_SIZE: Flag = Flag {
    name: "response-cache-byte-size",
    argument: Some("integer"),
    default: "",
    help: "The same as --cache-config=local,size=BYTES.",
    apply: |settings, value| {
        settings.note(format!(
            "'--response-cache-byte-size' has been deprecated: use '--cache-config=local,size={value}'"
        ));
        set(settings, CacheFlag::ResponseCacheByteSize, value)
    },
};

fn set(settings: &mut Settings, flag: CacheFlag, value: &str) -> Result<(), Refusal> {
    if settings.cache.is_some_and(|earlier| earlier.flag != flag) {
        return Err(Refusal(String::from(
            "incompatible flags --response-cache-byte-size and --cache-config both provided. \
             Please provide one or the other.",
        )));
    }
    let byte_size: usize = value::number(value)?;
    if byte_size == 0 {
        return Err(Refusal(String::from("a response cache has at least 1 byte. Got 0")));
    }
    settings.cache = Some(CacheSettings { flag, byte_size });
    Ok(())
}
