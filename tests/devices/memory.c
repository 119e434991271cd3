// Devices, contexts and memory.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "stand_in.h"

static bool initialized;
static struct context contexts[DEVICES_MAX];
static struct memory *memories;
static size_t used[DEVICES_MAX];
static bool peers[DEVICES_MAX][DEVICES_MAX];
static _Thread_local struct context *stack[32];
static _Thread_local int depth;

struct context *current_context(void) { return depth == 0 ? NULL : stack[depth - 1]; }
struct context *context_of(int device) { return &contexts[device]; }

int live_memory(int kinds[4])
{
  int all = 0;
  for (struct memory *memory = memories; memory != NULL; memory = memory->next, all++) {
    kinds[memory->kind]++;
  }
  return all;
}

EXPORT result cuInit(unsigned flags)
{
  ENTER_WITHOUT_CONTEXT("cuInit");
  initialized = true;
  return flags != 0 ? INVALID_VALUE : device_count() == 0 ? NO_DEVICE : SUCCESS;
}

EXPORT result cuDriverGetVersion(int *version)
{
  *version = 12040;
  return SUCCESS;
}

static const char *text_of(result code)
{
  switch (code) {
    case SUCCESS: return "no error";
    case INVALID_VALUE: return "invalid argument";
    case OUT_OF_MEMORY: return "out of memory";
    case NOT_INITIALIZED: return "initialization error";
    case NO_DEVICE: return "no CUDA-capable device is detected";
    case INVALID_DEVICE: return "invalid device ordinal";
    case INVALID_CONTEXT: return "invalid device context";
    case INVALID_HANDLE: return "invalid resource handle";
    case NOT_READY: return "device not ready";
    case PEER_ACCESS_ALREADY_ENABLED: return "peer access is already enabled";
    case LAUNCH_FAILED: return "unspecified launch failure";
    case 999: return "unknown error";
    default: return NULL;
  }
}

EXPORT result cuGetErrorString(result code, const char **text)
{
  *text = text_of(code);
  return *text == NULL ? INVALID_VALUE : SUCCESS;
}

EXPORT result cuDeviceGetCount(int *count)
{
  ENTER_WITHOUT_CONTEXT("cuDeviceGetCount");
  *count = device_count();
  return initialized ? SUCCESS : NOT_INITIALIZED;
}

EXPORT result cuDeviceGet(int *device, int ordinal)
{
  ENTER_WITHOUT_CONTEXT("cuDeviceGet");
  *device = ordinal;
  return ordinal >= 0 && ordinal < device_count() ? SUCCESS : INVALID_DEVICE;
}

EXPORT result cuDeviceGetName(char *name, int length, int device)
{
  ENTER_WITHOUT_CONTEXT("cuDeviceGetName");
  snprintf(name, length, "Stand-in %d", device);
  return SUCCESS;
}

EXPORT result cuDeviceGetUuid(unsigned char uuid[16], int device)
{
  ENTER_WITHOUT_CONTEXT("cuDeviceGetUuid");
  for (int i = 0; i < 16; i++) {
    uuid[i] = (unsigned char)(16 * device + i);
  }
  return SUCCESS;
}

EXPORT result cuDeviceTotalMem_v2(size_t *bytes, int device)
{
  ENTER_WITHOUT_CONTEXT("cuDeviceTotalMem_v2");
  *bytes = device_memory(device);
  return SUCCESS;
}

EXPORT result cuDeviceGetAttribute(int *value, int attribute, int device)
{
  ENTER_WITHOUT_CONTEXT("cuDeviceGetAttribute");
  switch (attribute) {
    case 75: *value = device_capability(device) / 10; return SUCCESS;
    case 76: *value = device_capability(device) % 10; return SUCCESS;
    case 18: *value = 0; return SUCCESS;   // integrated
    case 41: *value = 1; return SUCCESS;   // unified addressing
    case 102: *value = 1; return SUCCESS;  // virtual memory
    default: return INVALID_VALUE;
  }
}

EXPORT result cuDeviceGetPCIBusId(char *text, int length, int device)
{
  ENTER_WITHOUT_CONTEXT("cuDeviceGetPCIBusId");
  snprintf(text, length, "fad0:%02x:00.0", device + 1);
  return SUCCESS;
}

EXPORT result cuDevicePrimaryCtxRetain(struct context **context, int device)
{
  ENTER_WITHOUT_CONTEXT("cuDevicePrimaryCtxRetain");
  if (is_lost(device)) {
    return LAUNCH_FAILED;
  }
  lock();
  contexts[device].device = device;
  contexts[device].references++;
  *context = &contexts[device];
  unlock();
  return SUCCESS;
}

EXPORT result cuDevicePrimaryCtxRelease_v2(int device)
{
  ENTER_WITHOUT_CONTEXT("cuDevicePrimaryCtxRelease_v2");
  lock();
  result ended = contexts[device].references > 0 ? SUCCESS : INVALID_CONTEXT;
  contexts[device].references -= ended == SUCCESS;
  unlock();
  return ended;
}

EXPORT result cuCtxPushCurrent_v2(struct context *context)
{
  ENTER_WITHOUT_CONTEXT("cuCtxPushCurrent_v2");
  if (depth == 32) {
    violation("contexts are pushed and not popped");
    return INVALID_VALUE;
  }
  stack[depth++] = context;
  return SUCCESS;
}

EXPORT result cuCtxPopCurrent_v2(struct context **context)
{
  ENTER_WITHOUT_CONTEXT("cuCtxPopCurrent_v2");
  if (depth == 0) {
    return INVALID_CONTEXT;
  }
  *context = stack[--depth];
  return SUCCESS;
}

EXPORT result cuCtxSynchronize(void)
{
  ENTER("cuCtxSynchronize");
  violation("a wait for a whole device");
  return SUCCESS;
}

EXPORT result cuMemGetInfo_v2(size_t *available, size_t *total)
{
  ENTER("cuMemGetInfo_v2");
  int device = current_context()->device;
  lock();
  *total = device_memory(device);
  *available = *total - used[device];
  unlock();
  return SUCCESS;
}

struct memory *memory_at(uint64_t address)
{
  struct memory *memory = memories;
  while (memory != NULL && (address < memory->address || address >= memory->address + memory->size)) {
    memory = memory->next;
  }
  return memory;
}

char *view_of(uint64_t address, size_t size)
{
  struct memory *memory = memory_at(address);
  if (memory == NULL) {
    return (char *)address;  // The program's own memory.
  }
  size_t start = address - memory->address;
  if (size > memory->size - start) {
    violation("work beyond the end of memory: %zu bytes at %zu of %zu", size, start, memory->size);
    return NULL;
  }
  for (size_t at = start; memory->granules != NULL && at < start + size; at += GRANULARITY) {
    if (memory->granules[at / GRANULARITY] != 2) {
      violation("work on addresses without memory");
      return NULL;
    }
  }
  return memory->view + start;
}

static struct memory *add(enum memory_kind kind, int device, size_t size, int file)
{
  struct memory *memory = calloc(1, sizeof *memory);
  // A program that reads a device's memory by itself is to fail, unless it stands in for
  // what a device computes.
  int access = getenv("STAND_IN_READABLE") != NULL ? PROT_READ | PROT_WRITE : PROT_NONE;
  memory->kind = kind;
  memory->device = device;
  memory->size = size;
  memory->file = file;
  int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
  int both = file < 0 ? PROT_NONE : PROT_READ | PROT_WRITE;
  memory->view = mmap(NULL, size, both, flags, file, 0);
  void *address = kind == PINNED_MEMORY
                      ? memory->view
                      : mmap(NULL, size, file < 0 ? PROT_NONE : access, flags, file, 0);
  if (memory->view == MAP_FAILED || address == MAP_FAILED) {
    abort();
  }
  memory->address = (uint64_t)address;
  memory->next = memories;
  memories = memory;
  return memory;
}

static void drop(struct memory *gone)
{
  struct memory **place = &memories;
  while (*place != gone) {
    place = &(*place)->next;
  }
  *place = gone->next;
  munmap(gone->view, gone->size);
  if (gone->kind != PINNED_MEMORY) {
    munmap((void *)gone->address, gone->size);
  }
  if (gone->file >= 0) {
    close(gone->file);
  }
  free(gone->granules);
  free(gone);
}

static int new_file(size_t size)
{
  int file = memfd_create("stand-in", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, size) != 0) {
    abort();
  }
  return file;
}

EXPORT result cuMemAlloc_v2(uint64_t *address, size_t size)
{
  ENTER("cuMemAlloc_v2");
  int device = current_context()->device;
  if (size == 0) {
    return INVALID_VALUE;
  }
  lock();
  result ended = size > device_memory(device) - used[device] ? OUT_OF_MEMORY : SUCCESS;
  if (ended == SUCCESS) {
    used[device] += size;
    *address = add(DEVICE_MEMORY, device, size, new_file(size))->address;
  }
  unlock();
  return ended;
}

static result release(uint64_t address, enum memory_kind kind)
{
  lock();
  struct memory *memory = memory_at(address);
  bool right = memory != NULL && memory->address == address && memory->kind == kind;
  if (right && queued_work_touches(address, memory->size)) {
    violation("memory is freed before work on it is done");
  }
  if (right && kind == DEVICE_MEMORY) {
    used[memory->device] -= memory->size;
  }
  if (right) {
    drop(memory);
  }
  unlock();
  return right ? SUCCESS : INVALID_VALUE;
}

EXPORT result cuMemFree_v2(uint64_t address)
{
  ENTER_WITHOUT_CONTEXT("cuMemFree_v2");
  return release(address, DEVICE_MEMORY);
}

EXPORT result cuMemHostAlloc(void **address, size_t size, unsigned flags)
{
  ENTER("cuMemHostAlloc");
  (void)flags;
  lock();
  *address = (void *)add(PINNED_MEMORY, -1, size, new_file(size))->address;
  unlock();
  return SUCCESS;
}

EXPORT result cuMemFreeHost(void *address)
{
  ENTER_WITHOUT_CONTEXT("cuMemFreeHost");
  return release((uint64_t)address, PINNED_MEMORY);
}

struct ipc_handle {
  int process;
  int file;
  int device;
  size_t size;
};

EXPORT result cuIpcGetMemHandle(unsigned char handle[64], uint64_t address)
{
  ENTER("cuIpcGetMemHandle");
  lock();
  struct memory *memory = memory_at(address);
  bool right = memory != NULL && memory->kind == DEVICE_MEMORY;
  if (right) {
    struct ipc_handle inside = {getpid(), memory->file, memory->device, memory->size};
    memset(handle, 0, 64);
    memcpy(handle, &inside, sizeof inside);
  }
  unlock();
  return right ? SUCCESS : INVALID_VALUE;
}

struct opaque_handle {
  unsigned char bytes[64];
};

EXPORT result cuIpcOpenMemHandle_v2(uint64_t *address, struct opaque_handle handle, unsigned flags)
{
  ENTER("cuIpcOpenMemHandle_v2");
  (void)flags;
  struct ipc_handle inside;
  memcpy(&inside, handle.bytes, sizeof inside);
  if (inside.process == getpid()) {
    return INVALID_CONTEXT;  // As the driver: a process can't open its own.
  }
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", inside.process, inside.file);
  int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0 || lseek(file, 0, SEEK_END) != (off_t)inside.size || inside.size == 0) {
    if (file >= 0) {
      close(file);
    }
    return INVALID_VALUE;
  }
  if (inside.device != current_context()->device) {
    close(file);
    return INVALID_DEVICE;
  }
  lock();
  *address = add(OPENED_MEMORY, inside.device, inside.size, file)->address;
  unlock();
  return SUCCESS;
}

EXPORT result cuIpcCloseMemHandle(uint64_t address)
{
  ENTER_WITHOUT_CONTEXT("cuIpcCloseMemHandle");
  return release(address, OPENED_MEMORY);
}

EXPORT result cuPointerGetAttribute(void *data, int attribute, uint64_t address)
{
  ENTER_WITHOUT_CONTEXT("cuPointerGetAttribute");
  lock();
  struct memory *memory = memory_at(address);
  result ended = memory == NULL ? INVALID_VALUE : SUCCESS;
  if (memory != NULL && attribute == 2) {
    *(unsigned *)data = memory->kind == PINNED_MEMORY ? 1 : 2;
  } else if (memory != NULL && attribute == 9) {
    *(int *)data = memory->device;
  } else {
    ended = INVALID_VALUE;
  }
  unlock();
  return ended;
}

EXPORT result cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t address)
{
  ENTER("cuMemGetAddressRange_v2");
  lock();
  struct memory *memory = memory_at(address);
  if (memory != NULL) {
    *base = memory->address;
    *size = memory->size;
  }
  unlock();
  return memory == NULL ? 500 : SUCCESS;
}

EXPORT result cuDeviceCanAccessPeer(int *can, int device, int peer)
{
  ENTER_WITHOUT_CONTEXT("cuDeviceCanAccessPeer");
  *can = device != peer && getenv("STAND_IN_NO_PEERS") == NULL;
  return SUCCESS;
}

EXPORT result cuCtxEnablePeerAccess(struct context *peer, unsigned flags)
{
  ENTER("cuCtxEnablePeerAccess");
  bool *enabled = &peers[current_context()->device][peer->device];
  result ended = flags != 0 ? INVALID_VALUE : *enabled ? PEER_ACCESS_ALREADY_ENABLED : SUCCESS;
  *enabled = true;
  return ended;
}

EXPORT result cuMemGetAllocationGranularity(size_t *size, const void *properties, int option)
{
  ENTER_WITHOUT_CONTEXT("cuMemGetAllocationGranularity");
  (void)properties, (void)option;
  *size = GRANULARITY;
  return SUCCESS;
}

EXPORT result cuMemAddressReserve(
    uint64_t *address, size_t size, size_t alignment, uint64_t near, unsigned long long flags)
{
  ENTER_WITHOUT_CONTEXT("cuMemAddressReserve");
  (void)alignment, (void)near, (void)flags;
  if (size == 0 || size % GRANULARITY != 0) {
    return INVALID_VALUE;
  }
  lock();
  struct memory *memory = add(RESERVED_ADDRESSES, -1, size, -1);
  memory->granules = calloc(size / GRANULARITY, 1);
  *address = memory->address;
  unlock();
  return SUCCESS;
}

EXPORT result cuMemAddressFree(uint64_t address, size_t size)
{
  ENTER_WITHOUT_CONTEXT("cuMemAddressFree");
  (void)size;
  return release(address, RESERVED_ADDRESSES);
}

// The start of CUmemAllocationProp: type, handle types, kind of location, its number.
struct properties {
  int type, handle_types, location, device;
};

EXPORT result cuMemCreate(
    struct handle **handle, size_t size, const struct properties *wanted, unsigned long long flags)
{
  ENTER_WITHOUT_CONTEXT("cuMemCreate");
  if (flags != 0 || size % GRANULARITY != 0 || wanted->type != 1 || wanted->location != 1) {
    return INVALID_VALUE;
  }
  lock();
  result ended = size > device_memory(wanted->device) - used[wanted->device] ? OUT_OF_MEMORY : SUCCESS;
  if (ended == SUCCESS) {
    used[wanted->device] += size;
    *handle = malloc(sizeof **handle);
    **handle = (struct handle){new_file(size), wanted->device, size};
  }
  unlock();
  return ended;
}

EXPORT result cuMemRelease(struct handle *handle)
{
  ENTER_WITHOUT_CONTEXT("cuMemRelease");
  lock();
  used[handle->device] -= handle->size;
  close(handle->file);
  free(handle);
  unlock();
  return SUCCESS;
}

// Sets the state of the granules of a range: 0 without memory, 1 with, 2 accessible.
static result set_granules(uint64_t address, size_t size, char from, char to)
{
  struct memory *memory = memory_at(address);
  if (memory == NULL || memory->granules == NULL || size % GRANULARITY != 0) {
    return INVALID_VALUE;
  }
  for (size_t at = address - memory->address, end = at + size; at < end; at += GRANULARITY) {
    if (at >= memory->size || memory->granules[at / GRANULARITY] < from) {
      return INVALID_VALUE;
    }
    memory->granules[at / GRANULARITY] = to;
  }
  return SUCCESS;
}

EXPORT result cuMemMap(
    uint64_t address, size_t size, size_t offset, struct handle *handle, unsigned long long flags)
{
  ENTER_WITHOUT_CONTEXT("cuMemMap");
  (void)flags;
  lock();
  result ended = offset != 0 || size != handle->size ? INVALID_VALUE : set_granules(address, size, 0, 1);
  if (ended == SUCCESS) {
    struct memory *memory = memory_at(address);
    int both = PROT_READ | PROT_WRITE;
    char *view = memory->view + (address - memory->address);
    mmap(view, size, both, MAP_SHARED | MAP_FIXED, handle->file, 0);
    int access = getenv("STAND_IN_READABLE") != NULL ? both : PROT_NONE;
    mmap((void *)address, size, access, MAP_SHARED | MAP_FIXED, handle->file, 0);
    memory->device = handle->device;
  }
  unlock();
  return ended;
}

EXPORT result cuMemSetAccess(uint64_t address, size_t size, const void *access, size_t count)
{
  ENTER_WITHOUT_CONTEXT("cuMemSetAccess");
  (void)access, (void)count;
  lock();
  result ended = set_granules(address, size, 1, 2);
  unlock();
  return ended;
}

EXPORT result cuMemUnmap(uint64_t address, size_t size)
{
  ENTER_WITHOUT_CONTEXT("cuMemUnmap");
  lock();
  if (queued_work_touches(address, size)) {
    violation("memory is unmapped before work on it is done");
  }
  result ended = set_granules(address, size, 1, 0);
  if (ended == SUCCESS) {
    struct memory *memory = memory_at(address);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    mmap(memory->view + (address - memory->address), size, PROT_NONE, flags, -1, 0);
    mmap((void *)address, size, PROT_NONE, flags, -1, 0);
  }
  unlock();
  return ended;
}
