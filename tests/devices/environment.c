// What the environment chooses: devices, failures, lost devices; and the reports.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "stand_in.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;

void lock(void) { pthread_mutex_lock(&mutex); }
void unlock(void) { pthread_mutex_unlock(&mutex); }
void wait_for_change(void) { pthread_cond_wait(&change, &mutex); }
void announce_change(void) { pthread_cond_broadcast(&change); }

int64_t now_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void wait_until(int64_t moment_ns)
{
  struct timespec moment = {moment_ns / 1000000000, moment_ns % 1000000000};
  pthread_cond_timedwait(&change, &mutex, &moment);
}

static long number(const char *name, long otherwise)
{
  const char *text = getenv(name);
  return text == NULL || *text == 0 ? otherwise : atol(text);
}

// The part of a list with this index; its last part stands for all that follow.
static const char *part(const char *name, int index)
{
  const char *text = getenv(name);
  for (; text != NULL && index > 0; index--) {
    const char *comma = strchr(text, ',');
    if (comma == NULL) {
      break;
    }
    text = comma + 1;
  }
  return text;
}

int device_count(void)
{
  long count = number("STAND_IN_DEVICES", 2);
  return count > DEVICES_MAX ? DEVICES_MAX : (int)count;
}

size_t device_memory(int device)
{
  const char *text = part("STAND_IN_MEMORY", device);
  return text == NULL ? (size_t)1 << 30 : strtoull(text, NULL, 10);
}

int device_capability(int device)
{
  const char *text = part("STAND_IN_CAPABILITY", device);
  int major = 8, minor = 0;
  if (text != NULL) {
    sscanf(text, "%d.%d", &major, &minor);
  }
  return 10 * major + minor;
}

int64_t delay_ns(void) { return 1000 * (int64_t)number("STAND_IN_DELAY_US", 1000); }

static bool path_in_directory(char *path, size_t size, const char *name)
{
  const char *directory = getenv("STAND_IN_DIRECTORY");
  return directory != NULL && snprintf(path, size, "%s/%s", directory, name) < (int)size;
}

bool is_lost(int device)
{
  char path[4096], name[32];
  snprintf(name, sizeof name, "lost-%d", device);
  return path_in_directory(path, sizeof path, name) && access(path, F_OK) == 0;
}

// Appends a line to a file of the directory, in one system call.
static void append(const char *name, const char *line)
{
  char path[4096];
  if (!path_in_directory(path, sizeof path, name)) {
    return;
  }
  int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file >= 0) {
    if (write(file, line, strlen(line)) < 0) {
      perror("stand-in");
    }
    close(file);
  }
}

void violation(const char *format, ...)
{
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line - 1, format, arguments);
  va_end(arguments);
  strcat(line, "\n");
  append("violations", line);
}

// How often each function was called. Names are literals.
static struct {
  const char *name;
  long count;
} calls[96];

static long count_call(const char *name)
{
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    if (calls[i].name == NULL) {
      calls[i].name = name;
    }
    if (strcmp(calls[i].name, name) == 0) {
      return ++calls[i].count;
    }
  }
  abort();
}

// Whether STAND_IN_FAIL (NAME:COUNT[+][:CODE],…) chooses this call.
static result chosen_failure(const char *name, long count)
{
  size_t length = strlen(name);
  for (const char *entry = getenv("STAND_IN_FAIL"); entry != NULL && *entry != 0;) {
    if (strncmp(entry, name, length) == 0 && entry[length] == ':') {
      char *end;
      long chosen = strtol(entry + length + 1, &end, 10);
      bool and_later = *end == '+';
      end += and_later;
      result code = *end == ':' ? atoi(end + 1) : strstr(name, "Alloc") ? OUT_OF_MEMORY : 999;
      if (count == chosen || (and_later && count > chosen)) {
        return code;
      }
    }
    entry = strchr(entry, ',');
    entry = entry == NULL ? NULL : entry + 1;
  }
  return SUCCESS;
}

result called(const char *name)
{
  static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&counting);
  long count = count_call(name);
  pthread_mutex_unlock(&counting);
  return chosen_failure(name, count);
}

extern int live_memory(int kinds[4]);

// What the process leaves behind, and what it called.
__attribute__((destructor)) static void report(void)
{
  int kinds[4] = {0}, streams = 0, events = 0;
  bool lost = false;  // What a lost device holds can't be released.
  for (int device = 0; device < device_count(); device++) {
    lost = lost || is_lost(device);
  }
  if (!lost && live_memory(kinds) > 0) {
    violation(
        "leak: %d of device memory, %d of pinned memory, %d opened, %d of addresses", kinds[0],
        kinds[1], kinds[2], kinds[3]);
  }
  if (!lost && live_streams_and_events(&streams, &events) > 0) {
    violation("leak: %d streams, %d events", streams, events);
  }
  for (size_t i = 0; i < sizeof calls / sizeof *calls && calls[i].name != NULL; i++) {
    char line[128];
    snprintf(line, sizeof line, "%s %ld\n", calls[i].name, calls[i].count);
    append("calls", line);
  }
}
