/* A repository agent that records its calls in a journal, the file that the
 * environment variable JOURNAL names. The model's parameters are
 *
 *   name    is in every line
 *   fail    the call that fails, such as LOAD
 *   move    the directory that the model is moved to
 *   acquire moves the model to a new directory, a copy of the directory given
 *   misuse  makes forbidden calls on LOAD
 *
 * Each model that the agent is called for has a number, so that the journal distinguishes
 * the old and the new one of a reload. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "triton/core/tritonrepoagent.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct model {
  int number;
  const char* name;
  const char* fail;
};

static const char* const ACTIONS[] = {
    "LOAD", "LOAD_COMPLETE", "LOAD_FAIL", "UNLOAD", "UNLOAD_COMPLETE"};

static void record(const char* format, ...) {
  const char* path = getenv("JOURNAL");
  if (path == NULL) return;
  pthread_mutex_lock(&lock);
  FILE* file = fopen(path, "a");
  if (file != NULL) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    fputc('\n', file);
    fclose(file);
  }
  pthread_mutex_unlock(&lock);
}

/* Records the result of a call and deletes its error. */
static void record_result(const struct model* model, const char* what, TRITONSERVER_Error* error) {
  record("%d %s %s: %s", model->number, model->name, what,
       error == NULL ? "allowed" : TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
}

static TRITONSERVER_Error* refuse(const struct model* model, const char* what) {
  char text[200];
  if (model->fail == NULL || strcmp(model->fail, what) != 0) return NULL;
  snprintf(text, sizeof text, "the journal '%s' refuses %s", model->name, what);
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, text);
}

static const char* parameter(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const char* name) {
  uint32_t count = 0;
  TRITONSERVER_ErrorDelete(TRITONREPOAGENT_ModelParameterCount(agent, model, &count));
  for (uint32_t index = 0; index < count; ++index) {
    const char *key = NULL, *value = NULL;
    TRITONSERVER_ErrorDelete(TRITONREPOAGENT_ModelParameter(agent, model, index, &key, &value));
    if (key != NULL && strcmp(key, name) == 0) return value;
  }
  return NULL;
}

/* The line of the configuration with the largest batch. */
static int batch_size(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model) {
  TRITONSERVER_Message* message = NULL;
  const char* base = NULL;
  size_t size = 0;
  int found = -1;
  TRITONSERVER_ErrorDelete(TRITONREPOAGENT_ModelConfig(agent, model, 1, &message));
  if (message == NULL) return found;
  TRITONSERVER_ErrorDelete(TRITONSERVER_MessageSerializeToJson(message, &base, &size));
  char* text = strndup(base, size);
  const char* key = strstr(text, "\"max_batch_size\":");
  if (key != NULL) found = atoi(key + strlen("\"max_batch_size\":"));
  free(text);
  TRITONSERVER_ErrorDelete(TRITONSERVER_MessageDelete(message));
  return found;
}

TRITONSERVER_Error* TRITONREPOAGENT_Initialize(TRITONREPOAGENT_Agent* agent) {
  int* models = calloc(1, sizeof(int));
  record("begin");
  return TRITONREPOAGENT_SetState(agent, models);
}

TRITONSERVER_Error* TRITONREPOAGENT_Finalize(TRITONREPOAGENT_Agent* agent) {
  void* models = NULL;
  TRITONSERVER_ErrorDelete(TRITONREPOAGENT_State(agent, &models));
  free(models);
  record("end");
  return NULL;
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelInitialize(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* agent_model) {
  static int numbers;
  struct model* model = calloc(1, sizeof *model);
  void* models = NULL;
  TRITONSERVER_ErrorDelete(TRITONREPOAGENT_State(agent, &models));
  pthread_mutex_lock(&lock);
  model->number = models == NULL ? 0 : ++numbers;
  pthread_mutex_unlock(&lock);
  model->name = parameter(agent, agent_model, "name");
  model->fail = parameter(agent, agent_model, "fail");
  if (model->name == NULL) model->name = "?";
  TRITONSERVER_ErrorDelete(TRITONREPOAGENT_ModelSetState(agent_model, model));
  record("%d %s INITIALIZE", model->number, model->name);
  return refuse(model, "INITIALIZE");
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelFinalize(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* agent_model) {
  void* state = NULL;
  (void)agent;
  TRITONSERVER_ErrorDelete(TRITONREPOAGENT_ModelState(agent_model, &state));
  struct model* model = state;
  record("%d %s FINALIZE", model->number, model->name);
  TRITONSERVER_Error* error = refuse(model, "FINALIZE");
  free(model);
  return error;
}

static void misuse(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* agent_model, struct model* model) {
  const char *location = NULL, *again = NULL;
  const char *key = NULL, *value = NULL;
  TRITONSERVER_Message* message = NULL;
  record_result(model, "release of nothing",
          TRITONREPOAGENT_ModelRepositoryLocationRelease(agent, agent_model, "/"));
  record_result(model, "a remote place",
          TRITONREPOAGENT_ModelRepositoryLocationAcquire(
              agent, agent_model, TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM, &location));
  record_result(model, "parameter 99",
          TRITONREPOAGENT_ModelParameter(agent, agent_model, 99, &key, &value));
  record_result(model, "configuration 2",
          TRITONREPOAGENT_ModelConfig(agent, agent_model, 2, &message));
  record_result(model, "acquire", TRITONREPOAGENT_ModelRepositoryLocationAcquire(
                                agent, agent_model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM,
                                &location));
  record_result(model, "acquire again", TRITONREPOAGENT_ModelRepositoryLocationAcquire(
                                      agent, agent_model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM,
                                      &again));
  record("%d %s the same: %d", model->number, model->name, strcmp(location, again) == 0);
  record_result(model, "release", TRITONREPOAGENT_ModelRepositoryLocationRelease(
                                agent, agent_model, location));
}

static TRITONSERVER_Error* load(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* agent_model, struct model* model) {
  TRITONREPOAGENT_ArtifactType type = 7;
  const char* location = "?";
  TRITONSERVER_Error* error =
      TRITONREPOAGENT_ModelRepositoryLocation(agent, agent_model, &type, &location);
  if (error != NULL) return error;
  const char* folder = strrchr(location, '/');
  record("%d %s sees type %d batches of %d%s%s", model->number, model->name, (int)type,
       batch_size(agent, agent_model), getenv("JOURNAL_FOLDERS") ? " in " : "",
       getenv("JOURNAL_FOLDERS") ? folder + 1 : "");
  if (parameter(agent, agent_model, "misuse") != NULL) misuse(agent, agent_model, model);
  const char* move = parameter(agent, agent_model, "move");
  const char* acquire = parameter(agent, agent_model, "acquire");
  if (acquire != NULL) {
    char command[4000];
    error = TRITONREPOAGENT_ModelRepositoryLocationAcquire(
        agent, agent_model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, &move);
    if (error != NULL) return error;
    snprintf(command, sizeof command, "cp -r '%s'/. '%s'/", acquire, move);
    if (system(command) != 0) {
      return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "can't copy");
    }
  }
  if (move == NULL) return NULL;
  return TRITONREPOAGENT_ModelRepositoryUpdate(
      agent, agent_model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, move);
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelAction(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* agent_model,
    const TRITONREPOAGENT_ActionType action) {
  void* state = NULL;
  TRITONSERVER_ErrorDelete(TRITONREPOAGENT_ModelState(agent_model, &state));
  struct model* model = state;
  record("%d %s %s", model->number, model->name, ACTIONS[action]);
  TRITONSERVER_Error* error = refuse(model, ACTIONS[action]);
  if (error != NULL) return error;
  if (action == TRITONREPOAGENT_ACTION_LOAD) return load(agent, agent_model, model);
  if (parameter(agent, agent_model, "misuse") != NULL) {
    record_result(model, "a late move",
            TRITONREPOAGENT_ModelRepositoryUpdate(
                agent, agent_model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, "/"));
  }
  return NULL;
}
