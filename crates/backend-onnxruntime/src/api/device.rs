//! Sessions on GPUs.

use std::path::Path;
use std::sync::Arc;

use galatea_devices::Stream;
use galatea_infer::Status;

use super::environment::OrtEnvironment;
use super::memory::DeviceMemory;
use super::options::SessionOptions;
use super::session::Session;

/// A session on a GPU, with the stream that it executes on and shares with no other session.
pub(crate) struct DeviceSession {
    /// Released before the stream.
    session: Session,
    stream: Stream,
    memory: DeviceMemory,
}

impl DeviceSession {
    /// Loads the model at `path`, with options whose providers have been given this stream.
    pub(crate) fn open(
        environment: Arc<OrtEnvironment>,
        path: &Path,
        options: &SessionOptions,
        stream: Stream,
    ) -> Result<Self, Status> {
        if options.stream() != Some(stream.raw()) {
            return Err(Status::internal("the session's providers have another stream"));
        }
        let memory = DeviceMemory::new(&environment, stream.device().number())?;
        let session = Session::open_with_stream(environment, path, options)?;
        Ok(Self { session, stream, memory })
    }

    pub(crate) const fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) const fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The memory of the session's GPU.
    pub(crate) const fn memory(&self) -> &DeviceMemory {
        &self.memory
    }
}
