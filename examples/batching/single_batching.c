/* A batching strategy: every batch is one request, even if more wait.
 *
 *   cc -shared -fPIC -I include -o batchstrategy.so \
 *      examples/batching/single_batching.c
 *
 * The server calls it while it forms batches of a model with dynamic_batching. All five
 * functions are required.
 */
#include <stdlib.h>

#include "triton/core/tritonbackend.h"

/* The state of the open batch: its number of requests. */
struct batch {
  unsigned requests;
};

/* Called when the model is loaded. There is no state for it. */
TRITONSERVER_Error*
TRITONBACKEND_ModelBatcherInitialize(TRITONBACKEND_Batcher** batcher, TRITONBACKEND_Model* model)
{
  (void)model;
  *batcher = NULL;
  return NULL;
}

/* Called when the model is unloaded. */
TRITONSERVER_Error*
TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher* batcher)
{
  (void)batcher;
  return NULL;
}

/* Called when a batch opens. */
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

/* Decides whether this request joins the batch. */
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

/* Called when the batch is closed. */
TRITONSERVER_Error*
TRITONBACKEND_ModelBatchFinalize(void* userp)
{
  free(userp);
  return NULL;
}
