// A stand-in for ONNX Runtime with CUDA: see README.md.
//
// It is the real library for CPUs with a few functions in front of it. A session "on a GPU"
// computes on the CPU, on copies that the stand-in for the driver makes on the stream that the
// session was given, as a real one orders its work on that stream.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

// The places of functions in the library's table, which never change, and the length of the
// table of API version 17.
enum {
  CREATE_STATUS = 0,
  CREATE_SESSION = 7,
  RUN = 9,
  CREATE_TENSOR_WITH_DATA = 49,
  GET_TENSOR_MUTABLE_DATA = 51,
  GET_TENSOR_ELEMENT_TYPE = 60,
  GET_TENSOR_SHAPE_ELEMENT_COUNT = 64,
  GET_TENSOR_TYPE_AND_SHAPE = 65,
  CREATE_MEMORY_INFO = 68,
  RELEASE_MEMORY_INFO = 94,
  RELEASE_SESSION = 95,
  RELEASE_VALUE = 96,
  RELEASE_TENSOR_TYPE_AND_SHAPE = 99,
  RELEASE_SESSION_OPTIONS = 100,
  GET_AVAILABLE_PROVIDERS = 125,
  RELEASE_AVAILABLE_PROVIDERS = 126,
  RUN_WITH_BINDING = 133,
  CREATE_IO_BINDING = 134,
  RELEASE_IO_BINDING = 135,
  BIND_INPUT = 136,
  BIND_OUTPUT_TO_DEVICE = 138,
  GET_BOUND_OUTPUT_VALUES = 140,
  ADD_RUN_CONFIG_ENTRY = 165,
  APPEND_TENSORRT = 170,
  CREATE_TENSORRT_OPTIONS = 171,
  UPDATE_TENSORRT_OPTIONS = 172,
  RELEASE_TENSORRT_OPTIONS = 174,
  APPEND_CUDA = 204,
  CREATE_CUDA_OPTIONS = 205,
  UPDATE_CUDA_OPTIONS = 206,
  RELEASE_CUDA_OPTIONS = 208,
  UPDATE_TENSORRT_OPTIONS_WITH_VALUE = 261,
  UPDATE_CUDA_OPTIONS_WITH_VALUE = 263,
  TABLE_LENGTH = 276,
};

enum { INVALID_ARGUMENT = 2, EP_FAIL = 11, NAMES_MAX = 64 };

typedef void *status;

static void *real[TABLE_LENGTH], *table[TABLE_LENGTH];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

#define REAL(place, result, ...) ((result(*)(__VA_ARGS__))real[place])

// What the stand-in knows of an object of the library.
struct known {
  const void *object;
  const void *of;          // Of a binding its session; of session options nothing.
  int device;              // -1: the host.
  void *stream;
  char *text;              // The providers of options and sessions.
  uint64_t address;        // Of a value, on its device.
  void *shadow;            // Of an input, what the CPU computes on.
  size_t size;
  bool owned;              // The device's memory is the value's.
  int input_count, output_count;
  const void *inputs[NAMES_MAX];
  int outputs[NAMES_MAX];
  struct known *next;
};

static struct known *all;
static int sessions;

static struct known *find(const void *object)
{
  pthread_mutex_lock(&mutex);
  struct known *one = all;
  while (one != NULL && one->object != object) {
    one = one->next;
  }
  pthread_mutex_unlock(&mutex);
  return one;
}

static struct known *add(const void *object)
{
  struct known *one = calloc(1, sizeof *one);
  one->object = object;
  one->device = -1;
  pthread_mutex_lock(&mutex);
  one->next = all;
  all = one;
  pthread_mutex_unlock(&mutex);
  return one;
}

static struct known *take(const void *object)
{
  pthread_mutex_lock(&mutex);
  struct known **place = &all;
  while (*place != NULL && (*place)->object != object) {
    place = &(*place)->next;
  }
  struct known *one = *place;
  if (one != NULL) {
    *place = one->next;
  }
  pthread_mutex_unlock(&mutex);
  return one;
}

static void drop(struct known *one)
{
  if (one != NULL) {
    free(one->text);
    free(one);
  }
}

static void append_text(struct known *one, const char *format, ...)
{
  char *addition, *joined;
  va_list arguments;
  va_start(arguments, format);
  if (vasprintf(&addition, format, arguments) < 0 ||
      asprintf(&joined, "%s%s", one->text == NULL ? "" : one->text, addition) < 0) {
    abort();
  }
  va_end(arguments);
  free(addition);
  free(one->text);
  one->text = joined;
}

// Appends a line to a file of the stand-in's directory.
static void report(const char *file_name, const char *format, ...)
{
  const char *directory = getenv("STAND_IN_DIRECTORY");
  char *path, *line;
  va_list arguments;
  va_start(arguments, format);
  if (directory == NULL || asprintf(&path, "%s/%s", directory, file_name) < 0 ||
      vasprintf(&line, format, arguments) < 0) {
    va_end(arguments);
    return;
  }
  va_end(arguments);
  int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0 || write(file, line, strlen(line)) < 0) {
    perror("stand-in");
  }
  close(file);
  free(line);
  free(path);
}

static status failed(int code, const char *format, ...)
{
  char message[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return REAL(CREATE_STATUS, status, int, const char *)(code, message);
}

// STAND_IN_ORT_FAIL (NAME:COUNT:MESSAGE) chooses one call that fails.
static status chosen(const char *name, int *count)
{
  const char *choice = getenv("STAND_IN_ORT_FAIL");
  size_t length = strlen(name);
  int number = __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST);
  if (choice == NULL || strncmp(choice, name, length) != 0 || choice[length] != ':') {
    return NULL;
  }
  char *end;
  if (strtol(choice + length + 1, &end, 10) != number || *end != ':') {
    return NULL;
  }
  return failed(EP_FAIL, "%s", end + 1);
}

// The driver, which the program has loaded.
static void *driver(const char *name)
{
  static void *library;
  if (library == NULL) {
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  }
  void *function = library == NULL ? NULL : dlsym(library, name);
  if (function == NULL) {
    fprintf(stderr, "stand-in: no function %s in a driver\n", name);
    abort();
  }
  return function;
}

#define DRIVER(name, ...) ((int (*)(__VA_ARGS__))driver(#name))

static int enter(int number)
{
  int device, code = DRIVER(cuDeviceGet, int *, int)(&device, number);
  void *context = NULL;
  if (code == 0) {
    code = DRIVER(cuDevicePrimaryCtxRetain, void **, int)(&context, device);
  }
  return code == 0 ? DRIVER(cuCtxPushCurrent_v2, void *)(context) : code;
}

static void leave(int number)
{
  int device;
  void *context;
  DRIVER(cuCtxPopCurrent_v2, void **)(&context);
  DRIVER(cuDeviceGet, int *, int)(&device, number);
  DRIVER(cuDevicePrimaryCtxRelease_v2, int)(device);
}

static int copy(uint64_t to, uint64_t from, size_t size, void *stream)
{
  return size == 0
             ? 0
             : DRIVER(stand_in_kernel, uint64_t, uint64_t, size_t, void *)(to, from, size, stream);
}

// As the library words an error of CUDA.
static status cuda_failed(int code, int device, const char *call)
{
  const char *text = NULL;
  DRIVER(cuGetErrorString, int, const char **)(code, &text);
  return failed(
      EP_FAIL, "CUDA failure %d: %s ; GPU=%d ; hostname=stand-in ; expr=%s; ", code,
      text == NULL ? "?" : text, device, call);
}

// --- Providers ---------------------------------------------------------------------------

static status get_available_providers(char ***names, int *count)
{
  static char *mine[] = {
      "TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"};
  const char *chosen_names = getenv("STAND_IN_ORT_PROVIDERS");
  bool without = chosen_names != NULL && strcmp(chosen_names, "cuda") == 0;
  *names = mine + without;
  *count = 3 - without;
  return NULL;
}

static status release_available_providers(char **names, int count)
{
  (void)names, (void)count;
  return NULL;
}

static status create_options(void **options)
{
  *options = calloc(1, 1);
  add(*options);
  return NULL;
}

static void release_options(void *options)
{
  drop(take(options));
  free(options);
}

static status update_options(
    void *options, const char *const *keys, const char *const *values, size_t count,
    const char *known_names)
{
  struct known *one = find(options);
  for (size_t i = 0; i < count; i++) {
    char name[128];
    snprintf(name, sizeof name, " %s ", keys[i]);
    if (known_names != NULL && strstr(known_names, name) == NULL) {
      return failed(INVALID_ARGUMENT, "Unknown provider option: \"%s\".", keys[i]);
    }
    if (strcmp(keys[i], "device_id") == 0) {
      one->device = atoi(values[i]);
    }
    append_text(one, " %s=%s", keys[i], values[i]);
  }
  return NULL;
}

static status update_cuda_options(
    void *options, const char *const *keys, const char *const *values, size_t count)
{
  return update_options(
      options, keys, values, count,
      " device_id has_user_compute_stream gpu_mem_limit arena_extend_strategy"
      " cudnn_conv_algo_search do_copy_in_default_stream cudnn_conv_use_max_workspace"
      " enable_cuda_graph cudnn_conv1d_pad_to_nc1d tunable_op_enable tunable_op_tuning_enable"
      " enable_skip_layer_norm_strict_mode prefer_nhwc use_ep_level_unified_stream use_tf32 ");
}

static status update_tensorrt_options(
    void *options, const char *const *keys, const char *const *values, size_t count)
{
  return update_options(options, keys, values, count, NULL);
}

static status update_options_with_value(void *options, const char *key, void *value)
{
  if (strcmp(key, "user_compute_stream") == 0) {
    find(options)->stream = value;
  }
  return NULL;
}

static status append_provider(void *session_options, void *options, const char *name)
{
  struct known *from = find(options), *to = find(session_options);
  if (to == NULL) {
    to = add(session_options);
  }
  to->device = from->device;
  to->stream = from->stream;
  append_text(
      to, " %s{%s stream=%p }", name, from->text == NULL ? "" : from->text, from->stream);
  return NULL;
}

static status append_cuda(void *session_options, void *options)
{
  static int count;
  status error = chosen("AppendCUDA", &count);
  return error != NULL ? error : append_provider(session_options, options, "cuda");
}

static status append_tensorrt(void *session_options, void *options)
{
  return append_provider(session_options, options, "tensorrt");
}

static void release_session_options(void *options)
{
  drop(take(options));
  REAL(RELEASE_SESSION_OPTIONS, void, void *)(options);
}

// --- Sessions ----------------------------------------------------------------------------

static status create_session(void *environment, const char *path, void *options, void **session)
{
  static int count;
  status error = chosen("CreateSession", &count);
  if (error == NULL) {
    error = REAL(CREATE_SESSION, status, void *, const char *, void *, void **)(
        environment, path, options, session);
  }
  struct known *from = find(options);
  if (error == NULL && from != NULL) {
    struct known *one = add(*session);
    one->device = from->device;
    one->stream = from->stream;
    one->size = __atomic_add_fetch(&sessions, 1, __ATOMIC_SEQ_CST);
    report("onnxruntime", "session %zu of %s:%s\n", one->size, path, from->text);
  }
  return error;
}

static void release_session(void *session)
{
  struct known *one = take(session);
  if (one != NULL) {
    report("onnxruntime", "released %zu\n", one->size);
  }
  drop(one);
  REAL(RELEASE_SESSION, void, void *)(session);
}

static status run(
    void *session, void *options, void *names, void *values, size_t count, void *output_names,
    size_t output_count, void **outputs)
{
  if (find(session) != NULL) {
    report("violations", "a session on a GPU runs without a binding\n");
  }
  return REAL(RUN, status, void *, void *, void *, void *, size_t, void *, size_t, void **)(
      session, options, names, values, count, output_names, output_count, outputs);
}

static status add_run_config_entry(void *options, const char *key, const char *value)
{
  report("run_options", "%s=%s\n", key, value);
  return REAL(ADD_RUN_CONFIG_ENTRY, status, void *, const char *, const char *)(
      options, key, value);
}

// --- Memory ------------------------------------------------------------------------------

static status create_memory_info(const char *name, int allocator, int id, int type, void **info)
{
  bool on_device = strcmp(name, "Cuda") == 0;
  bool pinned = strcmp(name, "CudaPinned") == 0;
  status error = REAL(CREATE_MEMORY_INFO, status, const char *, int, int, int, void **)(
      on_device || pinned ? "Cpu" : name, allocator, on_device || pinned ? 0 : id, type, info);
  if (error == NULL && on_device) {
    add(*info)->device = id;
  }
  return error;
}

static void release_memory_info(void *info)
{
  drop(take(info));
  REAL(RELEASE_MEMORY_INFO, void, void *)(info);
}

static status create_tensor(
    const void *info, void *data, size_t size, const int64_t *shape, size_t rank, int type,
    void **value)
{
  struct known *place = find(info);
  void *shadow = NULL;
  if (place != NULL && posix_memalign(&shadow, 64, size + 1) != 0) {
    abort();
  }
  status error = REAL(
      CREATE_TENSOR_WITH_DATA, status, const void *, void *, size_t, const int64_t *, size_t,
      int, void **)(info, place == NULL ? data : shadow, size, shape, rank, type, value);
  if (place == NULL) {
    return error;
  }
  if (error != NULL) {
    free(shadow);
    return error;
  }
  struct known *one = add(*value);
  one->device = place->device;
  one->address = (uint64_t)data;
  one->shadow = shadow;
  one->size = size;
  return NULL;
}

static status get_tensor_mutable_data(void *value, void **data)
{
  struct known *one = find(value);
  if (one == NULL) {
    return REAL(GET_TENSOR_MUTABLE_DATA, status, void *, void **)(value, data);
  }
  *data = (void *)one->address;
  return NULL;
}

static void release_value(void *value)
{
  struct known *one = take(value);
  if (one != NULL && one->owned && enter(one->device) == 0) {
    DRIVER(cuMemFree_v2, uint64_t)(one->address);
    leave(one->device);
  }
  if (one != NULL) {
    free(one->shadow);
  }
  drop(one);
  REAL(RELEASE_VALUE, void, void *)(value);
}

// --- Bindings ----------------------------------------------------------------------------

static status create_io_binding(void *session, void **binding)
{
  status error = REAL(CREATE_IO_BINDING, status, void *, void **)(session, binding);
  if (error == NULL) {
    add(*binding)->of = session;
  }
  return error;
}

static void release_io_binding(void *binding)
{
  drop(take(binding));
  REAL(RELEASE_IO_BINDING, void, void *)(binding);
}

static status bind_input(void *binding, const char *name, const void *value)
{
  struct known *one = find(binding);
  if (one->input_count == NAMES_MAX) {
    abort();
  }
  one->inputs[one->input_count++] = value;
  return REAL(BIND_INPUT, status, void *, const char *, const void *)(binding, name, value);
}

static status bind_output_to_device(void *binding, const char *name, const void *info)
{
  struct known *one = find(binding), *place = find(info);
  if (one->output_count == NAMES_MAX) {
    abort();
  }
  one->outputs[one->output_count++] = place == NULL ? -1 : place->device;
  return REAL(BIND_OUTPUT_TO_DEVICE, status, void *, const char *, const void *)(
      binding, name, info);
}

// Brings the inputs to where the CPU computes, behind everything that is on the stream.
static status fetch(const struct known *session, const struct known *binding)
{
  int code = enter(session->device);
  const char *call = "cudaMemcpyAsync";
  for (int i = 0; code == 0 && i < binding->input_count; i++) {
    struct known *value = find(binding->inputs[i]);
    if (value == NULL) {
      continue;
    }
    if (value->device != session->device) {
      report("violations", "an input is on GPU %d, not %d\n", value->device, session->device);
    }
    code = copy((uint64_t)value->shadow, value->address, value->size, session->stream);
  }
  if (code == 0) {
    call = "cudaStreamSynchronize";
    code = DRIVER(cuStreamSynchronize, void *)(session->stream);
  }
  leave(session->device);
  return code == 0 ? NULL : cuda_failed(code, session->device, call);
}

static status run_with_binding(void *session, const void *options, const void *binding)
{
  static int count;
  struct known *one = find(session), *bound = find(binding);
  status error = NULL;
  if (one != NULL) {
    error = chosen("Run", &count);
    if (error == NULL) {
      error = fetch(one, bound);
    }
    int on_device = 0;
    for (int i = 0; i < bound->input_count; i++) {
      on_device += find(bound->inputs[i]) != NULL;
    }
    char places[NAMES_MAX + 1] = {0};
    for (int i = 0; i < bound->output_count; i++) {
      places[i] = bound->outputs[i] < 0 ? 'h' : 'd';
    }
    report(
        "onnxruntime", "run %zu inputs %d of %d on device, outputs %s\n", one->size, on_device,
        bound->input_count, places);
  }
  return error != NULL ? error
                       : REAL(RUN_WITH_BINDING, status, void *, const void *, const void *)(
                             session, options, binding);
}

static size_t byte_size(void *value)
{
  static const size_t sizes[] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 8, 16, 2};
  void *info;
  int type;
  size_t count;
  REAL(GET_TENSOR_TYPE_AND_SHAPE, status, void *, void **)(value, &info);
  REAL(GET_TENSOR_ELEMENT_TYPE, status, void *, int *)(info, &type);
  REAL(GET_TENSOR_SHAPE_ELEMENT_COUNT, status, void *, size_t *)(info, &count);
  REAL(RELEASE_TENSOR_TYPE_AND_SHAPE, void, void *)(info);
  return count * sizes[type];
}

// Puts an output into the device's memory, as the session would have.
static status place_output(const struct known *session, void *value)
{
  size_t size = byte_size(value);
  void *data = NULL;
  uint64_t address = 0;
  REAL(GET_TENSOR_MUTABLE_DATA, status, void *, void **)(value, &data);
  int code = enter(session->device);
  if (code == 0) {
    code = DRIVER(cuMemAlloc_v2, uint64_t *, size_t)(&address, size + 1);
  }
  if (code == 0) {
    code = copy(address, (uint64_t)data, size, session->stream);
  }
  if (code == 0) {
    code = DRIVER(cuStreamSynchronize, void *)(session->stream);
  }
  leave(session->device);
  if (code != 0) {
    return cuda_failed(code, session->device, "cudaMalloc");
  }
  struct known *one = add(value);
  one->device = session->device;
  one->address = address;
  one->size = size;
  one->owned = true;
  return NULL;
}

static status get_bound_output_values(
    const void *binding, void *allocator, void ***values, size_t *count)
{
  status error = REAL(
      GET_BOUND_OUTPUT_VALUES, status, const void *, void *, void ***, size_t *)(
      binding, allocator, values, count);
  struct known *one = find(binding);
  struct known *session = one == NULL ? NULL : find(one->of);
  for (size_t i = 0; error == NULL && session != NULL && i < *count; i++) {
    if (one->outputs[i] >= 0 && (*values)[i] != NULL) {
      error = place_output(session, (*values)[i]);
    }
  }
  return error;
}

// --- The table ---------------------------------------------------------------------------

struct base {
  const void *(*get_api)(uint32_t version);
  const char *(*get_version_string)(void);
};

static const struct base *real_base(void)
{
  const char *path = getenv("STAND_IN_ONNXRUNTIME");
  void *library = path == NULL ? NULL : dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "stand-in: STAND_IN_ONNXRUNTIME names no library: %s\n", dlerror());
    abort();
  }
  const struct base *(*entry)(void) = (const struct base *(*)(void))dlsym(library, "OrtGetApiBase");
  return entry();
}

static const void *get_api(uint32_t version)
{
  const void *const *functions = real_base()->get_api(version);
  if (functions == NULL) {
    return NULL;
  }
  memcpy(real, functions, sizeof real);
  memcpy(table, functions, sizeof table);
  static const struct {
    int place;
    void *function;
  } own[] = {
      {CREATE_SESSION, create_session},
      {RUN, run},
      {CREATE_TENSOR_WITH_DATA, create_tensor},
      {GET_TENSOR_MUTABLE_DATA, get_tensor_mutable_data},
      {CREATE_MEMORY_INFO, create_memory_info},
      {RELEASE_MEMORY_INFO, release_memory_info},
      {RELEASE_SESSION, release_session},
      {RELEASE_VALUE, release_value},
      {RELEASE_SESSION_OPTIONS, release_session_options},
      {GET_AVAILABLE_PROVIDERS, get_available_providers},
      {RELEASE_AVAILABLE_PROVIDERS, release_available_providers},
      {RUN_WITH_BINDING, run_with_binding},
      {CREATE_IO_BINDING, create_io_binding},
      {RELEASE_IO_BINDING, release_io_binding},
      {BIND_INPUT, bind_input},
      {BIND_OUTPUT_TO_DEVICE, bind_output_to_device},
      {GET_BOUND_OUTPUT_VALUES, get_bound_output_values},
      {ADD_RUN_CONFIG_ENTRY, add_run_config_entry},
      {APPEND_TENSORRT, append_tensorrt},
      {CREATE_TENSORRT_OPTIONS, create_options},
      {UPDATE_TENSORRT_OPTIONS, update_tensorrt_options},
      {RELEASE_TENSORRT_OPTIONS, release_options},
      {APPEND_CUDA, append_cuda},
      {CREATE_CUDA_OPTIONS, create_options},
      {UPDATE_CUDA_OPTIONS, update_cuda_options},
      {RELEASE_CUDA_OPTIONS, release_options},
      {UPDATE_TENSORRT_OPTIONS_WITH_VALUE, update_options_with_value},
      {UPDATE_CUDA_OPTIONS_WITH_VALUE, update_options_with_value},
  };
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
    table[own[i].place] = own[i].function;
  }
  return table;
}

static const char *get_version_string(void) { return real_base()->get_version_string(); }

EXPORT const struct base *OrtGetApiBase(void)
{
  static const struct base mine = {get_api, get_version_string};
  return &mine;
}
