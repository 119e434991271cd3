/* The least that an HTTP server can do: one wait, one read and one write for a request.

     bare ANSWERS PORT

   What comes is looked at for where a request ends, for its first words, and for the id
   that perf_analyzer wants back. What goes out was recorded: see bare.py, which writes
   the file of answers and says what is in it. Bodies have a Content-Length; their parts
   may come as they like, and several requests at once.

   A client that doesn't take an answer at once, or whose head has no end, is dropped:
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

#define ANSWERS_MAX 64
#define COUNTS_MAX 16
#define CONNECTIONS_MAX 1024
#define EVENTS_MAX 64
/* Of a longer request only so much is looked at. */
#define REQUEST_BYTES 16384
#define ID_BYTES_MAX 20

static const char ID[] = "{\"id\":\"";
static const char HEAD_END[] = "\r\n\r\n";
static const char LENGTH[] = "content-length:";
/* Stands where the number of counted requests belongs. */
static const char COUNT[] = "####################";

struct answer {
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
  /* To a request that lies in the bytes as far as it fits, and what has yet to come. */
  struct answer* answer;
  size_t missing;
};

static struct answer answers[ANSWERS_MAX];
static size_t answer_count;
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
  demand(text != NULL && fread(text, 1, bytes, file) == bytes, "answers cut short");
  return text;
}

static void
find_places(struct answer* answer)
{
  char* from = answer->text;
  char* end = answer->text + answer->bytes;
  if (answer->id_bytes > 0) {
    char* start = memmem(from, answer->bytes, ID, sizeof ID - 1);
    demand(start != NULL, "an answer without id");
    answer->id = start + sizeof ID - 1;
  }
  while ((from = memmem(from, (size_t)(end - from), COUNT, sizeof COUNT - 1)) != NULL) {
    demand(answer->count_places < COUNTS_MAX, "too many counts");
    answer->counts[answer->count_places++] = from;
    from += sizeof COUNT - 1;
  }
}

static void
read_answers(const char* path)
{
  FILE* file = fopen(path, "rb");
  demand(file != NULL, path);
  struct answer next = {0};
  while (fscanf(
             file, "%zu %zu %zu %d%*c", &next.prefix_bytes, &next.id_bytes, &next.bytes,
             &next.counted) == 4) {
    demand(answer_count < ANSWERS_MAX, "too many answers");
    next.prefix = read_bytes(file, next.prefix_bytes);
    next.text = read_bytes(file, next.bytes);
    answers[answer_count] = next;
    find_places(&answers[answer_count++]);
  }
  demand(feof(file) && answer_count > 0, "answers");
  fclose(file);
}

/* The length of the first request's head, or 0 while its end has yet to come. */
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
    /* The comparison ends with the line at the latest. */
    if (strncasecmp(line, LENGTH, sizeof LENGTH - 1) == 0) {
      return strtoull(line + sizeof LENGTH - 1, NULL, 10);
    }
  }
  return 0;
}

/* How many bytes the id has with which a body begins; tensors make it longer than that. */
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
static struct answer*
choose(const char* request, const char* body, const char* end)
{
  size_t id_bytes = id_length(body, end);
  struct answer* last = &answers[answer_count - 1];
  for (struct answer* each = answers; each < last; ++each) {
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
reply(int stream, struct answer* answer)
{
  for (size_t place = 0; place < answer->count_places; ++place) {
    char number[sizeof COUNT];
    snprintf(number, sizeof number, "%*llu", (int)sizeof COUNT - 1, counted_requests);
    memcpy(answer->counts[place], number, sizeof COUNT - 1);
  }
  counted_requests += (unsigned long long)answer->counted;
  return send(stream, answer->text, answer->bytes, MSG_NOSIGNAL) == (ssize_t)answer->bytes;
}

/* Looks for a whole request, or one that fills all the room; says whether it is there. */
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
  connection->answer = choose(bytes, bytes + head, end);
  connection->missing = length;
  return 1;
}

/* Answers what has come whole and keeps the rest; says whether the connection stays. */
static int
answer_requests(int stream, struct connection* connection)
{
  char* from = connection->bytes;
  char* end = from + connection->filled;
  while (connection->answer != NULL || begin(connection, from, (size_t)(end - from))) {
    size_t part = (size_t)(end - from);
    part = connection->missing < part ? connection->missing : part;
    from += part;
    connection->missing -= part;
    if (connection->missing > 0) {
      break;
    }
    if (!reply(stream, connection->answer)) {
      return 0;
    }
    connection->answer = NULL;
  }
  connection->filled = (size_t)(end - from);
  memmove(connection->bytes, from, connection->filled);
  return connection->filled < REQUEST_BYTES;
}

/* Reads what is there; says whether the connection stays. */
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
    if (!answer_requests(stream, connection)) {
      return 0;
    }
    /* Nothing is left, and what comes now is an event of its own: one read is enough. */
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
    connections[stream].answer = NULL;
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
  demand(argument_count == 3, "usage: bare ANSWERS PORT");
  read_answers(arguments[1]);
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
