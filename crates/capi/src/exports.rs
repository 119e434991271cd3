//! The list of header functions that this crate exports, used to check that C code finds them. The
//! list also keeps the functions in a program that calls none of them.

use galatea_c_objects::exports::ExportedFunction;

use crate::metric::functions;
use crate::{allocator, control, infer, options, request, response, server, trace};

macro_rules! list {
    ($($module:ident { $($name:ident),* $(,)? })*) => {
        /// All functions.
        #[must_use]
        pub fn all() -> Vec<ExportedFunction> {
            vec![$($(
                ExportedFunction::new(stringify!($name), $module::$name as *const ())
            ),*),*]
        }
    };
}

list! {
    allocator {
        TRITONSERVER_ResponseAllocatorNew,
        TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction,
        TRITONSERVER_ResponseAllocatorSetQueryFunction,
        TRITONSERVER_ResponseAllocatorDelete,
    }
    control {
        TRITONSERVER_MetricsDelete,
        TRITONSERVER_MetricsFormatted,
        TRITONSERVER_ServerRegisterModelRepository,
        TRITONSERVER_ServerUnregisterModelRepository,
        TRITONSERVER_ServerPollModelRepository,
        TRITONSERVER_ServerIsLive,
        TRITONSERVER_ServerIsReady,
        TRITONSERVER_ServerModelIsReady,
        TRITONSERVER_ServerModelBatchProperties,
        TRITONSERVER_ServerModelTransactionProperties,
        TRITONSERVER_ServerMetadata,
        TRITONSERVER_ServerModelMetadata,
        TRITONSERVER_ServerModelStatistics,
        TRITONSERVER_ServerModelConfig,
        TRITONSERVER_ServerModelIndex,
        TRITONSERVER_ServerLoadModel,
        TRITONSERVER_ServerLoadModelWithParameters,
        TRITONSERVER_ServerUnloadModel,
        TRITONSERVER_ServerUnloadModelAndDependents,
        TRITONSERVER_ServerMetrics,
    }
    infer {
        TRITONSERVER_ServerInferAsync,
    }
    functions {
        TRITONSERVER_MetricFamilyNew,
        TRITONSERVER_MetricFamilyDelete,
        TRITONSERVER_GetMetricFamilyKind,
        TRITONSERVER_MetricArgsNew,
        TRITONSERVER_MetricArgsSetHistogram,
        TRITONSERVER_MetricArgsDelete,
        TRITONSERVER_MetricNew,
        TRITONSERVER_MetricNewWithArgs,
        TRITONSERVER_MetricDelete,
        TRITONSERVER_MetricValue,
        TRITONSERVER_MetricIncrement,
        TRITONSERVER_MetricSet,
        TRITONSERVER_MetricObserve,
        TRITONSERVER_GetMetricKind,
    }
    options {
        TRITONSERVER_ServerOptionsNew,
        TRITONSERVER_ServerOptionsDelete,
        TRITONSERVER_ServerOptionsSetServerId,
        TRITONSERVER_ServerOptionsSetModelRepositoryPath,
        TRITONSERVER_ServerOptionsSetModelControlMode,
        TRITONSERVER_ServerOptionsSetStartupModel,
        TRITONSERVER_ServerOptionsSetStrictModelConfig,
        TRITONSERVER_ServerOptionsSetModelConfigName,
        TRITONSERVER_ServerOptionsSetRateLimiterMode,
        TRITONSERVER_ServerOptionsAddRateLimiterResource,
        TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize,
        TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize,
        TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize,
        TRITONSERVER_ServerOptionsSetResponseCacheByteSize,
        TRITONSERVER_ServerOptionsSetCacheConfig,
        TRITONSERVER_ServerOptionsSetCacheDirectory,
        TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability,
        TRITONSERVER_ServerOptionsSetExitOnError,
        TRITONSERVER_ServerOptionsSetStrictReadiness,
        TRITONSERVER_ServerOptionsSetExitTimeout,
        TRITONSERVER_ServerOptionsSetBufferManagerThreadCount,
        TRITONSERVER_ServerOptionsSetModelLoadThreadCount,
        TRITONSERVER_ServerOptionsSetModelLoadRetryCount,
        TRITONSERVER_ServerOptionsSetModelNamespacing,
        TRITONSERVER_ServerOptionsSetEnablePeerAccess,
        TRITONSERVER_ServerOptionsSetLogFile,
        TRITONSERVER_ServerOptionsSetLogInfo,
        TRITONSERVER_ServerOptionsSetLogWarn,
        TRITONSERVER_ServerOptionsSetLogError,
        TRITONSERVER_ServerOptionsSetLogFormat,
        TRITONSERVER_ServerOptionsSetLogVerbose,
        TRITONSERVER_ServerOptionsSetMetrics,
        TRITONSERVER_ServerOptionsSetGpuMetrics,
        TRITONSERVER_ServerOptionsSetCpuMetrics,
        TRITONSERVER_ServerOptionsSetMetricsInterval,
        TRITONSERVER_ServerOptionsSetBackendDirectory,
        TRITONSERVER_ServerOptionsSetRepoAgentDirectory,
        TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit,
        TRITONSERVER_ServerOptionsSetBackendConfig,
        TRITONSERVER_ServerOptionsSetHostPolicy,
        TRITONSERVER_ServerOptionsSetMetricsConfig,
    }
    request {
        TRITONSERVER_InferenceRequestNew,
        TRITONSERVER_InferenceRequestDelete,
        TRITONSERVER_InferenceRequestId,
        TRITONSERVER_InferenceRequestSetId,
        TRITONSERVER_InferenceRequestFlags,
        TRITONSERVER_InferenceRequestSetFlags,
        TRITONSERVER_InferenceRequestCorrelationId,
        TRITONSERVER_InferenceRequestCorrelationIdString,
        TRITONSERVER_InferenceRequestSetCorrelationId,
        TRITONSERVER_InferenceRequestSetCorrelationIdString,
        TRITONSERVER_InferenceRequestCancel,
        TRITONSERVER_InferenceRequestIsCancelled,
        TRITONSERVER_InferenceRequestPriority,
        TRITONSERVER_InferenceRequestPriorityUInt64,
        TRITONSERVER_InferenceRequestSetPriority,
        TRITONSERVER_InferenceRequestSetPriorityUInt64,
        TRITONSERVER_InferenceRequestTimeoutMicroseconds,
        TRITONSERVER_InferenceRequestSetTimeoutMicroseconds,
        TRITONSERVER_InferenceRequestAddInput,
        TRITONSERVER_InferenceRequestAddRawInput,
        TRITONSERVER_InferenceRequestRemoveInput,
        TRITONSERVER_InferenceRequestRemoveAllInputs,
        TRITONSERVER_InferenceRequestAppendInputData,
        TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy,
        TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes,
        TRITONSERVER_InferenceRequestRemoveAllInputData,
        TRITONSERVER_InferenceRequestAddRequestedOutput,
        TRITONSERVER_InferenceRequestRemoveRequestedOutput,
        TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs,
        TRITONSERVER_InferenceRequestSetReleaseCallback,
        TRITONSERVER_InferenceRequestSetResponseCallback,
        TRITONSERVER_InferenceRequestSetStringParameter,
        TRITONSERVER_InferenceRequestSetIntParameter,
        TRITONSERVER_InferenceRequestSetBoolParameter,
        TRITONSERVER_InferenceRequestSetDoubleParameter,
    }
    response {
        TRITONSERVER_InferenceResponseDelete,
        TRITONSERVER_InferenceResponseError,
        TRITONSERVER_InferenceResponseModel,
        TRITONSERVER_InferenceResponseId,
        TRITONSERVER_InferenceResponseParameterCount,
        TRITONSERVER_InferenceResponseParameter,
        TRITONSERVER_InferenceResponseOutputCount,
        TRITONSERVER_InferenceResponseOutput,
        TRITONSERVER_InferenceResponseOutputClassificationLabel,
    }
    server {
        TRITONSERVER_ServerNew,
        TRITONSERVER_ServerDelete,
        TRITONSERVER_ServerStop,
        TRITONSERVER_ServerSetExitTimeout,
    }
    trace {
        TRITONSERVER_InferenceTraceNew,
        TRITONSERVER_InferenceTraceTensorNew,
        TRITONSERVER_InferenceTraceReportActivity,
        TRITONSERVER_InferenceTraceDelete,
        TRITONSERVER_InferenceTraceId,
        TRITONSERVER_InferenceTraceParentId,
        TRITONSERVER_InferenceTraceModelName,
        TRITONSERVER_InferenceTraceModelVersion,
        TRITONSERVER_InferenceTraceRequestId,
        TRITONSERVER_InferenceTraceSpawnChildTrace,
        TRITONSERVER_InferenceTraceSetContext,
        TRITONSERVER_InferenceTraceContext,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use galatea_abi::server;

    #[test]
    fn every_declared_function_is_exported() {
        let (own, shared) = (super::all(), galatea_c_objects::exports::all());
        let count = own.len() + shared.len();
        let exported: BTreeSet<&str> =
            own.into_iter().chain(shared).map(|function| function.name).collect();
        assert_eq!(count, server::PROVIDED.len());
        let declared: BTreeSet<&str> = server::PROVIDED.iter().copied().collect();
        let difference: Vec<&&str> = exported.symmetric_difference(&declared).collect();
        assert!(difference.is_empty(), "{difference:?}");
    }
}
