// A backend that repeats its input and logs where it got it, and memory for the output, which it
// asks for on its instance's GPU. The stand-in's memory must be readable (STAND_IN_READABLE).
#include <stdio.h>
#include <string.h>

#include "common.h"

static TRITONSERVER_Error*
repeat(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response, int32_t gpu)
{
  TRITONBACKEND_Input* input;
  const void* from;
  uint64_t size;
  TRITONSERVER_MemoryType kind, described_kind;
  int64_t number, described_number;
  TRY(TRITONBACKEND_RequestInput(request, "IN", &input));
  TRY(TRITONBACKEND_InputBuffer(input, 0, &from, &size, &kind, &number));
  TRITONSERVER_BufferAttributes* attributes;
  TRY(TRITONBACKEND_InputBufferAttributes(input, 0, &from, &attributes));
  TRY(TRITONSERVER_BufferAttributesMemoryType(attributes, &described_kind));
  TRY(TRITONSERVER_BufferAttributesMemoryTypeId(attributes, &described_number));
  TRITONSERVER_DataType datatype;
  const int64_t* shape;
  uint32_t rank;
  TRY(TRITONBACKEND_InputProperties(input, NULL, &datatype, &shape, &rank, NULL, NULL));
  TRITONBACKEND_Output* output;
  TRY(TRITONBACKEND_ResponseOutput(response, &output, "OUT", datatype, shape, rank));
  TRITONSERVER_MemoryType made_kind = TRITONSERVER_MEMORY_GPU;
  int64_t made_number = gpu;
  void* to;
  TRY(TRITONBACKEND_OutputBuffer(output, &to, size, &made_kind, &made_number));
  memcpy(to, from, size);
  char line[256];
  snprintf(
      line, sizeof line, "gpu_tensors: %d %d, %d %d, %d %d.", (int)kind, (int)number,
      (int)described_kind, (int)described_number, (int)made_kind, (int)made_number);
  return TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, __FILE__, __LINE__, line);
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
  int32_t gpu;
  TRY(TRITONBACKEND_ModelInstanceDeviceId(instance, &gpu));
  for (uint32_t i = 0; i < count; i++) {
    TRITONBACKEND_Response* response;
    log_error(TRITONBACKEND_ResponseNew(&response, requests[i]));
    TRITONSERVER_Error* failed = repeat(requests[i], response, gpu);
    log_error(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, failed));
    if (failed != NULL) {
      TRITONSERVER_ErrorDelete(failed);
    }
    log_error(TRITONBACKEND_RequestRelease(requests[i], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return NULL;
}
