//! Tests that use real system objects.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use galatea_control::{CudaShmRegion, ShmControl, ShmKind, SystemShmRegion};
use galatea_infer::{AccessPass, Code, Status};
use galatea_tensor::{Buffer, ForeignRegion};
use rustix::fd::OwnedFd;
use rustix::fs::Mode;
use rustix::shm::OFlags;

use crate::registry::{REGION_NAME_BYTES_MAX, REGIONS_MAX};
use crate::{ProcessSharedMemory, ShmRegistry};

const PAGE: u64 = 4096;

/// A shared memory object as a client creates it. Dropping the value unlinks the object.
struct Object {
    key: String,
    file: OwnedFd,
}

impl Object {
    fn new(length: u64) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let key = format!("/galatea_shm_test_{}_{number}", std::process::id());
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
        let file = rustix::shm::open(&key, flags, Mode::RUSR | Mode::WUSR).unwrap();
        let object = Self { key, file };
        object.resize(length);
        object
    }

    fn resize(&self, length: u64) {
        rustix::fs::ftruncate(&self.file, length).unwrap();
    }

    fn put(&self, offset: u64, bytes: &[u8]) {
        assert_eq!(rustix::io::pwrite(&self.file, bytes, offset), Ok(bytes.len()));
    }

    fn get(&self, offset: u64, byte_size: usize) -> Vec<u8> {
        let mut bytes = vec![0; byte_size];
        assert_eq!(rustix::io::pread(&self.file, &mut bytes, offset), Ok(byte_size));
        bytes
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let _ = rustix::shm::unlink(&self.key);
    }
}

fn register(
    regions: &ShmRegistry,
    name: &str,
    key: &str,
    offset: u64,
    byte_size: u64,
) -> Result<(), Status> {
    let (name, key) = (name.to_owned(), key.to_owned());
    regions.register(AccessPass::in_process(), SystemShmRegion { name, key, offset, byte_size })
}

fn find(regions: &ShmRegistry, name: &str, offset: u64, byte_size: u64) -> ForeignRegion {
    regions.find(AccessPass::in_process(), name, offset, byte_size).unwrap()
}

fn names(regions: &ShmRegistry) -> Vec<String> {
    let all = regions.status(AccessPass::in_process(), "").unwrap();
    all.into_iter().map(|region| region.name).collect()
}

fn unregister(regions: &ShmRegistry, name: &str) {
    regions.unregister(AccessPass::in_process(), ShmKind::System, name).unwrap();
}

#[track_caller]
fn check_refused<T>(result: Result<T, Status>, code: Code, text: &str) {
    let status = result.err().unwrap();
    assert_eq!((status.code(), status.message()), (code, text));
}

#[test]
fn content_goes_in_and_out() {
    let object = Object::new(3 * PAGE);
    let regions = ShmRegistry::default();
    register(&regions, "r", &object.key, PAGE, 2 * PAGE).unwrap();
    object.put(PAGE + 5, b"abc");
    let part = find(&regions, "r", 5, 3);
    assert_eq!(part.copy().unwrap().host_bytes().unwrap()[..], *b"abc");
    find(&regions, "r", PAGE, 4).write(&Buffer::from_vec(b"defg".to_vec())).unwrap();
    assert_eq!(object.get(2 * PAGE, 4), b"defg");
    // Copies between regions and within a region.
    let other = Object::new(PAGE);
    register(&regions, "other", &other.key, 0, PAGE).unwrap();
    find(&regions, "other", 7, 3).write(&Buffer::from_foreign(part.clone())).unwrap();
    assert_eq!(other.get(7, 3), b"abc");
    find(&regions, "r", 100, 3).write(&Buffer::from_foreign(part)).unwrap();
    assert_eq!(object.get(PAGE + 100, 3), b"abc");
    // An empty copy succeeds.
    assert!(find(&regions, "r", 0, 0).copy().unwrap().is_empty());
}

#[test]
fn a_shortened_object_fails_its_own_requests() {
    let (object, other) = (Object::new(64 * PAGE), Object::new(64 * PAGE));
    let regions = ShmRegistry::default();
    register(&regions, "r", &object.key, 0, 64 * PAGE).unwrap();
    register(&regions, "other", &other.key, 0, 64 * PAGE).unwrap();
    object.resize(PAGE);
    let (whole, sound) = (find(&regions, "r", 0, 64 * PAGE), find(&regions, "other", 0, 64 * PAGE));
    let lost = "shared memory region 'r' is not as large any more as it was when it was registered";
    assert_eq!(whole.copy().unwrap_err().to_string(), lost);
    let zeros = Buffer::from_vec(vec![0; 64 * 4096]);
    assert_eq!(whole.write(&zeros).unwrap_err().to_string(), lost);
    assert!(find(&regions, "r", 0, PAGE).copy().is_ok());
    sound.write(&zeros).unwrap();
    for (to, from) in [(&whole, &sound), (&sound, &whole)] {
        let text = to.write(&Buffer::from_foreign(from.clone())).unwrap_err().to_string();
        assert!(text.contains("'r'") && text.contains("'other'"), "{text}");
    }
    // Memory that was removed can be restored.
    object.resize(64 * PAGE);
    assert!(whole.copy().is_ok());
}

#[test]
fn shortening_meanwhile_harms_no_other_region() {
    let (object, other) = (Object::new(16 * PAGE), Object::new(16 * PAGE));
    let regions = Arc::new(ShmRegistry::default());
    register(&regions, "r", &object.key, 0, 16 * PAGE).unwrap();
    register(&regions, "other", &other.key, 0, 16 * PAGE).unwrap();
    other.put(0, &[9; 16 * 4096]);
    let is_over = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = ["r", "other"]
        .map(|name| {
            let (regions, is_over) = (regions.clone(), is_over.clone());
            std::thread::spawn(move || {
                let region = find(&regions, name, 0, 16 * PAGE);
                let (mut good, mut bad) = (0, 0);
                while !is_over.load(Ordering::Relaxed) || good + bad == 0 {
                    match region.copy() {
                        Ok(copy) => {
                            let first = copy.host_bytes().unwrap()[0];
                            assert!(name == "r" || first == 9);
                            good += 1;
                        }
                        Err(_) => bad += 1,
                    }
                }
                (good, bad)
            })
        })
        .into();
    for round in 0..2000 {
        object.resize((round % 17) * PAGE);
    }
    object.resize(0);
    assert!(find(&regions, "r", 0, 16 * PAGE).copy().is_err());
    is_over.store(true, Ordering::Relaxed);
    let counts: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
    assert_eq!(counts[1].1, 0, "{counts:?}");
}

#[test]
fn an_unregistered_region_stays_until_its_requests_have_ended() {
    let (first, second) = (Object::new(PAGE), Object::new(PAGE));
    let regions = ShmRegistry::default();
    register(&regions, "r", &first.key, 0, PAGE).unwrap();
    let used = find(&regions, "r", 0, 1);
    unregister(&regions, "r");
    assert_eq!(names(&regions), ["r"]);
    let twice = "shared memory region 'r' already in manager";
    let again = || register(&regions, "r", &second.key, 0, PAGE);
    check_refused(again(), Code::AlreadyExists, twice);
    // A request that arrives in the meantime may also use the region and keeps it alive.
    let later = find(&regions, "r", 1, 1);
    used.write(&Buffer::from_vec(vec![1])).unwrap();
    drop(used);
    unregister(&regions, "");
    assert_eq!(names(&regions), ["r"]);
    drop(later);
    let gone = "Unable to find shared memory region: 'r'";
    check_refused(regions.find(AccessPass::in_process(), "r", 0, 1), Code::NotFound, gone);
    assert_eq!(names(&regions), [""; 0]);
    again().unwrap();
    find(&regions, "r", 0, 1).write(&Buffer::from_vec(vec![2])).unwrap();
    assert_eq!((first.get(0, 1), second.get(0, 1)), (vec![1], vec![2]));
    // An unknown name isn't an error.
    unregister(&regions, "x");
    assert_eq!(names(&regions), ["r"]);
    unregister(&regions, "");
    assert_eq!(names(&regions), [""; 0]);
}

#[test]
fn regions_are_listed_by_name() {
    let object = Object::new(PAGE);
    let regions = ShmRegistry::default();
    for name in ["b", "a", "c"] {
        register(&regions, name, &object.key, 0, 8).unwrap();
    }
    assert_eq!(names(&regions), ["a", "b", "c"]);
    let status = |name| regions.status(AccessPass::in_process(), name);
    let cuda = |name| regions.cuda_status(AccessPass::in_process(), name);
    let (name, key) = (String::from("b"), object.key.clone());
    let expected = SystemShmRegion { name, key, offset: 0, byte_size: 8 };
    assert_eq!(status("b").unwrap(), [expected]);
    assert_eq!(cuda("").unwrap(), []);
    let missing = "Unable to find system shared memory region: 'x'";
    check_refused(status("x"), Code::NotFound, missing);
    let missing = "Unable to find cuda shared memory region: 'x'";
    check_refused(cuda("x"), Code::NotFound, missing);
    let other =
        "The region named 'b' is registered as system shared memory, not CUDA shared memory";
    check_refused(cuda("b"), Code::NotFound, other);
    // The other kind has no region to unregister.
    regions.unregister(AccessPass::in_process(), ShmKind::Cuda, "b").unwrap();
    regions.unregister(AccessPass::in_process(), ShmKind::Cuda, "").unwrap();
    assert_eq!(names(&regions), ["a", "b", "c"]);
}

#[test]
fn wrong_registrations_are_refused() {
    use Code::{AlreadyExists, Internal, InvalidArgument};
    let object = Object::new(PAGE);
    let key = object.key.as_str();
    let regions = ShmRegistry::default();
    register(&regions, "r", key, 0, 8).unwrap();
    let check = |key: &str, offset, byte_size, code, text: &str| {
        check_refused(register(&regions, "x", key, offset, byte_size), code, text);
    };
    let twice = "shared memory region 'r' already in manager";
    check_refused(register(&regions, "r", key, 0, 8), AlreadyExists, twice);
    // Without GPUs, no handle is valid.
    for (name, code, text) in [
        ("r", AlreadyExists, twice),
        ("x", InvalidArgument, "failed to register shared memory region: invalid args"),
    ] {
        for handle in [&[][..], &[0; 64]] {
            let region = CudaShmRegion { name: name.into(), device_id: 0, byte_size: 8 };
            let refused = regions.register_cuda(AccessPass::in_process(), region, handle);
            check_refused(refused, code, text);
        }
    }
    let size = "failed to register shared memory region 'x': invalid args";
    check(key, 0, PAGE + 1, InvalidArgument, size);
    check(key, 1, PAGE, InvalidArgument, size);
    check(key, u64::MAX, 1, InvalidArgument, size);
    check(key, u64::MAX, u64::MAX, InvalidArgument, size);
    let map = "failed to register shared memory region 'x': unable to process address \
               spaceInvalid argument";
    check(key, 0, 0, InvalidArgument, map);
    check(key, 8, 8, InvalidArgument, map);
    for missing in ["nope", "/nope", "/a/b", "..", ".", "/../dev/shm/x", "a\0b", &"k".repeat(300)] {
        let text = format!("Unable to open shared memory region: '{missing}'");
        check(missing, 0, 8, Internal, &text);
    }
    for slashes in ["", "/", "///"] {
        let text =
            format!("cannot register shared memory region 'x' - invalid shm key '{slashes}'");
        check(slashes, 0, 8, InvalidArgument, &text);
    }
    let prefix = "triton_python_backend_shm_region_";
    for key in [format!("{prefix}1"), format!("///{prefix}"), format!("/{prefix}x/y")] {
        let text = format!(
            "cannot register shared memory region 'x' with key '{key}' as the key contains the \
             reserved prefix '{prefix}'"
        );
        check(&key, 0, 8, InvalidArgument, &text);
    }
    let long = "n".repeat(REGION_NAME_BYTES_MAX + 1);
    let text = "the name of a shared memory region has 4097 bytes, more than the allowed 4096";
    check_refused(register(&regions, &long, key, 0, 8), InvalidArgument, text);
    assert_eq!(names(&regions), ["r"]);
}

#[test]
fn links_and_directories_are_no_objects() {
    let object = Object::new(PAGE);
    let path = |key: &str| format!("/dev/shm{key}");
    let link = format!("{}_link", object.key);
    std::os::unix::fs::symlink(path(&object.key), path(&link)).unwrap();
    let directory = format!("{}_directory", object.key);
    std::fs::create_dir(path(&directory)).unwrap();
    let regions = ShmRegistry::default();
    let pipe = format!("{}_pipe", object.key);
    rustix::fs::mkfifoat(rustix::fs::CWD, path(&pipe), Mode::RUSR | Mode::WUSR).unwrap();
    let text = format!("Invalid shared memory region: '{pipe}'");
    check_refused(register(&regions, "x", &pipe, 0, 8), Code::Internal, &text);
    std::fs::remove_file(path(&pipe)).unwrap();
    for key in [&link, &directory] {
        let text = format!("Unable to open shared memory region: '{key}'");
        check_refused(register(&regions, "x", key, 0, 8), Code::Internal, &text);
    }
    std::fs::remove_file(path(&link)).unwrap();
    std::fs::remove_dir(path(&directory)).unwrap();
}

#[test]
fn parts_beyond_a_region_are_refused() {
    let object = Object::new(PAGE);
    let regions = ShmRegistry::default();
    register(&regions, "r", &object.key, 0, 16).unwrap();
    let check = |name, offset, byte_size, code, text: &str| {
        let found = regions.find(AccessPass::in_process(), name, offset, byte_size);
        check_refused(found, code, text);
    };
    check("x", 0, 1, Code::NotFound, "Unable to find shared memory region: 'x'");
    let offset = "Invalid offset for shared memory region: 'r'";
    check("r", 16, 0, Code::InvalidArgument, offset);
    check("r", u64::MAX, u64::MAX, Code::InvalidArgument, offset);
    let end = "Invalid offset + byte size for shared memory region: 'r'";
    check("r", 0, 17, Code::InvalidArgument, end);
    check("r", 15, 2, Code::InvalidArgument, end);
    check("r", 0, u64::MAX, Code::InvalidArgument, end);
    let overflow = "Integer overflow detected: byte_size (18446744073709551615) + offset (1) \
                    exceeds maximum value (18446744073709551615) for region 'r'";
    check("r", 1, u64::MAX, Code::InvalidArgument, overflow);
    assert_eq!(find(&regions, "r", 15, 1).byte_size, 1);
}

#[test]
fn the_number_of_regions_is_limited() {
    let object = Object::new(PAGE);
    let regions = ShmRegistry::default();
    for number in 0..REGIONS_MAX {
        register(&regions, &number.to_string(), &object.key, 0, 8).unwrap();
    }
    let text = "failed to register shared memory region 'x': there are 16384 regions already";
    check_refused(register(&regions, "x", &object.key, 0, 8), Code::Unavailable, text);
    unregister(&regions, "7");
    register(&regions, "x", &object.key, 0, 8).unwrap();
}

#[test]
fn the_kernel_copies_as_well() {
    let object = Object::new(2 * PAGE);
    let regions = ShmRegistry::default();
    register(&regions, "r", &object.key, 0, 2 * PAGE).unwrap();
    object.put(PAGE, b"abc");
    let region = find(&regions, "r", PAGE, 3);
    let mapping = region.memory.as_any().downcast_ref::<crate::mapping::Mapping>().unwrap();
    assert_eq!(mapping.read_by_kernel(4096, 3), Some(b"abc".to_vec()));
    assert_eq!(mapping.read_by_kernel(4096, 0), Some(Vec::new()));
    object.resize(PAGE);
    assert_eq!(mapping.read_by_kernel(4096, 3), None);
    assert_eq!(mapping.read_by_kernel(0, 8192), None);
}

/// Dies from SIGBUS. The next test runs this one in a child process.
#[test]
#[ignore = "ends its process"]
fn a_fault_elsewhere() {
    let object = Object::new(PAGE);
    let regions = ShmRegistry::default();
    register(&regions, "r", &object.key, 0, PAGE).unwrap();
    rustix::shm::unlink(&object.key).unwrap();
    object.resize(0);
    assert!(find(&regions, "r", 0, 1).copy().is_err());
    let region = find(&regions, "r", 0, 1);
    let mapping = region.memory.as_any().downcast_ref::<crate::mapping::Mapping>().unwrap();
    mapping.touch();
}

#[test]
fn a_fault_elsewhere_ends_the_process() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--ignored", "--exact", "tests::a_fault_elsewhere"]).output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
}

#[test]
fn memory_of_our_own_is_copied_in_and_out() {
    let object = Object::new(4 * PAGE);
    let memory = ProcessSharedMemory::map(&object.file, 8192, "test").unwrap();
    memory.write(10, b"abc").unwrap();
    assert_eq!(object.get(10, 3), b"abc");
    object.put(8190, b"xyz");
    assert_eq!(memory.copy_out(8190, 2).unwrap(), b"xy");
    assert!(memory.contains(8190, 2) && !memory.contains(8190, 3));
    assert!(!memory.contains(usize::MAX, 2));
    assert!(memory.copy_out(8190, 3).is_err() && memory.write(8190, b"xyz").is_err());
    object.resize(PAGE);
    assert!(memory.copy_out(4095, 2).is_err() && memory.write(4095, b"xy").is_err());
    assert_eq!(memory.copy_out(10, 3).unwrap(), b"abc");
}
