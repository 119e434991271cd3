// A backend whose instances each take GPU memory: as many MiB as the file `take` of the model says.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "common.h"

struct block {
  void* context;
  uint64_t address;
};

#define CALL(name, types, ...)                                          \
  do {                                                                  \
    int (*function)types = (int (*)types)dlsym(driver, name);           \
    if (function == NULL || function(__VA_ARGS__) != 0) {               \
      return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, name);  \
    }                                                                   \
  } while (0)

static void* driver;

TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance)
{
  TRITONBACKEND_Model* model;
  TRITONBACKEND_ArtifactType type;
  const char* folder;
  int32_t gpu = 0;
  TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
  TRY(TRITONBACKEND_ModelRepository(model, &type, &folder));
  TRY(TRITONBACKEND_ModelInstanceDeviceId(instance, &gpu));
  char path[4096];
  unsigned mebibytes = 0;
  snprintf(path, sizeof path, "%s/take", folder);
  FILE* file = fopen(path, "r");
  if (file == NULL || fscanf(file, "%u", &mebibytes) != 1) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "there is no file 'take'");
  }
  fclose(file);
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == NULL) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "there is no driver");
  }
  struct block* block = calloc(1, sizeof *block);
  TRY(TRITONBACKEND_ModelInstanceSetState(instance, block));
  void* before = NULL;
  CALL("cuDevicePrimaryCtxRetain", (void**, int), &block->context, gpu);
  CALL("cuCtxPushCurrent_v2", (void*), block->context);
  CALL("cuMemAlloc_v2", (uint64_t*, size_t), &block->address, (size_t)mebibytes << 20);
  CALL("cuCtxPopCurrent_v2", (void**), &before);
  return NULL;
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance)
{
  struct block* block = NULL;
  int32_t gpu = 0;
  TRY(TRITONBACKEND_ModelInstanceState(instance, (void**)&block));
  TRY(TRITONBACKEND_ModelInstanceDeviceId(instance, &gpu));
  CALL("cuMemFree_v2", (uint64_t), block->address);
  CALL("cuDevicePrimaryCtxRelease_v2", (int), gpu);
  free(block);
  return NULL;
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
  (void)instance;
  const int64_t shape[1] = {1};
  for (uint32_t index = 0; index < count; ++index) {
    TRITONBACKEND_Response* response;
    TRY(TRITONBACKEND_ResponseNew(&response, requests[index]));
    TRITONSERVER_Error* failed = write_int32(response, "OUT", shape, 1, 1);
    log_error(
        TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, failed));
    log_error(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return NULL;
}
