/* A repository agent that generates a model from files that cannot be loaded directly: each
 * byte of a file whose name ends in ".masked" is combined with the parameter "key". The
 * result is written, with all other files, to a new directory, and the model is loaded from
 * there. A mask is not a cipher; real agents would use one.
 *
 *   model_repository_agents {
 *     agents { name: "unmask" parameters { key: "key" value: "42" } }
 *   }
 *
 * The configuration must not be masked, because it names the agent. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "triton/core/tritonrepoagent.h"

#define RETURN_IF_ERROR(CALL)                \
  do {                                       \
    TRITONSERVER_Error* error_ = (CALL);     \
    if (error_ != NULL) return error_;       \
  } while (0)

static const char SUFFIX[] = ".masked";

static TRITONSERVER_Error* failed(const char* path) {
  char text[PATH_MAX + 100];
  snprintf(text, sizeof text, "can't unmask '%s': %s", path, strerror(errno));
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, text);
}

/* Copies a file; the key is 0 if the file is not masked. */
static TRITONSERVER_Error* copy_file(const char* from, const char* to, unsigned char key) {
  FILE* input = fopen(from, "rb");
  if (input == NULL) return failed(from);
  FILE* output = fopen(to, "wb");
  TRITONSERVER_Error* error = output == NULL ? failed(to) : NULL;
  unsigned char buffer[65536];
  size_t size;
  while (error == NULL && (size = fread(buffer, 1, sizeof buffer, input)) > 0) {
    for (size_t index = 0; index < size; ++index) buffer[index] ^= key;
    if (fwrite(buffer, 1, size, output) != size) error = failed(to);
  }
  if (error == NULL && ferror(input)) error = failed(from);
  fclose(input);
  if (output != NULL && fclose(output) != 0 && error == NULL) error = failed(to);
  return error;
}

static TRITONSERVER_Error* copy_directory(const char* from, const char* to, unsigned char key);

static TRITONSERVER_Error* copy_entry(
    const char* from, const char* to, const char* name, unsigned char key) {
  char source[PATH_MAX], target[PATH_MAX];
  struct stat status;
  size_t length = strlen(name), suffix = strlen(SUFFIX);
  int masked = length > suffix && strcmp(name + length - suffix, SUFFIX) == 0;
  int kept = (int)(masked ? length - suffix : length);
  int source_length = snprintf(source, sizeof source, "%s/%s", from, name);
  int target_length = snprintf(target, sizeof target, "%s/%.*s", to, kept, name);
  if (source_length >= (int)sizeof source || target_length >= (int)sizeof target) {
    errno = ENAMETOOLONG;
    return failed(name);
  }
  if (stat(source, &status) != 0) return failed(source);
  if (!S_ISDIR(status.st_mode)) return copy_file(source, target, masked ? key : 0);
  if (mkdir(target, 0700) != 0) return failed(target);
  return copy_directory(source, target, key);
}

static TRITONSERVER_Error* copy_directory(const char* from, const char* to, unsigned char key) {
  DIR* directory = opendir(from);
  if (directory == NULL) return failed(from);
  TRITONSERVER_Error* error = NULL;
  struct dirent* entry;
  while (error == NULL && (entry = readdir(directory)) != NULL) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    error = copy_entry(from, to, entry->d_name, key);
  }
  closedir(directory);
  return error;
}

/* Reads the agent's only parameter. */
static TRITONSERVER_Error* find_key(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, unsigned char* key) {
  uint32_t count = 0;
  RETURN_IF_ERROR(TRITONREPOAGENT_ModelParameterCount(agent, model, &count));
  for (uint32_t index = 0; index < count; ++index) {
    const char *name, *value;
    char* end;
    RETURN_IF_ERROR(TRITONREPOAGENT_ModelParameter(agent, model, index, &name, &value));
    long number = strtol(value, &end, 10);
    if (strcmp(name, "key") == 0 && *value != '\0' && *end == '\0' && number >= 0 &&
        number <= 255) {
      *key = (unsigned char)number;
      return NULL;
    }
  }
  return TRITONSERVER_ErrorNew(
      TRITONSERVER_ERROR_INVALID_ARG, "unmask needs the parameter 'key', a number up to 255");
}

TRITONSERVER_Error* TRITONREPOAGENT_Initialize(TRITONREPOAGENT_Agent* agent) {
  uint32_t major = 0, minor = 0;
  (void)agent;
  RETURN_IF_ERROR(TRITONREPOAGENT_ApiVersion(&major, &minor));
  if (major != TRITONREPOAGENT_API_VERSION_MAJOR || minor < TRITONREPOAGENT_API_VERSION_MINOR) {
    return TRITONSERVER_ErrorNew(
        TRITONSERVER_ERROR_UNSUPPORTED, "the server's API is not the one of unmask");
  }
  return NULL;
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelAction(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model,
    const TRITONREPOAGENT_ActionType action) {
  TRITONREPOAGENT_ArtifactType type;
  const char *from, *to;
  unsigned char key;
  if (action != TRITONREPOAGENT_ACTION_LOAD) return NULL;
  RETURN_IF_ERROR(find_key(agent, model, &key));
  RETURN_IF_ERROR(TRITONREPOAGENT_ModelRepositoryLocation(agent, model, &type, &from));
  if (type != TRITONREPOAGENT_ARTIFACT_FILESYSTEM) {
    return TRITONSERVER_ErrorNew(
        TRITONSERVER_ERROR_UNSUPPORTED, "unmask needs a model in a local directory");
  }
  RETURN_IF_ERROR(TRITONREPOAGENT_ModelRepositoryLocationAcquire(
      agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, &to));
  RETURN_IF_ERROR(copy_directory(from, to, key));
  return TRITONREPOAGENT_ModelRepositoryUpdate(
      agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, to);
}

/* The directory is not needed any more. */
TRITONSERVER_Error* TRITONREPOAGENT_ModelFinalize(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model) {
  /* There is no directory if the model was refused before; this is not an error. */
  TRITONSERVER_ErrorDelete(TRITONREPOAGENT_ModelRepositoryLocationRelease(agent, model, ""));
  return NULL;
}
