//! Tests the cache host with fake caches: one that works, and several that violate their contract.

use core::ffi::{CStr, c_char, c_void};
use std::collections::BTreeMap;

use galatea_abi::{
    TRITONCACHE_Allocator, TRITONCACHE_CacheEntry, TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU, TRITONSERVER_MemoryType,
};
use galatea_c_objects::buffer_attributes::BufferAttributesObject;
use galatea_c_objects::error::into_c;
use galatea_infer::OutputTensor;
use galatea_stdx::Lock;
use galatea_tensor::{Buffer, DataType, DeviceRegion, Shape};

use super::entry::{
    TRITONCACHE_CacheEntryAddBuffer, TRITONCACHE_CacheEntryBufferCount,
    TRITONCACHE_CacheEntryGetBuffer, TRITONCACHE_CacheEntrySetBuffer, TRITONCACHE_Copy,
};
use super::*;
use crate::testing::Folder;

/// The behaviour of a fake cache.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum FakeBehaviour {
    Good,
    DamagesEntries,
    IgnoresKeys,
    ForgetsToCopy,
    AddsTwoBuffers,
    ReportsGpuMemory,
    ReportsAbsurdSize,
    ReportsTooSmallBuffer,
    Fails,
}

/// A size that exceeds all available memory. Miri ends the test if an allocation fails.
const ABSURD_SIZE: usize = if cfg!(miri) { usize::MAX } else { usize::MAX / 2 - 1 };

struct FakeCache {
    behaviour: FakeBehaviour,
    kept: Lock<BTreeMap<String, Vec<u8>>>,
}

type Error = *mut TRITONSERVER_Error;

macro_rules! attempt {
    ($call:expr) => {
        let error = $call;
        if !error.is_null() {
            return error;
        }
    };
}

fn library(behaviour: FakeBehaviour) -> PluginResponseCache {
    let fake = Box::into_raw(Box::new(FakeCache { behaviour, kept: Lock::default() }));
    PluginResponseCache {
        name: String::from("fake"),
        entry_points: CacheEntryPoints { initialize, finalize, lookup, insert },
        cache: fake.cast(),
        failed_lookups: AtomicU64::new(0),
        failed_insertions: AtomicU64::new(0),
    }
}

unsafe extern "C" fn initialize(_: *mut *mut TRITONCACHE_Cache, _: *const c_char) -> Error {
    core::ptr::null_mut()
}

unsafe extern "C" fn finalize(cache: *mut TRITONCACHE_Cache) -> Error {
    // SAFETY: `library` created the pointer this way.
    drop(unsafe { Box::from_raw(cache.cast::<FakeCache>()) });
    core::ptr::null_mut()
}

/// # Safety
///
/// The pointers must come from the host.
unsafe fn fake_and_key<'a>(
    cache: *mut TRITONCACHE_Cache,
    key: *const c_char,
) -> (&'a FakeCache, String) {
    // SAFETY: the caller passes the pointers that it received from the host.
    let (fake, key) = unsafe { (&*cache.cast::<FakeCache>(), CStr::from_ptr(key)) };
    let key = key.to_str().unwrap();
    assert_eq!(key.len(), 64);
    let key = if fake.behaviour == FakeBehaviour::IgnoresKeys { "the key" } else { key };
    (fake, key.to_owned())
}

fn attributes(
    byte_size: usize,
    memory_type: TRITONSERVER_MemoryType,
) -> Owned<BufferAttributesObject> {
    Owned::new(BufferAttributesObject { byte_size, memory_type, ..Default::default() })
}

unsafe extern "C" fn insert(
    cache: *mut TRITONCACHE_Cache,
    key: *const c_char,
    entry: *mut TRITONCACHE_CacheEntry,
    allocator: *mut TRITONCACHE_Allocator,
) -> Error {
    // SAFETY: all addresses belong to the host or to this function.
    unsafe {
        let (fake, key) = fake_and_key(cache, key);
        if fake.behaviour == FakeBehaviour::Fails {
            return into_c(Status::unavailable("no connection"));
        }
        let mut count = 0;
        attempt!(TRITONCACHE_CacheEntryBufferCount(entry, &raw mut count));
        assert_eq!(count, 1);
        let wanted = attributes(0, TRITONSERVER_MEMORY_CPU);
        let mut base = core::ptr::dangling_mut::<c_void>();
        attempt!(TRITONCACHE_CacheEntryGetBuffer(entry, 0, &raw mut base, wanted.address()));
        assert!(base.is_null());
        let refused = TRITONCACHE_Copy(allocator, entry);
        assert!(take_c_error(refused).unwrap_err().message().contains("null"));
        let byte_size = wanted.get().unwrap().byte_size;
        let mut kept = vec![0; byte_size];
        let smaller = attributes(byte_size - 1, TRITONSERVER_MEMORY_CPU);
        let reported = match fake.behaviour {
            FakeBehaviour::ReportsTooSmallBuffer => smaller.address(),
            _ => core::ptr::null_mut(),
        };
        attempt!(TRITONCACHE_CacheEntrySetBuffer(entry, 0, kept.as_mut_ptr().cast(), reported));
        attempt!(TRITONCACHE_Copy(allocator, entry));
        if fake.behaviour == FakeBehaviour::DamagesEntries {
            kept[byte_size / 2] ^= 1;
        }
        fake.kept.lock("insert").insert(key, kept);
    }
    core::ptr::null_mut()
}

unsafe extern "C" fn lookup(
    cache: *mut TRITONCACHE_Cache,
    key: *const c_char,
    entry: *mut TRITONCACHE_CacheEntry,
    allocator: *mut TRITONCACHE_Allocator,
) -> Error {
    // SAFETY: all addresses belong to the host or to this function.
    unsafe {
        let (fake, key) = fake_and_key(cache, key);
        let all = fake.kept.lock("look up");
        let Some(kept) = all.get(&key) else {
            return match fake.behaviour {
                FakeBehaviour::Fails => into_c(Status::unavailable("no connection")),
                _ => into_c(Status::not_found("nothing there")),
            };
        };
        let base = kept.as_ptr().cast_mut().cast();
        let (byte_size, memory_type) = match fake.behaviour {
            FakeBehaviour::ReportsGpuMemory => (kept.len(), TRITONSERVER_MEMORY_GPU),
            FakeBehaviour::ReportsAbsurdSize => (ABSURD_SIZE, TRITONSERVER_MEMORY_CPU),
            _ => (kept.len(), TRITONSERVER_MEMORY_CPU),
        };
        let reported = attributes(byte_size, memory_type);
        attempt!(TRITONCACHE_CacheEntryAddBuffer(entry, base, reported.address()));
        if fake.behaviour == FakeBehaviour::AddsTwoBuffers {
            attempt!(TRITONCACHE_CacheEntryAddBuffer(entry, base, reported.address()));
        }
        if fake.behaviour == FakeBehaviour::ForgetsToCopy {
            return core::ptr::null_mut();
        }
        TRITONCACHE_Copy(allocator, entry)
    }
}

fn response(data: Buffer) -> InferenceResponse {
    let output = OutputTensor {
        name: "X".into(),
        datatype: DataType::Int8,
        shape: Shape::new(&[3]).unwrap(),
        data,
    };
    InferenceResponse {
        model_name: "m".into(),
        model_version: 1,
        id: String::from("left out"),
        parameters: Default::default(),
        outputs: vec![output],
    }
}

const KEY: CacheKey = CacheKey([0xab; 32]);

/// Returns the data that a lookup finds after an insertion, and the numbers of failed lookups and
/// failed insertions.
fn round_trip(behaviour: FakeBehaviour) -> (Option<Vec<u8>>, u64, u64) {
    let cache = library(behaviour);
    assert!(cache.lookup(&KEY).is_none());
    cache.failed_lookups.store(0, Ordering::Relaxed);
    cache.insert(&KEY, &response(Buffer::from_vec(vec![1, 2, 3])));
    let found = cache.lookup(&KEY);
    let data = found.map(|found| found.outputs[0].data.host_bytes().unwrap().to_vec());
    let failed = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    (data, failed(&cache.failed_lookups), failed(&cache.failed_insertions))
}

#[test]
fn an_inserted_response_is_found() {
    assert_eq!(round_trip(FakeBehaviour::Good), (Some(vec![1, 2, 3]), 0, 0));
    let cache = library(FakeBehaviour::Good);
    cache.insert(&KEY, &response(Buffer::from_vec(vec![4, 5, 6])));
    assert!(cache.lookup(&CacheKey([0; 32])).is_none());
    assert_eq!(cache.lookup(&KEY).unwrap().id, "");
    assert_eq!(cache.failed_lookups.load(Ordering::Relaxed), 0, "a miss is no failure");
}

#[test]
fn a_failing_cache_has_no_responses() {
    for behaviour in [
        FakeBehaviour::DamagesEntries,
        FakeBehaviour::ForgetsToCopy,
        FakeBehaviour::AddsTwoBuffers,
        FakeBehaviour::ReportsGpuMemory,
        FakeBehaviour::ReportsAbsurdSize,
    ] {
        assert_eq!(round_trip(behaviour), (None, 1, 0), "{behaviour:?}");
    }
    assert_eq!(round_trip(FakeBehaviour::ReportsTooSmallBuffer), (None, 0, 1));
    assert_eq!(round_trip(FakeBehaviour::Fails), (None, 1, 1));
}

#[test]
fn an_entry_of_another_key_is_a_miss() {
    let cache = library(FakeBehaviour::IgnoresKeys);
    cache.insert(&KEY, &response(Buffer::from_vec(vec![1, 2, 3])));
    assert!(cache.lookup(&CacheKey([0; 32])).is_none());
    assert!(cache.lookup(&KEY).is_some());
}

#[test]
fn a_response_in_device_memory_is_not_cached() {
    let cache = library(FakeBehaviour::Good);
    let owner = std::sync::Arc::new(());
    let region = DeviceRegion { device: 0, address: 64, byte_size: 3, owner };
    cache.insert(&KEY, &response(Buffer::from_device(region)));
    assert!(cache.lookup(&KEY).is_none());
}

#[test]
fn objects_are_invalid_after_the_call() {
    let entry = Owned::new(CacheEntryObject::default());
    let address = entry.address();
    drop(entry);
    let mut count = 0;
    // SAFETY: the address belonged to an entry.
    let status =
        unsafe { take_c_error(TRITONCACHE_CacheEntryBufferCount(address, &raw mut count)) };
    assert!(status.unwrap_err().message().contains("was released"));
}

#[test]
fn a_library_is_found_by_its_name() {
    let folder = Folder::new();
    assert_eq!(PluginResponseCache::find_library(folder.path(), "a"), Ok(None));
    folder.file("a/libtritoncache_a.so");
    let expected = folder.path().join("a/libtritoncache_a.so");
    assert_eq!(PluginResponseCache::find_library(folder.path(), "a"), Ok(Some(expected)));
    folder.directory("l");
    let link = folder.path().join("l/libtritoncache_l.so");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    assert_eq!(PluginResponseCache::find_library(folder.path(), "l"), Ok(Some(link)));
    for name in ["..", "../a", "a/../a", "/a", ""] {
        assert!(PluginResponseCache::find_library(folder.path(), name).is_err(), "{name}");
    }
    let Err(status) = PluginResponseCache::open(folder.path(), "b", "{}") else { panic!("opened") };
    let expected = folder.path().join("b/libtritoncache_b.so");
    assert!(status.message().contains(&expected.display().to_string()), "{status}");
}
