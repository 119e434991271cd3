/* A backend for tests of traces: the model's name selects its behaviour.

   plain, and any other name: returns INPUT0 as OUTPUT0
   decoupled: sends two responses, then the final flag
   failing: sends an error
   unanswering: refuses the batch
   nested: reports activities of its own and calls the model `plain` before it responds */
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"

/* Sends a response with the request's input. */
static TRITONSERVER_Error*
respond(TRITONBACKEND_Request* request, uint32_t flags)
{
  const int32_t* elements = NULL;
  uint64_t count = 0;
  TRITONBACKEND_Response* response;
  TRITONBACKEND_Output* output;
  void* buffer;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  int64_t memory_type_id = 0;
  TRY(read_int32(request, "INPUT0", &elements, &count));
  const int64_t shape[2] = {1, (int64_t)count};
  TRY(TRITONBACKEND_ResponseNew(&response, request));
  TRY(TRITONBACKEND_ResponseOutput(
      response, &output, "OUTPUT0", TRITONSERVER_TYPE_INT32, shape, 2));
  TRY(TRITONBACKEND_OutputBuffer(
      output, &buffer, count * sizeof *elements, &memory_type, &memory_type_id));
  memcpy(buffer, elements, count * sizeof *elements);
  return TRITONBACKEND_ResponseSend(response, flags, NULL);
}

static TRITONSERVER_Error*
respond_twice(TRITONBACKEND_Request* request)
{
  TRITONBACKEND_ResponseFactory* factory;
  TRY(respond(request, 0));
  TRY(respond(request, 0));
  TRY(TRITONBACKEND_ResponseFactoryNew(&factory, request));
  TRY(TRITONBACKEND_ResponseFactorySendFlags(factory, TRITONSERVER_RESPONSE_COMPLETE_FINAL));
  return TRITONBACKEND_ResponseFactoryDelete(factory);
}

static TRITONSERVER_Error*
fail(TRITONBACKEND_Request* request)
{
  TRITONBACKEND_Response* response;
  TRY(TRITONBACKEND_ResponseNew(&response, request));
  TRITONSERVER_Error* error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "not today");
  TRITONSERVER_Error* unsent =
      TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error);
  TRITONSERVER_ErrorDelete(error);
  return unsent;
}

/* A call of another model in flight. */
struct call {
  sem_t responded;
  sem_t released;
};

static TRITONSERVER_Error*
allocate(
    TRITONSERVER_ResponseAllocator* allocator, const char* name, size_t byte_size,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id, void* userp, void** buffer,
    void** buffer_userp, TRITONSERVER_MemoryType* actual_type, int64_t* actual_id)
{
  (void)allocator, (void)name, (void)memory_type, (void)memory_type_id, (void)userp;
  *buffer = malloc(byte_size);
  *buffer_userp = NULL;
  *actual_type = TRITONSERVER_MEMORY_CPU;
  *actual_id = 0;
  return NULL;
}

static TRITONSERVER_Error*
free_buffer(
    TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* buffer_userp, size_t byte_size,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id)
{
  (void)allocator, (void)buffer_userp, (void)byte_size, (void)memory_type, (void)memory_type_id;
  free(buffer);
  return NULL;
}

static void
responded(TRITONSERVER_InferenceResponse* response, uint32_t flags, void* userp)
{
  struct call* call = (struct call*)userp;
  if (response != NULL) {
    log_error(TRITONSERVER_InferenceResponseError(response));
    log_error(TRITONSERVER_InferenceResponseDelete(response));
  }
  if ((flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0) {
    sem_post(&call->responded);
  }
}

static void
released(TRITONSERVER_InferenceRequest* request, uint32_t flags, void* userp)
{
  struct call* call = (struct call*)userp;
  (void)flags;
  log_error(TRITONSERVER_InferenceRequestDelete(request));
  sem_post(&call->released);
}

/* Sends the request's input to the model `plain` and waits for the release. */
static TRITONSERVER_Error*
call_plain(
    TRITONSERVER_Server* server, TRITONBACKEND_Request* request, TRITONSERVER_InferenceTrace* trace)
{
  const int32_t* elements = NULL;
  uint64_t count = 0;
  TRY(read_int32(request, "INPUT0", &elements, &count));
  const int64_t shape[2] = {1, (int64_t)count};
  TRITONSERVER_ResponseAllocator* allocator;
  TRITONSERVER_InferenceRequest* inner;
  struct call call;
  sem_init(&call.responded, 0, 0);
  sem_init(&call.released, 0, 0);
  TRY(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, free_buffer, NULL));
  TRY(TRITONSERVER_InferenceRequestNew(&inner, server, "plain", -1));
  TRY(TRITONSERVER_InferenceRequestSetId(inner, "inner"));
  TRY(TRITONSERVER_InferenceRequestAddInput(inner, "INPUT0", TRITONSERVER_TYPE_INT32, shape, 2));
  TRY(TRITONSERVER_InferenceRequestAppendInputData(
      inner, "INPUT0", elements, count * sizeof *elements, TRITONSERVER_MEMORY_CPU, 0));
  TRY(TRITONSERVER_InferenceRequestSetReleaseCallback(inner, released, &call));
  TRY(TRITONSERVER_InferenceRequestSetResponseCallback(inner, allocator, NULL, responded, &call));
  TRY(TRITONSERVER_ServerInferAsync(server, inner, trace));
  sem_wait(&call.responded);
  sem_wait(&call.released);
  return TRITONSERVER_ResponseAllocatorDelete(allocator);
}

static TRITONSERVER_Error*
nest(TRITONBACKEND_Model* model, TRITONBACKEND_Request* request)
{
  TRITONSERVER_Server* server;
  TRITONSERVER_InferenceTrace* trace;
  TRITONSERVER_InferenceTrace* child;
  TRY(TRITONBACKEND_ModelServer(model, &server));
  TRY(TRITONBACKEND_RequestTrace(request, &trace));
  TRY(TRITONSERVER_InferenceTraceReportActivity(trace, 1, "ask"));
  TRY(TRITONSERVER_InferenceTraceSpawnChildTrace(trace, &child));
  TRY(call_plain(server, request, child));
  TRY(TRITONSERVER_InferenceTraceReportActivity(trace, 2, "answer"));
  return respond(request, TRITONSERVER_RESPONSE_COMPLETE_FINAL);
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests,
    uint32_t request_count)
{
  TRITONBACKEND_Model* model;
  const char* name;
  TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
  TRY(TRITONBACKEND_ModelName(model, &name));
  if (strcmp(name, "unanswering") == 0) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "not any day");
  }
  for (uint32_t index = 0; index < request_count; ++index) {
    uint64_t start = now_ns();
    bool success = strcmp(name, "failing") != 0;
    if (!success) {
      log_error(fail(requests[index]));
    } else if (strcmp(name, "decoupled") == 0) {
      log_error(respond_twice(requests[index]));
    } else if (strcmp(name, "nested") == 0) {
      log_error(nest(model, requests[index]));
    } else {
      log_error(respond(requests[index], TRITONSERVER_RESPONSE_COMPLETE_FINAL));
    }
    uint64_t end = now_ns();
    log_error(TRITONBACKEND_ModelInstanceReportStatistics(
        instance, requests[index], success, start, start, end, end));
    log_error(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return NULL;
}
