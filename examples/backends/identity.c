/* A backend that returns its inputs: input 0 as OUTPUT0, input 1 as OUTPUT1, and so
   on, with their types and shapes. */
#include "copy.h"

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
