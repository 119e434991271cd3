/* A server inside a C program: no sockets, tensors in the program's own memory.
 *
 *   cc -I include examples/c_api/in_process.c -o in_process \
 *      -L target/release -ltritonserver -lpthread
 *   LD_LIBRARY_PATH=target/release ./in_process MODEL_REPOSITORY [REQUESTS]
 *
 * The repository has a model "identity" that returns its INT32 input INPUT0 as
 * OUTPUT0. The program loads it, sends REQUESTS requests (1 if not said), compares
 * every response, unloads the model and exits with 0 on success.
 */
#include <inttypes.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "triton/core/tritonserver.h"

#define MODEL "identity"
#define COUNT 16

/* Ends the program if a call failed. */
static void check(TRITONSERVER_Error *error, const char *doing) {
  if (error == NULL) {
    return;
  }
  fprintf(stderr, "%s: %s - %s\n", doing, TRITONSERVER_ErrorCodeString(error),
          TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
  exit(EXIT_FAILURE);
}

/* The allocator: one buffer for each output, freed with its response. */
static TRITONSERVER_Error *allocate(
    TRITONSERVER_ResponseAllocator *allocator, const char *name, size_t byte_size,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id, void *userp,
    void **buffer, void **buffer_userp, TRITONSERVER_MemoryType *actual_type,
    int64_t *actual_id) {
  (void)allocator, (void)name, (void)memory_type, (void)memory_type_id;
  *buffer = NULL;
  *buffer_userp = userp;
  *actual_type = TRITONSERVER_MEMORY_CPU;
  *actual_id = 0;
  if (byte_size > 0) {
    *buffer = malloc(byte_size);
    if (*buffer == NULL) {
      return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "no memory");
    }
  }
  return NULL;
}

static TRITONSERVER_Error *release(
    TRITONSERVER_ResponseAllocator *allocator, void *buffer, void *buffer_userp,
    size_t byte_size, TRITONSERVER_MemoryType memory_type, int64_t memory_type_id) {
  (void)allocator, (void)buffer_userp, (void)byte_size, (void)memory_type;
  (void)memory_type_id;
  free(buffer);
  return NULL;
}

/* The events of a request. The server's threads call the callbacks. */
struct waiting {
  sem_t released;
  sem_t responded;
  TRITONSERVER_InferenceResponse *response;
};

static void on_release(TRITONSERVER_InferenceRequest *request, uint32_t flags, void *userp) {
  (void)request, (void)flags;
  sem_post(&((struct waiting *)userp)->released);
}

static void on_response(TRITONSERVER_InferenceResponse *response, uint32_t flags, void *userp) {
  struct waiting *waiting = userp;
  if (response != NULL) {
    waiting->response = response;
  }
  if ((flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0) {
    sem_post(&waiting->responded);
  }
}

/* Compares the response with the request. */
static void compare(TRITONSERVER_InferenceResponse *response, const int32_t *sent) {
  check(TRITONSERVER_InferenceResponseError(response), "inference");
  const char *name;
  TRITONSERVER_DataType datatype;
  const int64_t *shape;
  uint64_t dim_count;
  const void *base;
  size_t byte_size;
  TRITONSERVER_MemoryType memory_type;
  int64_t memory_type_id;
  void *userp;
  check(TRITONSERVER_InferenceResponseOutput(response, 0, &name, &datatype, &shape, &dim_count,
                                             &base, &byte_size, &memory_type, &memory_type_id,
                                             &userp),
        "reading the output");
  if (strcmp(name, "OUTPUT0") != 0 || datatype != TRITONSERVER_TYPE_INT32 || dim_count != 2 ||
      shape[0] != 1 || shape[1] != COUNT || byte_size != COUNT * sizeof(int32_t) ||
      memcmp(base, sent, byte_size) != 0) {
    fprintf(stderr, "the response differs from the request\n");
    exit(EXIT_FAILURE);
  }
}

static void infer(TRITONSERVER_Server *server, TRITONSERVER_ResponseAllocator *allocator,
                  int32_t number) {
  int32_t values[COUNT];
  for (int32_t i = 0; i < COUNT; ++i) {
    values[i] = number + i;
  }
  const int64_t shape[] = {1, COUNT};
  struct waiting waiting = {.response = NULL};
  sem_init(&waiting.released, 0, 0);
  sem_init(&waiting.responded, 0, 0);

  TRITONSERVER_InferenceRequest *request;
  check(TRITONSERVER_InferenceRequestNew(&request, server, MODEL, -1), "making a request");
  check(TRITONSERVER_InferenceRequestSetId(request, "example"), "naming it");
  check(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_INT32, shape, 2),
        "adding the input");
  /* The values stay here: they are read in place until the request is released. */
  check(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", values, sizeof(values),
                                                     TRITONSERVER_MEMORY_CPU, 0),
        "giving it data");
  check(TRITONSERVER_InferenceRequestSetReleaseCallback(request, on_release, &waiting),
        "setting the release callback");
  check(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, NULL, on_response,
                                                         &waiting),
        "setting the response callback");
  check(TRITONSERVER_ServerInferAsync(server, request, NULL), "sending the request");

  while (sem_wait(&waiting.responded) != 0) {
  }
  while (sem_wait(&waiting.released) != 0) {
  }
  compare(waiting.response, values);
  check(TRITONSERVER_InferenceResponseDelete(waiting.response), "deleting the response");
  check(TRITONSERVER_InferenceRequestDelete(request), "deleting the request");
  sem_destroy(&waiting.released);
  sem_destroy(&waiting.responded);
}

static TRITONSERVER_Server *start(const char *repository) {
  TRITONSERVER_ServerOptions *options;
  check(TRITONSERVER_ServerOptionsNew(&options), "making options");
  check(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, repository), "setting an option");
  check(TRITONSERVER_ServerOptionsSetModelControlMode(options, TRITONSERVER_MODEL_CONTROL_EXPLICIT),
        "setting an option");
  check(TRITONSERVER_ServerOptionsSetLogInfo(options, false), "setting an option");
  TRITONSERVER_Server *server;
  check(TRITONSERVER_ServerNew(&server, options), "creating server");
  check(TRITONSERVER_ServerOptionsDelete(options), "deleting options");
  return server;
}

/* Prints how many requests the server counted. */
static void print_statistics(TRITONSERVER_Server *server) {
  TRITONSERVER_Message *message;
  const char *text;
  size_t byte_size;
  check(TRITONSERVER_ServerModelStatistics(server, MODEL, -1, &message), "asking for statistics");
  check(TRITONSERVER_MessageSerializeToJson(message, &text, &byte_size), "reading them");
  printf("%.*s\n", (int)byte_size, text);
  check(TRITONSERVER_MessageDelete(message), "deleting them");
}

int main(int argc, char **argv) {
  if (argc != 2 && argc != 3) {
    fprintf(stderr, "usage: %s MODEL_REPOSITORY [REQUESTS]\n", argv[0]);
    return EXIT_FAILURE;
  }
  uint32_t major, minor;
  check(TRITONSERVER_ApiVersion(&major, &minor), "asking for the version");
  printf("server API %" PRIu32 ".%" PRIu32 "\n", major, minor);

  TRITONSERVER_Server *server = start(argv[1]);
  check(TRITONSERVER_ServerLoadModel(server, MODEL), "loading the model");
  TRITONSERVER_ResponseAllocator *allocator;
  check(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release, NULL),
        "making an allocator");

  const int32_t requests = argc == 3 ? (int32_t)strtol(argv[2], NULL, 10) : 1;
  for (int32_t number = 0; number < requests; ++number) {
    infer(server, allocator, number);
  }
  print_statistics(server);
  printf("%" PRId32 " responses equal their requests\n", requests);

  check(TRITONSERVER_ResponseAllocatorDelete(allocator), "deleting the allocator");
  check(TRITONSERVER_ServerUnloadModel(server, MODEL), "unloading the model");
  check(TRITONSERVER_ServerStop(server), "stopping the server");
  check(TRITONSERVER_ServerDelete(server), "deleting the server");
  return EXIT_SUCCESS;
}
