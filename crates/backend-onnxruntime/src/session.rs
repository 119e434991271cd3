//! An instance's session, which is either shared with other instances or on a GPU with its own
//! stream.

use std::sync::Arc;

use galatea_backend::ExecutionTerminator;
use galatea_devices::CudaStream;
use galatea_infer::Status;
use galatea_runtime::{ByteRegion, DeviceBytes, OutputPlace, copy_failed_error};
use galatea_tensor::{DataType, Shape};

use crate::api::{DeviceSession, ModelSession, OrtEnvironment, OrtTensor, RunOptions, RunOutputs};
use crate::failure;
use crate::settings::ModelSettings;

/// A session with the run options of one instance.
pub(crate) struct OnnxSession {
    session: AnySession,
    /// Shared with the run's terminators.
    run_options: Arc<RunOptions>,
}

/// A session, by the processor that it executes on.
pub(crate) enum AnySession {
    /// On the CPU, shared with other instances.
    Shared(Arc<ModelSession>),
    /// On a GPU, used only by this instance.
    OnDevice(Box<DeviceSession>),
}

impl OnnxSession {
    pub(crate) fn new(
        session: AnySession,
        environment: &OrtEnvironment,
        settings: &ModelSettings,
    ) -> Result<Self, Status> {
        let mut run_options = RunOptions::new(environment)?;
        settings.apply_to_run(&mut run_options)?;
        Ok(Self { session, run_options: Arc::new(run_options) })
    }

    fn environment(&self) -> &OrtEnvironment {
        match &self.session {
            AnySession::Shared(session) => session.environment(),
            AnySession::OnDevice(session) => session.session().environment(),
        }
    }
}

impl galatea_runtime::Session for OnnxSession {
    type Tensor<'data> = OrtTensor<'data>;
    type Outputs<'data> = RunOutputs<'data>;

    fn tensor<'data>(
        &self,
        datatype: DataType,
        shape: &Shape,
        data: ByteRegion<'data>,
    ) -> Result<OrtTensor<'data>, Status> {
        Ok(OrtTensor::borrowed(self.environment(), datatype, shape, data)?)
    }

    fn strings<'data>(&self, shape: &Shape, parts: &[&[u8]]) -> Result<OrtTensor<'data>, Status> {
        Ok(OrtTensor::strings(self.environment(), shape, parts)?)
    }

    fn run<'data>(
        &mut self,
        inputs: &[(usize, Self::Tensor<'data>)],
        outputs: &[(usize, OutputPlace)],
    ) -> Result<Self::Outputs<'data>, Status> {
        match &self.session {
            AnySession::Shared(session) => Ok(session.run(&self.run_options, inputs, outputs)?),
            AnySession::OnDevice(session) => {
                run_on_device(session, &self.run_options, inputs, outputs)
            }
        }
    }

    fn terminator(&self) -> Option<Arc<dyn ExecutionTerminator>> {
        Some(self.run_options.clone())
    }

    fn stream(&self) -> Option<&CudaStream> {
        match &self.session {
            AnySession::Shared(_) => None,
            AnySession::OnDevice(session) => Some(session.stream()),
        }
    }

    fn device_tensor<'data>(
        &self,
        datatype: DataType,
        shape: &Shape,
        data: DeviceBytes<'data>,
    ) -> Result<OrtTensor<'data>, Status> {
        match &self.session {
            AnySession::Shared(_) => Err(Status::internal("a session on the CPU has no GPU")),
            AnySession::OnDevice(session) => {
                let memory = session.memory();
                Ok(OrtTensor::on_device(self.environment(), memory, datatype, shape, data)?)
            }
        }
    }
}

/// Runs a session on a GPU. All work on its stream is complete when the call returns.
fn run_on_device<'data>(
    session: &DeviceSession,
    options: &RunOptions,
    inputs: &[(usize, OrtTensor<'data>)],
    outputs: &[(usize, OutputPlace)],
) -> Result<RunOutputs<'data>, Status> {
    let run = session.run(options, inputs, outputs);
    // Waits even after an error, because queued work may still read the inputs.
    let finished = session.stream().synchronize();
    match (run, finished) {
        (Ok(outputs), Ok(())) => Ok(outputs),
        (Ok(_), Err(error)) => Err(copy_failed_error(&error)),
        (Err(error), finished) => {
            if failure::is_of_device(error.message()) && finished.is_ok() {
                session.stream().device().declare_lost(error.message());
            }
            Err(error.into())
        }
    }
}

/// Ends the run that an instance started with its options. No other instance uses these options.
impl ExecutionTerminator for RunOptions {
    fn terminate(&self) {
        Self::terminate(self);
    }

    fn reset(&self) {
        self.reset_terminate();
    }
}
