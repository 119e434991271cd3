//! Single copies for callers that don't have their own stream.
//!
//! Each copy is done when the function returns. The function waits for the event that follows its
//! own work, never for work that other callers have queued on the device.

use std::ops::Deref;

use crate::devices::Shared;
use crate::{CudaStream, Device, DeviceBuffer, Devices, Error, HostBuffer};

/// The maximum number of idle streams to keep; additional streams are destroyed.
const IDLE_STREAMS_MAX: usize = 32;

/// A stream of the device, which has one user at a time.
struct BorrowedStream<'a> {
    shared: Option<&'a Shared>,
    /// `None` while the stream is being returned.
    stream: Option<CudaStream>,
}

impl Devices {
    /// Copies a device's memory to host memory.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn to_host(&self, from: &DeviceBuffer) -> Result<HostBuffer, Error> {
        let to = self.allocate_host_buffer(from.len());
        self.borrow_stream(from.device())?.download(from, to)?.wait()
    }

    /// Copies host bytes to the beginning of `to`.
    ///
    /// # Errors
    ///
    /// Returned if `to` is too short; otherwise the driver's error.
    pub fn to_device<T>(&self, from: T, to: &DeviceBuffer) -> Result<(), Error>
    where
        T: AsRef<[u8]> + Send + 'static,
    {
        let stream = self.borrow_stream(to.device())?;
        stream.upload(from, to)?;
        stream.synchronize()
    }

    /// Copies between two memory regions of equal length, which may be on different devices.
    ///
    /// # Errors
    ///
    /// Returned if the lengths differ; otherwise the driver's error.
    pub fn copy(&self, from: &DeviceBuffer, to: &DeviceBuffer) -> Result<(), Error> {
        let stream = self.borrow_stream(to.device())?;
        stream.copy(from, to)?;
        stream.synchronize()
    }

    /// Allocates zeroed memory from a device's pool.
    ///
    /// # Errors
    ///
    /// [`Error::PoolExhausted`] or the driver's error.
    pub fn pooled_zeros(&self, device: &Device, bytes: usize) -> Result<DeviceBuffer, Error> {
        let memory = device.allocate_pooled(bytes)?;
        let stream = self.borrow_stream(device)?;
        stream.fill(&memory, 0)?;
        stream.synchronize()?;
        Ok(memory)
    }

    fn borrow_stream(&self, device: &Device) -> Result<BorrowedStream<'_>, Error> {
        let shared = self.0.as_deref();
        let idle = shared.and_then(|shared| {
            let mut streams = shared.idle_streams();
            let same = |one: &CudaStream| one.device().number() == device.number();
            let found = streams.iter().rposition(same)?;
            Some(streams.swap_remove(found))
        });
        let stream = idle.map_or_else(|| device.stream(), Ok)?;
        Ok(BorrowedStream { shared, stream: Some(stream) })
    }
}

impl Deref for BorrowedStream<'_> {
    type Target = CudaStream;

    fn deref(&self) -> &CudaStream {
        self.stream.as_ref().expect("it is not given back yet")
    }
}

impl Drop for BorrowedStream<'_> {
    fn drop(&mut self) {
        let (Some(shared), Some(stream)) = (self.shared, self.stream.take()) else { return };
        let mut idle = shared.idle_streams();
        if idle.len() < IDLE_STREAMS_MAX && !stream.device().is_lost() {
            idle.push(stream);
            return;
        }
        drop(idle);
        // Destroying the stream waits until its work is done.
        drop(stream);
    }
}
