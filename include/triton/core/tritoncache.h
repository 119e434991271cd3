/* SPDX-License-Identifier: Apache-2.0
 *
 * What response caches in libraries call, and what they provide. Galatea does
 * not host them yet: what it provides here answers that it is unsupported.
 *
 * Written by `cargo xtask headers` from the crate `abi`; not to be edited.
 */

#pragma once

#include "triton/core/tritonserver.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifndef TRITONCACHE_DECLSPEC
#define TRITONCACHE_DECLSPEC __attribute__((visibility("default")))
#endif
#ifndef TRITONCACHE_ISPEC
#define TRITONCACHE_ISPEC __attribute__((visibility("default")))
#endif

/* The version of this header. */
#define TRITONCACHE_API_VERSION_MAJOR 0
#define TRITONCACHE_API_VERSION_MINOR 1

/* Objects, known by their addresses alone. */
struct TRITONCACHE_Allocator;
typedef struct TRITONCACHE_Allocator TRITONCACHE_Allocator;
struct TRITONCACHE_Cache;
typedef struct TRITONCACHE_Cache TRITONCACHE_Cache;
struct TRITONCACHE_CacheEntry;
typedef struct TRITONCACHE_CacheEntry TRITONCACHE_CacheEntry;

/* What the server provides. */

TRITONCACHE_DECLSPEC TRITONSERVER_Error* TRITONCACHE_ApiVersion(
    uint32_t* major,
    uint32_t* minor);

TRITONCACHE_DECLSPEC TRITONSERVER_Error* TRITONCACHE_CacheEntryBufferCount(
    TRITONCACHE_CacheEntry* entry,
    size_t* count);

TRITONCACHE_DECLSPEC TRITONSERVER_Error* TRITONCACHE_CacheEntryAddBuffer(
    TRITONCACHE_CacheEntry* entry,
    void* base,
    TRITONSERVER_BufferAttributes* buffer_attributes);

TRITONCACHE_DECLSPEC TRITONSERVER_Error* TRITONCACHE_CacheEntryGetBuffer(
    TRITONCACHE_CacheEntry* entry,
    size_t index,
    void** base,
    TRITONSERVER_BufferAttributes* buffer_attributes);

TRITONCACHE_DECLSPEC TRITONSERVER_Error* TRITONCACHE_CacheEntrySetBuffer(
    TRITONCACHE_CacheEntry* entry,
    size_t index,
    void* new_base,
    TRITONSERVER_BufferAttributes* buffer_attributes);

TRITONCACHE_DECLSPEC TRITONSERVER_Error* TRITONCACHE_Copy(
    TRITONCACHE_Allocator* allocator,
    TRITONCACHE_CacheEntry* entry);

/* What the library that is loaded provides. */

TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheInitialize(
    TRITONCACHE_Cache** cache,
    const char* config);

TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheFinalize(
    TRITONCACHE_Cache* cache);

TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheInsert(
    TRITONCACHE_Cache* cache,
    const char* key,
    TRITONCACHE_CacheEntry* entry,
    TRITONCACHE_Allocator* allocator);

TRITONCACHE_ISPEC TRITONSERVER_Error* TRITONCACHE_CacheLookup(
    TRITONCACHE_Cache* cache,
    const char* key,
    TRITONCACHE_CacheEntry* entry,
    TRITONCACHE_Allocator* allocator);

#ifdef __cplusplus
}
#endif
