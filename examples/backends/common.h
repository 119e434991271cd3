/* Shared code of the example backends. */
#ifndef EXAMPLES_COMMON_H
#define EXAMPLES_COMMON_H

#include <time.h>

#include "triton/core/tritonbackend.h"

/* Returns from the function if a call failed: null is success. */
#define TRY(call)                          \
  do {                                     \
    TRITONSERVER_Error* failed_ = (call);  \
    if (failed_ != NULL) {                 \
      return failed_;                      \
    }                                      \
  } while (0)

/* Logs an error that has no caller to return to, and deletes it. */
static inline void
log_error(TRITONSERVER_Error* error)
{
  if (error != NULL) {
    TRITONSERVER_Error* unlogged = TRITONSERVER_LogMessage(
        TRITONSERVER_LOG_ERROR, __FILE__, __LINE__, TRITONSERVER_ErrorMessage(error));
    TRITONSERVER_ErrorDelete(unlogged);
    TRITONSERVER_ErrorDelete(error);
  }
}

/* Statistics need nanoseconds of this clock. */
static inline uint64_t
now_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Sends an error for a request and deletes the error; the backend still owns the request. */
static inline void
refuse(TRITONBACKEND_Request* request, TRITONSERVER_Error* why)
{
  TRITONBACKEND_Response* response;
  TRITONSERVER_Error* failed = TRITONBACKEND_ResponseNew(&response, request);
  if (failed == NULL) {
    failed = TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, why);
  }
  log_error(failed);
  TRITONSERVER_ErrorDelete(why);
}

/* The elements of an input of 32-bit numbers, and their count. */
static inline TRITONSERVER_Error*
read_words(
    TRITONBACKEND_Request* request, const char* name, TRITONSERVER_DataType wanted,
    const void** elements, uint64_t* count)
{
  TRITONBACKEND_Input* input;
  const void* buffer;
  uint64_t byte_size;
  TRITONSERVER_DataType datatype;
  TRITONSERVER_MemoryType memory_type;
  int64_t memory_type_id;
  TRY(TRITONBACKEND_RequestInput(request, name, &input));
  TRY(TRITONBACKEND_InputProperties(input, NULL, &datatype, NULL, NULL, NULL, NULL));
  if (datatype != wanted) {
    return TRITONSERVER_ErrorNew(
        TRITONSERVER_ERROR_INVALID_ARG, wanted == TRITONSERVER_TYPE_INT32
                                            ? "the input must be INT32"
                                            : "the input must be UINT32");
  }
  TRY(TRITONBACKEND_InputBuffer(input, 0, &buffer, &byte_size, &memory_type, &memory_type_id));
  if (memory_type == TRITONSERVER_MEMORY_CPU) {
    *elements = buffer;
    *count = byte_size / sizeof(int32_t);
    return NULL;
  }
  return TRITONSERVER_ErrorNew(
      TRITONSERVER_ERROR_UNSUPPORTED, "the input is not in the CPU's memory");
}

static inline TRITONSERVER_Error*
read_int32(
    TRITONBACKEND_Request* request, const char* name, const int32_t** elements, uint64_t* count)
{
  const void* words = NULL;
  TRY(read_words(request, name, TRITONSERVER_TYPE_INT32, &words, count));
  *elements = (const int32_t*)words;
  return NULL;
}

static inline TRITONSERVER_Error*
read_uint32(
    TRITONBACKEND_Request* request, const char* name, const uint32_t** elements, uint64_t* count)
{
  const void* words = NULL;
  TRY(read_words(request, name, TRITONSERVER_TYPE_UINT32, &words, count));
  *elements = (const uint32_t*)words;
  return NULL;
}

/* Adds an output to a response, and returns its buffer. */
static inline TRITONSERVER_Error*
add_output(
    TRITONBACKEND_Response* response, const char* name, TRITONSERVER_DataType datatype,
    const int64_t* shape, uint32_t rank, uint64_t byte_size, void** buffer)
{
  TRITONBACKEND_Output* output;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  int64_t memory_type_id = 0;
  TRY(TRITONBACKEND_ResponseOutput(response, &output, name, datatype, shape, rank));
  return TRITONBACKEND_OutputBuffer(output, buffer, byte_size, &memory_type, &memory_type_id);
}

/* Adds an output with one number to a response. */
static inline TRITONSERVER_Error*
write_int32(
    TRITONBACKEND_Response* response, const char* name, const int64_t* shape, uint32_t rank,
    int32_t value)
{
  void* buffer;
  TRY(add_output(
      response, name, TRITONSERVER_TYPE_INT32, shape, rank, sizeof value, &buffer));
  *(int32_t*)buffer = value;
  return NULL;
}

static inline TRITONSERVER_Error*
write_uint32(
    TRITONBACKEND_Response* response, const char* name, const int64_t* shape, uint32_t rank,
    uint32_t value)
{
  void* buffer;
  TRY(add_output(
      response, name, TRITONSERVER_TYPE_UINT32, shape, rank, sizeof value, &buffer));
  *(uint32_t*)buffer = value;
  return NULL;
}

/* Sets a sequence's state to one number. */
static inline TRITONSERVER_Error*
update_state_int32(
    TRITONBACKEND_Request* request, const char* name, const int64_t* shape, uint32_t rank,
    int32_t value)
{
  TRITONBACKEND_State* state;
  void* buffer;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  int64_t memory_type_id = 0;
  TRY(TRITONBACKEND_StateNew(
      &state, request, name, TRITONSERVER_TYPE_INT32, shape, rank));
  TRY(TRITONBACKEND_StateBuffer(
      state, &buffer, sizeof value, &memory_type, &memory_type_id));
  *(int32_t*)buffer = value;
  return TRITONBACKEND_StateUpdate(state);
}

#endif
