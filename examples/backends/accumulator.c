/* A backend for sequences: OUT is the sum of all IN of the sequence so far. The sum is
   implicit state: the server keeps it, and passes as input SUM_IN the value that this backend
   wrote as state SUM_OUT. */
#include "common.h"

static TRITONSERVER_Error*
add(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response)
{
  const int64_t shape[2] = {1, 1};
  const int32_t* elements = NULL;
  const int32_t* sums = NULL;
  uint64_t count = 0;
  uint64_t sum_count = 0;
  TRY(read_int32(request, "IN", &elements, &count));
  TRY(read_int32(request, "SUM_IN", &sums, &sum_count));
  if (count != 1 || sum_count != 1) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "IN must be one number");
  }
  int32_t sum = (int32_t)((uint32_t)sums[0] + (uint32_t)elements[0]);
  TRY(update_state_int32(request, "SUM_OUT", shape, 2, sum));
  return write_int32(response, "OUT", shape, 2, sum);
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests,
    uint32_t request_count)
{
  uint64_t start = now_ns();
  for (uint32_t index = 0; index < request_count; ++index) {
    TRITONBACKEND_Response* response = NULL;
    TRITONSERVER_Error* failed = TRITONBACKEND_ResponseNew(&response, requests[index]);
    if (failed == NULL) {
      TRITONSERVER_Error* wrong = add(requests[index], response);
      failed = TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, wrong);
      uint64_t end = now_ns();
      log_error(TRITONBACKEND_ModelInstanceReportStatistics(
          instance, requests[index], wrong == NULL, start, start, end, end));
      TRITONSERVER_ErrorDelete(wrong);
    }
    log_error(failed);
    log_error(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  uint64_t end = now_ns();
  log_error(TRITONBACKEND_ModelInstanceReportBatchStatistics(
      instance, request_count, start, start, end, end));
  return NULL;
}
