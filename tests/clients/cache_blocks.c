/* A backend that copies INPUT0 to OUTPUT0 and reports the blocks of a cache of keys and values,
   with the metrics of TensorRT-LLM. */
#include <string.h>

#include "common.h"

static TRITONSERVER_Error*
report(TRITONSERVER_MetricFamily* family, const char* kind, double value)
{
  TRITONSERVER_Metric* metric;
  TRITONSERVER_Parameter* label =
      TRITONSERVER_ParameterNew("kv_cache_block_type", TRITONSERVER_PARAMETER_STRING, kind);
  const TRITONSERVER_Parameter* labels[] = {label};
  TRITONSERVER_Error* error = TRITONSERVER_MetricNew(&metric, family, labels, 1);
  TRITONSERVER_ParameterDelete(label);
  TRY(error);
  return TRITONSERVER_MetricSet(metric, value);
}

/* The metrics stay until the server ends. */
TRITONSERVER_Error*
TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model)
{
  (void)model;
  TRITONSERVER_MetricFamily* family;
  TRY(TRITONSERVER_MetricFamilyNew(
      &family, TRITONSERVER_METRIC_KIND_GAUGE, "nv_trt_llm_kv_cache_block_metrics",
      "Blocks of the cache"));
  TRY(report(family, "tokens_per", 64));
  TRY(report(family, "used", 25));
  return report(family, "max", 100);
}

static TRITONSERVER_Error*
respond(TRITONBACKEND_Request* request)
{
  const int32_t* elements = NULL;
  uint64_t count = 0;
  TRITONBACKEND_Response* response;
  TRITONBACKEND_Output* output;
  void* buffer;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  int64_t memory_type_id = 0;
  TRY(read_int32(request, "INPUT0", &elements, &count));
  const int64_t shape[1] = {(int64_t)count};
  TRY(TRITONBACKEND_ResponseNew(&response, request));
  TRY(TRITONBACKEND_ResponseOutput(
      response, &output, "OUTPUT0", TRITONSERVER_TYPE_INT32, shape, 1));
  TRY(TRITONBACKEND_OutputBuffer(
      output, &buffer, count * sizeof *elements, &memory_type, &memory_type_id));
  memcpy(buffer, elements, count * sizeof *elements);
  return TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL);
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, uint32_t count)
{
  (void)instance;
  for (uint32_t index = 0; index < count; ++index) {
    TRITONSERVER_Error* error = respond(requests[index]);
    if (error != NULL) {
      TRITONSERVER_ErrorDelete(error);
    }
    error =
        TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL);
    if (error != NULL) {
      TRITONSERVER_ErrorDelete(error);
    }
  }
  return NULL;
}
