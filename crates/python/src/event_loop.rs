//! Wakes event loops of asyncio: by a file descriptor that the loop watches, because a thread of
//! the server must not call into Python.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use galatea_stdx::Lock;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

/// Says that responses have arrived, and for which requests of a loop.
pub(crate) struct LoopEvent {
    descriptor: OwnedFd,
    /// The numbers of the requests, until the loop takes them.
    arrived: Lock<Vec<u64>>,
}

impl LoopEvent {
    /// Tells the loop of a request's response. It never blocks: a counter that is not 0 wakes
    /// the loop as well.
    pub(crate) fn tell(&self, request: u64) {
        let is_first = {
            let mut arrived = self.arrived.lock("tell of a response");
            arrived.push(request);
            arrived.len() == 1
        };
        if is_first {
            let _ = rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes());
        }
    }
}

/// The event of one loop.
#[pyclass(frozen, module = "galatea._galatea")]
pub(crate) struct EventLoopWaker {
    pub(crate) event: Arc<LoopEvent>,
}

#[pymethods]
impl EventLoopWaker {
    #[new]
    fn new() -> PyResult<Self> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| PyOSError::new_err((error.raw_os_error(), error.to_string())))?;
        Ok(Self { event: Arc::new(LoopEvent { descriptor, arrived: Lock::default() }) })
    }

    /// The descriptor that becomes readable.
    fn fileno(&self) -> RawFd {
        self.event.descriptor.as_raw_fd()
    }

    /// The requests that have responses since the last call.
    fn take(&self) -> Vec<u64> {
        // First, so that a response that arrives now makes the descriptor readable again.
        let _ = rustix::io::read(&self.event.descriptor, &mut [0; 8]);
        std::mem::take(&mut *self.event.arrived.lock("take the responses"))
    }
}
