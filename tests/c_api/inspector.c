/* A backend that responds with the results of the functions of tritonbackend.h for
   the request, its model, its instance and the backend: a text in the output TOLD.

   A model with a parameter "waits" responds when its request is cancelled. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

#define TEXT_BYTES_MAX 20000

struct text {
  size_t used;
  char bytes[TEXT_BYTES_MAX];
};

static struct text of_backend;

static void
append(struct text* text, const char* format, ...)
{
  va_list values;
  va_start(values, format);
  const size_t room = sizeof text->bytes - text->used;
  const int length = vsnprintf(text->bytes + text->used, room, format, values);
  va_end(values);
  if (length > 0 && (size_t)length + 1 < room) {
    text->used += (size_t)length;
    text->bytes[text->used++] = '\n';
  }
}

/* The result of a call as text; valid until the next call on this thread. */
static const char*
status(TRITONSERVER_Error* error)
{
  static __thread char words[1000];
  if (error == NULL) {
    return "ok";
  }
  snprintf(
      words, sizeof words, "%s: %s", TRITONSERVER_ErrorCodeString(error),
      TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
  return words;
}

static void
append_message(struct text* text, const char* what, TRITONSERVER_Message* message)
{
  const char* base;
  size_t byte_size;
  log_error(TRITONSERVER_MessageSerializeToJson(message, &base, &byte_size));
  append(text, "%s %.*s", what, (int)byte_size, base);
}

static void
append_attributes(struct text* text, const char* what, TRITONSERVER_BufferAttributes* attributes)
{
  TRITONSERVER_MemoryType memory_type;
  int64_t memory_type_id;
  size_t byte_size;
  log_error(TRITONSERVER_BufferAttributesMemoryType(attributes, &memory_type));
  log_error(TRITONSERVER_BufferAttributesMemoryTypeId(attributes, &memory_type_id));
  log_error(TRITONSERVER_BufferAttributesByteSize(attributes, &byte_size));
  append(text, "%s %d %" PRId64 " %zu", what, (int)memory_type, memory_type_id, byte_size);
}

TRITONSERVER_Error*
TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend)
{
  const char* name;
  TRITONSERVER_Message* config;
  TRITONBACKEND_ExecutionPolicy policy;
  TRITONBACKEND_ArtifactType artifact;
  const char* location;
  TRITONBACKEND_MemoryManager* manager;
  void* memory = NULL;
  TRY(TRITONBACKEND_BackendName(backend, &name));
  TRY(TRITONBACKEND_BackendConfig(backend, &config));
  TRY(TRITONBACKEND_BackendExecutionPolicy(backend, &policy));
  TRY(TRITONBACKEND_BackendArtifacts(backend, &artifact, &location));
  TRY(TRITONBACKEND_BackendMemoryManager(backend, &manager));
  append(&of_backend, "backend %s policy %d artifact %d", name, (int)policy, (int)artifact);
  append_message(&of_backend, "backend config", config);
  uint32_t major;
  uint32_t minor;
  TRY(TRITONBACKEND_ApiVersion(&major, &minor));
  const bool known = major == TRITONBACKEND_API_VERSION_MAJOR && minor > 0;
  TRY(TRITONBACKEND_BackendSetExecutionPolicy(backend, TRITONBACKEND_EXECUTION_DEVICE_BLOCKING));
  TRY(TRITONBACKEND_BackendExecutionPolicy(backend, &policy));
  TRY(TRITONBACKEND_BackendSetExecutionPolicy(backend, TRITONBACKEND_EXECUTION_BLOCKING));
  append(&of_backend, "version known %d policy now %d", known, (int)policy);
  TRY(TRITONBACKEND_MemoryManagerAllocate(manager, &memory, TRITONSERVER_MEMORY_CPU, 0, 100));
  memset(memory, 7, 100);
  append(&of_backend, "memory %s",
      status(TRITONBACKEND_MemoryManagerFree(manager, memory, TRITONSERVER_MEMORY_CPU, 0)));
  TRY(TRITONBACKEND_BackendSetState(backend, &of_backend));
  return NULL;
}

TRITONSERVER_Error*
TRITONBACKEND_GetBackendAttribute(
    TRITONBACKEND_Backend* backend, TRITONBACKEND_BackendAttribute* attributes)
{
  (void)backend;
  return TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
      attributes, TRITONSERVER_INSTANCEGROUPKIND_CPU, 2, NULL, 0);
}

/* Sets another batch size of the model, as if it had been read from a file. */
static TRITONSERVER_Error*
set_batch_size(TRITONBACKEND_Model* model, TRITONSERVER_Message* config)
{
  static const char before[] = "\"max_batch_size\":0";
  const char* base;
  size_t byte_size;
  TRITONSERVER_Message* changed;
  TRY(TRITONSERVER_MessageSerializeToJson(config, &base, &byte_size));
  char* text = strndup(base, byte_size);
  char* place = strstr(text, before);
  if (place != NULL) {
    place[sizeof before - 2] = '4';
  }
  TRITONSERVER_Error* failed =
      TRITONSERVER_MessageNewFromSerializedJson(&changed, text, byte_size);
  free(text);
  if (failed == NULL) {
    failed = TRITONBACKEND_ModelSetConfig(model, 1, changed);
    TRITONSERVER_ErrorDelete(TRITONSERVER_MessageDelete(changed));
  }
  return failed;
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model)
{
  const char* name;
  const char* repository;
  uint64_t version;
  TRITONBACKEND_ArtifactType artifact;
  TRITONSERVER_Message* config;
  bool completes;
  TRITONBACKEND_Backend* backend;
  void* state;
  struct text* text = calloc(1, sizeof *text);
  TRY(TRITONBACKEND_ModelSetState(model, text));
  TRY(TRITONBACKEND_ModelName(model, &name));
  TRY(TRITONBACKEND_ModelVersion(model, &version));
  TRY(TRITONBACKEND_ModelRepository(model, &artifact, &repository));
  TRY(TRITONBACKEND_ModelAutoCompleteConfig(model, &completes));
  TRY(TRITONBACKEND_ModelBackend(model, &backend));
  TRY(TRITONBACKEND_BackendState(backend, &state));
  append(text, "model %s version %" PRIu64 " artifact %d at %s completes %d state %d", name,
      version, (int)artifact, strrchr(repository, '/'), completes, state == &of_backend);
  append(text, "config 2: %s", status(TRITONBACKEND_ModelConfig(model, 2, &config)));
  TRY(TRITONBACKEND_ModelConfig(model, 1, &config));
  TRITONSERVER_Error* failed = completes ? set_batch_size(model, config) : NULL;
  log_error(TRITONSERVER_MessageDelete(config));
  return failed;
}

TRITONSERVER_Error*
TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model)
{
  void* text;
  TRY(TRITONBACKEND_ModelState(model, &text));
  free(text);
  return NULL;
}

/* The number of instances, and the state of each. */
static atomic_int instances;

TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance)
{
  TRITONBACKEND_ModelInstance** state = malloc(sizeof *state);
  *state = instance;
  ++instances;
  return TRITONBACKEND_ModelInstanceSetState(instance, state);
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance)
{
  void* state;
  TRY(TRITONBACKEND_ModelInstanceState(instance, &state));
  if (*(TRITONBACKEND_ModelInstance**)state == instance) {
    --instances;
  }
  free(state);
  return NULL;
}

TRITONSERVER_Error*
TRITONBACKEND_Finalize(TRITONBACKEND_Backend* backend)
{
  void* state;
  TRY(TRITONBACKEND_BackendState(backend, &state));
  fprintf(stderr, "finalized with %d instances state %d\n", instances, state == &of_backend);
  return NULL;
}

static void
append_instance(struct text* text, TRITONBACKEND_ModelInstance* instance)
{
  const char* name;
  TRITONSERVER_InstanceGroupKind kind;
  int32_t device;
  bool passive;
  uint32_t profiles;
  uint32_t others;
  TRITONSERVER_Message* policy;
  log_error(TRITONBACKEND_ModelInstanceName(instance, &name));
  log_error(TRITONBACKEND_ModelInstanceKind(instance, &kind));
  log_error(TRITONBACKEND_ModelInstanceDeviceId(instance, &device));
  log_error(TRITONBACKEND_ModelInstanceIsPassive(instance, &passive));
  log_error(TRITONBACKEND_ModelInstanceProfileCount(instance, &profiles));
  log_error(TRITONBACKEND_ModelInstanceSecondaryDeviceCount(instance, &others));
  log_error(TRITONBACKEND_ModelInstanceHostPolicy(instance, &policy));
  void* state;
  log_error(TRITONBACKEND_ModelInstanceState(instance, &state));
  append(text, "state %d", *(TRITONBACKEND_ModelInstance**)state == instance);
  append(text, "instance %s kind %d device %d passive %d", name, (int)kind, device, passive);
  for (uint32_t index = 0; index <= profiles; ++index) {
    const char* profile = "";
    const char* outcome = status(TRITONBACKEND_ModelInstanceProfileName(instance, index, &profile));
    append(text, "profile %u %s %s", index, outcome, profile);
  }
  for (uint32_t index = 0; index <= others; ++index) {
    const char* other = "";
    int64_t id = -1;
    const char* outcome =
        status(TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(instance, index, &other, &id));
    append(text, "secondary device %u %s %s %" PRId64, index, outcome, other, id);
  }
  append_message(text, "host policy", policy);
}

static void
append_parameters(struct text* text, TRITONBACKEND_Request* request)
{
  uint32_t count;
  log_error(TRITONBACKEND_RequestParameterCount(request, &count));
  for (uint32_t index = 0; index < count; ++index) {
    const char* key;
    TRITONSERVER_ParameterType type;
    const void* value;
    log_error(TRITONBACKEND_RequestParameter(request, index, &key, &type, &value));
    switch (type) {
      case TRITONSERVER_PARAMETER_STRING:
        append(text, "parameter %s \"%s\"", key, (const char*)value);
        break;
      case TRITONSERVER_PARAMETER_INT:
        append(text, "parameter %s %" PRId64, key, *(const int64_t*)value);
        break;
      case TRITONSERVER_PARAMETER_BOOL:
        append(text, "parameter %s %s", key, *(const bool*)value ? "true" : "false");
        break;
      default:
        append(text, "parameter %s %.2f", key, *(const double*)value);
    }
  }
  const char* key;
  TRITONSERVER_ParameterType type;
  const void* value;
  append(text, "parameter %u: %s", count,
      status(TRITONBACKEND_RequestParameter(request, count, &key, &type, &value)));
}

static void
append_input(struct text* text, TRITONBACKEND_Input* input, const char* policy)
{
  const char* name;
  TRITONSERVER_DataType datatype;
  const int64_t* shape;
  uint32_t rank;
  uint64_t byte_size;
  uint32_t buffers;
  const void* buffer;
  const void* same;
  uint64_t buffer_bytes;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  int64_t memory_type_id = 0;
  TRITONSERVER_BufferAttributes* attributes;
  log_error(TRITONBACKEND_InputProperties(
      input, &name, &datatype, &shape, &rank, &byte_size, &buffers));
  append(text, "input %s %s rank %u last %" PRId64 " bytes %" PRIu64 " buffers %u", name,
      TRITONSERVER_DataTypeString(datatype), rank, shape[rank - 1], byte_size, buffers);
  log_error(TRITONBACKEND_InputPropertiesForHostPolicy(
      input, policy, &name, &datatype, &shape, &rank, &byte_size, &buffers));
  append(text, "for the host policy: bytes %" PRIu64 " buffers %u", byte_size, buffers);
  log_error(TRITONBACKEND_InputBuffer(
      input, 0, &buffer, &buffer_bytes, &memory_type, &memory_type_id));
  append(text, "buffer %" PRIu64 " in %d %" PRId64 " begins with %d", buffer_bytes,
      (int)memory_type, memory_type_id, *(const int32_t*)buffer);
  log_error(TRITONBACKEND_InputBufferForHostPolicy(
      input, policy, 0, &same, &buffer_bytes, &memory_type, &memory_type_id));
  append(text, "for the host policy: %" PRIu64 " the same %d", buffer_bytes, same == buffer);
  log_error(TRITONBACKEND_InputBufferAttributes(input, 0, &same, &attributes));
  append_attributes(text, "its attributes", attributes);
}

static void
append_tensors(struct text* text, TRITONBACKEND_Request* request)
{
  uint32_t inputs;
  uint32_t outputs;
  const char* name;
  TRITONBACKEND_Input* input;
  log_error(TRITONBACKEND_RequestInputCount(request, &inputs));
  log_error(TRITONBACKEND_RequestOutputCount(request, &outputs));
  for (uint32_t index = 0; index < inputs; ++index) {
    log_error(TRITONBACKEND_RequestInputByIndex(request, index, &input));
    append_input(text, input, "near");
    log_error(TRITONBACKEND_RequestInputName(request, index, &name));
    TRITONBACKEND_Input* same;
    log_error(TRITONBACKEND_RequestInput(request, name, &same));
    append(text, "by name the same %d", same == input);
  }
  append(text, "input %u: %s", inputs,
      status(TRITONBACKEND_RequestInputName(request, inputs, &name)));
  append(text, "no input: %s", status(TRITONBACKEND_RequestInput(request, "NONE", &input)));
  for (uint32_t index = 0; index < outputs; ++index) {
    log_error(TRITONBACKEND_RequestOutputName(request, index, &name));
    append(text, "output %s", name);
  }
  append(text, "output %u: %s", outputs,
      status(TRITONBACKEND_RequestOutputName(request, outputs, &name)));
}

static void
append_request(struct text* text, TRITONBACKEND_Request* request)
{
  const char* id;
  uint64_t number = 0;
  const char* word = "";
  uint32_t flags;
  uint64_t timeout;
  size_t byte_size = 5;
  bool cancelled;
  TRITONSERVER_InferenceTrace* trace;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_GPU;
  int64_t memory_type_id = 2;
  log_error(TRITONBACKEND_RequestId(request, &id));
  log_error(TRITONBACKEND_RequestFlags(request, &flags));
  log_error(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, &timeout));
  log_error(TRITONBACKEND_RequestIsCancelled(request, &cancelled));
  log_error(TRITONBACKEND_RequestTrace(request, &trace));
  append(text, "request %s flags %u timeout %" PRIu64 " cancelled %d traced %d", id, flags, timeout,
      cancelled, trace != NULL);
  const char* outcome = status(TRITONBACKEND_RequestCorrelationId(request, &number));
  append(text, "correlation number %" PRIu64 " %s", number, outcome);
  outcome = status(TRITONBACKEND_RequestCorrelationIdString(request, &word));
  append(text, "correlation text '%s' %s", word, outcome);
  append_parameters(text, request);
  append_tensors(text, request);
  outcome = status(TRITONBACKEND_RequestOutputBufferProperties(
      request, "TOLD", &byte_size, &memory_type, &memory_type_id));
  append(text, "an output would have %zu bytes in %d %" PRId64 " %s", byte_size, (int)memory_type,
      memory_type_id, outcome);
}

/* Increments the state with each request of a sequence. */
static void
append_state(struct text* text, TRITONBACKEND_Request* request)
{
  const int64_t shape[2] = {1, 1};
  const int32_t* before;
  uint64_t count;
  TRITONBACKEND_State* state;
  TRITONSERVER_BufferAttributes* attributes;
  void* buffer;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  int64_t memory_type_id = 0;
  TRITONSERVER_Error* failed =
      TRITONBACKEND_StateNew(&state, request, "NEXT", TRITONSERVER_TYPE_INT32, shape, 2);
  if (failed != NULL) {
    append(text, "state %s", status(failed));
    return;
  }
  log_error(read_int32(request, "PREVIOUS", &before, &count));
  log_error(
      TRITONBACKEND_StateBuffer(state, &buffer, sizeof *before, &memory_type, &memory_type_id));
  *(int32_t*)buffer = *before + 1;
  log_error(TRITONBACKEND_StateBufferAttributes(state, &attributes));
  append_attributes(text, "its state's attributes", attributes);
  append(text, "state %d %s", *before, status(TRITONBACKEND_StateUpdate(state)));
}

/* The properties of a response that is never sent. */
static void
append_unsent(struct text* text, TRITONBACKEND_Request* request)
{
  const int64_t made[2] = {1, 7};
  TRITONBACKEND_Response* response;
  TRITONBACKEND_Output* output;
  const char* name;
  TRITONSERVER_DataType datatype;
  const int64_t* shape;
  uint64_t rank;
  log_error(TRITONBACKEND_ResponseNew(&response, request));
  log_error(TRITONBACKEND_ResponseOutput(
      response, &output, "OTHER", TRITONSERVER_TYPE_BYTES, made, 2));
  log_error(
      TRITONBACKEND_InferenceResponseOutput(response, 0, &name, &datatype, &shape, &rank));
  append(text, "unsent %s %s rank %" PRIu64 " last %" PRId64, name,
      TRITONSERVER_DataTypeString(datatype), rank, shape[rank - 1]);
  datatype = TRITONSERVER_TYPE_INVALID;
  log_error(TRITONBACKEND_InferenceResponseOutputByName(
      response, "OTHER", &datatype, &shape, &rank));
  append(text, "by name %s rank %" PRIu64 " last %" PRId64, TRITONSERVER_DataTypeString(datatype),
      rank, shape[rank - 1]);
  append(text, "unsent 1: %s",
      status(TRITONBACKEND_InferenceResponseOutput(response, 1, &name, &datatype, &shape, &rank)));
  append(text, "no output: %s",
      status(TRITONBACKEND_InferenceResponseOutputByName(
          response, "NONE", &datatype, &shape, &rank)));
  append(text, "deleted %s", status(TRITONBACKEND_ResponseDelete(response)));
}

static TRITONSERVER_Error*
wait_if_requested(TRITONBACKEND_Model* model, TRITONBACKEND_Request* request)
{
  TRITONSERVER_Message* config;
  const char* base;
  size_t byte_size;
  bool over;
  TRY(TRITONBACKEND_ModelConfig(model, 1, &config));
  TRITONSERVER_Error* failed = TRITONSERVER_MessageSerializeToJson(config, &base, &byte_size);
  over = failed != NULL || memmem(base, byte_size, "\"waits\"", 7) == NULL;
  log_error(TRITONSERVER_MessageDelete(config));
  while (failed == NULL && !over) {
    usleep(1000); /* sleep: polls for the cancellation */
    failed = TRITONBACKEND_RequestIsCancelled(request, &over);
  }
  return failed;
}

/* The output, with its length before it. */
static TRITONSERVER_Error*
respond(TRITONBACKEND_Request* request, const struct text* const* texts, size_t count)
{
  const int64_t shape[2] = {1, 1};
  TRITONBACKEND_Response* response;
  TRITONBACKEND_Output* output;
  TRITONSERVER_BufferAttributes* attributes;
  void* buffer;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  int64_t memory_type_id = 0;
  uint32_t length = 0;
  size_t byte_size;
  for (size_t index = 0; index < count; ++index) {
    length += (uint32_t)texts[index]->used;
  }
  TRY(TRITONBACKEND_ResponseNew(&response, request));
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "text", "words"));
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "number", -7));
  TRY(TRITONBACKEND_ResponseSetBoolParameter(response, "flag", true));
  TRY(TRITONBACKEND_ResponseSetDoubleParameter(response, "fraction", 0.5));
  TRY(TRITONBACKEND_ResponseOutput(
      response, &output, "TOLD", TRITONSERVER_TYPE_BYTES, shape, 2));
  TRY(TRITONBACKEND_OutputBuffer(
      output, &buffer, sizeof length + length, &memory_type, &memory_type_id));
  TRY(TRITONBACKEND_OutputBufferAttributes(output, &attributes));
  TRY(TRITONSERVER_BufferAttributesByteSize(attributes, &byte_size));
  if (byte_size != sizeof length + length) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "the output has another size");
  }
  memcpy(buffer, &length, sizeof length);
  char* place = (char*)buffer + sizeof length;
  for (size_t index = 0; index < count; ++index) {
    memcpy(place, texts[index]->bytes, texts[index]->used);
    place += texts[index]->used;
  }
  return TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL);
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests,
    const uint32_t request_count)
{
  TRITONBACKEND_Model* model;
  void* of_model;
  TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
  TRY(TRITONBACKEND_ModelState(model, &of_model));
  for (uint32_t index = 0; index < request_count; ++index) {
    struct text* own = calloc(1, sizeof *own);
    const struct text* texts[3] = {&of_backend, of_model, own};
    append_instance(own, instance);
    append_request(own, requests[index]);
    append_unsent(own, requests[index]);
    append_state(own, requests[index]);
    log_error(wait_if_requested(model, requests[index]));
    log_error(respond(requests[index], texts, 3));
    free(own);
    log_error(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return NULL;
}
