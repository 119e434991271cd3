/* A batching strategy: every batch is one request, however many wait.
 *
 *   cc -shared -fPIC -I include -o batchstrategy.so \
 *      examples/batching/single_batching.c
 *
 * The server asks it while it makes batches for a model with dynamic_batching. All five
 * functions have to be there.
 */
#include <stdlib.h>

#include "triton/core/tritonbackend.h"

/* What is kept for the batch that is being made: how many requests it has. */
struct batch {
  unsigned requests;
};

/* When the model is loaded. There is nothing to keep for it. */
TRITONSERVER_Error*
TRITONBACKEND_ModelBatcherInitialize(TRITONBACKEND_Batcher** batcher, TRITONBACKEND_Model* model)
{
  (void)model;
  *batcher = NULL;
  return NULL;
}

/* When the model is unloaded. */
TRITONSERVER_Error*
TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher* batcher)
{
  (void)batcher;
  return NULL;
}

/* A batch begins. */
TRITONSERVER_Error*
TRITONBACKEND_ModelBatchInitialize(const TRITONBACKEND_Batcher* batcher, void** userp)
{
  (void)batcher;
  *userp = calloc(1, sizeof(struct batch));
  if (*userp == NULL) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "no memory for a batch");
  }
  return NULL;
}

/* May this request join it? */
TRITONSERVER_Error*
TRITONBACKEND_ModelBatchIncludeRequest(
    TRITONBACKEND_Request* request, void* userp, bool* should_include)
{
  struct batch* batch = userp;
  (void)request;
  *should_include = batch->requests == 0;
  if (*should_include) {
    batch->requests++;
  }
  return NULL;
}

/* The batch is made. */
TRITONSERVER_Error*
TRITONBACKEND_ModelBatchFinalize(void* userp)
{
  free(userp);
  return NULL;
}
