/* A backend whose responses its input SCRIPT lists, one for each string:

     say X       TEXT is X                  many N    TEXT is N strings
     none        TEXT has no element        half      HALF is one number of type FP16
     numbers     one output of each type    hidden    outputs have the names of other members
     parameters  the request's parameters become those of the response
     error X     an error in the response's place
     quiet       no response
     last X      as `say`, and the end comes with it

   Without a `last`, the end comes behind them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"

static TRITONSERVER_Error*
say(TRITONBACKEND_Response* response, const char* name, const char* text, uint32_t length,
    int64_t count)
{
  char* buffer;
  const int64_t shape[1] = {count};
  const uint64_t step = sizeof length + length;
  TRY(add_output(
      response, name, TRITONSERVER_TYPE_BYTES, shape, 1, step * (uint64_t)count,
      (void**)&buffer));
  for (int64_t index = 0; index < count; ++index, buffer += step) {
    memcpy(buffer, &length, sizeof length);
    memcpy(buffer + sizeof length, text, length);
  }
  return NULL;
}

static TRITONSERVER_Error*
number(
    TRITONBACKEND_Response* response, const char* name, TRITONSERVER_DataType datatype,
    const void* value, uint64_t size)
{
  void* buffer;
  const int64_t shape[2] = {1, 1};
  TRY(add_output(response, name, datatype, shape, 2, size, &buffer));
  memcpy(buffer, value, size);
  return NULL;
}

static TRITONSERVER_Error*
numbers(TRITONBACKEND_Response* response)
{
  const int8_t small = -8;
  const uint64_t large = UINT64_MAX;
  const int64_t least = INT64_MIN;
  const float single = 0.1f;
  const double twice = 1e300;
  const bool yes = true;
  TRY(number(response, "a_int8", TRITONSERVER_TYPE_INT8, &small, 1));
  TRY(number(response, "a_uint64", TRITONSERVER_TYPE_UINT64, &large, 8));
  TRY(number(response, "a_int64", TRITONSERVER_TYPE_INT64, &least, 8));
  TRY(number(response, "a_fp32", TRITONSERVER_TYPE_FP32, &single, 4));
  TRY(number(response, "a_fp64", TRITONSERVER_TYPE_FP64, &twice, 8));
  return number(response, "a_bool", TRITONSERVER_TYPE_BOOL, &yes, 1);
}

static TRITONSERVER_Error*
hidden(TRITONBACKEND_Response* response)
{
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "model_name", "a parameter"));
  TRY(TRITONBACKEND_ResponseSetStringParameter(response, "TEXT", "a parameter"));
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "twice", 1));
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "twice", 2));
  TRY(say(response, "id", "an output", 9, 1));
  TRY(say(response, "TEXT", "an output", 9, 1));
  return say(response, "zero \"quoted\"", "an output", 9, 1);
}

static TRITONSERVER_Error*
parameters(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response)
{
  uint32_t count;
  TRY(TRITONBACKEND_RequestParameterCount(request, &count));
  TRY(TRITONBACKEND_ResponseSetIntParameter(response, "(count)", count));
  for (uint32_t index = 0; index < count; ++index) {
    const char* key;
    TRITONSERVER_ParameterType type;
    const void* value;
    TRY(TRITONBACKEND_RequestParameter(request, index, &key, &type, &value));
    if (type == TRITONSERVER_PARAMETER_STRING) {
      TRY(TRITONBACKEND_ResponseSetStringParameter(response, key, (const char*)value));
    } else if (type == TRITONSERVER_PARAMETER_INT) {
      TRY(TRITONBACKEND_ResponseSetIntParameter(response, key, *(const int64_t*)value));
    } else if (type == TRITONSERVER_PARAMETER_BOOL) {
      TRY(TRITONBACKEND_ResponseSetBoolParameter(response, key, *(const bool*)value));
    } else {
      /* Not every version of the API has doubles in responses. */
      char text[64];
      snprintf(text, sizeof text, "double %g", *(const double*)value);
      TRY(TRITONBACKEND_ResponseSetStringParameter(response, key, text));
    }
  }
  return say(response, "TEXT", "", 0, 1);
}

/* What is behind a command's name, or null if it is another command. */
static const char*
argument(const char* line, uint32_t* length, const char* command)
{
  const uint32_t skipped = (uint32_t)strlen(command);
  if (*length < skipped || strncmp(line, command, skipped) != 0) {
    return NULL;
  }
  *length -= skipped;
  return line + skipped;
}

static TRITONSERVER_Error*
fill(
    TRITONBACKEND_Request* request, TRITONBACKEND_Response* response, const char* line,
    uint32_t length)
{
  const char* text;
  if ((text = argument(line, &length, "say ")) || (text = argument(line, &length, "last "))) {
    return say(response, "TEXT", text, length, 1);
  }
  if ((text = argument(line, &length, "many "))) {
    return say(response, "TEXT", "x", 1, text[0] - '0');
  }
  if (argument(line, &length, "none")) {
    return say(response, "TEXT", "", 0, 0);
  }
  if (argument(line, &length, "half")) {
    const uint16_t one = 0x3c00;
    return number(response, "HALF", TRITONSERVER_TYPE_FP16, &one, 2);
  }
  if (argument(line, &length, "numbers")) {
    return numbers(response);
  }
  if (argument(line, &length, "hidden")) {
    return hidden(response);
  }
  if (argument(line, &length, "parameters")) {
    return parameters(request, response);
  }
  if ((text = argument(line, &length, "error "))) {
    char message[100];
    snprintf(message, sizeof message, "%.*s", (int)length, text);
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, message);
  }
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "no such command");
}

/* Sends the responses that the script lists, and whether the last one was the end. */
static TRITONSERVER_Error*
follow(TRITONBACKEND_Request* request, TRITONBACKEND_ResponseFactory* factory, bool* ended)
{
  TRITONBACKEND_Input* input;
  const void* buffer;
  uint64_t left;
  TRITONSERVER_MemoryType memory_type;
  int64_t memory_type_id;
  TRY(TRITONBACKEND_RequestInput(request, "SCRIPT", &input));
  TRY(TRITONBACKEND_InputBuffer(input, 0, &buffer, &left, &memory_type, &memory_type_id));
  const char* next = (const char*)buffer;
  uint32_t length;
  for (; left >= sizeof length; left -= length) {
    memcpy(&length, next, sizeof length);
    next += sizeof length;
    left -= sizeof length;
    if (length == 5 && strncmp(next, "quiet", 5) == 0) {
      next += length;
      continue;
    }
    TRITONBACKEND_Response* response;
    TRY(TRITONBACKEND_ResponseNewFromFactory(&response, factory));
    TRITONSERVER_Error* failed = fill(request, response, next, length);
    *ended = length >= 4 && strncmp(next, "last", 4) == 0;
    TRITONSERVER_Error* unsent = TRITONBACKEND_ResponseSend(
        response, *ended ? TRITONSERVER_RESPONSE_COMPLETE_FINAL : 0, failed);
    TRITONSERVER_ErrorDelete(failed);
    TRY(unsent);
    next += length;
  }
  return NULL;
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests,
    uint32_t request_count)
{
  (void)instance;
  for (uint32_t index = 0; index < request_count; ++index) {
    bool ended = false;
    TRITONBACKEND_ResponseFactory* factory;
    TRITONSERVER_Error* failed = TRITONBACKEND_ResponseFactoryNew(&factory, requests[index]);
    if (failed == NULL) {
      failed = follow(requests[index], factory, &ended);
      if (!ended) {
        log_error(TRITONBACKEND_ResponseFactorySendFlags(
            factory, TRITONSERVER_RESPONSE_COMPLETE_FINAL));
      }
      log_error(TRITONBACKEND_ResponseFactoryDelete(factory));
    }
    log_error(failed);
    log_error(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return NULL;
}
