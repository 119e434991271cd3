//! Responses to shared-memory calls.

use galatea_codec_grpc::{control as codec, frame_message};
use galatea_control::{CudaShmRegion, ShmControl, ShmKind, SystemShmRegion};
use galatea_infer::{AccessPass, api};
use galatea_protocol::inference;
use prost::bytes::Bytes;

use crate::control_message::{ControlResponse, decode};

/// The regions, together with the pass of a call about them.
pub(crate) struct RegionCalls<'a> {
    pub(crate) regions: &'a dyn ShmControl,
    pub(crate) pass: AccessPass<api::SharedMemory>,
}

impl RegionCalls<'_> {
    pub(crate) fn register_system(&self, body: Bytes) -> ControlResponse {
        let request: inference::SystemSharedMemoryRegisterRequest = decode(body)?;
        let inference::SystemSharedMemoryRegisterRequest { name, key, offset, byte_size } = request;
        self.regions.register(self.pass, SystemShmRegion { name, key, offset, byte_size })?;
        frame_message(&inference::SystemSharedMemoryRegisterResponse {})
    }

    pub(crate) fn system_status(&self, body: Bytes) -> ControlResponse {
        let request: inference::SystemSharedMemoryStatusRequest = decode(body)?;
        let found = self.regions.status(self.pass, &request.name)?;
        frame_message(&codec::system_shm_status_response(found))
    }

    pub(crate) fn unregister_system(&self, body: Bytes) -> ControlResponse {
        let request: inference::SystemSharedMemoryUnregisterRequest = decode(body)?;
        self.regions.unregister(self.pass, ShmKind::System, &request.name)?;
        frame_message(&inference::SystemSharedMemoryUnregisterResponse {})
    }

    pub(crate) fn register_cuda(&self, body: Bytes) -> ControlResponse {
        let request: inference::CudaSharedMemoryRegisterRequest = decode(body)?;
        let inference::CudaSharedMemoryRegisterRequest { name, raw_handle, device_id, byte_size } =
            request;
        // As in Triton, a negative number becomes a device number that no GPU has.
        let device_id = device_id.cast_unsigned();
        let region = CudaShmRegion { name, device_id, byte_size };
        self.regions.register_cuda(self.pass, region, &raw_handle)?;
        frame_message(&inference::CudaSharedMemoryRegisterResponse {})
    }

    pub(crate) fn cuda_status(&self, body: Bytes) -> ControlResponse {
        let request: inference::CudaSharedMemoryStatusRequest = decode(body)?;
        let found = self.regions.cuda_status(self.pass, &request.name)?;
        frame_message(&codec::cuda_shm_status_response(found))
    }

    pub(crate) fn unregister_cuda(&self, body: Bytes) -> ControlResponse {
        let request: inference::CudaSharedMemoryUnregisterRequest = decode(body)?;
        self.regions.unregister(self.pass, ShmKind::Cuda, &request.name)?;
        frame_message(&inference::CudaSharedMemoryUnregisterResponse {})
    }
}
