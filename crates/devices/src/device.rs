//! A device: its description, its context, and its loss.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use galatea_stdx::{Guard, Lock};

use crate::Error;
use crate::arena::Arena;
use crate::driver::{self, Code, Driver, Handle, SUCCESS};
use crate::error::is_sticky;

/// A device's description.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The device number that configurations use.
    pub number: u32,
    /// The product name.
    pub name: String,
    /// The device's identifier in metrics: `GPU-` and five groups.
    pub uuid: String,
    /// The device's PCI bus ID, such as `0000:3b:00.0`.
    pub bus_id: String,
    /// The NUMA node of the device's bus location.
    pub numa_node: Option<u32>,
    /// The compute capability as major and minor number.
    pub capability: (u32, u32),
    /// The size of the device's memory in bytes.
    pub memory_bytes: usize,
}

/// The usage of a device's memory by all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// The number of bytes that can be allocated.
    pub free: usize,
    /// The total number of bytes.
    pub total: usize,
}

/// A device in this machine. Clones refer to the same device.
#[derive(Clone)]
pub struct Device(pub(crate) Arc<State>);

pub(crate) struct State {
    pub(crate) driver: Arc<Driver>,
    pub(crate) raw: c_int,
    pub(crate) info: DeviceInfo,
    /// The context that all libraries in the process share, set on first use.
    context: OnceLock<Context>,
    lost: OnceLock<String>,
    pub(crate) on_lost: OnceLock<Arc<LossHandler>>,
    pub(crate) pool: OnceLock<Pool>,
    /// The maximum length of growable memory, if one was set.
    pub(crate) growth_bytes_max: OnceLock<usize>,
}

/// A function that is called with the device number and the reason when a device is lost.
pub(crate) type LossHandler = dyn Fn(u32, &str) + Send + Sync;

/// Memory that was allocated at startup.
pub(crate) struct Pool {
    pub(crate) address: u64,
    pub(crate) arena: Lock<Arena>,
}

struct Context(Handle);

// SAFETY: A context may be made current on any thread, and on several threads concurrently.
unsafe impl Send for Context {}
// SAFETY: As above.
unsafe impl Sync for Context {}

/// Keeps the device's context current on this thread for as long as the value lives.
///
/// Dropping the value restores the previous context, because other libraries in the process rely on
/// their own.
pub(crate) struct CurrentContextGuard<'a>(&'a State);

impl Drop for CurrentContextGuard<'_> {
    fn drop(&mut self) {
        let mut popped = std::ptr::null_mut();
        // SAFETY: `popped` is valid for the duration of the call. The context on top of the stack
        // is the one that was pushed, because all calls in between push and pop in pairs.
        unsafe { self.0.driver.cuCtxPopCurrent_v2(&raw mut popped) };
    }
}

impl Device {
    pub(crate) fn describe(driver: &Arc<Driver>, number: u32) -> Result<Self, Error> {
        let ask = |call: &'static str, code: Code| {
            if code == SUCCESS {
                return Ok(());
            }
            Err(Error::Driver { call, code, text: driver.text(code) })
        };
        let (mut raw, mut major, mut minor, mut bytes) = (0, 0, 0, 0_usize);
        let (mut uuid, mut name, mut bus): ([u8; 16], _, _) =
            ([0; 16], [0 as c_char; 256], [0 as c_char; 64]);
        let ordinal = c_int::try_from(number).unwrap_or(c_int::MAX);
        // SAFETY: Every pointer refers to a local whose size is passed or is the size that the
        // function writes, and `raw` is the device that the first call returns.
        unsafe {
            ask("cuDeviceGet", driver.cuDeviceGet(&raw mut raw, ordinal))?;
            ask("cuDeviceGetName", driver.cuDeviceGetName(name.as_mut_ptr(), 255, raw))?;
            ask("cuDeviceGetUuid", driver.cuDeviceGetUuid(&raw mut uuid, raw))?;
            ask("cuDeviceTotalMem", driver.cuDeviceTotalMem_v2(&raw mut bytes, raw))?;
            ask("cuDeviceGetPCIBusId", driver.cuDeviceGetPCIBusId(bus.as_mut_ptr(), 63, raw))?;
            let (wanted, call) = (driver::ATTRIBUTE_CAPABILITY_MAJOR, "cuDeviceGetAttribute");
            ask(call, driver.cuDeviceGetAttribute(&raw mut major, wanted, raw))?;
            let wanted = driver::ATTRIBUTE_CAPABILITY_MINOR;
            ask(call, driver.cuDeviceGetAttribute(&raw mut minor, wanted, raw))?;
        }
        let bus_id = text(&bus).to_ascii_lowercase();
        let info = DeviceInfo {
            number,
            name: text(&name),
            uuid: uuid_text(uuid),
            numa_node: numa_node(Path::new("/sys/bus/pci/devices"), &bus_id),
            bus_id,
            capability: (major.try_into().unwrap_or(0), minor.try_into().unwrap_or(0)),
            memory_bytes: bytes,
        };
        Ok(Self(Arc::new(State {
            driver: driver.clone(),
            raw,
            info,
            context: OnceLock::new(),
            lost: OnceLock::new(),
            on_lost: OnceLock::new(),
            pool: OnceLock::new(),
            growth_bytes_max: OnceLock::new(),
        })))
    }

    /// The device's description.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// The device's number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.0.info.number
    }

    /// Returns true if the device can't be used any more. Only a new process may use it again.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.lost.get().is_some()
    }

    /// Declares that the device can't be used any more, as detected by a library that uses the
    /// device.
    pub fn declare_lost(&self, why: &str) {
        self.0.lose(why);
    }

    /// Calls the handler when the device is lost, or immediately if it has already been lost.
    pub(crate) fn on_lost(&self, handler: Arc<LossHandler>) {
        let handler = self.0.on_lost.get_or_init(|| handler);
        if let Some(why) = self.0.lost.get() {
            handler(self.number(), why);
        }
    }

    /// The current usage of the device's memory.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn memory_use(&self) -> Result<MemoryUse, Error> {
        let entered = self.0.make_current()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: Both pointers refer to locals, and the context is current.
        let code = unsafe { self.0.driver.cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        drop(entered);
        self.0.check("cuMemGetInfo", code)?;
        Ok(MemoryUse { free, total })
    }

    /// Allows work on this device to use another device's memory. Returns true if that is possible.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn enable_access_to(&self, peer: &Self) -> Result<bool, Error> {
        let mut can = 0;
        let driver = &self.0.driver;
        // SAFETY: The pointer refers to a local, and the devices come from the driver.
        let code = unsafe { driver.cuDeviceCanAccessPeer(&raw mut can, self.0.raw, peer.0.raw) };
        self.0.check("cuDeviceCanAccessPeer", code)?;
        if can == 0 {
            return Ok(false);
        }
        let other = peer.0.context()?;
        let entered = self.0.make_current()?;
        // SAFETY: The peer's context is alive because `peer` keeps it alive.
        let code = unsafe { driver.cuCtxEnablePeerAccess(other, 0) };
        drop(entered);
        if code != driver::PEER_ACCESS_ALREADY_ENABLED {
            self.0.check("cuCtxEnablePeerAccess", code)?;
        }
        Ok(true)
    }
}

impl State {
    /// Makes the device's context current on this thread.
    pub(crate) fn make_current(&self) -> Result<CurrentContextGuard<'_>, Error> {
        if let Some(text) = self.lost.get() {
            return Err(Error::Lost { device: self.info.number, text: text.clone() });
        }
        let context = self.context()?;
        // SAFETY: The context is retained for as long as `self` lives.
        self.check("cuCtxPushCurrent", unsafe { self.driver.cuCtxPushCurrent_v2(context) })?;
        Ok(CurrentContextGuard(self))
    }

    fn context(&self) -> Result<Handle, Error> {
        if let Some(context) = self.context.get() {
            return Ok(context.0);
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: The pointer refers to a local, and the device comes from the driver.
        let code = unsafe { self.driver.cuDevicePrimaryCtxRetain(&raw mut context, self.raw) };
        self.check("cuDevicePrimaryCtxRetain", code)?;
        if self.context.set(Context(context)).is_err() {
            // SAFETY: The context was retained above, and another thread has also retained it.
            unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.raw) };
        }
        Ok(context)
    }

    /// Converts a result code to an error, and marks the device as lost if the code indicates that.
    pub(crate) fn check(&self, call: &'static str, code: Code) -> Result<(), Error> {
        if code == SUCCESS {
            return Ok(());
        }
        let (device, text) = (self.info.number, self.driver.text(code));
        if is_sticky(code) {
            return Err(Error::Lost { device, text: self.lose(&text).to_owned() });
        }
        Err(Error::Driver { call, code, text })
    }

    /// Marks the device as lost. The first reason is kept and returned.
    fn lose(&self, why: &str) -> &str {
        let mut is_new = false;
        let first = self.lost.get_or_init(|| {
            is_new = true;
            why.to_owned()
        });
        if is_new && let Some(handler) = self.on_lost.get() {
            handler(self.info.number, first);
        }
        first
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take()
            && let Ok(entered) = self.make_current()
        {
            // SAFETY: The pool's memory was allocated once, and everything that used it kept this
            // device alive.
            unsafe { self.driver.cuMemFree_v2(pool.address) };
            drop(entered);
        }
        if self.context.take().is_some() {
            // SAFETY: The context was retained once, and everything that used it kept this device
            // alive.
            unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.raw) };
        }
    }
}

impl Pool {
    /// The pool's arena. It stays intact even if a thread panics, because each operation panics
    /// before it changes anything.
    pub(crate) fn arena(&self) -> Guard<'_, Arena> {
        self.arena.lock("arena")
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Device").field(&self.0.info.number).finish()
    }
}

/// Returns the C string in a buffer whose last byte is 0.
fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().map(|&byte| byte.to_ne_bytes()[0]).collect();
    CStr::from_bytes_until_nul(&bytes)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn uuid_text(uuid: [u8; 16]) -> String {
    let mut text = String::from("GPU-");
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// Returns the NUMA node of a bus location. The system reports -1 if there is none.
fn numa_node(places: &Path, bus_id: &str) -> Option<u32> {
    let said = std::fs::read_to_string(places.join(bus_id).join("numa_node")).ok()?;
    said.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_read_from_the_system() {
        let places = std::env::temp_dir().join(format!("galatea-devices-{}", std::process::id()));
        for (bus_id, node, expected) in
            [("0000:01:00.0", "1\n", Some(1)), ("0000:02:00.0", "-1\n", None)]
        {
            std::fs::create_dir_all(places.join(bus_id)).unwrap();
            std::fs::write(places.join(bus_id).join("numa_node"), node).unwrap();
            assert_eq!(numa_node(&places, bus_id), expected);
        }
        assert_eq!(numa_node(&places, "0000:03:00.0"), None);
        std::fs::remove_dir_all(&places).unwrap();
    }

    #[test]
    fn a_uuid_has_five_groups() {
        let uuid = std::array::from_fn(|index| u8::try_from(index * 17).unwrap());
        assert_eq!(uuid_text(uuid), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
