/* A backend whose executions cost what the model says: it sleeps, and returns its inputs as
   identity.c does. Schedulers and load generators can be tried with it on a machine of any
   speed. Parameters of the model, each a decimal number without a sign:

     fixed_us       microseconds of every execution; default: 0
     row_us         further microseconds for each row of the batch; default: 0
     noise_percent  how much an execution's time differs from that at most, in both
                    directions, at random; from 0 to 100, default: 0 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "copy.h"

#define NS_PER_US 1000u
#define NS_PER_S 1000000000u
/* An hour, so that no sum of times overflows. */
#define US_MAX 3600000000u

struct costs {
  uint64_t fixed_us;
  uint64_t row_us;
  uint64_t noise_percent;
  uint64_t max_batch_size;
  /* Executions so far, of all instances. */
  atomic_uint_fast64_t executions;
};

static TRITONSERVER_Error*
wrong(const char* name, uint64_t most)
{
  char text[96];
  snprintf(
      text, sizeof text, "the parameter %s must be a number from 0 to %llu", name,
      (unsigned long long)most);
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, text);
}

/* Reads a parameter from the JSON text of a configuration, which has it as
   "NAME":{"string_value":"TEXT"}. */
static TRITONSERVER_Error*
read_parameter(const char* config, const char* name, uint64_t most, uint64_t* number)
{
  static const char* const VALUE = ":{\"string_value\":\"";
  char key[32];
  char* end;
  snprintf(key, sizeof key, "\"%s\"", name);
  const char* at = strstr(config, key);
  *number = 0;
  if (at == NULL) {
    return NULL;
  }
  at += strlen(key);
  if (strncmp(at, VALUE, strlen(VALUE)) != 0) {
    return wrong(name, most);
  }
  at += strlen(VALUE);
  if (*at < '0' || *at > '9') {
    return wrong(name, most);
  }
  errno = 0;
  *number = strtoull(at, &end, 10);
  return errno == 0 && *end == '"' && *number <= most ? NULL : wrong(name, most);
}

static TRITONSERVER_Error*
read_costs(const char* config, struct costs* costs)
{
  static const char* const SIZE = "\"max_batch_size\":";
  const char* size = strstr(config, SIZE);
  costs->max_batch_size = size == NULL ? 0 : strtoull(size + strlen(SIZE), NULL, 10);
  TRY(read_parameter(config, "fixed_us", US_MAX, &costs->fixed_us));
  TRY(read_parameter(config, "row_us", US_MAX, &costs->row_us));
  return read_parameter(config, "noise_percent", 100, &costs->noise_percent);
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model)
{
  TRITONSERVER_Message* message;
  const char* json;
  size_t byte_size;
  TRY(TRITONBACKEND_ModelConfig(model, 1, &message));
  TRITONSERVER_Error* failed = TRITONSERVER_MessageSerializeToJson(message, &json, &byte_size);
  struct costs* costs = calloc(1, sizeof *costs);
  char* config = failed == NULL ? calloc(1, byte_size + 1) : NULL;
  if (failed == NULL && (costs == NULL || config == NULL)) {
    failed = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "out of memory");
  }
  if (failed == NULL) {
    memcpy(config, json, byte_size);
    failed = read_costs(config, costs);
  }
  if (failed == NULL) {
    failed = TRITONBACKEND_ModelSetState(model, costs);
  }
  free(config);
  if (failed != NULL) {
    free(costs);
  }
  log_error(TRITONSERVER_MessageDelete(message));
  return failed;
}

TRITONSERVER_Error*
TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model)
{
  void* costs = NULL;
  TRY(TRITONBACKEND_ModelState(model, &costs));
  free(costs);
  return NULL;
}

/* The rows of a request: the first dimension of its first input, if the model has batches. */
static TRITONSERVER_Error*
count_rows(TRITONBACKEND_Request* request, const struct costs* costs, uint64_t* rows)
{
  TRITONBACKEND_Input* input;
  const int64_t* shape;
  uint32_t rank;
  *rows = 1;
  TRY(TRITONBACKEND_RequestInputByIndex(request, 0, &input));
  TRY(TRITONBACKEND_InputProperties(input, NULL, NULL, &shape, &rank, NULL, NULL));
  if (costs->max_batch_size > 0 && rank > 0) {
    *rows = (uint64_t)shape[0];
  }
  return NULL;
}

/* A random number that depends on nothing else than this one, by splitmix64. */
static uint64_t
mix(uint64_t number)
{
  number = (number + 1) * 0x9E3779B97F4A7C15u;
  number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9u;
  number = (number ^ (number >> 27)) * 0x94D049BB133111EBu;
  return number ^ (number >> 31);
}

/* How long an execution takes. */
static uint64_t
duration_ns(struct costs* costs, uint64_t rows)
{
  const uint64_t usual_ns = (costs->fixed_us + costs->row_us * rows) * NS_PER_US;
  const uint64_t most_ns = usual_ns / 100 * costs->noise_percent;
  const uint64_t random = mix(atomic_fetch_add(&costs->executions, 1));
  return usual_ns - most_ns + (most_ns == 0 ? 0 : random % (2 * most_ns));
}

/* Sleeps until a time of the clock of now_ns(), not 50 µs longer as the kernel does if a thread
   does not ask for more. */
static void
sleep_until(uint64_t time_ns)
{
  const struct timespec until = {
      .tv_sec = (time_t)(time_ns / NS_PER_S), .tv_nsec = (long)(time_ns % NS_PER_S)};
  prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {
  }
}

/* Responds to a request, which the backend owns. */
static void
respond(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request, uint64_t start,
    uint64_t slept)
{
  TRITONBACKEND_Response* response = NULL;
  TRITONSERVER_Error* failed = TRITONBACKEND_ResponseNew(&response, request);
  if (failed != NULL) {
    /* Without a response the error has no receiver; the server responds on release. */
    log_error(failed);
    log_error(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
    return;
  }
  failed = copy_inputs(request, response);
  log_error(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, failed));
  log_error(TRITONBACKEND_ModelInstanceReportStatistics(
      instance, request, failed == NULL, start, start, slept, now_ns()));
  TRITONSERVER_ErrorDelete(failed);
  log_error(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests,
    uint32_t request_count)
{
  const uint64_t start = now_ns();
  TRITONBACKEND_Model* model;
  void* costs = NULL;
  uint64_t rows = 0;
  TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
  TRY(TRITONBACKEND_ModelState(model, &costs));
  for (uint32_t index = 0; index < request_count; ++index) {
    uint64_t own;
    TRY(count_rows(requests[index], (struct costs*)costs, &own));
    rows += own;
  }
  sleep_until(start + duration_ns((struct costs*)costs, rows));
  const uint64_t slept = now_ns();
  /* From here on the backend owns every request. */
  for (uint32_t index = 0; index < request_count; ++index) {
    respond(instance, requests[index], start, slept);
  }
  log_error(TRITONBACKEND_ModelInstanceReportBatchStatistics(
      instance, rows, start, start, slept, now_ns()));
  return NULL;
}
