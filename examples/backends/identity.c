/* A backend that returns its inputs: input 0 as OUTPUT0, input 1 as OUTPUT1, and so
   on, with their types and shapes. */
#include <stdio.h>
#include <string.h>

#include "common.h"

static TRITONSERVER_Error*
copy_input(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response, uint32_t index)
{
  TRITONBACKEND_Input* input;
  TRITONSERVER_DataType datatype;
  const int64_t* shape;
  uint32_t rank;
  uint64_t byte_size;
  uint32_t buffer_count;
  TRY(TRITONBACKEND_RequestInputByIndex(request, index, &input));
  TRY(TRITONBACKEND_InputProperties(
      input, NULL, &datatype, &shape, &rank, &byte_size, &buffer_count));

  char name[32];
  snprintf(name, sizeof name, "OUTPUT%u", (unsigned)index);
  void* to;
  TRY(add_output(response, name, datatype, shape, rank, byte_size, &to));

  /* An input may consist of several buffers. */
  char* next = (char*)to;
  for (uint32_t piece = 0; piece < buffer_count; ++piece) {
    const void* from;
    uint64_t piece_size;
    TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
    int64_t memory_type_id = 0;
    TRY(TRITONBACKEND_InputBuffer(
        input, piece, &from, &piece_size, &memory_type, &memory_type_id));
    if (memory_type != TRITONSERVER_MEMORY_CPU) {
      return TRITONSERVER_ErrorNew(
          TRITONSERVER_ERROR_UNSUPPORTED, "inputs must be in the CPU's memory");
    }
    memcpy(next, from, piece_size);
    next += piece_size;
  }
  return NULL;
}

static TRITONSERVER_Error*
copy_inputs(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response)
{
  uint32_t count;
  TRY(TRITONBACKEND_RequestInputCount(request, &count));
  for (uint32_t index = 0; index < count; ++index) {
    TRY(copy_input(request, response, index));
  }
  return NULL;
}

/* From here on the backend owns every request: each gets a response, is
   reported and released. */
TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests,
    uint32_t request_count)
{
  uint64_t start = now_ns();
  for (uint32_t index = 0; index < request_count; ++index) {
    TRITONBACKEND_Response* response = NULL;
    TRITONSERVER_Error* failed = TRITONBACKEND_ResponseNew(&response, requests[index]);
    if (failed != NULL) {
      /* Without a response the error has no receiver; the server responds on release. */
      log_error(failed);
      log_error(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL));
      continue;
    }
    failed = copy_inputs(requests[index], response);
    uint64_t end = now_ns();
    log_error(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, failed));
    log_error(TRITONBACKEND_ModelInstanceReportStatistics(
        instance, requests[index], failed == NULL, start, start, end, end));
    TRITONSERVER_ErrorDelete(failed);
    log_error(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  uint64_t end = now_ns();
  log_error(TRITONBACKEND_ModelInstanceReportBatchStatistics(
      instance, request_count, start, start, end, end));
  return NULL;
}

/* Only Galatea calls this. It returns whether ModelInstanceExecute never waits, takes about
   the same time for inputs of the same sizes, and may be called on any thread. While it is
   quick, Galatea calls it on the I/O thread that read the request. */
TRITONSERVER_Error*
GALATEA_ModelInstancePredictable(TRITONBACKEND_ModelInstance* instance, bool* predictable)
{
  (void)instance;
  *predictable = true;
  return NULL;
}
