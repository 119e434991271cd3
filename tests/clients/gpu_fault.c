// A backend whose executions write where no memory is, with a kernel on its instance's GPU. What the
// driver says of it is the error of the response. It needs a real driver.
#include <dlfcn.h>
#include <stdio.h>

#include "common.h"

static const char* const KERNEL =
    ".version 7.0\n"
    ".target sm_75\n"
    ".address_size 64\n"
    ".visible .entry fault() {\n"
    "  .reg .u64 %rd<2>;\n"
    "  .reg .u32 %r<2>;\n"
    "  mov.u64 %rd1, 8;\n"
    "  mov.u32 %r1, 1;\n"
    "  st.global.u32 [%rd1], %r1;\n"
    "  ret;\n"
    "}\n";

// Calls a function of the driver; returns from the caller with what it says if it fails.
#define CALL(name, types, ...)                                        \
  do {                                                                \
    int (*function) types = (int(*) types)dlsym(driver, name);        \
    int code = function == NULL ? -1 : function(__VA_ARGS__);         \
    if (code != 0) {                                                  \
      snprintf(text, sizeof text, "%s says %d", name, code);          \
      return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, text); \
    }                                                                 \
  } while (0)

static TRITONSERVER_Error*
fault(int32_t gpu)
{
  static char text[128];
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  void *context, *module, *kernel;
  if (driver == NULL) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "there is no driver");
  }
  CALL("cuDevicePrimaryCtxRetain", (void**, int), &context, gpu);
  CALL("cuCtxPushCurrent_v2", (void*), context);
  CALL("cuModuleLoadData", (void**, const void*), &module, KERNEL);
  CALL("cuModuleGetFunction", (void**, void*, const char*), &kernel, module, "fault");
  CALL(
      "cuLaunchKernel",
      (void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
       void**),
      kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
  CALL("cuCtxSynchronize", (void));
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "nothing happened");
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
{
  int32_t gpu;
  TRY(TRITONBACKEND_ModelInstanceDeviceId(instance, &gpu));
  for (uint32_t i = 0; i < count; i++) {
    TRITONBACKEND_Response* response;
    log_error(TRITONBACKEND_ResponseNew(&response, requests[i]));
    TRITONSERVER_Error* failed = fault(gpu);
    log_error(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, failed));
    TRITONSERVER_ErrorDelete(failed);
    log_error(TRITONBACKEND_RequestRelease(requests[i], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return NULL;
}
