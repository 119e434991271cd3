//! Wakes asyncio event loops through a file descriptor that the loop watches, because a server
//! thread must not call into Python.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use galatea_stdx::Lock;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

/// An event that signals the arrival of responses, and the affected requests of one event loop.
pub(crate) struct LoopEvent {
    descriptor: OwnedFd,
    /// The requests' numbers, until the loop takes them.
    arrived: Lock<Vec<u64>>,
}

impl LoopEvent {
    /// Notifies the loop of a request's response. Never blocks, because a counter that is already
    /// nonzero also wakes the loop.
    pub(crate) fn notify(&self, request: u64) {
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

/// One event loop's event.
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

    /// The file descriptor that becomes readable when responses arrive.
    fn fileno(&self) -> RawFd {
        self.event.descriptor.as_raw_fd()
    }

    /// Takes the numbers of the requests whose responses have arrived since the last call.
    fn take(&self) -> Vec<u64> {
        // Reset first, so that a response that arrives afterwards makes the descriptor readable
        // again.
        let _ = rustix::io::read(&self.event.descriptor, &mut [0; 8]);
        std::mem::take(&mut *self.event.arrived.lock("take the responses"))
    }
}
