/* What the example backends share. */
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

/* Logs an error that nobody could be given, and deletes it. */
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

/* Statistics want nanoseconds of this clock. */
static inline uint64_t
now_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The elements of an input of 32-bit numbers, and how many there are. */
static inline TRITONSERVER_Error*
read_int32(
    TRITONBACKEND_Request* request, const char* name, const int32_t** elements, uint64_t* count)
{
  TRITONBACKEND_Input* input;
  const void* buffer;
  uint64_t byte_size;
  TRITONSERVER_DataType datatype;
  TRITONSERVER_MemoryType memory_type;
  int64_t memory_type_id;
  TRY(TRITONBACKEND_RequestInput(request, name, &input));
  TRY(TRITONBACKEND_InputProperties(input, NULL, &datatype, NULL, NULL, NULL, NULL));
  if (datatype != TRITONSERVER_TYPE_INT32) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "the input must be INT32");
  }
  TRY(TRITONBACKEND_InputBuffer(input, 0, &buffer, &byte_size, &memory_type, &memory_type_id));
  if (memory_type == TRITONSERVER_MEMORY_CPU) {
    *elements = (const int32_t*)buffer;
    *count = byte_size / sizeof(int32_t);
    return NULL;
  }
  return TRITONSERVER_ErrorNew(
      TRITONSERVER_ERROR_UNSUPPORTED, "the input is not in the CPU's memory");
}

/* Adds an output with one 32-bit number to a response. */
static inline TRITONSERVER_Error*
write_int32(
    TRITONBACKEND_Response* response, const char* name, const int64_t* shape, uint32_t rank,
    int32_t value)
{
  TRITONBACKEND_Output* output;
  void* buffer;
  TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
  int64_t memory_type_id = 0;
  TRY(TRITONBACKEND_ResponseOutput(
      response, &output, name, TRITONSERVER_TYPE_INT32, shape, rank));
  TRY(TRITONBACKEND_OutputBuffer(
      output, &buffer, sizeof value, &memory_type, &memory_type_id));
  *(int32_t*)buffer = value;
  return NULL;
}

#endif
