//! Converts metadata, statistics and model control to and from gRPC messages.

use galatea_control::{
    BatchStatistics, CudaShmRegion, DurationStatistic, InferenceStatistics, LoadParameters,
    ModelMetadata, ModelStatistics, RepositoryEntry, ResponseStatistics, ServerMetadata,
    SystemShmRegion, TensorMetadata,
};
use galatea_infer::{MemoryUsage, Status};
use galatea_protocol::inference as message;
use message::cuda_shared_memory_status_response::RegionStatus as CudaRegionMessage;
use message::model_metadata_response::TensorMetadata as TensorMetadataMessage;
use message::model_repository_parameter::ParameterChoice;
use message::repository_index_response::ModelIndex;
use message::system_shared_memory_status_response::RegionStatus as SystemRegionMessage;

pub use super::response::encode_config_response;

use super::parse_error::ParseError;
use super::wire::WireReader;
use galatea_codec::limits::LoadFileCount;

/// Creates the response to `ServerMetadata`.
#[must_use]
pub fn server_metadata_response(metadata: ServerMetadata) -> message::ServerMetadataResponse {
    message::ServerMetadataResponse {
        name: metadata.name,
        version: metadata.version,
        extensions: metadata.extensions.into_iter().map(str::to_owned).collect(),
    }
}

/// Creates the response to `SystemSharedMemoryStatus`.
#[must_use]
pub fn system_shm_status_response(
    regions: Vec<SystemShmRegion>,
) -> message::SystemSharedMemoryStatusResponse {
    let regions = regions.into_iter().map(|SystemShmRegion { name, key, offset, byte_size }| {
        let key_of_map = name.clone();
        (key_of_map, SystemRegionMessage { name, key, offset, byte_size })
    });
    message::SystemSharedMemoryStatusResponse { regions: regions.collect() }
}

/// Creates the response to `CudaSharedMemoryStatus`.
#[must_use]
pub fn cuda_shm_status_response(
    regions: Vec<CudaShmRegion>,
) -> message::CudaSharedMemoryStatusResponse {
    let regions = regions.into_iter().map(|CudaShmRegion { name, device_id, byte_size }| {
        (name.clone(), CudaRegionMessage { name, device_id, byte_size })
    });
    message::CudaSharedMemoryStatusResponse { regions: regions.collect() }
}

/// Creates the response to `ModelMetadata`.
#[must_use]
pub fn model_metadata_response(metadata: ModelMetadata) -> message::ModelMetadataResponse {
    message::ModelMetadataResponse {
        name: metadata.name,
        versions: metadata.versions.iter().map(i64::to_string).collect(),
        platform: metadata.platform,
        inputs: metadata.inputs.into_iter().map(tensor_metadata).collect(),
        outputs: metadata.outputs.into_iter().map(tensor_metadata).collect(),
    }
}

fn tensor_metadata(tensor: TensorMetadata) -> TensorMetadataMessage {
    TensorMetadataMessage {
        name: tensor.name,
        datatype: tensor.datatype.protocol_name().to_owned(),
        shape: tensor.shape,
    }
}

/// Creates the response to `ModelStatistics`.
#[must_use]
pub fn statistics_response(models: &[ModelStatistics]) -> message::ModelStatisticsResponse {
    message::ModelStatisticsResponse { model_stats: models.iter().map(model_statistics).collect() }
}

fn model_statistics(model: &ModelStatistics) -> message::ModelStatistics {
    message::ModelStatistics {
        name: model.name.to_string(),
        version: model.version.to_string(),
        last_inference: model.last_inference_ms,
        inference_count: model.inference_count,
        execution_count: model.execution_count,
        inference_stats: Some(inference_statistics(&model.inference)),
        batch_stats: model.batches.iter().map(batch_statistics).collect(),
        memory_usage: model.memory.iter().map(memory_usage).collect(),
        response_stats: model
            .responses
            .iter()
            .enumerate()
            .map(|(index, responses)| (index.to_string(), response_statistics(responses)))
            .collect(),
    }
}

fn memory_usage(usage: &MemoryUsage) -> message::MemoryUsage {
    message::MemoryUsage {
        r#type: usage.kind.name().to_owned(),
        id: usage.id,
        byte_size: usage.byte_size,
    }
}

fn response_statistics(statistics: &ResponseStatistics) -> message::InferResponseStatistics {
    message::InferResponseStatistics {
        compute_infer: duration(statistics.compute_infer),
        compute_output: duration(statistics.compute_output),
        success: duration(statistics.success),
        fail: duration(statistics.fail),
        empty_response: duration(statistics.empty_response),
        cancel: duration(statistics.cancel),
    }
}

fn inference_statistics(statistics: &InferenceStatistics) -> message::InferStatistics {
    message::InferStatistics {
        success: duration(statistics.success),
        fail: duration(statistics.fail),
        queue: duration(statistics.queue),
        compute_input: duration(statistics.compute_input),
        compute_infer: duration(statistics.compute_infer),
        compute_output: duration(statistics.compute_output),
        cache_hit: duration(statistics.cache_hit),
        cache_miss: duration(statistics.cache_miss),
    }
}

fn batch_statistics(statistics: &BatchStatistics) -> message::InferBatchStatistics {
    message::InferBatchStatistics {
        batch_size: statistics.batch_size,
        compute_input: duration(statistics.compute_input),
        compute_infer: duration(statistics.compute_infer),
        compute_output: duration(statistics.compute_output),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "message fields of messages are options")]
const fn duration(statistic: DurationStatistic) -> Option<message::StatisticDuration> {
    Some(message::StatisticDuration { count: statistic.count, ns: statistic.ns })
}

/// Creates the response to `RepositoryIndex`.
#[must_use]
pub fn repository_index_response(
    entries: Vec<RepositoryEntry>,
) -> message::RepositoryIndexResponse {
    let models = entries.into_iter().map(|entry| ModelIndex {
        name: entry.name,
        version: entry.version.map(|version| version.to_string()).unwrap_or_default(),
        state: entry.state.map(|state| state.name().to_owned()).unwrap_or_default(),
        reason: entry.reason,
    });
    message::RepositoryIndexResponse { models: models.collect() }
}

/// Refuses a repository name, because models are found by their own names.
///
/// # Errors
///
/// `Unsupported` if the name is not empty.
pub fn refuse_repository_name(name: &str) -> Result<(), Status> {
    if name.is_empty() {
        return Ok(());
    }
    Err(Status::unsupported("'repository_name' specification is not supported"))
}

/// Checks the number and paths of the files in a model load request before the message is decoded:
/// an empty file takes ten bytes on the wire and hundreds in memory.
///
/// # Errors
///
/// `InvalidArgument` if there are too many files or a path is too deep.
pub fn check_load_files(body: &[u8]) -> Result<(), Status> {
    let mut files = LoadFileCount::default();
    match visit_parameters(body, &mut |name| files.count_if_file(name)) {
        // A malformed message is refused when it is decoded.
        Ok(()) | Err(ParseError::Malformed) => Ok(()),
        Err(ParseError::Refused(status)) => Err(status),
    }
}

/// Calls `each` for the name of each parameter of a `RepositoryModelLoadRequest`.
fn visit_parameters(
    body: &[u8],
    each: &mut impl FnMut(&str) -> Result<(), Status>,
) -> Result<(), ParseError> {
    let mut reader = WireReader::new(body);
    while let Some((number, value)) = reader.field()? {
        if number != 3 {
            continue;
        }
        let mut name = "";
        let mut entry = WireReader::new(value.bytes()?);
        while let Some((number, value)) = entry.field()? {
            if number == 1 {
                name = value.text()?;
            }
        }
        each(name).map_err(ParseError::Refused)?;
    }
    Ok(())
}

/// Converts the parameters of a model load request.
///
/// # Errors
///
/// `InvalidArgument` for unknown parameters and parameters of the wrong type.
pub fn parse_load_parameters(
    request: message::RepositoryModelLoadRequest,
) -> Result<LoadParameters, Status> {
    let mut parameters = LoadParameters::default();
    for (name, parameter) in request.parameters {
        let wrong_type = |expected: &str| {
            Status::invalid_argument(format!(
                "invalid value type for load parameter '{name}', expected {expected}."
            ))
        };
        let choice = parameter.parameter_choice;
        if name == "config" {
            let Some(ParameterChoice::StringParam(config)) = choice else {
                return Err(wrong_type("string_param"));
            };
            parameters.config = Some(config);
        } else if let Some(path) = name.strip_prefix("file:") {
            let Some(ParameterChoice::BytesParam(content)) = choice else {
                return Err(wrong_type("bytes_param"));
            };
            parameters.files.push((path.to_owned(), content.into()));
        } else {
            return Err(Status::invalid_argument(format!("unrecognized load parameter '{name}'.")));
        }
    }
    Ok(parameters)
}

/// Returns true if a request also unloads the model's dependents. As in Triton, other parameters
/// are ignored.
///
/// # Errors
///
/// `InvalidArgument` if the parameter is not a boolean.
pub fn parse_unload_dependents(
    request: &message::RepositoryModelUnloadRequest,
) -> Result<bool, Status> {
    match request.parameters.get("unload_dependents").map(|value| &value.parameter_choice) {
        None => Ok(false),
        Some(Some(ParameterChoice::BoolParam(unload))) => Ok(*unload),
        Some(_) => Err(Status::invalid_argument(
            "invalid value type for 'unload_dependents' parameter, expected bool_param.",
        )),
    }
}
