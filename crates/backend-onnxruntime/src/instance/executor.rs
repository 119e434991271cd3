//! The session of an instance: one that is shared with other instances, or one on a GPU with a
//! stream of its own.

use std::sync::Arc;

use bytes::Bytes;
use galatea_devices::{Device, Devices, HostBuffer};
use galatea_gate::ledger::Account;
use galatea_infer::Status;
use galatea_tensor::{Buffer, DeviceRegion};

use crate::api::{DeviceSession, OrtTensor, OutputPlace, RunOptions, RunOutputs, Session};
use crate::failure;

/// A session and the means to copy between its processor and others.
pub(crate) struct Executor {
    session: AnySession,
    devices: Devices,
    account: Arc<Account>,
    /// True if inputs are gathered in pinned memory.
    pinned: bool,
}

enum AnySession {
    /// On the CPU, shared with other instances.
    Shared(Arc<Session>),
    /// On a GPU, used by this instance alone.
    OnDevice(Box<DeviceSession>),
}

impl Executor {
    pub(crate) const fn on_cpu(
        session: Arc<Session>,
        devices: Devices,
        account: Arc<Account>,
    ) -> Self {
        Self { session: AnySession::Shared(session), devices, account, pinned: false }
    }

    pub(crate) fn on_device(
        session: DeviceSession,
        devices: Devices,
        account: Arc<Account>,
        pinned: bool,
    ) -> Self {
        Self { session: AnySession::OnDevice(Box::new(session)), devices, account, pinned }
    }

    /// The account for the memory of strings.
    pub(super) const fn account(&self) -> &Arc<Account> {
        &self.account
    }

    pub(crate) fn session(&self) -> &Session {
        match &self.session {
            AnySession::Shared(session) => session,
            AnySession::OnDevice(session) => session.session(),
        }
    }

    /// The session with its stream, if it is on a GPU.
    pub(super) fn device_session(&self) -> Option<&DeviceSession> {
        match &self.session {
            AnySession::Shared(_) => None,
            AnySession::OnDevice(session) => Some(session),
        }
    }

    /// The device with this number, which holds memory of a request.
    pub(super) fn device(&self, number: u32) -> Result<&Device, Status> {
        let number = i32::try_from(number).unwrap_or(i32::MAX);
        self.devices.device(number).map_err(|error| copy_failed(&error))
    }

    /// Host memory for copies to and from a device.
    pub(super) fn host_memory(&self, byte_size: usize) -> HostBuffer {
        if self.pinned {
            self.devices.host_memory(byte_size)
        } else {
            HostBuffer::pageable(byte_size)
        }
    }

    /// A CPU-readable copy of a device's memory.
    pub(super) fn to_host(&self, region: &DeviceRegion) -> Result<Bytes, Status> {
        if region.byte_size == 0 {
            return Ok(Bytes::new());
        }
        let device = self.device(region.device)?;
        let source = device.memory_of(region);
        let target = self.host_memory(region.byte_size);
        let copied = match self.device_session() {
            Some(session) => session.stream().download(&source, target),
            // An instance on the CPU has no stream. It rarely gets GPU memory.
            None => device.stream().and_then(|stream| stream.download(&source, target)),
        };
        let copied = copied.and_then(galatea_devices::Downloads::wait);
        Ok(Bytes::from_owner(copied.map_err(|error| copy_failed(&error))?))
    }

    /// An output that stays in a device's memory.
    pub(super) fn tensor(&self, region: &DeviceRegion) -> Result<Buffer, Status> {
        let memory = self.devices.memory_of(region).map_err(|error| copy_failed(&error))?;
        Ok(self.devices.tensor(memory))
    }

    /// Executes a batch. On a GPU, all work on the stream is complete when the call returns.
    pub(super) fn run<'data>(
        &self,
        options: &RunOptions,
        inputs: &[(usize, OrtTensor<'data>)],
        outputs: &[(usize, OutputPlace<'_>)],
    ) -> Result<RunOutputs<'data>, Status> {
        let Some(on_device) = self.device_session() else {
            let indices: smallvec::SmallVec<[usize; 8]> =
                outputs.iter().map(|(index, _)| *index).collect();
            return Ok(self.session().run(options, inputs, &indices)?);
        };
        let run = on_device.session().run_bound(options, inputs, outputs);
        // Waits even after an error, because queued work may still read the inputs.
        let finished = on_device.stream().synchronize();
        match (run, finished) {
            (Ok(outputs), Ok(())) => Ok(outputs),
            (Ok(_), Err(error)) => Err(copy_failed(&error)),
            (Err(error), finished) => {
                if failure::is_of_device(error.message()) && finished.is_ok() {
                    on_device.stream().device().declare_lost(error.message());
                }
                Err(error.into())
            }
        }
    }
}

/// The status of a failed copy, as Triton words it.
pub(super) fn copy_failed(error: &galatea_devices::Error) -> Status {
    Status::internal(format!("failed to perform CUDA copy: {error}"))
}
