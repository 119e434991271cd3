/* The least that an HTTP server can do: one wait, one read and one write for a request.

     bare RESPONSES PORT

   The loop finds the end of a request, its first words, and the id that perf_analyzer
   needs in the response. Responses are recorded: see bare.py, which writes the
   file of responses and describes it. Bodies have a Content-Length; they may
   arrive in parts, and several requests at once.

   A client that doesn't take a response at once, or whose head has no end, is dropped:
   its load generator reports that, and the measurement is void. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define RESPONSES_MAX 64
#define COUNTS_MAX 16
#define CONNECTIONS_MAX 1024
#define EVENTS_MAX 64
/* Only this many bytes of a longer request are read. */
#define REQUEST_BYTES 16384
#define ID_BYTES_MAX 20

static const char ID[] = "{\"id\":\"";
static const char HEAD_END[] = "\r\n\r\n";
static const char LENGTH[] = "content-length:";
/* Placeholder of the number of counted requests. */
static const char COUNT[] = "####################";

struct response {
  char* prefix; /* of the requests that it matches; their IDs have this length in bytes */
  size_t prefix_bytes;
  size_t id_bytes;
  char* text;
  size_t bytes;
  char* id; /* its place in the text */
  int counted;
  char* counts[COUNTS_MAX];
  size_t count_places;
};

struct connection {
  char bytes[REQUEST_BYTES];
  size_t filled;
  /* The response to a request, of which the buffer holds a part, and the bytes that are missing. */
  struct response* response;
  size_t missing;
};

static struct response responses[RESPONSES_MAX];
static size_t response_count;
static unsigned long long counted_requests;
static struct connection connections[CONNECTIONS_MAX];

static void
demand(int holds, const char* what)
{
  if (!holds) {
    perror(what);
    exit(1);
  }
}

static char*
read_bytes(FILE* file, size_t bytes)
{
  char* text = calloc(bytes + 1, 1);
  demand(text != NULL && fread(text, 1, bytes, file) == bytes, "responses cut short");
  return text;
}

static void
find_places(struct response* response)
{
  char* from = response->text;
  char* end = response->text + response->bytes;
  if (response->id_bytes > 0) {
    char* start = memmem(from, response->bytes, ID, sizeof ID - 1);
    demand(start != NULL, "a response without id");
    response->id = start + sizeof ID - 1;
  }
  while ((from = memmem(from, (size_t)(end - from), COUNT, sizeof COUNT - 1)) != NULL) {
    demand(response->count_places < COUNTS_MAX, "too many counts");
    response->counts[response->count_places++] = from;
    from += sizeof COUNT - 1;
  }
}

static void
read_responses(const char* path)
{
  FILE* file = fopen(path, "rb");
  demand(file != NULL, path);
  struct response next = {0};
  while (fscanf(
             file, "%zu %zu %zu %d%*c", &next.prefix_bytes, &next.id_bytes, &next.bytes,
             &next.counted) == 4) {
    demand(response_count < RESPONSES_MAX, "too many responses");
    next.prefix = read_bytes(file, next.prefix_bytes);
    next.text = read_bytes(file, next.bytes);
    responses[response_count] = next;
    find_places(&responses[response_count++]);
  }
  demand(feof(file) && response_count > 0, "responses");
  fclose(file);
}

/* The length of the first request's head, or 0 while it is incomplete. */
static size_t
head_length(const char* bytes, size_t filled)
{
  const char* end = memmem(bytes, filled, HEAD_END, sizeof HEAD_END - 1);
  return end == NULL ? 0 : (size_t)(end - bytes) + sizeof HEAD_END - 1;
}

static size_t
body_length(const char* head, size_t length)
{
  const char* end = head + length;
  const char* line = head;
  while ((line = memchr(line, '\n', (size_t)(end - line))) != NULL && ++line < end) {
    /* The comparison ends at the end of the line. */
    if (strncasecmp(line, LENGTH, sizeof LENGTH - 1) == 0) {
      return strtoull(line + sizeof LENGTH - 1, NULL, 10);
    }
  }
  return 0;
}

/* The length of the id at the beginning of a body; a body with tensors is longer. */
static size_t
id_length(const char* body, const char* end)
{
  size_t fixed = sizeof ID - 1;
  if ((size_t)(end - body) < fixed + ID_BYTES_MAX + 1 || memcmp(body, ID, fixed) != 0) {
    return 0;
  }
  const char* quote = memchr(body + fixed, '"', ID_BYTES_MAX + 1);
  return quote == NULL ? 0 : (size_t)(quote - body) - fixed;
}

/* The response to a request of the given length in bytes: the last one fits every length. */
static struct response*
choose(const char* request, const char* body, const char* end)
{
  size_t id_bytes = id_length(body, end);
  struct response* last = &responses[response_count - 1];
  for (struct response* each = responses; each < last; ++each) {
    if (each->id_bytes == id_bytes && (size_t)(end - request) >= each->prefix_bytes &&
        memcmp(request, each->prefix, each->prefix_bytes) == 0) {
      if (id_bytes > 0) {
        memcpy(each->id, body + sizeof ID - 1, id_bytes);
      }
      return each;
    }
  }
  return last;
}

static int
reply(int stream, struct response* response)
{
  for (size_t place = 0; place < response->count_places; ++place) {
    char number[sizeof COUNT];
    snprintf(number, sizeof number, "%*llu", (int)sizeof COUNT - 1, counted_requests);
    memcpy(response->counts[place], number, sizeof COUNT - 1);
  }
  counted_requests += (unsigned long long)response->counted;
  return send(stream, response->text, response->bytes, MSG_NOSIGNAL) == (ssize_t)response->bytes;
}

/* Returns whether there is a whole request, or one that fills the buffer. */
static int
begin(struct connection* connection, const char* bytes, size_t filled)
{
  size_t head = head_length(bytes, filled);
  if (head == 0) {
    return 0;
  }
  size_t length = head + body_length(bytes, head);
  if (length > filled && filled < REQUEST_BYTES) {
    return 0;
  }
  const char* end = bytes + (length < filled ? length : filled);
  connection->response = choose(bytes, bytes + head, end);
  connection->missing = length;
  return 1;
}

/* Responds to whole requests and keeps the rest; returns whether the connection stays. */
static int
respond_to_requests(int stream, struct connection* connection)
{
  char* from = connection->bytes;
  char* end = from + connection->filled;
  while (connection->response != NULL || begin(connection, from, (size_t)(end - from))) {
    size_t part = (size_t)(end - from);
    part = connection->missing < part ? connection->missing : part;
    from += part;
    connection->missing -= part;
    if (connection->missing > 0) {
      break;
    }
    if (!reply(stream, connection->response)) {
      return 0;
    }
    connection->response = NULL;
  }
  connection->filled = (size_t)(end - from);
  memmove(connection->bytes, from, connection->filled);
  return connection->filled < REQUEST_BYTES;
}

/* Reads the available bytes; returns whether the connection stays. */
static int
serve(int stream, struct connection* connection, int ends)
{
  for (;;) {
    size_t room = REQUEST_BYTES - connection->filled;
    ssize_t got = recv(stream, connection->bytes + connection->filled, room, 0);
    if (got <= 0) {
      return got < 0 && errno == EAGAIN;
    }
    connection->filled += (size_t)got;
    if (!respond_to_requests(stream, connection)) {
      return 0;
    }
    /* All bytes are read, and later ones cause another event: one read is enough. */
    if ((size_t)got < room && !ends) {
      return 1;
    }
  }
}

static void
admit(int epoll, int listener)
{
  int stream;
  while ((stream = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
    if (stream >= CONNECTIONS_MAX) {
      close(stream);
      continue;
    }
    int on = 1;
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.fd = stream};
    connections[stream].filled = 0;
    connections[stream].response = NULL;
    setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    demand(epoll_ctl(epoll, EPOLL_CTL_ADD, stream, &event) == 0, "epoll_ctl");
  }
}

static int
listen_on(int port)
{
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int on = 1;
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  demand(listener >= 0, "socket");
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  demand(bind(listener, (struct sockaddr*)&address, sizeof address) == 0, "bind");
  demand(listen(listener, SOMAXCONN) == 0, "listen");
  return listener;
}

int
main(int argument_count, char** arguments)
{
  errno = EINVAL;
  demand(argument_count == 3, "usage: bare RESPONSES PORT");
  read_responses(arguments[1]);
  int listener = listen_on(atoi(arguments[2]));
  int epoll = epoll_create1(0);
  struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
  demand(epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) == 0, "epoll_ctl");
  for (;;) {
    struct epoll_event events[EVENTS_MAX];
    int count = epoll_wait(epoll, events, EVENTS_MAX, -1);
    for (int index = 0; index < count; ++index) {
      int stream = events[index].data.fd;
      if (stream == listener) {
        admit(epoll, listener);
      } else if (!serve(
                     stream, &connections[stream],
                     (events[index].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0)) {
        close(stream);
      }
    }
  }
}
