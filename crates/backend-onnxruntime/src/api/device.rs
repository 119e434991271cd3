//! Sessions on GPUs.

use std::path::Path;
use std::sync::Arc;

use galatea_devices::CudaStream;
use galatea_infer::Status;
use galatea_runtime::{OutputPlace, SessionInterface};

use super::environment::OrtEnvironment;
use super::error::OrtError;
use super::memory::DeviceMemory;
use super::options::{RunOptions, SessionOptions};
use super::session::ModelSession;
use super::value::{OrtTensor, RunOutputs};

/// A session on a GPU, with the stream that it executes on. No other session shares the stream.
pub(crate) struct DeviceSession {
    /// Dropped before the stream.
    session: ModelSession,
    stream: CudaStream,
    memory: DeviceMemory,
}

impl DeviceSession {
    /// Loads the model at `path`. The providers in the options must already use this stream.
    pub(crate) fn open(
        environment: Arc<OrtEnvironment>,
        path: &Path,
        options: &SessionOptions,
        stream: CudaStream,
    ) -> Result<(Self, SessionInterface), Status> {
        if options.stream() != Some(stream.raw()) {
            return Err(Status::internal("the session's providers have another stream"));
        }
        let memory = DeviceMemory::new(&environment, stream.device().number())?;
        let (session, interface) = ModelSession::open_with_stream(environment, path, options)?;
        Ok((Self { session, stream, memory }, interface))
    }

    pub(crate) const fn session(&self) -> &ModelSession {
        &self.session
    }

    pub(crate) const fn stream(&self) -> &CudaStream {
        &self.stream
    }

    /// Runs the session with [`ModelSession::run_bound`].
    pub(crate) fn run<'data>(
        &self,
        options: &RunOptions,
        inputs: &[(usize, OrtTensor<'data>)],
        outputs: &[(usize, OutputPlace)],
    ) -> Result<RunOutputs<'data>, OrtError> {
        self.session.run_bound(options, &self.memory, inputs, outputs)
    }

    /// The memory of the session's GPU.
    pub(crate) const fn memory(&self) -> &DeviceMemory {
        &self.memory
    }
}
