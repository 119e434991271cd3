/* Shared code of the example backends that respond from their own threads. */
#ifndef EXAMPLES_DECOUPLED_H
#define EXAMPLES_DECOUPLED_H

#include <pthread.h>

#include "common.h"

/* Creates the factory of a request's responses and starts a thread that sends them.
   The thread gets the work, which the factory is part of; if there is an error, there is
   neither a factory nor a thread, and the work is still the caller's. */
static inline TRITONSERVER_Error*
respond_on_thread(
    TRITONBACKEND_Request* request, TRITONBACKEND_ResponseFactory** factory,
    void* (*run)(void*), void* work)
{
  pthread_t thread;
  TRY(TRITONBACKEND_ResponseFactoryNew(factory, request));
  if (pthread_create(&thread, NULL, run, work) != 0) {
    log_error(TRITONBACKEND_ResponseFactoryDelete(*factory));
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "no thread");
  }
  pthread_detach(thread);
  return NULL;
}

/* Sends a response, or the error with which its output could not be written, and deletes
   that error. */
static inline TRITONSERVER_Error*
send_or_fail(TRITONBACKEND_Response* response, TRITONSERVER_Error* failed)
{
  TRITONSERVER_Error* unsent = TRITONBACKEND_ResponseSend(response, 0, failed);
  TRITONSERVER_ErrorDelete(failed);
  return unsent;
}

/* Whether the client has cancelled the request. */
static inline bool
is_cancelled(TRITONBACKEND_ResponseFactory* factory)
{
  bool cancelled = false;
  log_error(TRITONBACKEND_ResponseFactoryIsCancelled(factory, &cancelled));
  return cancelled;
}

/* Sends the final flag without a response. */
static inline void
end_responses(TRITONBACKEND_ResponseFactory* factory)
{
  log_error(
      TRITONBACKEND_ResponseFactorySendFlags(factory, TRITONSERVER_RESPONSE_COMPLETE_FINAL));
}

#endif
