//! GPUs: discovery, memory, copies on streams, and measurements.
//!
//! NVIDIA's driver and its management library are loaded when the server starts. Nothing is linked
//! against them: on a machine without them, [`Devices::discover`] finds no devices and loads nothing.
//!
//! # What it is not
//!
//! The crate performs no computations on a device and makes no decisions: other crates choose the
//! device for each instance. It never waits for a whole device, only for an event or a stream.
//!
//! # The rules of its types
//!
//! - Work is queued on a [`CudaStream`]. A stream belongs to one owner: it can move between threads,
//!   but two threads can't use it concurrently.
//! - Memory that queued work reads or writes stays allocated until the work is done, because the
//!   stream keeps it alive.
//! - The host gets the memory that a copy writes back only when the copy is done
//!   ([`PendingDownload::wait`]), so the memory can't be read too early.
//! - `cuMemAlloc` and `cuMemFree` may wait for a device. Memory for requests therefore comes from
//!   pools ([`Device::allocate_pooled`], [`Devices::allocate_host_buffer`]), which are created at startup.
//! - A device whose driver reports a persistent error is lost ([`Device::is_lost`]). It stays lost
//!   until the process ends. The other devices continue to work.
//!
//! # Example
//!
//! ```
//! use galatea_devices::{Devices, DeviceSearchResult};
//!
//! # fn main() -> Result<(), galatea_devices::Error> {
//! let DeviceSearchResult { devices, .. } = Devices::discover(0.0);
//! for device in devices.iter() {
//!     let stream = device.stream()?;
//!     let memory = device.allocate(4)?;
//!     stream.upload(vec![1, 2, 3, 4], &memory)?;
//!     let copied = stream.download(&memory, devices.allocate_host_buffer(4))?.wait()?;
//!     assert_eq!(copied[..], [1, 2, 3, 4]);
//! }
//! # Ok(())
//! # }
//! ```
#![allow(unsafe_code, reason = "the driver's functions are C, and memory is theirs and ours")]

mod arena;
mod copies;
mod device;
mod devices;
mod driver;
mod error;
mod growable;
mod host;
mod memory;
mod monitor;
mod stream;
mod tensors;

pub use device::{Device, DeviceInfo, MemoryUse};
pub use devices::{
    DeviceLogLevel, DeviceLogMessage, DeviceSearchResult, Devices, MemoryLocation, PoolSizes,
};
pub use error::Error;
pub use growable::GrowableBuffer;
pub use host::HostBuffer;
pub use memory::{DeviceBuffer, IpcHandle};
pub use monitor::{DeviceMeasurement, MeasurementError};
pub use stream::{CudaEvent, CudaStream, PendingDownload};
