// A backend that allocates each kind of memory when it is loaded, and logs what it got.
#include <stdio.h>
#include <string.h>

#include "common.h"

static void
say(const char* what, TRITONSERVER_Error* error)
{
  char line[512];
  snprintf(
      line, sizeof line, "gpu_memory: %s: %s %s", what,
      error == NULL ? "OK" : TRITONSERVER_ErrorCodeString(error),
      error == NULL ? "" : TRITONSERVER_ErrorMessage(error));
  if (error != NULL) {
    TRITONSERVER_ErrorDelete(error);
  }
  TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, __FILE__, __LINE__, line);
}

TRITONSERVER_Error*
TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend)
{
  const TRITONSERVER_MemoryType pinned = TRITONSERVER_MEMORY_CPU_PINNED;
  const TRITONSERVER_MemoryType gpu = TRITONSERVER_MEMORY_GPU;
  TRITONBACKEND_MemoryManager* manager;
  TRY(TRITONBACKEND_BackendMemoryManager(backend, &manager));
  void* memory = NULL;
  say("pinned", TRITONBACKEND_MemoryManagerAllocate(manager, &memory, pinned, 0, 1000));
  if (memory != NULL) {
    memset(memory, 7, 1000);
    say("as GPU memory", TRITONBACKEND_MemoryManagerFree(manager, memory, gpu, 0));
    say("pinned freed", TRITONBACKEND_MemoryManagerFree(manager, memory, pinned, 0));
    say("freed twice", TRITONBACKEND_MemoryManagerFree(manager, memory, pinned, 0));
  }
  say("too much pinned",
      TRITONBACKEND_MemoryManagerAllocate(manager, &memory, pinned, 0, 1ull << 40));
  void* first = NULL;
  say("of GPU 1", TRITONBACKEND_MemoryManagerAllocate(manager, &first, gpu, 1, 3 << 20));
  if (first != NULL) {
    say("too much", TRITONBACKEND_MemoryManagerAllocate(manager, &memory, gpu, 1, 3 << 20));
    say("of another GPU", TRITONBACKEND_MemoryManagerFree(manager, first, gpu, 0));
    say("freed", TRITONBACKEND_MemoryManagerFree(manager, first, gpu, 1));
    say("again", TRITONBACKEND_MemoryManagerAllocate(manager, &first, gpu, 1, 3 << 20));
    // It is not freed: it goes back to the pool with the backend.
  }
  say("of GPU 7", TRITONBACKEND_MemoryManagerAllocate(manager, &memory, gpu, 7, 8));
  return NULL;
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
  (void)instance, (void)requests, (void)count;
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "it computes nothing");
}
