// Streams and events. Each stream has a thread, which performs its work late.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "stand_in.h"

// What an unfinished copy leaves in its destination: a reader that is too early sees it.
enum { POISON = 0xA5 };

enum kind { COPY, FILL, RECORD, WAIT, CALL };

struct event {
  int device;
  // How often it was recorded, and how many of those were reached.
  uint64_t recorded, reached;
  bool failed;
};

struct work {
  enum kind kind;
  uint64_t to, from;
  size_t size;
  int value;
  struct event *event;
  uint64_t turn;
  void (*function)(void *);
  void *argument;
  int64_t start_ns;
  pthread_t author;
  struct work *next;
};

struct stream {
  int device;
  struct work *first;
  struct work **last;
  bool failed, ends, shared;
  pthread_t thread;
  struct stream *next;
};

static struct stream *streams;
static int live_events;

int live_streams_and_events(int *stream_count, int *event_count)
{
  for (struct stream *stream = streams; stream != NULL; stream = stream->next) {
    ++*stream_count;
  }
  *event_count = live_events;
  return *stream_count + *event_count;
}

static bool overlap(uint64_t a, uint64_t b, size_t a_size, size_t b_size)
{
  return a < b + b_size && b < a + a_size;
}

bool queued_work_touches(uint64_t address, size_t size)
{
  for (struct stream *stream = streams; stream != NULL; stream = stream->next) {
    for (struct work *work = stream->first; work != NULL && !stream->failed; work = work->next) {
      if (overlap(address, work->to, size, work->size) ||
          overlap(address, work->from, size, work->size)) {
        return true;
      }
    }
  }
  return false;
}

// Whether work that is about to be queued on a stream comes behind this work of another one: the
// stream will wait for an event that is recorded behind that work.
static bool is_behind(struct stream *stream, struct work *work)
{
  for (struct work *wait = stream->first; wait != NULL; wait = wait->next) {
    for (struct work *next = work->next; next != NULL && wait->kind == WAIT; next = next->next) {
      if (next->kind == RECORD && next->event == wait->event && next->turn <= wait->turn) {
        return true;
      }
    }
  }
  return false;
}

// Whether an unfinished copy of another stream writes to this memory, and nothing makes the stream
// wait for it: what is there when the stream's work is done is luck.
static bool races(struct stream *stream, uint64_t address, size_t size)
{
  for (struct stream *other = streams; other != NULL; other = other->next) {
    struct work *work = other == stream || other->failed ? NULL : other->first;
    for (; work != NULL; work = work->next) {
      bool writes = work->kind == COPY || work->kind == FILL;
      if (writes && overlap(address, work->to, size, work->size) && !is_behind(stream, work)) {
        return true;
      }
    }
  }
  return false;
}

// With the lock held, which a call of the program's is made without.
static void perform(struct stream *stream, struct work *work)
{
  switch (work->kind) {
    case COPY: {
      char *to = view_of(work->to, work->size), *from = view_of(work->from, work->size);
      if (to == NULL || from == NULL) {
        stream->failed = true;
      } else {
        memmove(to, from, work->size);
      }
      break;
    }
    case FILL: {
      char *to = view_of(work->to, work->size);
      if (to == NULL) {
        stream->failed = true;
      } else {
        memset(to, work->value, work->size);
      }
      break;
    }
    case RECORD:
      work->event->reached = work->turn;
      work->event->failed = stream->failed;
      break;
    case WAIT:
      while (work->event->reached < work->turn) {
        wait_for_change();
      }
      break;
    case CALL:
      unlock();
      work->function(work->argument);
      lock();
      break;
  }
}

static void *run(void *given)
{
  struct stream *stream = given;
  lock();
  for (;;) {
    struct work *work = stream->first;
    if (work == NULL) {
      if (stream->ends) {
        break;
      }
      wait_for_change();
      continue;
    }
    stream->failed = stream->failed || is_lost(stream->device);
    if (!stream->failed && now_ns() < work->start_ns) {
      wait_until(work->start_ns);
      continue;
    }
    if (!stream->failed || work->kind == RECORD) {
      perform(stream, work);
    }
    stream->first = work->next;
    if (stream->first == NULL) {
      stream->last = &stream->first;
    }
    free(work);
    announce_change();
  }
  unlock();
  return NULL;
}

static result enqueue(struct stream *stream, struct work wanted)
{
  lock();
  if (stream->failed || stream->device != current_context()->device) {
    result ended = stream->failed ? LAUNCH_FAILED : INVALID_HANDLE;
    unlock();
    return ended;
  }
  bool others_wait = stream->first != NULL && !pthread_equal(stream->first->author, pthread_self());
  if (others_wait && !stream->shared) {
    stream->shared = true;
    violation("a stream is used by two threads at a time");
  }
  bool writes = wanted.kind == COPY || wanted.kind == FILL;
  if ((wanted.kind == COPY && races(stream, wanted.from, wanted.size)) ||
      (writes && races(stream, wanted.to, wanted.size))) {
    violation("a stream does not wait for the copy of another one");
  }
  if (wanted.kind == COPY && !queued_work_touches(wanted.to, wanted.size)) {
    char *to = view_of(wanted.to, wanted.size);
    if (to != NULL && view_of(wanted.from, wanted.size) != NULL) {
      memset(to, POISON, wanted.size);
    }
  }
  struct work *work = malloc(sizeof *work);
  *work = wanted;
  work->author = pthread_self();
  work->start_ns = now_ns() + delay_ns();
  work->next = NULL;
  *stream->last = work;
  stream->last = &work->next;
  announce_change();
  unlock();
  return SUCCESS;
}

EXPORT result cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
  ENTER("cuCtxGetStreamPriorityRange");
  *least = 0;
  *greatest = -5;
  return SUCCESS;
}

EXPORT result cuStreamCreateWithPriority(struct stream **created, unsigned flags, int priority)
{
  ENTER("cuStreamCreateWithPriority");
  (void)flags, (void)priority;
  struct stream *stream = calloc(1, sizeof *stream);
  stream->device = current_context()->device;
  stream->last = &stream->first;
  lock();
  stream->next = streams;
  streams = stream;
  unlock();
  pthread_create(&stream->thread, NULL, run, stream);
  *created = stream;
  return SUCCESS;
}

EXPORT result cuStreamDestroy_v2(struct stream *gone)
{
  ENTER_WITHOUT_CONTEXT("cuStreamDestroy_v2");
  lock();
  gone->ends = true;
  announce_change();
  unlock();
  pthread_join(gone->thread, NULL);
  lock();
  struct stream **place = &streams;
  while (*place != gone) {
    place = &(*place)->next;
  }
  *place = gone->next;
  unlock();
  free(gone);
  return SUCCESS;
}

static result state_of(bool failed, bool done)
{
  return failed ? LAUNCH_FAILED : done ? SUCCESS : NOT_READY;
}

EXPORT result cuStreamSynchronize(struct stream *stream)
{
  ENTER("cuStreamSynchronize");
  lock();
  while (stream->first != NULL) {
    wait_for_change();
  }
  result ended = state_of(stream->failed, true);
  unlock();
  return ended;
}

EXPORT result cuStreamQuery(struct stream *stream)
{
  ENTER("cuStreamQuery");
  lock();
  result ended = state_of(stream->failed, stream->first == NULL);
  unlock();
  return ended;
}

EXPORT result cuStreamWaitEvent(struct stream *stream, struct event *event, unsigned flags)
{
  ENTER("cuStreamWaitEvent");
  (void)flags;
  return enqueue(stream, (struct work){.kind = WAIT, .event = event, .turn = event->recorded});
}

EXPORT result cuLaunchHostFunc(struct stream *stream, void (*function)(void *), void *argument)
{
  ENTER("cuLaunchHostFunc");
  return enqueue(stream, (struct work){.kind = CALL, .function = function, .argument = argument});
}

// Counts a copy by where it goes, beside the call.
static void count_direction(uint64_t to, uint64_t from)
{
  lock();
  struct memory *target = memory_at(to), *source = memory_at(from);
  bool to_device = target != NULL && target->kind != PINNED_MEMORY;
  bool from_device = source != NULL && source->kind != PINNED_MEMORY;
  unlock();
  called(!to_device ? "copy_to_host" : from_device ? "copy_on_device" : "copy_to_device");
}

EXPORT result cuMemcpyAsync(uint64_t to, uint64_t from, size_t size, struct stream *stream)
{
  ENTER("cuMemcpyAsync");
  count_direction(to, from);
  return enqueue(stream, (struct work){.kind = COPY, .to = to, .from = from, .size = size});
}

// A copy that stands in for what a kernel reads or writes, so that its direction isn't counted.
EXPORT result stand_in_kernel(uint64_t to, uint64_t from, size_t size, struct stream *stream)
{
  ENTER("cuMemcpyAsync");
  return enqueue(stream, (struct work){.kind = COPY, .to = to, .from = from, .size = size});
}

EXPORT result cuMemsetD8Async(uint64_t to, unsigned char value, size_t size, struct stream *stream)
{
  ENTER("cuMemsetD8Async");
  return enqueue(stream, (struct work){.kind = FILL, .to = to, .value = value, .size = size});
}

EXPORT result cuEventCreate(struct event **created, unsigned flags)
{
  ENTER("cuEventCreate");
  (void)flags;
  *created = calloc(1, sizeof **created);
  (*created)->device = current_context()->device;
  lock();
  live_events++;
  unlock();
  return SUCCESS;
}

EXPORT result cuEventRecord(struct event *event, struct stream *stream)
{
  ENTER("cuEventRecord");
  if (event->device != stream->device) {
    return INVALID_HANDLE;
  }
  lock();
  uint64_t turn = ++event->recorded;
  unlock();
  result ended = enqueue(stream, (struct work){.kind = RECORD, .event = event, .turn = turn});
  if (ended != SUCCESS) {
    lock();
    event->failed = true;
    event->reached = turn;
    unlock();
  }
  return ended;
}

EXPORT result cuEventQuery(struct event *event)
{
  ENTER("cuEventQuery");
  lock();
  result ended = state_of(event->failed, event->reached == event->recorded);
  unlock();
  return ended;
}

EXPORT result cuEventSynchronize(struct event *event)
{
  ENTER("cuEventSynchronize");
  lock();
  uint64_t turn = event->recorded;
  while (event->reached < turn) {
    wait_for_change();
  }
  result ended = state_of(event->failed, true);
  unlock();
  return ended;
}

EXPORT result cuEventDestroy_v2(struct event *event)
{
  ENTER_WITHOUT_CONTEXT("cuEventDestroy_v2");
  lock();
  while (event->reached < event->recorded) {
    wait_for_change();  // The driver keeps an event for as long as work needs it.
  }
  live_events--;
  unlock();
  free(event);
  return SUCCESS;
}
