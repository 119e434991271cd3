//! Tests of the devices that are found and the notes about them.

use galatea_devices::{DeviceLogLevel, DeviceLogMessage, DeviceSearchResult, Devices, PoolSizes};

use crate::support::with_stand_in;

fn texts(notes: Vec<DeviceLogMessage>) -> Vec<(DeviceLogLevel, String)> {
    notes.into_iter().map(|DeviceLogMessage { level, text }| (level, text)).collect()
}

#[test]
fn without_a_driver_there_is_nothing() {
    // This process's library path doesn't contain a stand-in.
    let DeviceSearchResult { devices, notes } = Devices::discover(0.0);
    if devices.is_empty() {
        assert_eq!(notes, []);
        assert_eq!(devices.allocate_pools(&PoolSizes::default()), []);
        assert_eq!(devices.enable_peer_access(), []);
        assert_eq!((devices.numbers(), devices.pinned_usage()), (vec![], (0, 0)));
        assert!(!devices.allocate_host_buffer(8).is_pinned());
        assert_eq!(devices.device(0).unwrap_err().to_string(), "invalid device ordinal");
    }
}

#[test]
fn devices_are_described() {
    with_stand_in("finding::devices_are_described", &[("STAND_IN_CAPABILITY", "8.0,7.5")], || {
        let DeviceSearchResult { devices, notes } = Devices::discover(7.5);
        assert_eq!((notes, devices.numbers()), (vec![], vec![0, 1]));
        let info = devices.device(1).unwrap().info();
        assert_eq!((info.number, &*info.name), (1, "Stand-in 1"));
        assert_eq!(info.uuid, "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f");
        assert_eq!((&*info.bus_id, info.numa_node), ("fad0:02:00.0", None));
        assert_eq!((info.capability, info.memory_bytes), ((7, 5), 1 << 30));
    });
}

#[test]
fn devices_that_can_too_little_are_left_alone() {
    let test = "finding::devices_that_can_too_little_are_left_alone";
    with_stand_in(test, &[("STAND_IN_CAPABILITY", "7.5,8.0")], || {
        let DeviceSearchResult { devices, notes } = Devices::discover(7.6);
        assert_eq!(devices.numbers(), [1], "a device keeps its number");
        assert!(devices.device(0).is_err());
        let text = "gpu 0 has compute capability '7.5' which is less than the minimum supported \
                    of '7.600000'";
        assert_eq!(texts(notes), [(DeviceLogLevel::Info, text.to_owned())]);
        assert!(Devices::discover(8.1).devices.is_empty());
    });
}

#[test]
fn a_driver_without_devices_is_no_driver() {
    let test = "finding::a_driver_without_devices_is_no_driver";
    with_stand_in(test, &[("STAND_IN_DEVICES", "0")], || {
        let DeviceSearchResult { devices, notes } = Devices::discover(0.0);
        assert!(devices.is_empty() && notes.is_empty());
    });
}

#[test]
fn a_driver_that_fails_is_told_of() {
    let test = "finding::a_driver_that_fails_is_told_of";
    with_stand_in(test, &[("STAND_IN_FAIL", "cuDeviceGetCount:1:999")], || {
        let DeviceSearchResult { devices, notes } = Devices::discover(0.0);
        assert!(devices.is_empty());
        let text = "unable to get number of CUDA devices: unknown error";
        assert_eq!(texts(notes), [(DeviceLogLevel::Error, text.to_owned())]);
    });
}

#[test]
fn pools_are_made_as_they_are_set() {
    with_stand_in("finding::pools_are_made_as_they_are_set", &[], || {
        let devices = Devices::discover(0.0).devices;
        let sizes = PoolSizes { pinned: 1 << 20, devices: [(0, 0), (1, 4096)].into() };
        let notes = texts(devices.allocate_pools(&sizes));
        assert!(notes[0].1.starts_with("Pinned memory pool is created at '0x"), "{notes:?}");
        assert!(notes[0].1.ends_with("' with size 1048576"), "{notes:?}");
        let text = "CUDA memory pool is created on device 1 with size 4096";
        assert_eq!(notes[1..], [(DeviceLogLevel::Info, text.to_owned())]);
        assert_eq!(devices.pinned_usage(), (0, 1 << 20));
        let [first, second] = [0, 1].map(|number| devices.device(number).unwrap());
        assert!(first.allocate_pooled(1).is_err());
        let whole = second.allocate_pooled(4096).unwrap();
        let error = second.allocate_pooled(1).unwrap_err().to_string();
        assert_eq!(error, "the pool of GPU 1 has no 1 bytes left");
        drop(whole);
        second.allocate_pooled(4096).unwrap();
    });
}

#[test]
fn pools_may_be_off() {
    with_stand_in("finding::pools_may_be_off", &[], || {
        let devices = Devices::discover(0.0).devices;
        let sizes = PoolSizes { pinned: 0, devices: [(0, 0), (1, 0)].into() };
        let expected = ["Pinned memory pool disabled", "CUDA memory pool disabled"];
        assert_eq!(
            texts(devices.allocate_pools(&sizes)),
            expected.map(|text| (DeviceLogLevel::Info, text.to_owned()))
        );
    });
}

#[test]
fn pools_that_cannot_be_made_are_told_of() {
    let variables = [("STAND_IN_FAIL", "cuMemHostAlloc:1"), ("STAND_IN_MEMORY", "1048576")];
    with_stand_in("finding::pools_that_cannot_be_made_are_told_of", &variables, || {
        let devices = Devices::discover(0.0).devices;
        let notes = texts(devices.allocate_pools(&PoolSizes::default()));
        let pinned = "Unable to allocate pinned system memory, pinned memory pool will not be \
                      available: out of memory";
        assert_eq!(notes[0], (DeviceLogLevel::Warning, pinned.to_owned()));
        let device = "Failed to create CUDA memory pool on device 0: out of memory";
        assert_eq!(notes[1], (DeviceLogLevel::Error, device.to_owned()));
        assert!(!devices.allocate_host_buffer(8).is_pinned());
    });
}

#[test]
fn peers_are_enabled_or_a_warning_is_given() {
    let test = "finding::peers_are_enabled_or_a_warning_is_given";
    with_stand_in(test, &[], || {
        let devices = Devices::discover(0.0).devices;
        assert_eq!(devices.enable_peer_access(), []);
        assert_eq!(devices.enable_peer_access(), [], "they were enabled before");
    });
}

#[test]
fn peers_that_cannot_are_told_of() {
    let test = "finding::peers_that_cannot_are_told_of";
    with_stand_in(test, &[("STAND_IN_NO_PEERS", "1")], || {
        let notes = texts(Devices::discover(0.0).devices.enable_peer_access());
        let text = "failed to enable peer access for some device pairs";
        assert_eq!(notes, [(DeviceLogLevel::Warning, text.to_owned())]);
    });
}

#[test]
fn devices_are_measured() {
    with_stand_in("finding::devices_are_measured", &[], || {
        let devices = Devices::discover(0.0).devices;
        let reading = devices.measure(devices.device(1).unwrap()).unwrap().unwrap();
        assert_eq!(reading.utilization_percent, Ok(35));
        assert_eq!(reading.memory_used_and_total, Ok((301 << 20, 1 << 30)));
        assert_eq!(reading.power_usage_milliwatts, Ok(62_500));
        assert_eq!(reading.power_limit_milliwatts, Ok(300_000));
        assert_eq!(reading.energy_millijoules, Ok(1_000_500));
    });
}
