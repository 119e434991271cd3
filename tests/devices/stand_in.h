// The parts of the stand-in for NVIDIA's driver: see README.md.
#ifndef STAND_IN_H
#define STAND_IN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int result;

enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_CONTEXT = 201,
  PEER_ACCESS_ALREADY_ENABLED = 704,
  INVALID_HANDLE = 400,
  NOT_READY = 600,
  LAUNCH_FAILED = 719,
};

enum { DEVICES_MAX = 16, GRANULARITY = 2 << 20 };

#define EXPORT __attribute__((visibility("default")))

struct context {
  int device;
  int references;
};

enum memory_kind { DEVICE_MEMORY, PINNED_MEMORY, OPENED_MEMORY, RESERVED_ADDRESSES };

// Memory that the driver knows. `view` is where the stand-in itself reads and writes it:
// at `address`, the program can't.
struct memory {
  enum memory_kind kind;
  int device;
  uint64_t address;
  size_t size;
  char *view;
  int file;
  // Of reserved addresses: the state of each granule.
  char *granules;
  struct memory *next;
};

struct handle {
  int file;
  int device;
  size_t size;
};

// One lock for all; waiting is done on one condition.
void lock(void);
void unlock(void);
void wait_for_change(void);
void wait_until(int64_t moment_ns);
void announce_change(void);
int64_t now_ns(void);

// What the environment sets.
int device_count(void);
size_t device_memory(int device);
int device_capability(int device);
int64_t delay_ns(void);
bool is_lost(int device);

// Counts a call. Not SUCCESS if the call was chosen to fail.
result called(const char *name);
void violation(const char *format, ...);

// The context of the calling thread, or null.
struct context *current_context(void);
struct context *context_of(int device);

// With the lock held.
struct memory *memory_at(uint64_t address);
char *view_of(uint64_t address, size_t size);
bool queued_work_touches(uint64_t address, size_t size);
int live_streams_and_events(int *streams, int *events);

// Enters a function of the driver: takes the lock, and returns if the call was chosen to
// fail, if no context is current, or if its device was lost.
#define ENTER_WITHOUT_CONTEXT(name)     \
  do {                                  \
    result chosen_ = called(name);      \
    if (chosen_ != SUCCESS) {           \
      return chosen_;                   \
    }                                   \
  } while (0)

#define ENTER(name)                                   \
  ENTER_WITHOUT_CONTEXT(name);                        \
  do {                                                \
    if (current_context() == NULL) {                  \
      return INVALID_CONTEXT;                         \
    }                                                 \
    if (is_lost(current_context()->device)) {         \
      return LAUNCH_FAILED;                           \
    }                                                 \
  } while (0)

#endif
