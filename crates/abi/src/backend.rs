//! Backends: tritonbackend.h.

use core::ffi::{c_char, c_void};

use crate::enums::*;
use crate::functions;
use crate::opaque::*;

functions! {
    /// The functions that the server provides.
    PROVIDED:
    TRITONBACKEND_ApiVersion(major: *mut u32, minor: *mut u32) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_MemoryManagerAllocate(manager: *mut TRITONBACKEND_MemoryManager, buffer: *mut *mut c_void, memory_type: TRITONSERVER_MemoryType, memory_type_id: i64, byte_size: u64) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_MemoryManagerFree(manager: *mut TRITONBACKEND_MemoryManager, buffer: *mut c_void, memory_type: TRITONSERVER_MemoryType, memory_type_id: i64) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_InputProperties(input: *mut TRITONBACKEND_Input, name: *mut *const c_char, datatype: *mut TRITONSERVER_DataType, shape: *mut *const i64, dims_count: *mut u32, byte_size: *mut u64, buffer_count: *mut u32) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_InputPropertiesForHostPolicy(input: *mut TRITONBACKEND_Input, host_policy_name: *const c_char, name: *mut *const c_char, datatype: *mut TRITONSERVER_DataType, shape: *mut *const i64, dims_count: *mut u32, byte_size: *mut u64, buffer_count: *mut u32) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_InputBuffer(input: *mut TRITONBACKEND_Input, index: u32, buffer: *mut *const c_void, buffer_byte_size: *mut u64, memory_type: *mut TRITONSERVER_MemoryType, memory_type_id: *mut i64) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_InputBufferForHostPolicy(input: *mut TRITONBACKEND_Input, host_policy_name: *const c_char, index: u32, buffer: *mut *const c_void, buffer_byte_size: *mut u64, memory_type: *mut TRITONSERVER_MemoryType, memory_type_id: *mut i64) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_InputBufferAttributes(input: *mut TRITONBACKEND_Input, index: u32, buffer: *mut *const c_void, buffer_attributes: *mut *mut TRITONSERVER_BufferAttributes) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_OutputBuffer(output: *mut TRITONBACKEND_Output, buffer: *mut *mut c_void, buffer_byte_size: u64, memory_type: *mut TRITONSERVER_MemoryType, memory_type_id: *mut i64) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_OutputBufferAttributes(output: *mut TRITONBACKEND_Output, buffer_attributes: *mut *mut TRITONSERVER_BufferAttributes) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_RequestId(request: *mut TRITONBACKEND_Request, id: *mut *const c_char) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_RequestIsCancelled(request: *mut TRITONBACKEND_Request, is_cancelled: *mut bool) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ResponseFactoryIsCancelled(factory: *mut TRITONBACKEND_ResponseFactory, is_cancelled: *mut bool) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_RequestCorrelationId(request: *mut TRITONBACKEND_Request, id: *mut u64) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request: *mut TRITONBACKEND_Request, timeout: *mut u64) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_RequestCorrelationIdString(request: *mut TRITONBACKEND_Request, id: *mut *const c_char) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_RequestFlags(request: *mut TRITONBACKEND_Request, flags: *mut u32) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_RequestParameterCount(request: *mut TRITONBACKEND_Request, count: *mut u32) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_RequestParameter(request: *mut TRITONBACKEND_Request, index: u32, key: *mut *const c_char, type_: *mut TRITONSERVER_ParameterType, vvalue: *mut *const c_void) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_RequestInputCount(request: *mut TRITONBACKEND_Request, count: *mut u32) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_RequestInputName(request: *mut TRITONBACKEND_Request, index: u32, input_name: *mut *const c_char) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_RequestInput(request: *mut TRITONBACKEND_Request, name: *const c_char, input: *mut *mut TRITONBACKEND_Input) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_RequestInputByIndex(request: *mut TRITONBACKEND_Request, index: u32, input: *mut *mut TRITONBACKEND_Input) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_RequestOutputCount(request: *mut TRITONBACKEND_Request, count: *mut u32) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_RequestOutputName(request: *mut TRITONBACKEND_Request, index: u32, output_name: *mut *const c_char) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_RequestOutputBufferProperties(request: *mut TRITONBACKEND_Request, name: *const c_char, byte_size: *mut usize, memory_type: *mut TRITONSERVER_MemoryType, memory_type_id: *mut i64) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_RequestRelease(request: *mut TRITONBACKEND_Request, release_flags: u32) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_RequestTrace(request: *mut TRITONBACKEND_Request, trace: *mut *mut TRITONSERVER_InferenceTrace) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ResponseFactoryNew(factory: *mut *mut TRITONBACKEND_ResponseFactory, request: *mut TRITONBACKEND_Request) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ResponseFactoryDelete(factory: *mut TRITONBACKEND_ResponseFactory) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ResponseFactorySendFlags(factory: *mut TRITONBACKEND_ResponseFactory, send_flags: u32) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ResponseNew(response: *mut *mut TRITONBACKEND_Response, request: *mut TRITONBACKEND_Request) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ResponseNewFromFactory(response: *mut *mut TRITONBACKEND_Response, factory: *mut TRITONBACKEND_ResponseFactory) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ResponseDelete(response: *mut TRITONBACKEND_Response) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ResponseSetStringParameter(response: *mut TRITONBACKEND_Response, name: *const c_char, value: *const c_char) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ResponseSetIntParameter(response: *mut TRITONBACKEND_Response, name: *const c_char, value: i64) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ResponseSetBoolParameter(response: *mut TRITONBACKEND_Response, name: *const c_char, value: bool) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ResponseSetDoubleParameter(response: *mut TRITONBACKEND_Response, name: *const c_char, value: f64) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ResponseOutput(response: *mut TRITONBACKEND_Response, output: *mut *mut TRITONBACKEND_Output, name: *const c_char, datatype: TRITONSERVER_DataType, shape: *const i64, dims_count: u32) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ResponseSend(response: *mut TRITONBACKEND_Response, send_flags: u32, error: *mut TRITONSERVER_Error) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_StateNew(state: *mut *mut TRITONBACKEND_State, request: *mut TRITONBACKEND_Request, name: *const c_char, datatype: TRITONSERVER_DataType, shape: *const i64, dims_count: u32) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_StateUpdate(state: *mut TRITONBACKEND_State) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_StateBuffer(state: *mut TRITONBACKEND_State, buffer: *mut *mut c_void, buffer_byte_size: u64, memory_type: *mut TRITONSERVER_MemoryType, memory_type_id: *mut i64) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_StateBufferAttributes(state: *mut TRITONBACKEND_State, buffer_attributes: *mut *mut TRITONSERVER_BufferAttributes) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_BackendName(backend: *mut TRITONBACKEND_Backend, name: *mut *const c_char) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_BackendConfig(backend: *mut TRITONBACKEND_Backend, backend_config: *mut *mut TRITONSERVER_Message) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_BackendExecutionPolicy(backend: *mut TRITONBACKEND_Backend, policy: *mut TRITONBACKEND_ExecutionPolicy) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_BackendSetExecutionPolicy(backend: *mut TRITONBACKEND_Backend, policy: TRITONBACKEND_ExecutionPolicy) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_BackendArtifacts(backend: *mut TRITONBACKEND_Backend, artifact_type: *mut TRITONBACKEND_ArtifactType, location: *mut *const c_char) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_BackendMemoryManager(backend: *mut TRITONBACKEND_Backend, manager: *mut *mut TRITONBACKEND_MemoryManager) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_BackendState(backend: *mut TRITONBACKEND_Backend, state: *mut *mut c_void) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_BackendSetState(backend: *mut TRITONBACKEND_Backend, state: *mut c_void) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelName(model: *mut TRITONBACKEND_Model, name: *mut *const c_char) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelVersion(model: *mut TRITONBACKEND_Model, version: *mut u64) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelRepository(model: *mut TRITONBACKEND_Model, artifact_type: *mut TRITONBACKEND_ArtifactType, location: *mut *const c_char) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelConfig(model: *mut TRITONBACKEND_Model, config_version: u32, model_config: *mut *mut TRITONSERVER_Message) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelAutoCompleteConfig(model: *mut TRITONBACKEND_Model, auto_complete_config: *mut bool) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelSetConfig(model: *mut TRITONBACKEND_Model, config_version: u32, model_config: *mut TRITONSERVER_Message) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelServer(model: *mut TRITONBACKEND_Model, server: *mut *mut TRITONSERVER_Server) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelBackend(model: *mut TRITONBACKEND_Model, backend: *mut *mut TRITONBACKEND_Backend) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelState(model: *mut TRITONBACKEND_Model, state: *mut *mut c_void) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelSetState(model: *mut TRITONBACKEND_Model, state: *mut c_void) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelReportMemoryUsage(model: *mut TRITONBACKEND_Model, usage: *mut *mut TRITONSERVER_BufferAttributes, usage_size: u32) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceName(instance: *mut TRITONBACKEND_ModelInstance, name: *mut *const c_char) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceKind(instance: *mut TRITONBACKEND_ModelInstance, kind: *mut TRITONSERVER_InstanceGroupKind) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceDeviceId(instance: *mut TRITONBACKEND_ModelInstance, device_id: *mut i32) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceHostPolicy(instance: *mut TRITONBACKEND_ModelInstance, host_policy: *mut *mut TRITONSERVER_Message) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceIsPassive(instance: *mut TRITONBACKEND_ModelInstance, is_passive: *mut bool) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceProfileCount(instance: *mut TRITONBACKEND_ModelInstance, count: *mut u32) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceProfileName(instance: *mut TRITONBACKEND_ModelInstance, index: u32, profile_name: *mut *const c_char) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceSecondaryDeviceCount(instance: *mut TRITONBACKEND_ModelInstance, count: *mut u32) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(instance: *mut TRITONBACKEND_ModelInstance, index: u32, kind: *mut *const c_char, id: *mut i64) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceModel(instance: *mut TRITONBACKEND_ModelInstance, model: *mut *mut TRITONBACKEND_Model) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceState(instance: *mut TRITONBACKEND_ModelInstance, state: *mut *mut c_void) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceSetState(instance: *mut TRITONBACKEND_ModelInstance, state: *mut c_void) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceReportMemoryUsage(instance: *mut TRITONBACKEND_ModelInstance, usage: *mut *mut TRITONSERVER_BufferAttributes, usage_size: u32) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceReportStatistics(instance: *mut TRITONBACKEND_ModelInstance, request: *mut TRITONBACKEND_Request, success: bool, exec_start_ns: u64, compute_start_ns: u64, compute_end_ns: u64, exec_end_ns: u64) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceResponseStatisticsNew(response_statistics: *mut *mut TRITONBACKEND_ModelInstanceResponseStatistics) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceResponseStatisticsDelete(response_statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(response_statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics, model_instance: *mut TRITONBACKEND_ModelInstance) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(response_statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics, response_factory: *mut TRITONBACKEND_ResponseFactory) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(response_statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics, response_start: u64) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(response_statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics, compute_output_start: u64) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(response_statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics, response_end: u64) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceResponseStatisticsSetError(response_statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics, error: *mut TRITONSERVER_Error) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceReportResponseStatistics(response_statistics: *mut TRITONBACKEND_ModelInstanceResponseStatistics) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceReportBatchStatistics(instance: *mut TRITONBACKEND_ModelInstance, batch_size: u64, exec_start_ns: u64, compute_start_ns: u64, compute_end_ns: u64, exec_end_ns: u64) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(backend_attributes: *mut TRITONBACKEND_BackendAttribute, kind: TRITONSERVER_InstanceGroupKind, count: u64, device_ids: *const u64, id_count: u64) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(backend_attributes: *mut TRITONBACKEND_BackendAttribute, enabled: bool) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_InferenceResponseOutputByName(response: *mut TRITONBACKEND_Response, name: *const c_char, datatype: *mut TRITONSERVER_DataType, shape: *mut *const i64, dim_count: *mut u64) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_InferenceResponseOutput(response: *mut TRITONBACKEND_Response, index: u32, name: *mut *const c_char, datatype: *mut TRITONSERVER_DataType, shape: *mut *const i64, dim_count: *mut u64) -> *mut TRITONSERVER_Error;
}

functions! {
    /// The functions that a plug-in provides.
    PLUGIN:
    TRITONBACKEND_Initialize(backend: *mut TRITONBACKEND_Backend) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_Finalize(backend: *mut TRITONBACKEND_Backend) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInitialize(model: *mut TRITONBACKEND_Model) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelFinalize(model: *mut TRITONBACKEND_Model) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceInitialize(instance: *mut TRITONBACKEND_ModelInstance) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceFinalize(instance: *mut TRITONBACKEND_ModelInstance) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceExecute(instance: *mut TRITONBACKEND_ModelInstance, requests: *mut *mut TRITONBACKEND_Request, request_count: u32) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelInstanceReady(instance: *mut TRITONBACKEND_ModelInstance) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_GetBackendAttribute(backend: *mut TRITONBACKEND_Backend, backend_attributes: *mut TRITONBACKEND_BackendAttribute) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelBatcherInitialize(batcher: *mut *mut TRITONBACKEND_Batcher, model: *mut TRITONBACKEND_Model) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelBatcherFinalize(batcher: *mut TRITONBACKEND_Batcher) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelBatchIncludeRequest(request: *mut TRITONBACKEND_Request, userp: *mut c_void, should_include: *mut bool) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelBatchInitialize(batcher: *const TRITONBACKEND_Batcher, userp: *mut *mut c_void) -> *mut TRITONSERVER_Error;
    TRITONBACKEND_ModelBatchFinalize(userp: *mut c_void) -> *mut TRITONSERVER_Error;
}
