/* A response cache that keeps the last responses, whatever their size:

     galatea --cache-directory build --cache-config example_fifo,entries=1000 ...

   The oldest entry is evicted for a new one. One lock guards everything, also while
   the server copies: the buffers must not be freed meanwhile. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "triton/core/tritoncache.h"

#define ENTRIES_MAX 1000000

/* Returns from the function if a call failed: null is success. */
#define TRY(call)                          \
  do {                                     \
    TRITONSERVER_Error* failed_ = (call);  \
    if (failed_ != NULL) {                 \
      return failed_;                      \
    }                                      \
  } while (0)

struct slot {
  char* key;
  void* bytes;
  size_t byte_size;
};

struct fifo {
  pthread_mutex_t lock;
  struct slot* slots; /* a ring */
  size_t capacity;
  size_t next; /* the position of the next one */
  uint64_t evicted;
};

static TRITONSERVER_Error*
error(TRITONSERVER_Error_Code code, const char* message)
{
  return TRITONSERVER_ErrorNew(code, message);
}

/* Every library should check that the server has a compatible interface. */
static TRITONSERVER_Error*
check_version(void)
{
  uint32_t major, minor;
  TRY(TRITONCACHE_ApiVersion(&major, &minor));
  if (major == TRITONCACHE_API_VERSION_MAJOR && minor >= TRITONCACHE_API_VERSION_MINOR) {
    return NULL;
  }
  return error(TRITONSERVER_ERROR_UNSUPPORTED, "the server has another version of the cache API");
}

/* The configuration is JSON such as {"entries":"1000"}. A real cache would use a parser for
   it; this one looks for its only setting. */
static size_t
entries_of(const char* config)
{
  const char* setting = strstr(config, "\"entries\"");
  if (setting == NULL) {
    return 0;
  }
  setting += strlen("\"entries\"");
  setting += strspn(setting, " \t\r\n:\"");
  return strtoul(setting, NULL, 10);
}

TRITONSERVER_Error*
TRITONCACHE_CacheInitialize(TRITONCACHE_Cache** cache, const char* config)
{
  TRY(check_version());
  size_t capacity = entries_of(config);
  if (capacity == 0 || capacity > ENTRIES_MAX) {
    return error(TRITONSERVER_ERROR_INVALID_ARG, "the setting 'entries' must be 1 to 1000000");
  }
  struct fifo* fifo = calloc(1, sizeof *fifo);
  struct slot* slots = calloc(capacity, sizeof *slots);
  if (fifo == NULL || slots == NULL) {
    free(fifo);
    free(slots);
    return error(TRITONSERVER_ERROR_UNAVAILABLE, "there is no memory for the cache");
  }
  pthread_mutex_init(&fifo->lock, NULL);
  fifo->slots = slots;
  fifo->capacity = capacity;
  *cache = (TRITONCACHE_Cache*)fifo;
  return NULL;
}

static void
clear(struct slot* slot)
{
  free(slot->key);
  free(slot->bytes);
  memset(slot, 0, sizeof *slot);
}

TRITONSERVER_Error*
TRITONCACHE_CacheFinalize(TRITONCACHE_Cache* cache)
{
  struct fifo* fifo = (struct fifo*)cache;
  char line[80];
  snprintf(line, sizeof line, "example_fifo evicted %llu responses",
           (unsigned long long)fifo->evicted);
  TRITONSERVER_ErrorDelete(
      TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, __FILE__, __LINE__, line));
  for (size_t index = 0; index < fifo->capacity; ++index) {
    clear(&fifo->slots[index]);
  }
  pthread_mutex_destroy(&fifo->lock);
  free(fifo->slots);
  free(fifo);
  return NULL;
}

/* Returns null if there is none. A real cache would use a table. */
static struct slot*
find(struct fifo* fifo, const char* key)
{
  for (size_t index = 0; index < fifo->capacity; ++index) {
    struct slot* slot = &fifo->slots[index];
    if (slot->key != NULL && strcmp(slot->key, key) == 0) {
      return slot;
    }
  }
  return NULL;
}

/* A response is one buffer. Its size is in the entry, and the server writes it where the
   cache says. */
static TRITONSERVER_Error*
needed_size(TRITONCACHE_CacheEntry* entry, size_t* byte_size)
{
  size_t count;
  void* base;
  TRITONSERVER_BufferAttributes* attributes;
  TRY(TRITONCACHE_CacheEntryBufferCount(entry, &count));
  if (count != 1) {
    return error(TRITONSERVER_ERROR_UNSUPPORTED, "an entry must have one buffer");
  }
  TRY(TRITONSERVER_BufferAttributesNew(&attributes));
  TRITONSERVER_Error* failed = TRITONCACHE_CacheEntryGetBuffer(entry, 0, &base, attributes);
  if (failed == NULL) {
    failed = TRITONSERVER_BufferAttributesByteSize(attributes, byte_size);
  }
  TRITONSERVER_ErrorDelete(TRITONSERVER_BufferAttributesDelete(attributes));
  return failed;
}

TRITONSERVER_Error*
TRITONCACHE_CacheInsert(
    TRITONCACHE_Cache* cache, const char* key, TRITONCACHE_CacheEntry* entry,
    TRITONCACHE_Allocator* allocator)
{
  struct fifo* fifo = (struct fifo*)cache;
  struct slot new = {0};
  TRY(needed_size(entry, &new.byte_size));
  new.key = strdup(key);
  new.bytes = malloc(new.byte_size);
  TRITONSERVER_Error* failed = NULL;
  if (new.key == NULL || new.bytes == NULL) {
    failed = error(TRITONSERVER_ERROR_UNAVAILABLE, "there is no memory for the response");
  }
  /* No other thread knows this buffer yet, so the copy does not need the lock. */
  if (failed == NULL) {
    failed = TRITONCACHE_CacheEntrySetBuffer(entry, 0, new.bytes, NULL);
  }
  if (failed == NULL) {
    failed = TRITONCACHE_Copy(allocator, entry);
  }
  pthread_mutex_lock(&fifo->lock);
  if (failed == NULL && find(fifo, key) != NULL) {
    failed = error(TRITONSERVER_ERROR_ALREADY_EXISTS, "the key is there");
  }
  if (failed == NULL) {
    struct slot* place = &fifo->slots[fifo->next];
    struct slot displaced = *place;
    *place = new;
    new = displaced;
    fifo->next = (fifo->next + 1) % fifo->capacity;
    fifo->evicted += displaced.key != NULL;
  }
  pthread_mutex_unlock(&fifo->lock);
  clear(&new);
  return failed;
}

TRITONSERVER_Error*
TRITONCACHE_CacheLookup(
    TRITONCACHE_Cache* cache, const char* key, TRITONCACHE_CacheEntry* entry,
    TRITONCACHE_Allocator* allocator)
{
  struct fifo* fifo = (struct fifo*)cache;
  TRITONSERVER_BufferAttributes* attributes;
  TRY(TRITONSERVER_BufferAttributesNew(&attributes));
  TRITONSERVER_Error* failed = NULL;
  pthread_mutex_lock(&fifo->lock);
  struct slot* slot = find(fifo, key);
  if (slot == NULL) {
    failed = error(TRITONSERVER_ERROR_NOT_FOUND, "the key is not there");
  }
  if (failed == NULL) {
    failed = TRITONSERVER_BufferAttributesSetByteSize(attributes, slot->byte_size);
  }
  if (failed == NULL) {
    failed = TRITONCACHE_CacheEntryAddBuffer(entry, slot->bytes, attributes);
  }
  if (failed == NULL) {
    failed = TRITONCACHE_Copy(allocator, entry);
  }
  pthread_mutex_unlock(&fifo->lock);
  TRITONSERVER_ErrorDelete(TRITONSERVER_BufferAttributesDelete(attributes));
  return failed;
}
