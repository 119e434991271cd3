//! Tests of memory: its size, owners, growth, and use in other processes.

use std::fs;
use std::process::Command;

use galatea_devices::{Error, IpcHandle, MemoryLocation};

use crate::support::{devices, with_stand_in};

const POOLS: usize = 64 << 20;

#[test]
fn memory_is_counted_and_ends() {
    with_stand_in("memory::memory_is_counted_and_ends", &[], || {
        let devices = devices();
        let device = devices.device(0).unwrap();
        let usage = device.memory_use().unwrap();
        assert_eq!((usage.total, usage.free), (1 << 30, (1 << 30) - POOLS));
        let memory = device.allocate(1 << 20).unwrap();
        assert_eq!(device.memory_use().unwrap().free, usage.free - (1 << 20));
        let error = device.allocate(1 << 30).unwrap_err();
        assert_eq!(error, Error::OutOfMemory { device: 0, bytes: 1 << 30 });
        assert_eq!(error.to_string(), "out of memory");
        drop(memory);
        assert_eq!(device.memory_use().unwrap().free, usage.free);
        assert!(!device.is_lost());
    });
}

#[test]
fn addresses_have_a_place() {
    with_stand_in("memory::addresses_have_a_place", &[], || {
        let devices = devices();
        let memory = devices.device(1).unwrap().allocate(8).unwrap();
        let address = |bytes: &[u8]| u64::try_from(bytes.as_ptr().addr()).unwrap();
        assert_eq!(devices.memory_location(memory.address() + 7), MemoryLocation::Device(1));
        assert_eq!(
            devices.memory_location(address(&devices.allocate_host_buffer(8))),
            MemoryLocation::Pinned
        );
        assert_eq!(devices.memory_location(address(&[1, 2])), MemoryLocation::Host);
    });
}

#[test]
fn pageable_memory_takes_the_place_of_pinned_memory() {
    let test = "memory::pageable_memory_takes_the_place_of_pinned_memory";
    with_stand_in(test, &[], || {
        let devices = devices();
        let whole = devices.allocate_host_buffer(256 << 20);
        assert!(whole.is_pinned());
        assert_eq!(devices.pinned_usage(), (256 << 20, 256 << 20));
        assert!(devices.allocate_pinned_buffer(1).is_none());
        assert!(!devices.allocate_host_buffer(1).is_pinned());
        drop(whole);
        assert!(devices.allocate_host_buffer(1).is_pinned());
    });
}

#[test]
fn another_process_opens_memory() {
    const HANDLE: &str = "GALATEA_TEST_IPC_HANDLE";
    let test = "memory::another_process_opens_memory";
    with_stand_in(test, &[], || {
        let devices = devices();
        let device = devices.device(1).unwrap();
        let stream = device.stream().unwrap();
        if let Some(path) = std::env::var_os(HANDLE) {
            // The other process adds one to each byte.
            let handle: IpcHandle = fs::read(path).unwrap().try_into().unwrap();
            let wrong_device = devices.device(0).unwrap().open_ipc_handle(&handle, 4).unwrap_err();
            assert_eq!(wrong_device.to_string(), "invalid device ordinal");
            assert!(matches!(device.open_ipc_handle(&handle, 1 << 20), Err(Error::Range(_))));
            assert!(device.open_ipc_handle(&[0; 64], 4).is_err());
            let memory = device.open_ipc_handle(&handle, 4).unwrap();
            let read =
                stream.download(&memory, devices.allocate_host_buffer(4)).unwrap().wait().unwrap();
            stream.upload(read.iter().map(|byte| byte + 1).collect::<Vec<_>>(), &memory).unwrap();
            return stream.synchronize().unwrap();
        }
        let memory = device.allocate(16).unwrap();
        stream.upload(vec![1, 2, 3, 4], &memory).unwrap();
        stream.synchronize().unwrap();
        let (handle, offset) = memory.slice(3..8).unwrap().ipc_handle().unwrap();
        assert_eq!(offset, 3);
        let path = std::env::temp_dir().join(format!("galatea-ipc-{}", std::process::id()));
        fs::write(&path, handle).unwrap();
        let mut other = Command::new(std::env::current_exe().unwrap());
        let status = other.args(["--exact", test]).env(HANDLE, &path).status().unwrap();
        fs::remove_file(&path).unwrap();
        assert!(status.success());
        let read =
            stream.download(&memory, devices.allocate_host_buffer(4)).unwrap().wait().unwrap();
        assert_eq!(read[..], [2, 3, 4, 5]);
        let own = device.open_ipc_handle(&handle, 4).unwrap_err();
        assert_eq!(own.to_string(), "invalid device context");
    });
}

#[test]
fn memory_grows_in_place() {
    const BLOCK: usize = 2 << 20;
    let memory = (POOLS + 3 * BLOCK).to_string();
    with_stand_in("memory::memory_grows_in_place", &[("STAND_IN_MEMORY", &memory)], || {
        let devices = devices();
        let device = devices.device(0).unwrap();
        let stream = device.stream().unwrap();
        let growing = device.reserve_growable(10 * BLOCK - 1).unwrap();
        assert_eq!((growing.max_len(), device.memory_use().unwrap().free), (10 * BLOCK, 3 * BLOCK));
        let small = growing.grow(4).unwrap();
        stream.upload(vec![7; 4], &small).unwrap();
        let large = growing.grow(2 * BLOCK + 1).unwrap();
        assert_eq!((large.address(), device.memory_use().unwrap().free), (small.address(), 0));
        stream.fill(&large.slice(4..large.len()).unwrap(), 8).unwrap();
        let read = stream.download(&large, devices.allocate_host_buffer(large.len())).unwrap();
        let read = read.wait().unwrap();
        assert_eq!((&read[..4], read[large.len() - 1]), (&[7; 4][..], 8));
        let error = growing.grow(3 * BLOCK + 1).unwrap_err();
        assert_eq!(error, Error::OutOfMemory { device: 0, bytes: BLOCK });
        assert!(matches!(growing.grow(11 * BLOCK), Err(Error::Range(_))));
        drop((growing, small));
        assert_eq!(device.memory_use().unwrap().free, 0, "the memory is still used");
        drop(large);
        stream.synchronize().unwrap();
        assert_eq!(device.memory_use().unwrap().free, 3 * BLOCK);
    });
}
