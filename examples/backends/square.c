/* A backend of decoupled models for tests of clients: it sends as many
   responses as IN says, each of which says so in OUT. It takes the models of Triton's
   square backend: IN and OUT are INT32 [ 1 ], with batches or without, and each request
   is a batch of one. */
#include <stdlib.h>
#include <string.h>

#include "decoupled.h"

#define RANK_MAX 2

struct work {
  TRITONBACKEND_ResponseFactory* factory;
  int32_t number;
  int64_t shape[RANK_MAX];
  uint32_t rank;
};

static TRITONSERVER_Error*
send_number(const struct work* work)
{
  TRITONBACKEND_Response* response;
  TRY(TRITONBACKEND_ResponseNewFromFactory(&response, work->factory));
  TRITONSERVER_Error* failed =
      write_int32(response, "OUT", work->shape, work->rank, work->number);
  return send_or_fail(response, failed);
}

static void*
run(void* argument)
{
  struct work* work = (struct work*)argument;
  for (int32_t sent = 0; sent < work->number; ++sent) {
    if (is_cancelled(work->factory)) {
      break;
    }
    log_error(send_number(work));
  }
  end_responses(work->factory);
  log_error(TRITONBACKEND_ResponseFactoryDelete(work->factory));
  free(work);
  return NULL;
}

/* Copies the thread's data: the request's memory is freed with its release. */
static TRITONSERVER_Error*
copy(TRITONBACKEND_Request* request, struct work* work)
{
  TRITONBACKEND_Input* input;
  const int64_t* shape;
  const int32_t* numbers = NULL;
  uint64_t count = 0;
  TRY(read_int32(request, "IN", &numbers, &count));
  TRY(TRITONBACKEND_RequestInput(request, "IN", &input));
  TRY(TRITONBACKEND_InputProperties(input, NULL, NULL, &shape, &work->rank, NULL, NULL));
  if (count != 1 || work->rank > RANK_MAX) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "IN must have one element");
  }
  memcpy(work->shape, shape, work->rank * sizeof *shape);
  work->number = *numbers;
  return NULL;
}

static TRITONSERVER_Error*
begin(TRITONBACKEND_Request* request)
{
  struct work* work = malloc(sizeof *work);
  if (work == NULL) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "out of memory");
  }
  TRITONSERVER_Error* failed = copy(request, work);
  if (failed == NULL) {
    failed = respond_on_thread(request, &work->factory, run, work);
  }
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
  (void)instance;
  for (uint32_t index = 0; index < request_count; ++index) {
    TRITONSERVER_Error* failed = begin(requests[index]);
    if (failed != NULL) {
      refuse(requests[index], failed);
    }
    log_error(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return NULL;
}
