/* A backend of decoupled models: it sends one response for each
   element of IN, as OUT, from a thread of its own and after the request is released. */
#include <stdlib.h>
#include <string.h>

#include "decoupled.h"

struct work {
  TRITONBACKEND_ModelInstance* instance;
  TRITONBACKEND_ResponseFactory* factory;
  uint64_t count;
  int32_t elements[];
};

/* Reports the statistics of one response. An end without a response has no output. */
static TRITONSERVER_Error*
report(const struct work* work, uint64_t start, uint64_t output_start, TRITONSERVER_Error* failed)
{
  TRITONBACKEND_ModelInstanceResponseStatistics* statistics;
  TRY(TRITONBACKEND_ModelInstanceResponseStatisticsNew(&statistics));
  log_error(TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(
      statistics, work->instance));
  log_error(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(
      statistics, work->factory));
  log_error(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(statistics, start));
  log_error(TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(
      statistics, output_start));
  log_error(TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(statistics, now_ns()));
  log_error(TRITONBACKEND_ModelInstanceResponseStatisticsSetError(statistics, failed));
  log_error(TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics));
  return TRITONBACKEND_ModelInstanceResponseStatisticsDelete(statistics);
}

static TRITONSERVER_Error*
send_element(const struct work* work, int32_t element)
{
  TRITONBACKEND_Response* response;
  const int64_t shape[1] = {1};
  uint64_t start = now_ns();
  TRY(TRITONBACKEND_ResponseNewFromFactory(&response, work->factory));
  uint64_t output_start = now_ns();
  TRITONSERVER_Error* failed = write_int32(response, "OUT", shape, 1, element);
  TRITONSERVER_Error* unsent = TRITONBACKEND_ResponseSend(response, 0, failed);
  log_error(report(work, start, output_start, failed));
  TRITONSERVER_ErrorDelete(failed);
  return unsent;
}

static void*
run(void* argument)
{
  struct work* work = (struct work*)argument;
  for (uint64_t index = 0; index < work->count; ++index) {
    if (is_cancelled(work->factory)) {
      break;
    }
    log_error(send_element(work, work->elements[index]));
  }
  end_responses(work->factory);
  log_error(report(work, now_ns(), 0, NULL));
  log_error(TRITONBACKEND_ResponseFactoryDelete(work->factory));
  free(work);
  return NULL;
}

/* Copies the thread's data: the request's memory is freed with its release. */
static TRITONSERVER_Error*
begin(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request)
{
  const int32_t* elements = NULL;
  uint64_t count = 0;
  TRY(read_int32(request, "IN", &elements, &count));
  struct work* work = malloc(sizeof *work + count * sizeof *elements);
  if (work == NULL) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "out of memory");
  }
  work->instance = instance;
  work->count = count;
  memcpy(work->elements, elements, count * sizeof *elements);
  TRITONSERVER_Error* failed = respond_on_thread(request, &work->factory, run, work);
  if (failed != NULL) {
    free(work);
  }
  return failed;
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests,
    uint32_t request_count)
{
  for (uint32_t index = 0; index < request_count; ++index) {
    TRITONSERVER_Error* failed = begin(instance, requests[index]);
    if (failed != NULL) {
      refuse(requests[index], failed);
    }
    log_error(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return NULL;
}
