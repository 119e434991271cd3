/* A backend of decoupled models whose request sets the time of each of its responses, for
   tests of clients. It takes the models of Triton's repeat backend, which have no batches:

     IN     INT32  [ -1 ]  an element for each response
     DELAY  UINT32 [ -1 ]  the milliseconds to wait before each
     WAIT   UINT32 [ 1 ]   the milliseconds to hold the request
     OUT    INT32  [ 1 ]   the element
     IDX    UINT32 [ 1 ]   its index in IN

   The instance takes its next request after WAIT, so that with a short one and long
   delays the responses to several requests interleave. */
#include <errno.h>
#include <stdlib.h>

#include "decoupled.h"

struct element {
  int32_t value;
  uint32_t delay_ms;
};

struct work {
  TRITONBACKEND_ResponseFactory* factory;
  uint64_t count;
  struct element elements[];
};

static void
rest(uint32_t duration_ms)
{
  struct timespec left = {duration_ms / 1000, (long)(duration_ms % 1000) * 1000000};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

/* Waits before a response; the client may cancel meanwhile. */
static bool
is_cancelled_in(const struct work* work, uint32_t left_ms)
{
  while (left_ms > 0 && !is_cancelled(work->factory)) {
    const uint32_t part_ms = left_ms < 20 ? left_ms : 20;
    rest(part_ms);
    left_ms -= part_ms;
  }
  return is_cancelled(work->factory);
}

static TRITONSERVER_Error*
send_element(const struct work* work, uint32_t index)
{
  TRITONBACKEND_Response* response;
  const int64_t shape[1] = {1};
  TRY(TRITONBACKEND_ResponseNewFromFactory(&response, work->factory));
  TRITONSERVER_Error* failed =
      write_int32(response, "OUT", shape, 1, work->elements[index].value);
  if (failed == NULL) {
    failed = write_uint32(response, "IDX", shape, 1, index);
  }
  return send_or_fail(response, failed);
}

static void*
run(void* argument)
{
  struct work* work = (struct work*)argument;
  for (uint32_t index = 0; index < work->count; ++index) {
    if (is_cancelled_in(work, work->elements[index].delay_ms)) {
      break;
    }
    log_error(send_element(work, index));
  }
  end_responses(work->factory);
  log_error(TRITONBACKEND_ResponseFactoryDelete(work->factory));
  free(work);
  return NULL;
}

/* Copies what the thread needs, because the request may be released first. */
static TRITONSERVER_Error*
copy(TRITONBACKEND_Request* request, struct work** copied, uint32_t* wait_ms)
{
  const int32_t* values = NULL;
  const uint32_t* delays = NULL;
  const uint32_t* wait = NULL;
  uint64_t count = 0;
  uint64_t delay_count = 0;
  uint64_t wait_count = 0;
  TRY(read_int32(request, "IN", &values, &count));
  TRY(read_uint32(request, "DELAY", &delays, &delay_count));
  TRY(read_uint32(request, "WAIT", &wait, &wait_count));
  if (count != delay_count || wait_count != 1 || count > UINT32_MAX) {
    return TRITONSERVER_ErrorNew(
        TRITONSERVER_ERROR_INVALID_ARG,
        "DELAY must have as many elements as IN, and WAIT must have one");
  }
  struct work* work = malloc(sizeof *work + count * sizeof *work->elements);
  if (work == NULL) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "out of memory");
  }
  work->count = count;
  for (uint64_t index = 0; index < count; ++index) {
    work->elements[index] = (struct element){values[index], delays[index]};
  }
  *copied = work;
  *wait_ms = *wait;
  return NULL;
}

static TRITONSERVER_Error*
begin(TRITONBACKEND_Request* request, uint32_t* wait_ms)
{
  struct work* work = NULL;
  TRY(copy(request, &work, wait_ms));
  TRITONSERVER_Error* failed = respond_on_thread(request, &work->factory, run, work);
  if (failed != NULL) {
    free(work);
    *wait_ms = 0;
  }
  return failed;
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests,
    uint32_t request_count)
{
  uint32_t longest_ms = 0;
  (void)instance;
  for (uint32_t index = 0; index < request_count; ++index) {
    uint32_t wait_ms = 0;
    TRITONSERVER_Error* failed = begin(requests[index], &wait_ms);
    if (failed != NULL) {
      refuse(requests[index], failed);
    }
    longest_ms = wait_ms > longest_ms ? wait_ms : longest_ms;
  }
  rest(longest_ms);
  for (uint32_t index = 0; index < request_count; ++index) {
    log_error(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return NULL;
}
