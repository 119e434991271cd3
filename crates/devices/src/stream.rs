//! Streams, which perform device work asynchronously and in order, and events, which represent
//! points in that work and can be waited for.

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use crate::driver::{self, Handle, NOT_READY};
use crate::host::HostBuffer;
use crate::{Device, DeviceBuffer, Error};

/// The maximum number of retained values without a following event. Beyond that, an event is
/// recorded for the work, so that the values don't stay allocated until a caller records one.
const KEPT_WITHOUT_EVENT_MAX: usize = 64;

/// A queue of work on a device. Its owner uses it from one thread at a time.
///
/// Dropping the stream waits until its work is done.
pub struct CudaStream {
    device: Device,
    raw: Handle,
    kept: RefCell<InFlightMemory>,
}

/// The memory that queued work uses.
#[derive(Default)]
struct InFlightMemory {
    /// The memory of work that isn't followed by an event yet.
    recent: Vec<Box<dyn Any + Send>>,
    /// The memory of work before each event, oldest first.
    before: VecDeque<(CudaEvent, Vec<Box<dyn Any + Send>>)>,
}

// SAFETY: The driver lets any thread use a stream, and any thread may drop the retained values.
unsafe impl Send for CudaStream {}

/// A point in a stream's work. Clones refer to the same point.
#[derive(Clone)]
pub struct CudaEvent(Arc<RawEvent>);

struct RawEvent {
    device: Device,
    raw: Handle,
}

// SAFETY: The driver lets any number of threads query and wait for an event concurrently. The event
// is recorded once, before it is shared.
unsafe impl Send for RawEvent {}
// SAFETY: As above.
unsafe impl Sync for RawEvent {}

impl Device {
    /// Creates a stream.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn stream(&self) -> Result<CudaStream, Error> {
        self.stream_with_priority(0)
    }

    /// Creates a stream whose work takes precedence over streams with higher priority numbers. The
    /// driver uses the nearest priority that the device supports.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn stream_with_priority(&self, priority: i32) -> Result<CudaStream, Error> {
        let entered = self.0.make_current()?;
        let mut raw = std::ptr::null_mut();
        // As in Triton, the stream synchronizes with the default stream, because libraries without
        // support for streams use that one.
        let flags = 0;
        // SAFETY: The pointer refers to a local, and the context is current.
        let code =
            unsafe { self.0.driver.cuStreamCreateWithPriority(&raw mut raw, flags, priority) };
        drop(entered);
        self.0.check("cuStreamCreate", code)?;
        Ok(CudaStream { device: self.clone(), raw, kept: RefCell::default() })
    }
}

impl CudaStream {
    /// The stream's device.
    #[must_use]
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// The driver's stream handle, for libraries that queue work on the stream.
    #[must_use]
    pub const fn raw(&self) -> *mut c_void {
        self.raw
    }

    /// Copies host bytes to the beginning of `to`.
    ///
    /// # Errors
    ///
    /// Returned if `to` is too short; otherwise the driver's error.
    pub fn upload<T>(&self, from: T, to: &DeviceBuffer) -> Result<(), Error>
    where
        T: AsRef<[u8]> + Send + 'static,
    {
        // Boxed, because the bytes must not move together with their owner.
        let from = Box::new(from);
        let bytes = (*from).as_ref();
        fits(bytes.len(), to.len())?;
        let (address, length) = (bytes.as_ptr().addr(), bytes.len());
        // SAFETY: Both memory regions have this length, and the stream keeps their owners alive.
        unsafe { self.copy_raw(to.address(), address_of_host(address), length) }?;
        self.keep_until_done(Box::new((from, to.clone())));
        Ok(())
    }

    /// Copies the beginning of `from` to all of `to`. The host gets `to` back when the copy is
    /// done.
    ///
    /// # Errors
    ///
    /// Returned if `from` is too short; otherwise the driver's error.
    pub fn download(&self, from: &DeviceBuffer, to: HostBuffer) -> Result<PendingDownload, Error> {
        self.download_all([(from, to)])
    }

    /// Copies several memory regions to the host, which gets all destinations back at the same
    /// time.
    ///
    /// # Errors
    ///
    /// Same as for [`Self::download`].
    pub fn download_all<'a, I>(&self, copies: I) -> Result<PendingDownload, Error>
    where
        I: IntoIterator<Item = (&'a DeviceBuffer, HostBuffer)>,
    {
        let copies: Vec<_> = copies.into_iter().collect();
        for (from, to) in &copies {
            fits(to.len(), from.len())?;
        }
        let mut targets =
            PendingCopyTargets { buffers: Vec::with_capacity(copies.len()), stream: self };
        for (from, to) in copies {
            targets.buffers.push(to);
            let to = targets.buffers.last_mut().expect("it was pushed");
            let (address, length) = (to.as_mut_ptr().addr(), to.len());
            // SAFETY: Both memory regions have this length. The stream keeps the source alive, and
            // `PendingCopyTargets` and `PendingDownload` keep the destination alive until the copy
            // is done.
            unsafe { self.copy_raw(address_of_host(address), from.address(), length) }?;
            self.keep_until_done(Box::new(from.clone()));
        }
        let event = self.record()?;
        Ok(PendingDownload { event, buffers: std::mem::take(&mut targets.buffers) })
    }

    /// Copies between two memory regions of equal length, which may be on different devices.
    ///
    /// # Errors
    ///
    /// Returned if the lengths differ; otherwise the driver's error.
    pub fn copy(&self, from: &DeviceBuffer, to: &DeviceBuffer) -> Result<(), Error> {
        if from.len() != to.len() {
            let text = format!("a copy of {} bytes to {}", from.len(), to.len());
            return Err(Error::Range(text));
        }
        // SAFETY: Both memory regions have this length, and the stream keeps both alive.
        unsafe { self.copy_raw(to.address(), from.address(), from.len()) }?;
        self.keep_until_done(Box::new((from.clone(), to.clone())));
        Ok(())
    }

    /// Sets all bytes of `to`.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn fill(&self, to: &DeviceBuffer, value: u8) -> Result<(), Error> {
        if to.is_empty() {
            return Ok(());
        }
        let state = &self.device.0;
        let entered = state.make_current()?;
        // SAFETY: The memory has this length, and the stream keeps it alive.
        let code = unsafe { state.driver.cuMemsetD8Async(to.address(), value, to.len(), self.raw) };
        drop(entered);
        state.check("cuMemsetD8Async", code)?;
        self.keep_until_done(Box::new(to.clone()));
        Ok(())
    }

    /// Copies between two addresses, each on the host or on a device.
    ///
    /// # Errors
    ///
    /// The driver's error.
    ///
    /// # Safety
    ///
    /// There must be `bytes` bytes at both addresses until the copy is done. Until then, nothing
    /// else may access the bytes at `to` or write to the bytes at `from`.
    pub unsafe fn copy_raw(&self, to: u64, from: u64, bytes: usize) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        let state = &self.device.0;
        let entered = state.make_current()?;
        // SAFETY: guaranteed by the caller; the stream is alive.
        let code = unsafe { state.driver.cuMemcpyAsync(to, from, bytes, self.raw) };
        drop(entered);
        state.check("cuMemcpyAsync", code)
    }

    /// Keeps a value alive until all currently queued work is done.
    pub fn keep_until_done(&self, value: Box<dyn Any + Send>) {
        let mut kept = self.kept.borrow_mut();
        kept.recent.push(value);
        let many = kept.recent.len() >= KEPT_WITHOUT_EVENT_MAX;
        drop(kept);
        if many {
            // If recording fails, the values stay alive until the stream is synchronized.
            let _ = self.record();
        }
    }

    /// Records an event after all currently queued work.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn record(&self) -> Result<CudaEvent, Error> {
        self.release_done();
        let event = CudaEvent::new(&self.device)?;
        let state = &self.device.0;
        let entered = state.make_current()?;
        // SAFETY: The event and the stream are alive and belong to the same device.
        let code = unsafe { state.driver.cuEventRecord(event.0.raw, self.raw) };
        drop(entered);
        state.check("cuEventRecord", code)?;
        let mut kept = self.kept.borrow_mut();
        let recent = std::mem::take(&mut kept.recent);
        if !recent.is_empty() {
            kept.before.push_back((event.clone(), recent));
        }
        Ok(event)
    }

    /// Makes all work that is queued afterwards wait for an event in another stream. The host
    /// doesn't wait.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub fn wait_for(&self, event: &CudaEvent) -> Result<(), Error> {
        let state = &self.device.0;
        let entered = state.make_current()?;
        // SAFETY: The event and the stream are alive.
        let code = unsafe { state.driver.cuStreamWaitEvent(self.raw, event.0.raw, 0) };
        drop(entered);
        state.check("cuStreamWaitEvent", code)?;
        self.keep_until_done(Box::new(event.clone()));
        Ok(())
    }

    /// Waits until all of the stream's work is done. The calling thread sleeps in the meantime.
    ///
    /// # Errors
    ///
    /// The error of failed work, which means that the device has been lost.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.record()?.wait()?;
        self.release_done();
        Ok(())
    }

    /// Drops the values that only completed work used.
    fn release_done(&self) {
        loop {
            let mut kept = self.kept.borrow_mut();
            let Some((event, _)) = kept.before.front() else { return };
            // Work on a lost device counts as done.
            if matches!(event.is_done(), Ok(false)) {
                return;
            }
            let done = kept.before.pop_front();
            // Dropping these values may use this stream.
            drop(kept);
            drop(done);
        }
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        let state = &self.device.0;
        if let Ok(entered) = state.make_current() {
            // SAFETY: The stream is alive and is destroyed once. The memory that its work uses is
            // dropped afterwards.
            unsafe {
                let _ = state.driver.cuStreamSynchronize(self.raw);
                let _ = state.driver.cuStreamDestroy_v2(self.raw);
            }
            drop(entered);
        }
    }
}

impl CudaEvent {
    fn new(device: &Device) -> Result<Self, Error> {
        let entered = device.0.make_current()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: The pointer refers to a local, and the context is current.
        let code = unsafe { device.0.driver.cuEventCreate(&raw mut raw, driver::EVENT_FLAGS) };
        drop(entered);
        device.0.check("cuEventCreate", code)?;
        Ok(Self(Arc::new(RawEvent { device: device.clone(), raw })))
    }

    /// Returns true if the work that precedes the event is done.
    ///
    /// # Errors
    ///
    /// Returned if the work failed, which means that the device has been lost.
    pub fn is_done(&self) -> Result<bool, Error> {
        let state = &self.0.device.0;
        let entered = state.make_current()?;
        // SAFETY: The event is alive.
        let code = unsafe { state.driver.cuEventQuery(self.0.raw) };
        drop(entered);
        if code == NOT_READY {
            return Ok(false);
        }
        state.check("cuEventQuery", code).map(|()| true)
    }

    /// Waits until the work that precedes the event is done. The calling thread sleeps in the
    /// meantime.
    ///
    /// # Errors
    ///
    /// Returned if the work failed, which means that the device has been lost.
    pub fn wait(&self) -> Result<(), Error> {
        let state = &self.0.device.0;
        let entered = state.make_current()?;
        // SAFETY: The event is alive.
        let code = unsafe { state.driver.cuEventSynchronize(self.0.raw) };
        drop(entered);
        state.check("cuEventSynchronize", code)
    }

    /// The driver's event handle, for libraries that wait for the event.
    #[must_use]
    pub fn raw(&self) -> *mut c_void {
        self.0.raw
    }
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        let state = &self.device.0;
        if let Ok(entered) = state.make_current() {
            // SAFETY: The event is destroyed once, and the driver keeps it for any work that still
            // needs it.
            let _ = unsafe { state.driver.cuEventDestroy_v2(self.raw) };
            drop(entered);
        }
    }
}

/// Host memory that copies write to. It becomes accessible only after the copies are done.
///
/// Dropping the value waits for the copies.
#[must_use = "the memory is given back by `wait`"]
pub struct PendingDownload {
    event: CudaEvent,
    buffers: Vec<HostBuffer>,
}

impl PendingDownload {
    /// Returns true if the copies are done.
    ///
    /// # Errors
    ///
    /// Returned if the device has been lost.
    pub fn is_done(&self) -> Result<bool, Error> {
        self.event.is_done()
    }

    /// The event that follows the copies.
    #[must_use]
    pub const fn event(&self) -> &CudaEvent {
        &self.event
    }

    /// Waits for a single copy and returns its memory.
    ///
    /// # Errors
    ///
    /// Returned if the device has been lost.
    ///
    /// # Panics
    ///
    /// Panics unless there is exactly one copy.
    pub fn wait(self) -> Result<HostBuffer, Error> {
        let [one] = <[HostBuffer; 1]>::try_from(self.wait_all()?).expect("one copy");
        Ok(one)
    }

    /// Waits for the copies and returns their memory in the same order.
    ///
    /// # Errors
    ///
    /// Returned if the device has been lost.
    pub fn wait_all(mut self) -> Result<Vec<HostBuffer>, Error> {
        self.event.wait()?;
        Ok(std::mem::take(&mut self.buffers))
    }
}

impl Drop for PendingDownload {
    fn drop(&mut self) {
        if !self.buffers.is_empty() {
            // An error means that the device has been lost, so nothing writes to the memory any
            // more.
            let _ = self.event.wait();
        }
    }
}

/// The destinations of copies that aren't followed by an event yet.
struct PendingCopyTargets<'a> {
    buffers: Vec<HostBuffer>,
    stream: &'a CudaStream,
}

impl Drop for PendingCopyTargets<'_> {
    fn drop(&mut self) {
        if !self.buffers.is_empty() {
            // A copy failed after others had already been queued.
            let state = &self.stream.device.0;
            if let Ok(entered) = state.make_current() {
                // SAFETY: The stream is alive.
                let _ = unsafe { state.driver.cuStreamSynchronize(self.stream.raw) };
                drop(entered);
            }
        }
    }
}

/// A host address as a device address: the host and the devices share one address space.
fn address_of_host(address: usize) -> u64 {
    u64::try_from(address).expect("an address has 64 bits")
}

fn fits(bytes: usize, room: usize) -> Result<(), Error> {
    if bytes > room {
        return Err(Error::Range(format!("a copy of {bytes} bytes to or from {room}")));
    }
    Ok(())
}

impl fmt::Debug for CudaStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Stream(GPU {})", self.device.number())
    }
}

impl fmt::Debug for CudaEvent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "StreamEvent(GPU {})", self.0.device.number())
    }
}

impl fmt::Debug for PendingDownload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "DownloadBuffers({:?})", self.buffers)
    }
}
