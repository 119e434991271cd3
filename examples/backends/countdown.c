/* A backend of iterative sequences: for IN = 3 it sends 3, 2, 1 and 0, one response
   in each execution, and asks to be called again until the last. Between executions
   other requests get their turn. What is left is implicit state. */
#include "common.h"

static TRITONSERVER_Error*
remaining(TRITONBACKEND_Request* request, int32_t* value)
{
  uint32_t flags = 0;
  const int32_t* elements = NULL;
  uint64_t count = 0;
  TRY(TRITONBACKEND_RequestFlags(request, &flags));
  const bool is_first = (flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START) != 0;
  TRY(read_int32(request, is_first ? "IN" : "LEFT_IN", &elements, &count));
  if (count != 1 || elements[0] < 0) {
    return TRITONSERVER_ErrorNew(
        TRITONSERVER_ERROR_INVALID_ARG, "IN must be one number, 0 or more");
  }
  *value = elements[0];
  return NULL;
}

/* Sends one response; returns whether more follow. */
static TRITONSERVER_Error*
step(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response, bool* more)
{
  const int64_t shape[1] = {1};
  int32_t value = 0;
  TRY(remaining(request, &value));
  TRY(write_int32(response, "OUT", shape, 1, value));
  if (value > 0) {
    TRY(update_state_int32(request, "LEFT_OUT", shape, 1, value - 1));
  }
  *more = value > 0;
  return NULL;
}

static void
execute(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request)
{
  uint64_t start = now_ns();
  bool more = false;
  TRITONBACKEND_Response* response;
  TRITONSERVER_Error* failed = TRITONBACKEND_ResponseNew(&response, request);
  if (failed == NULL) {
    TRITONSERVER_Error* wrong = step(request, response, &more);
    uint32_t flags = more ? 0 : TRITONSERVER_RESPONSE_COMPLETE_FINAL;
    failed = TRITONBACKEND_ResponseSend(response, flags, wrong);
    uint64_t end = now_ns();
    log_error(TRITONBACKEND_ModelInstanceReportStatistics(
        instance, request, wrong == NULL, start, start, end, end));
    TRITONSERVER_ErrorDelete(wrong);
  }
  log_error(failed);
  if (more) {
    failed = TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE);
    if (failed == NULL) {
      return;
    }
    /* The release failed, so the backend still owns the request. */
    log_error(failed);
  }
  log_error(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests,
    uint32_t request_count)
{
  uint64_t start = now_ns();
  for (uint32_t index = 0; index < request_count; ++index) {
    execute(instance, requests[index]);
  }
  uint64_t end = now_ns();
  log_error(TRITONBACKEND_ModelInstanceReportBatchStatistics(
      instance, request_count, start, start, end, end));
  return NULL;
}
