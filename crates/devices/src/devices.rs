//! This machine's devices and their shared state.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use galatea_stdx::{Guard, Lock};

use crate::arena::Arena;
use crate::device::{LossHandler, Pool};
use crate::driver::{self, Driver, SUCCESS};
use crate::host::PinnedPool;
use crate::monitor::{DeviceMeasurement, DeviceMonitor, MeasurementError};
use crate::{CudaStream, Device, Error, HostBuffer};

/// The tolerance within which two compute capabilities count as equal, as in Triton.
const CAPABILITY_TOLERANCE: f64 = 0.01;

/// The devices that models may use. Clones refer to the same devices.
#[derive(Clone, Default)]
pub struct Devices(pub(crate) Option<Arc<Shared>>);

pub(crate) struct Shared {
    driver: Arc<Driver>,
    devices: Vec<Device>,
    pinned: OnceLock<Arc<PinnedPool>>,
    monitor: Option<DeviceMonitor>,
    /// Idle streams for single copies.
    idle_streams: Lock<Vec<CudaStream>>,
}

/// The result of searching for devices.
#[derive(Debug, Default)]
pub struct DeviceSearchResult {
    /// The devices that models may use.
    pub devices: Devices,
    /// Notes for the operator.
    pub notes: Vec<DeviceLogMessage>,
}

/// A log message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLogMessage {
    /// The note's severity.
    pub level: DeviceLogLevel,
    /// The note's text.
    pub text: String,
}

/// The severity of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceLogLevel {
    /// Everything is working as intended.
    Info,
    /// The server continues with reduced capabilities.
    Warning,
    /// Something that was requested isn't available.
    Error,
}

/// The amounts of memory to allocate at startup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSizes {
    /// Pinned host memory.
    pub pinned: u64,
    /// Device memory, keyed by device number.
    pub devices: BTreeMap<i32, u64>,
}

impl PoolSizes {
    /// The pool size for a device that isn't listed.
    pub const DEVICE_DEFAULT: u64 = 64 << 20;
}

impl Default for PoolSizes {
    fn default() -> Self {
        Self { pinned: 256 << 20, devices: BTreeMap::new() }
    }
}

/// The location of memory at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLocation {
    /// Host memory.
    Host,
    /// Pinned host memory.
    Pinned,
    /// The memory of the device with this number.
    Device(u32),
}

impl Devices {
    /// Loads the driver and finds the devices that have at least this compute capability. Without a
    /// driver, there are no devices, and no note reports this.
    #[must_use]
    pub fn discover(min_compute_capability: f64) -> DeviceSearchResult {
        let driver = match Driver::load() {
            Ok(None) => return DeviceSearchResult::default(),
            Ok(Some(driver)) => Arc::new(driver),
            Err(text) => {
                let text = format!("unable to use the CUDA driver: {text}");
                return DeviceSearchResult::without_devices(DeviceLogLevel::Warning, text);
            }
        };
        // SAFETY: The function only takes a number.
        let code = unsafe { driver.cuInit(0) };
        let mut count = 0;
        let code = if code == SUCCESS {
            // SAFETY: The pointer refers to a local.
            unsafe { driver.cuDeviceGetCount(&raw mut count) }
        } else {
            code
        };
        if matches!(code, driver::NO_DEVICE | driver::SYSTEM_DRIVER_MISMATCH) {
            return DeviceSearchResult::default();
        }
        if code != SUCCESS {
            let text = format!("unable to get number of CUDA devices: {}", driver.text(code));
            return DeviceSearchResult::without_devices(DeviceLogLevel::Error, text);
        }
        let mut notes = Vec::new();
        let mut devices = Vec::new();
        for number in 0..u32::try_from(count).unwrap_or(0) {
            match usable(&driver, number, min_compute_capability) {
                Ok(device) => devices.push(device),
                Err(note) => notes.push(note),
            }
        }
        if devices.is_empty() {
            return DeviceSearchResult { devices: Self::default(), notes };
        }
        let monitor = DeviceMonitor::load().unwrap_or_else(|text| {
            let text = format!("unable to measure GPUs, GPU metrics will not be available: {text}");
            notes.push(DeviceLogMessage { level: DeviceLogLevel::Warning, text });
            None
        });
        let (pinned, idle_streams) = (OnceLock::new(), Lock::default());
        let shared = Shared { driver, devices, pinned, monitor, idle_streams };
        DeviceSearchResult { devices: Self(Some(Arc::new(shared))), notes }
    }

    /// Allocates the memory pools. Called once, before models are loaded.
    pub fn allocate_pools(&self, sizes: &PoolSizes) -> Vec<DeviceLogMessage> {
        let Some(shared) = &self.0 else { return Vec::new() };
        let mut notes = vec![shared.allocate_pinned(sizes.pinned)];
        let mut pools = 0;
        for device in &shared.devices {
            let number = i32::try_from(device.number()).unwrap_or(i32::MAX);
            let size = sizes.devices.get(&number).copied().unwrap_or(PoolSizes::DEVICE_DEFAULT);
            if size == 0 {
                continue;
            }
            pools += 1;
            notes.push(match allocate_pool(device, size) {
                Ok(()) => DeviceLogMessage::info(format!(
                    "CUDA memory pool is created on device {number} with size {size}"
                )),
                Err(error) => DeviceLogMessage {
                    level: DeviceLogLevel::Error,
                    text: format!("Failed to create CUDA memory pool on device {number}: {error}"),
                },
            });
        }
        if pools == 0 {
            notes.push(DeviceLogMessage::info("CUDA memory pool disabled".to_owned()));
        }
        notes
    }

    /// Sets the maximum length of growable memory, keyed by device number. Called once, before
    /// models are loaded. The maximum is [`GrowableBuffer::BYTES_MAX_DEFAULT`] for other devices.
    ///
    /// [`GrowableBuffer::BYTES_MAX_DEFAULT`]: crate::GrowableBuffer::BYTES_MAX_DEFAULT
    pub fn limit_growable_buffers(&self, bytes_max: &BTreeMap<i32, u64>) {
        for device in self.iter() {
            let number = i32::try_from(device.number()).unwrap_or(i32::MAX);
            if let Some(&bytes) = bytes_max.get(&number) {
                // The first value is kept.
                let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                let _ = device.0.growth_bytes_max.set(bytes);
            }
        }
    }

    /// Allows work on each device to use the other devices' memory.
    pub fn enable_peer_access(&self) -> Vec<DeviceLogMessage> {
        let devices = self.0.as_ref().map_or(&[][..], |shared| &shared.devices);
        let pairs = devices.iter().flat_map(|host| devices.iter().map(move |peer| (host, peer)));
        let mut others = pairs.filter(|(host, peer)| host.number() != peer.number());
        // As in Triton, a pair without peer access must not prevent the next pair.
        let failed = others.by_ref().fold(false, |failed, (host, peer)| {
            !matches!(host.enable_access_to(peer), Ok(true)) || failed
        });
        if !failed {
            return Vec::new();
        }
        let text = "failed to enable peer access for some device pairs".to_owned();
        vec![DeviceLogMessage { level: DeviceLogLevel::Warning, text }]
    }

    /// Sets the function that is called with the device number and the reason when a device is
    /// lost. The call occurs on the thread that detects the loss, which may hold locks. For a
    /// device that is already lost, the function is called immediately. It may be called twice for
    /// the same device. Only the first handler takes effect.
    pub fn on_lost(&self, handler: impl Fn(u32, &str) + Send + Sync + 'static) {
        let handler: Arc<LossHandler> = Arc::new(handler);
        self.iter().for_each(|device| device.on_lost(handler.clone()));
    }

    /// The devices, ordered by device number.
    pub fn iter(&self) -> impl Iterator<Item = &Device> {
        self.0.iter().flat_map(|shared| &shared.devices)
    }

    /// Returns true if there are no devices.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The device numbers, as used in configurations.
    #[must_use]
    pub fn numbers(&self) -> Vec<i32> {
        self.iter().filter_map(|device| i32::try_from(device.number()).ok()).collect()
    }

    /// The device with this number.
    ///
    /// # Errors
    ///
    /// Returned if there is no such device or its compute capability is too low.
    pub fn device(&self, number: i32) -> Result<&Device, Error> {
        let same = |device: &&Device| i64::from(device.number()) == i64::from(number);
        self.iter().find(same).ok_or(Error::NoSuchDevice { number })
    }

    /// Returns host memory for copies. It is pinned unless the pool has no suitable region left.
    #[must_use]
    pub fn allocate_host_buffer(&self, bytes: usize) -> HostBuffer {
        self.allocate_pinned_buffer(bytes).unwrap_or_else(|| HostBuffer::pageable(bytes))
    }

    /// Returns pinned memory if the pool has a suitable region left.
    #[must_use]
    pub fn allocate_pinned_buffer(&self, bytes: usize) -> Option<HostBuffer> {
        self.0.as_ref()?.pinned.get()?.allocate(bytes)
    }

    /// The number of bytes in use and the total size of the pinned memory pool. Both are 0 without
    /// a pool.
    #[must_use]
    pub fn pinned_usage(&self) -> (usize, usize) {
        let pool = self.0.as_ref().and_then(|shared| shared.pinned.get());
        pool.map_or((0, 0), |pool| pool.usage())
    }

    /// The location of memory at an address. Memory that the driver doesn't know is host memory.
    #[must_use]
    pub fn memory_location(&self, address: u64) -> MemoryLocation {
        self.0.as_ref().map_or(MemoryLocation::Host, |shared| shared.location(address))
    }

    /// Measures a device. Returns `None` if this machine has no means to do so. The measurement may
    /// detect that the device has been lost.
    #[must_use]
    pub fn measure(&self, device: &Device) -> Option<Result<DeviceMeasurement, MeasurementError>> {
        let monitor = self.0.as_ref()?.monitor.as_ref()?;
        let reading = monitor.read(&device.info().bus_id);
        let error = reading.as_ref().map_or_else(Some, DeviceMeasurement::error_of_lost);
        if let Some(error) = error.filter(|error| error.lost) {
            // Libraries that use the device directly don't report its loss themselves.
            device.declare_lost(&error.text);
        }
        Some(reading)
    }
}

impl Shared {
    pub(crate) fn idle_streams(&self) -> Guard<'_, Vec<CudaStream>> {
        self.idle_streams.lock("idle streams")
    }

    fn allocate_pinned(&self, bytes: u64) -> DeviceLogMessage {
        if bytes == 0 {
            return DeviceLogMessage::info("Pinned memory pool disabled".to_owned());
        }
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        let made = self.devices.first().map(|device| PinnedPool::new(device, size));
        match made {
            Some(Ok(pool)) => {
                let address = pool.address();
                let text =
                    format!("Pinned memory pool is created at '{address:#x}' with size {bytes}");
                // Pools are allocated once, and a second pool is dropped.
                let _ = self.pinned.set(Arc::new(pool));
                DeviceLogMessage::info(text)
            }
            Some(Err(error)) => DeviceLogMessage {
                level: DeviceLogLevel::Warning,
                text: format!(
                    "Unable to allocate pinned system memory, pinned memory pool will not be \
                     available: {error}"
                ),
            },
            None => DeviceLogMessage::info("Pinned memory pool disabled".to_owned()),
        }
    }

    fn location(&self, address: u64) -> MemoryLocation {
        let mut kind = 0_u32;
        let attribute = driver::POINTER_MEMORY_TYPE;
        // SAFETY: The attribute is written to a local of its type.
        let code = unsafe {
            self.driver.cuPointerGetAttribute((&raw mut kind).cast(), attribute, address)
        };
        match (code, kind) {
            (SUCCESS, driver::MEMORY_TYPE_HOST) => MemoryLocation::Pinned,
            (SUCCESS, driver::MEMORY_TYPE_DEVICE) => {
                let mut number = 0_i32;
                let attribute = driver::POINTER_DEVICE;
                // SAFETY: As above.
                let _ = unsafe {
                    let number = (&raw mut number).cast();
                    self.driver.cuPointerGetAttribute(number, attribute, address)
                };
                MemoryLocation::Device(u32::try_from(number).unwrap_or(0))
            }
            _ => MemoryLocation::Host,
        }
    }
}

/// Returns the device with this number, or a note that states why models can't use it.
fn usable(
    driver: &Arc<Driver>,
    number: u32,
    min_capability: f64,
) -> Result<Device, DeviceLogMessage> {
    let device = Device::describe(driver, number).map_err(|error| {
        let text = format!("unable to get CUDA device properties for GPU ID{number}: {error}");
        DeviceLogMessage { level: DeviceLogLevel::Error, text }
    })?;
    let (major, minor) = device.info().capability;
    let capability = f64::from(major) + f64::from(minor) / 10.0;
    if capability > min_capability || (capability - min_capability).abs() < CAPABILITY_TOLERANCE {
        return Ok(device);
    }
    // Triton generates this message, but doesn't log it for any of its devices.
    Err(DeviceLogMessage::info(format!(
        "gpu {number} has compute capability '{major}.{minor}' which is less than the minimum \
         supported of '{min_capability:.6}'"
    )))
}

fn allocate_pool(device: &Device, bytes: u64) -> Result<(), Error> {
    let size = usize::try_from(bytes).unwrap_or(usize::MAX);
    let state = &device.0;
    let entered = state.make_current()?;
    let mut address = 0;
    // SAFETY: The pointer refers to a local, and the context is current.
    let code = unsafe { state.driver.cuMemAlloc_v2(&raw mut address, size) };
    if code == driver::OUT_OF_MEMORY {
        return Err(Error::OutOfMemory { device: device.number(), bytes: size });
    }
    state.check("cuMemAlloc", code)?;
    let pool = Pool { address, arena: Lock::new(Arena::new(size)) };
    if state.pool.set(pool).is_err() {
        // SAFETY: The memory was allocated above, and no other code refers to it.
        let _ = unsafe { state.driver.cuMemFree_v2(address) };
    }
    drop(entered);
    Ok(())
}

impl DeviceSearchResult {
    fn without_devices(level: DeviceLogLevel, text: String) -> Self {
        Self { devices: Devices::default(), notes: vec![DeviceLogMessage { level, text }] }
    }
}

impl DeviceLogMessage {
    const fn info(text: String) -> Self {
        Self { level: DeviceLogLevel::Info, text }
    }
}

impl fmt::Debug for Devices {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.iter()).finish()
    }
}
