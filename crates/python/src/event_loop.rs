//! Wakes asyncio event loops through a file descriptor that the loop watches, because a thread of
//! the server must not call into Python.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use galatea_stdx::Lock;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

/// The event that responses have arrived, and the requests of a loop that they belong to.
pub(crate) struct LoopEvent {
    descriptor: OwnedFd,
    /// The numbers of the requests, until the loop takes them.
    arrived: Lock<Vec<u64>>,
}

impl LoopEvent {
    /// Tells the loop about a request's response. Never blocks: a counter that is already nonzero
    /// wakes the loop as well.
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

    /// Takes the requests for which responses have arrived since the last call.
    fn take(&self) -> Vec<u64> {
        // Reset first, so that a response that arrives now makes the descriptor readable again.
        let _ = rustix::io::read(&self.event.descriptor, &mut [0; 8]);
        std::mem::take(&mut *self.event.arrived.lock("take the responses"))
    }
}
