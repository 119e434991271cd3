/* A backend with the tensors of a server of language models, without a model: the answer is
   the prompt's words again and again. Clients and load generators for such servers can be
   tried with it.

     text_input               STRING  one element, the prompt
     max_tokens               INT32   optional: words of the answer; default: those of the prompt
     stream                   BOOL    optional: a response for each word, from a decoupled model
     exclude_input_in_output  BOOL    optional: the answer does not begin with the prompt
     text_output              STRING  one element

   Without stream there is one response with the whole answer. */
#include <stdlib.h>
#include <string.h>

#include "decoupled.h"

#define RANK_MAX 2
#define TOKENS_MAX 65536
#define ANSWER_BYTES_MAX (16u << 20)

struct prompt {
  const char* text;
  uint32_t byte_size;
  int64_t shape[RANK_MAX];
  uint32_t rank;
};

struct piece {
  const char* text;
  uint32_t byte_size;
};

static TRITONSERVER_Error*
wrong(const char* why)
{
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, why);
}

static TRITONSERVER_Error*
read_prompt(TRITONBACKEND_Request* request, struct prompt* prompt)
{
  TRITONBACKEND_Input* input;
  const void* buffer;
  const int64_t* shape;
  uint64_t byte_size;
  uint32_t buffer_count;
  TRITONSERVER_DataType datatype;
  TRITONSERVER_MemoryType memory_type;
  int64_t memory_type_id;
  TRY(TRITONBACKEND_RequestInput(request, "text_input", &input));
  TRY(TRITONBACKEND_InputProperties(
      input, NULL, &datatype, &shape, &prompt->rank, NULL, &buffer_count));
  if (datatype != TRITONSERVER_TYPE_BYTES || prompt->rank > RANK_MAX || buffer_count != 1) {
    return wrong("text_input must be one STRING");
  }
  TRY(TRITONBACKEND_InputBuffer(input, 0, &buffer, &byte_size, &memory_type, &memory_type_id));
  if (memory_type != TRITONSERVER_MEMORY_CPU || byte_size < sizeof prompt->byte_size) {
    return wrong("text_input must be one STRING");
  }
  /* The elements of a tensor of strings have their length in front. */
  memcpy(&prompt->byte_size, buffer, sizeof prompt->byte_size);
  if (byte_size - sizeof prompt->byte_size != prompt->byte_size) {
    return wrong("text_input must be one STRING");
  }
  prompt->text = (const char*)buffer + sizeof prompt->byte_size;
  memcpy(prompt->shape, shape, prompt->rank * sizeof *shape);
  return NULL;
}

/* Finds an optional input of one element: its bytes, or null if the request has none. */
static TRITONSERVER_Error*
read_optional(
    TRITONBACKEND_Request* request, const char* name, uint64_t byte_size, const void** element)
{
  TRITONBACKEND_Input* input;
  uint64_t size;
  TRITONSERVER_MemoryType memory_type;
  int64_t memory_type_id;
  *element = NULL;
  TRITONSERVER_Error* missing = TRITONBACKEND_RequestInput(request, name, &input);
  if (missing != NULL) {
    TRITONSERVER_ErrorDelete(missing);
    return NULL;
  }
  TRY(TRITONBACKEND_InputBuffer(input, 0, element, &size, &memory_type, &memory_type_id));
  const bool fits = memory_type == TRITONSERVER_MEMORY_CPU && size == byte_size;
  return fits ? NULL : wrong("max_tokens, stream and exclude_input_in_output are one element");
}

static TRITONSERVER_Error*
read_flag(TRITONBACKEND_Request* request, const char* name, bool* flag)
{
  const void* element;
  TRY(read_optional(request, name, 1, &element));
  *flag = element != NULL && *(const char*)element != 0;
  return NULL;
}

/* The next word of the prompt; the first after the last. A prompt without words is one. */
static struct piece
next_word(const struct prompt* prompt, uint32_t* position)
{
  uint32_t at = *position < prompt->byte_size ? *position : 0;
  const uint32_t start = at;
  while (at < prompt->byte_size && prompt->text[at] != ' ') {
    ++at;
  }
  *position = at;
  while (*position < prompt->byte_size && prompt->text[*position] == ' ') {
    ++*position;
  }
  return (struct piece){prompt->text + start, at - start};
}

static int32_t
word_count(const struct prompt* prompt)
{
  int32_t count = 0;
  for (uint32_t position = 0; position < prompt->byte_size && count < TOKENS_MAX; ++count) {
    next_word(prompt, &position);
  }
  return count;
}

static void
append(char** to, struct piece piece)
{
  memcpy(*to, piece.text, piece.byte_size);
  *to += piece.byte_size;
}

/* The words that follow, each with a space in front except for the first of the answer. */
struct answer {
  const struct prompt* prompt;
  TRITONBACKEND_ResponseFactory* factory;
  struct piece front;
  uint32_t position;
  bool has_begun;
};

static uint64_t
measure(struct answer answer, int32_t count)
{
  uint64_t byte_size = answer.front.byte_size;
  for (int32_t word = 0; word < count; ++word) {
    const bool is_first = !answer.has_begun && word == 0;
    byte_size += next_word(answer.prompt, &answer.position).byte_size + (is_first ? 0 : 1);
  }
  return byte_size;
}

static void
write_words(struct answer* answer, int32_t count, char* to)
{
  append(&to, answer->front);
  answer->front.byte_size = 0;
  for (int32_t word = 0; word < count; ++word) {
    if (answer->has_begun) {
      *to++ = ' ';
    }
    append(&to, next_word(answer->prompt, &answer->position));
    answer->has_begun = true;
  }
}

/* Sends the next words in one response. */
static TRITONSERVER_Error*
send_words(struct answer* answer, int32_t count)
{
  TRITONBACKEND_Response* response;
  void* buffer;
  const uint64_t byte_size = measure(*answer, count);
  TRY(TRITONBACKEND_ResponseNewFromFactory(&response, answer->factory));
  TRITONSERVER_Error* failed =
      byte_size > ANSWER_BYTES_MAX
          ? wrong("the answer is larger than 16 MiB")
          : add_output(
                response, "text_output", TRITONSERVER_TYPE_BYTES, answer->prompt->shape,
                answer->prompt->rank, sizeof(uint32_t) + byte_size, &buffer);
  if (failed == NULL) {
    const uint32_t length = (uint32_t)byte_size;
    memcpy(buffer, &length, sizeof length);
    write_words(answer, count, (char*)buffer + sizeof length);
  }
  return send_or_fail(response, failed);
}

static TRITONSERVER_Error*
respond(TRITONBACKEND_Request* request)
{
  struct prompt prompt;
  const void* max_tokens;
  bool is_stream;
  bool is_prompt_left_out;
  TRY(read_prompt(request, &prompt));
  TRY(read_optional(request, "max_tokens", sizeof(int32_t), &max_tokens));
  TRY(read_flag(request, "stream", &is_stream));
  TRY(read_flag(request, "exclude_input_in_output", &is_prompt_left_out));
  const int32_t count = max_tokens == NULL ? word_count(&prompt) : *(const int32_t*)max_tokens;
  if (count < 0 || count > TOKENS_MAX) {
    return wrong("max_tokens must be from 0 to 65536");
  }

  struct answer answer = {.prompt = &prompt, .front = {prompt.text, prompt.byte_size}};
  if (is_prompt_left_out) {
    answer.front.byte_size = 0;
  }
  answer.has_begun = answer.front.byte_size > 0;
  TRY(TRITONBACKEND_ResponseFactoryNew(&answer.factory, request));
  if (is_stream) {
    for (int32_t sent = 0; sent < count && !is_cancelled(answer.factory); ++sent) {
      log_error(send_words(&answer, 1));
    }
  } else {
    log_error(send_words(&answer, count));
  }
  end_responses(answer.factory);
  return TRITONBACKEND_ResponseFactoryDelete(answer.factory);
}

TRITONSERVER_Error*
TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests,
    uint32_t request_count)
{
  for (uint32_t index = 0; index < request_count; ++index) {
    const uint64_t start = now_ns();
    TRITONSERVER_Error* failed = respond(requests[index]);
    const uint64_t end = now_ns();
    log_error(TRITONBACKEND_ModelInstanceReportStatistics(
        instance, requests[index], failed == NULL, start, start, end, end));
    if (failed == NULL) {
      log_error(TRITONBACKEND_ModelInstanceReportBatchStatistics(
          instance, 1, start, start, end, end));
    } else {
      refuse(requests[index], failed);
    }
    log_error(TRITONBACKEND_RequestRelease(requests[index], TRITONSERVER_REQUEST_RELEASE_ALL));
  }
  return NULL;
}
