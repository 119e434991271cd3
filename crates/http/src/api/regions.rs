//! The shared-memory endpoints.

use bytes::Bytes;
use galatea_codec_http::{
    CudaShmRegisterRequest, SystemShmRegisterRequest, encode_cuda_shm_status,
    encode_system_shm_status,
};
use galatea_control::{ShmDisabled, ShmKind};
use galatea_gate::access::AccessGrant;
use galatea_infer::{AccessPass, Status, api};

use super::{Api, or_error};
use crate::endpoint::Disconnected;
use crate::guard::guarded;
use crate::http_response::{self, HttpResponse};
use crate::request_body::RequestBody;
use crate::request_head::RequestHead;
use crate::route::RegionAction;

/// A request about regions.
#[derive(Copy, Clone, Debug)]
pub(super) struct RegionRequest<'a> {
    pub(super) kind: ShmKind,
    pub(super) region: Option<&'a str>,
    pub(super) action: RegionAction,
}

impl Api {
    pub(super) async fn shared_memory<B: RequestBody>(
        &self,
        admission: AccessGrant,
        head: &RequestHead<'_>,
        body: &mut B,
        request: RegionRequest<'_>,
    ) -> Result<HttpResponse, Disconnected> {
        let body = if request.action == RegionAction::Register && self.regions.is_allowed() {
            match self.read_body(head, body, self.limits.input_bytes_max).await? {
                Ok(body) => body,
                Err(refusal) => return Ok(refusal),
            }
        } else {
            Bytes::new()
        };
        Ok(or_error(guarded(|| self.change_regions(admission.pass()?, &body, request))))
    }

    fn change_regions(
        &self,
        pass: AccessPass<api::SharedMemory>,
        body: &[u8],
        request: RegionRequest<'_>,
    ) -> Result<HttpResponse, Status> {
        let RegionRequest { kind, region, action } = request;
        let name = region.unwrap_or_default();
        match action {
            RegionAction::Status => {
                return Ok(http_response::json(match kind {
                    ShmKind::System => encode_system_shm_status(&self.regions.status(pass, name)?),
                    ShmKind::Cuda => encode_cuda_shm_status(&self.regions.cuda_status(pass, name)?),
                }));
            }
            RegionAction::Unregister => self.regions.unregister(pass, kind, name)?,
            RegionAction::Register if !self.regions.is_allowed() => {
                return Err(ShmDisabled::refusal());
            }
            RegionAction::Register if name.is_empty() => {
                return Err(Status::invalid_argument(format!(
                    "'region name' is necessary to register {kind} shared memory region"
                )));
            }
            RegionAction::Register => match kind {
                ShmKind::System => {
                    let request = SystemShmRegisterRequest::decode(body, &self.limits)?;
                    self.regions.register(pass, request.into_region(name))?;
                }
                ShmKind::Cuda => {
                    let request = CudaShmRegisterRequest::decode(body, &self.limits)?;
                    let (region, raw_handle) = request.into_region(name);
                    self.regions.register_cuda(pass, region, &raw_handle)?;
                }
            },
        }
        Ok(http_response::done())
    }
}
