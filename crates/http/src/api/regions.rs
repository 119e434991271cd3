//! The shared-memory endpoints.

use bytes::Bytes;
use galatea_codec_http::{
    CudaRegisterRequest, RegisterRequest, encode_cuda_regions, encode_regions,
};
use galatea_control::{NoRegions, RegionKind};
use galatea_gate::access::Admission;
use galatea_infer::{Pass, Status, api};

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
    pub(super) kind: RegionKind,
    pub(super) region: Option<&'a str>,
    pub(super) action: RegionAction,
}

impl Api {
    pub(super) async fn shared_memory<B: RequestBody>(
        &self,
        admission: Admission,
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
        pass: Pass<api::SharedMemory>,
        body: &[u8],
        request: RegionRequest<'_>,
    ) -> Result<HttpResponse, Status> {
        let RegionRequest { kind, region, action } = request;
        let name = region.unwrap_or_default();
        match action {
            RegionAction::Status => {
                return Ok(http_response::json(match kind {
                    RegionKind::System => encode_regions(&self.regions.status(pass, name)?),
                    RegionKind::Cuda => encode_cuda_regions(&self.regions.cuda_status(pass, name)?),
                }));
            }
            RegionAction::Unregister => self.regions.unregister(pass, kind, name)?,
            RegionAction::Register if !self.regions.is_allowed() => {
                return Err(NoRegions::refusal());
            }
            RegionAction::Register if name.is_empty() => {
                return Err(Status::invalid_argument(format!(
                    "'region name' is necessary to register {kind} shared memory region"
                )));
            }
            RegionAction::Register => match kind {
                RegionKind::System => {
                    let request = RegisterRequest::decode(body, &self.limits)?;
                    self.regions.register(pass, request.named(name))?;
                }
                RegionKind::Cuda => {
                    let request = CudaRegisterRequest::decode(body, &self.limits)?;
                    let (region, raw_handle) = request.named(name);
                    self.regions.register_cuda(pass, region, &raw_handle)?;
                }
            },
        }
        Ok(http_response::done())
    }
}
