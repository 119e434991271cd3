//! Responses to calls other than inference, such as health, metadata, statistics and repository
//! calls.

use galatea_codec::parse_version;
use galatea_codec_grpc::{
    control as codec, frame_message, log, parse_trace_change, trace_settings_response,
};
use galatea_door::BlockingPermits;
use galatea_gate::access::AccessGrant;
use galatea_infer::{Code, Status};
use galatea_protocol::{health, inference};
use health::health_check_response::ServingStatus;
use prost::bytes::Bytes;

use crate::context::DoorContext;
use crate::control_message::{ControlResponse, decode};
use crate::regions::RegionCalls;
use crate::route::Method;

/// Returns the permits for a call that may block and therefore must not run in a connection's task:
/// a load takes as long as the model takes, an index reads the repositories, and the statistics of
/// many models form a long document.
pub(crate) fn permits(context: &DoorContext, method: Method) -> Option<BlockingPermits> {
    let permits = &context.repository_permits;
    match method {
        Method::RepositoryIndex => Some(permits.indexes.clone()),
        Method::RepositoryModelLoad => Some(permits.loads.clone()),
        Method::RepositoryModelUnload => Some(permits.unloads.clone()),
        Method::ModelStatistics => Some(context.statistics_permits.clone()),
        Method::CudaSharedMemoryRegister
        | Method::CudaSharedMemoryStatus
        | Method::CudaSharedMemoryUnregister
        | Method::HealthCheck
        | Method::LogSettings
        | Method::ModelConfig
        | Method::ModelInfer
        | Method::ModelMetadata
        | Method::ModelReady
        | Method::ModelStreamInfer
        | Method::ServerLive
        | Method::ServerMetadata
        | Method::ServerReady
        | Method::SystemSharedMemoryRegister
        | Method::SystemSharedMemoryStatus
        | Method::SystemSharedMemoryUnregister
        | Method::TraceSetting => None,
    }
}

/// Returns true if the call is a readiness check that calls a backend, which may block.
pub(crate) fn calls_backend(
    context: &DoorContext,
    admission: AccessGrant,
    method: Method,
    body: &Bytes,
) -> bool {
    if method == Method::TraceSetting {
        // The model's readiness may depend on its backend's response.
        return true;
    }
    let Ok(pass) = admission.pass() else { return false };
    match method {
        Method::HealthCheck | Method::ServerReady => {
            context.control.readiness_may_block(pass, None)
        }
        Method::ModelReady => {
            let request = decode::<inference::ModelReadyRequest>(body.clone());
            let version = request.as_ref().map(|request| parse_version(&request.version));
            let (Ok(request), Ok(Ok(version))) = (&request, version) else { return false };
            context.control.readiness_may_block(pass, Some((&request.name, version)))
        }
        Method::CudaSharedMemoryRegister
        | Method::CudaSharedMemoryStatus
        | Method::CudaSharedMemoryUnregister
        | Method::LogSettings
        | Method::ModelConfig
        | Method::ModelInfer
        | Method::ModelMetadata
        | Method::ModelStatistics
        | Method::ModelStreamInfer
        | Method::RepositoryIndex
        | Method::RepositoryModelLoad
        | Method::RepositoryModelUnload
        | Method::ServerLive
        | Method::ServerMetadata
        | Method::SystemSharedMemoryRegister
        | Method::SystemSharedMemoryStatus
        | Method::SystemSharedMemoryUnregister
        | Method::TraceSetting => false,
    }
}

/// Responds to a call.
pub(crate) fn respond(
    context: &DoorContext,
    admission: AccessGrant,
    method: Method,
    body: Bytes,
) -> ControlResponse {
    match method {
        Method::HealthCheck => health_check(context, admission, body),
        Method::ServerLive => {
            decode::<inference::ServerLiveRequest>(body)?;
            if context.is_stopping() {
                return Err(Status::unavailable("Server exiting"));
            }
            frame_message(&inference::ServerLiveResponse {
                live: context.control.live(admission.pass()?),
            })
        }
        Method::ServerReady => {
            decode::<inference::ServerReadyRequest>(body)?;
            let ready = context.control.ready(admission.pass()?)? && !context.is_stopping();
            frame_message(&inference::ServerReadyResponse { ready })
        }
        Method::ServerMetadata => {
            decode::<inference::ServerMetadataRequest>(body)?;
            frame_message(&codec::server_metadata_response(
                context.control.server_metadata(admission.pass()?),
            ))
        }
        Method::ModelReady => {
            let request: inference::ModelReadyRequest = decode(body)?;
            let version = parse_version(&request.version)?;
            let ready = context.control.model_ready(admission.pass()?, &request.name, version)?;
            frame_message(&inference::ModelReadyResponse { ready })
        }
        Method::ModelMetadata => {
            let request: inference::ModelMetadataRequest = decode(body)?;
            let version = parse_version(&request.version)?;
            let metadata =
                context.control.model_metadata(admission.pass()?, &request.name, version)?;
            frame_message(&codec::model_metadata_response(metadata))
        }
        Method::ModelConfig => {
            let request: inference::ModelConfigRequest = decode(body)?;
            let version = parse_version(&request.version)?;
            let document =
                context.control.model_config(admission.pass()?, &request.name, version)?;
            codec::encode_config_response(&document.protobuf)
        }
        Method::LogSettings => log_settings(context, admission, body),
        Method::ModelStatistics => statistics(context, admission, body),
        Method::RepositoryIndex => repository_index(context, admission, body),
        Method::RepositoryModelLoad => load(context, admission, body),
        Method::RepositoryModelUnload => unload(context, admission, body),
        Method::SystemSharedMemoryRegister => regions(context, admission)?.register_system(body),
        Method::SystemSharedMemoryStatus => regions(context, admission)?.system_status(body),
        Method::SystemSharedMemoryUnregister => {
            regions(context, admission)?.unregister_system(body)
        }
        Method::CudaSharedMemoryRegister => regions(context, admission)?.register_cuda(body),
        Method::CudaSharedMemoryStatus => regions(context, admission)?.cuda_status(body),
        Method::CudaSharedMemoryUnregister => regions(context, admission)?.unregister_cuda(body),
        Method::TraceSetting => trace_setting(context, admission, body),
        // Inference calls receive their responses through a sender.
        Method::ModelInfer | Method::ModelStreamInfer => {
            Err(Status::internal("an inference was taken for a control call"))
        }
    }
}

fn regions(context: &DoorContext, admission: AccessGrant) -> Result<RegionCalls<'_>, Status> {
    Ok(RegionCalls { regions: &*context.options.regions, pass: admission.pass()? })
}

/// Performs the standard health check. It covers the whole server, regardless of the service that
/// the client names.
fn health_check(context: &DoorContext, admission: AccessGrant, body: Bytes) -> ControlResponse {
    decode::<health::HealthCheckRequest>(body)?;
    let ready = match context.control.ready(admission.pass()?) {
        Ok(ready) => ready && !context.is_stopping(),
        Err(status) if status.code() == Code::Unavailable => false,
        Err(status) => return Err(status),
    };
    let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
    frame_message(&health::HealthCheckResponse { status: i32::from(status) })
}

fn statistics(context: &DoorContext, admission: AccessGrant, body: Bytes) -> ControlResponse {
    let request: inference::ModelStatisticsRequest = decode(body)?;
    let version = parse_version(&request.version)?;
    let name = (!request.name.is_empty()).then_some(request.name.as_str());
    let models = context.control.statistics(admission.pass()?, name, version)?;
    frame_message(&codec::statistics_response(&models))
}

fn log_settings(context: &DoorContext, admission: AccessGrant, body: Bytes) -> ControlResponse {
    let request: inference::LogSettingsRequest = decode(body)?;
    let update = log::parse_log_update(&request);
    let settings = update.apply(context.options.log.as_deref(), admission.pass()?)?;
    frame_message(&log::log_settings_response(settings))
}

fn repository_index(context: &DoorContext, admission: AccessGrant, body: Bytes) -> ControlResponse {
    let request: inference::RepositoryIndexRequest = decode(body)?;
    codec::refuse_repository_name(&request.repository_name)?;
    frame_message(&codec::repository_index_response(
        context.control.repository_index(admission.pass()?, request.ready)?,
    ))
}

fn load(context: &DoorContext, admission: AccessGrant, body: Bytes) -> ControlResponse {
    codec::check_load_files(&body)?;
    let mut request: inference::RepositoryModelLoadRequest = decode(body)?;
    codec::refuse_repository_name(&request.repository_name)?;
    let name = std::mem::take(&mut request.model_name);
    context.control.load_model(admission.pass()?, &name, codec::parse_load_parameters(request)?)?;
    frame_message(&inference::RepositoryModelLoadResponse {})
}

fn trace_setting(context: &DoorContext, admission: AccessGrant, body: Bytes) -> ControlResponse {
    let request: inference::TraceSettingRequest = decode(body)?;
    let pass = admission.pass()?;
    let Some(tracing) = &context.options.tracing else {
        return Err(Status::unavailable("the server does not support trace"));
    };
    let model = Some(request.model_name.as_str()).filter(|name| !name.is_empty());
    if let Some(model) = model {
        tracing.check_model(pass, model)?;
    }
    if let Some(change) = parse_trace_change(&request)? {
        tracing.change(pass, model, &change)?;
    }
    frame_message(&trace_settings_response(tracing.settings(pass, model)))
}

fn unload(context: &DoorContext, admission: AccessGrant, body: Bytes) -> ControlResponse {
    let request: inference::RepositoryModelUnloadRequest = decode(body)?;
    codec::refuse_repository_name(&request.repository_name)?;
    let unload_dependents = codec::parse_unload_dependents(&request)?;
    context.control.unload_model(admission.pass()?, &request.model_name, unload_dependents)?;
    frame_message(&inference::RepositoryModelUnloadResponse {})
}
