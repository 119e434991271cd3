/* A cache that a server can't have. Which error it returns says what configuration it got. */
#include <string.h>

#include "triton/core/tritoncache.h"

TRITONSERVER_Error*
TRITONCACHE_CacheInitialize(TRITONCACHE_Cache** cache, const char* configuration)
{
  *cache = NULL;
  return strcmp(configuration, " no JSON\n") == 0
             ? TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "as it was given")
             : TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_NOT_FOUND, configuration);
}

TRITONSERVER_Error*
TRITONCACHE_CacheFinalize(TRITONCACHE_Cache* cache)
{
  (void)cache;
  return NULL;
}

TRITONSERVER_Error*
TRITONCACHE_CacheLookup(
    TRITONCACHE_Cache* cache, const char* key, TRITONCACHE_CacheEntry* entry,
    TRITONCACHE_Allocator* allocator)
{
  (void)cache, (void)key, (void)entry, (void)allocator;
  return NULL;
}

TRITONSERVER_Error*
TRITONCACHE_CacheInsert(
    TRITONCACHE_Cache* cache, const char* key, TRITONCACHE_CacheEntry* entry,
    TRITONCACHE_Allocator* allocator)
{
  (void)cache, (void)key, (void)entry, (void)allocator;
  return NULL;
}
