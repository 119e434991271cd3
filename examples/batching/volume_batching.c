/* A batching strategy: it limits the total bytes of the inputs of a batch.
 *
 *   cc -shared -fPIC -I include -o batchstrategy.so \
 *      examples/batching/volume_batching.c
 *
 * The model's configuration sets the limit:
 *
 *   dynamic_batching { }
 *   parameters { key: "MAX_BATCH_VOLUME_BYTES" value { string_value: "4096" } }
 *
 * A request that exceeds the limit is a batch of its own.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "triton/core/tritonbackend.h"

/* Returns from the function if a call failed: null is success. */
#define TRY(call)                          \
  do {                                     \
    TRITONSERVER_Error* failed_ = (call);  \
    if (failed_ != NULL) {                 \
      return failed_;                      \
    }                                      \
  } while (0)

static const char PARAMETER[] = "\"MAX_BATCH_VOLUME_BYTES\"";
static const char VALUE[] = "\"string_value\"";

/* The state of the model. */
struct batcher {
  uint64_t volume_max;
};

/* The state of the open batch. */
struct batch {
  uint64_t volume_left;
};

static TRITONSERVER_Error*
no_memory(void)
{
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "no memory for a batch");
}

/* The parameter's value. A library for JSON would do this properly; here it is enough
 * that the number stands in quotes behind the parameter's name. */
static TRITONSERVER_Error*
find_volume(const char* json, uint64_t* volume)
{
  const char* at = strstr(json, PARAMETER);
  if (at != NULL) {
    at = strstr(at + strlen(PARAMETER), VALUE);
  }
  if (at != NULL) {
    at = strchr(at + strlen(VALUE), '"');
  }
  if (at != NULL && at[1] >= '0' && at[1] <= '9') {
    char* end;
    errno = 0;
    *volume = strtoull(at + 1, &end, 10);
    if (errno == 0 && *end == '"') {
      return NULL;
    }
  }
  return TRITONSERVER_ErrorNew(
      TRITONSERVER_ERROR_INVALID_ARG, "the parameter MAX_BATCH_VOLUME_BYTES must be a number");
}

/* Called when the model is loaded. */
TRITONSERVER_Error*
TRITONBACKEND_ModelBatcherInitialize(TRITONBACKEND_Batcher** batcher, TRITONBACKEND_Model* model)
{
  TRITONSERVER_Message* config;
  TRITONSERVER_Error* error;
  const char* json;
  size_t byte_size;
  uint64_t volume = 0;
  struct batcher* made;

  TRY(TRITONBACKEND_ModelConfig(model, 1, &config));
  error = TRITONSERVER_MessageSerializeToJson(config, &json, &byte_size);
  if (error == NULL) {
    /* The text may lack a terminating zero. */
    char* text = malloc(byte_size + 1);
    if (text == NULL) {
      error = no_memory();
    } else {
      memcpy(text, json, byte_size);
      text[byte_size] = '\0';
      error = find_volume(text, &volume);
      free(text);
    }
  }
  TRITONSERVER_ErrorDelete(TRITONSERVER_MessageDelete(config));
  if (error != NULL) {
    return error;
  }
  made = malloc(sizeof *made);
  if (made == NULL) {
    return no_memory();
  }
  made->volume_max = volume;
  *batcher = (TRITONBACKEND_Batcher*)made;
  return NULL;
}

/* Called when the model is unloaded. */
TRITONSERVER_Error*
TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher* batcher)
{
  free(batcher);
  return NULL;
}

/* Called when a batch opens. */
TRITONSERVER_Error*
TRITONBACKEND_ModelBatchInitialize(const TRITONBACKEND_Batcher* batcher, void** userp)
{
  struct batch* batch = malloc(sizeof *batch);
  if (batch == NULL) {
    return no_memory();
  }
  batch->volume_left = ((const struct batcher*)batcher)->volume_max;
  *userp = batch;
  return NULL;
}

/* Decides whether this request joins the batch. */
TRITONSERVER_Error*
TRITONBACKEND_ModelBatchIncludeRequest(
    TRITONBACKEND_Request* request, void* userp, bool* should_include)
{
  struct batch* batch = userp;
  uint64_t volume = 0;
  uint32_t count;
  uint32_t index;

  TRY(TRITONBACKEND_RequestInputCount(request, &count));
  for (index = 0; index < count; index++) {
    TRITONBACKEND_Input* input;
    uint64_t byte_size;
    TRY(TRITONBACKEND_RequestInputByIndex(request, index, &input));
    TRY(TRITONBACKEND_InputProperties(input, NULL, NULL, NULL, NULL, &byte_size, NULL));
    volume += byte_size;
  }
  *should_include = volume <= batch->volume_left;
  /* The first request of a batch joins it regardless of the result. */
  batch->volume_left = *should_include ? batch->volume_left - volume : 0;
  return NULL;
}

/* Called when the batch is closed. */
TRITONSERVER_Error*
TRITONBACKEND_ModelBatchFinalize(void* userp)
{
  free(userp);
  return NULL;
}
