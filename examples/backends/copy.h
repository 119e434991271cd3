/* Inputs as outputs: input 0 as OUTPUT0, input 1 as OUTPUT1, and so on, with their types and
   shapes. */
#ifndef EXAMPLES_COPY_H
#define EXAMPLES_COPY_H

#include <stdio.h>
#include <string.h>

#include "common.h"

static inline TRITONSERVER_Error*
copy_input(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response, uint32_t index)
{
  TRITONBACKEND_Input* input;
  TRITONSERVER_DataType datatype;
  const int64_t* shape;
  uint32_t rank;
  uint64_t byte_size;
  uint32_t buffer_count;
  TRY(TRITONBACKEND_RequestInputByIndex(request, index, &input));
  TRY(TRITONBACKEND_InputProperties(
      input, NULL, &datatype, &shape, &rank, &byte_size, &buffer_count));

  char name[32];
  snprintf(name, sizeof name, "OUTPUT%u", (unsigned)index);
  void* to;
  TRY(add_output(response, name, datatype, shape, rank, byte_size, &to));

  /* An input may consist of several buffers. */
  char* next = (char*)to;
  for (uint32_t piece = 0; piece < buffer_count; ++piece) {
    const void* from;
    uint64_t piece_size;
    TRITONSERVER_MemoryType memory_type = TRITONSERVER_MEMORY_CPU;
    int64_t memory_type_id = 0;
    TRY(TRITONBACKEND_InputBuffer(
        input, piece, &from, &piece_size, &memory_type, &memory_type_id));
    if (memory_type != TRITONSERVER_MEMORY_CPU) {
      return TRITONSERVER_ErrorNew(
          TRITONSERVER_ERROR_UNSUPPORTED, "inputs must be in the CPU's memory");
    }
    memcpy(next, from, piece_size);
    next += piece_size;
  }
  return NULL;
}

static inline TRITONSERVER_Error*
copy_inputs(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response)
{
  uint32_t count;
  TRY(TRITONBACKEND_RequestInputCount(request, &count));
  for (uint32_t index = 0; index < count; ++index) {
    TRY(copy_input(request, response, index));
  }
  return NULL;
}

#endif
