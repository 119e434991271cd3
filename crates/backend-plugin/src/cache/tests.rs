//! The host with caches that are written here: one that works, and some that break their
//! contract.

use core::ffi::{CStr, c_char, c_void};
use std::collections::BTreeMap;
use std::sync::Mutex;

use galatea_abi::{
    TRITONCACHE_Allocator, TRITONCACHE_CacheEntry, TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU, TRITONSERVER_MemoryType,
};
use galatea_c_objects::buffer_attributes::BufferAttributesObject;
use galatea_c_objects::error::into_c;
use galatea_infer::OutputTensor;
use galatea_tensor::{Buffer, DataType, DeviceRegion, Shape};

use super::entry::{
    TRITONCACHE_CacheEntryAddBuffer, TRITONCACHE_CacheEntryBufferCount,
    TRITONCACHE_CacheEntryGetBuffer, TRITONCACHE_CacheEntrySetBuffer, TRITONCACHE_Copy,
};
use super::*;
use crate::testing::Folder;

/// What a cache of these tests does.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Manner {
    Good,
    DamagesWhatItKeeps,
    KeepsOneForAll,
    ForgetsToCopy,
    GivesTwoBuffers,
    GivesMemoryOfAGpu,
    GivesAnAbsurdSize,
    GivesTooLittleRoom,
    Fails,
}

/// More memory than there is. Miri ends the test where an allocation fails.
const ABSURD: usize = if cfg!(miri) { usize::MAX } else { usize::MAX / 2 - 1 };

struct Fake {
    manner: Manner,
    kept: Mutex<BTreeMap<String, Vec<u8>>>,
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

fn library(manner: Manner) -> CacheLibrary {
    let fake = Box::into_raw(Box::new(Fake { manner, kept: Mutex::default() }));
    CacheLibrary {
        name: String::from("fake"),
        entry_points: EntryPoints { initialize, finalize, lookup, insert },
        cache: fake.cast(),
        failed_lookups: AtomicU64::new(0),
        failed_insertions: AtomicU64::new(0),
    }
}

unsafe extern "C" fn initialize(_: *mut *mut TRITONCACHE_Cache, _: *const c_char) -> Error {
    core::ptr::null_mut()
}

unsafe extern "C" fn finalize(cache: *mut TRITONCACHE_Cache) -> Error {
    // SAFETY: `library` made the pointer this way.
    drop(unsafe { Box::from_raw(cache.cast::<Fake>()) });
    core::ptr::null_mut()
}

/// # Safety
///
/// The pointers must come from the host.
unsafe fn known<'a>(cache: *mut TRITONCACHE_Cache, key: *const c_char) -> (&'a Fake, String) {
    // SAFETY: the caller passes what the host passed.
    let (fake, key) = unsafe { (&*cache.cast::<Fake>(), CStr::from_ptr(key)) };
    let key = key.to_str().unwrap();
    assert_eq!(key.len(), 64);
    let key = if fake.manner == Manner::KeepsOneForAll { "the key" } else { key };
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
    // SAFETY: all addresses are the host's or this function's own.
    unsafe {
        let (fake, key) = known(cache, key);
        if fake.manner == Manner::Fails {
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
        assert!(take_c(refused).unwrap_err().message().contains("null"));
        let byte_size = wanted.get().unwrap().byte_size;
        let mut kept = vec![0; byte_size];
        let smaller = attributes(byte_size - 1, TRITONSERVER_MEMORY_CPU);
        let said = match fake.manner {
            Manner::GivesTooLittleRoom => smaller.address(),
            _ => core::ptr::null_mut(),
        };
        attempt!(TRITONCACHE_CacheEntrySetBuffer(entry, 0, kept.as_mut_ptr().cast(), said));
        attempt!(TRITONCACHE_Copy(allocator, entry));
        if fake.manner == Manner::DamagesWhatItKeeps {
            kept[byte_size / 2] ^= 1;
        }
        fake.kept.lock().unwrap().insert(key, kept);
    }
    core::ptr::null_mut()
}

unsafe extern "C" fn lookup(
    cache: *mut TRITONCACHE_Cache,
    key: *const c_char,
    entry: *mut TRITONCACHE_CacheEntry,
    allocator: *mut TRITONCACHE_Allocator,
) -> Error {
    // SAFETY: all addresses are the host's or this function's own.
    unsafe {
        let (fake, key) = known(cache, key);
        let all = fake.kept.lock().unwrap();
        let Some(kept) = all.get(&key) else {
            return match fake.manner {
                Manner::Fails => into_c(Status::unavailable("no connection")),
                _ => into_c(Status::not_found("nothing there")),
            };
        };
        let base = kept.as_ptr().cast_mut().cast();
        let (byte_size, memory_type) = match fake.manner {
            Manner::GivesMemoryOfAGpu => (kept.len(), TRITONSERVER_MEMORY_GPU),
            Manner::GivesAnAbsurdSize => (ABSURD, TRITONSERVER_MEMORY_CPU),
            _ => (kept.len(), TRITONSERVER_MEMORY_CPU),
        };
        let said = attributes(byte_size, memory_type);
        attempt!(TRITONCACHE_CacheEntryAddBuffer(entry, base, said.address()));
        if fake.manner == Manner::GivesTwoBuffers {
            attempt!(TRITONCACHE_CacheEntryAddBuffer(entry, base, said.address()));
        }
        if fake.manner == Manner::ForgetsToCopy {
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
        parameters: Vec::new(),
        outputs: vec![output],
    }
}

const KEY: CacheKey = CacheKey([0xab; 32]);

/// The data that a lookup finds after an insertion, and the numbers of failed lookups and
/// insertions.
fn tried(manner: Manner) -> (Option<Vec<u8>>, u64, u64) {
    let cache = library(manner);
    assert!(cache.lookup(&KEY).is_none());
    cache.failed_lookups.store(0, Ordering::Relaxed);
    cache.insert(&KEY, &response(Buffer::from_vec(vec![1, 2, 3])));
    let found = cache.lookup(&KEY);
    let data = found.map(|found| found.outputs[0].data.host().unwrap().to_vec());
    let failed = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    (data, failed(&cache.failed_lookups), failed(&cache.failed_insertions))
}

#[test]
fn what_was_inserted_is_found() {
    assert_eq!(tried(Manner::Good), (Some(vec![1, 2, 3]), 0, 0));
    let cache = library(Manner::Good);
    cache.insert(&KEY, &response(Buffer::from_vec(vec![4, 5, 6])));
    assert!(cache.lookup(&CacheKey([0; 32])).is_none());
    assert_eq!(cache.lookup(&KEY).unwrap().id, "");
    assert_eq!(cache.failed_lookups.load(Ordering::Relaxed), 0, "a miss is no failure");
}

#[test]
fn a_cache_that_fails_has_nothing() {
    for manner in [
        Manner::DamagesWhatItKeeps,
        Manner::ForgetsToCopy,
        Manner::GivesTwoBuffers,
        Manner::GivesMemoryOfAGpu,
        Manner::GivesAnAbsurdSize,
    ] {
        assert_eq!(tried(manner), (None, 1, 0), "{manner:?}");
    }
    assert_eq!(tried(Manner::GivesTooLittleRoom), (None, 0, 1));
    assert_eq!(tried(Manner::Fails), (None, 1, 1));
}

#[test]
fn another_keys_entry_is_no_answer() {
    let cache = library(Manner::KeepsOneForAll);
    cache.insert(&KEY, &response(Buffer::from_vec(vec![1, 2, 3])));
    assert!(cache.lookup(&CacheKey([0; 32])).is_none());
    assert!(cache.lookup(&KEY).is_some());
}

#[test]
fn what_lies_on_a_device_is_not_kept() {
    let cache = library(Manner::Good);
    let owner = std::sync::Arc::new(());
    let region = DeviceRegion { device: 0, address: 64, byte_size: 3, owner };
    cache.insert(&KEY, &response(Buffer::from_device(region)));
    assert!(cache.lookup(&KEY).is_none());
}

#[test]
fn objects_are_void_after_the_call() {
    let entry = Owned::new(EntryObject::default());
    let address = entry.address();
    drop(entry);
    let mut count = 0;
    // SAFETY: the address was an entry's.
    let status = unsafe { take_c(TRITONCACHE_CacheEntryBufferCount(address, &raw mut count)) };
    assert!(status.unwrap_err().message().contains("was released"));
}

#[test]
fn a_library_is_where_its_name_says() {
    let folder = Folder::new();
    assert_eq!(CacheLibrary::find(folder.path(), "a"), Ok(None));
    folder.file("a/libtritoncache_a.so");
    let expected = folder.path().join("a/libtritoncache_a.so");
    assert_eq!(CacheLibrary::find(folder.path(), "a"), Ok(Some(expected)));
    folder.directory("l");
    let link = folder.path().join("l/libtritoncache_l.so");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    assert_eq!(CacheLibrary::find(folder.path(), "l"), Ok(Some(link)));
    for name in ["..", "../a", "a/../a", "/a", ""] {
        assert!(CacheLibrary::find(folder.path(), name).is_err(), "{name}");
    }
    let Err(status) = CacheLibrary::open(folder.path(), "b", "{}") else { panic!("opened") };
    let expected = folder.path().join("b/libtritoncache_b.so");
    assert!(status.message().contains(&expected.display().to_string()), "{status}");
}
