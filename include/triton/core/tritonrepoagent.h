/* SPDX-License-Identifier: Apache-2.0
 *
 * What repository agents in libraries call, and what they provide.
 *
 * Written by `cargo xtask headers` from the crate `abi`; not to be edited.
 */

#pragma once

#include "triton/core/tritonserver.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifndef TRITONREPOAGENT_DECLSPEC
#define TRITONREPOAGENT_DECLSPEC __attribute__((visibility("default")))
#endif
#ifndef TRITONREPOAGENT_ISPEC
#define TRITONREPOAGENT_ISPEC __attribute__((visibility("default")))
#endif

/* The version of this header. */
#define TRITONREPOAGENT_API_VERSION_MAJOR 0
#define TRITONREPOAGENT_API_VERSION_MINOR 1

/* Objects, known by their addresses alone. */
struct TRITONREPOAGENT_Agent;
typedef struct TRITONREPOAGENT_Agent TRITONREPOAGENT_Agent;
struct TRITONREPOAGENT_AgentModel;
typedef struct TRITONREPOAGENT_AgentModel TRITONREPOAGENT_AgentModel;

/* The kind of a model's artifacts. */
typedef enum TRITONREPOAGENT_ArtifactType {
  TRITONREPOAGENT_ARTIFACT_FILESYSTEM = 0,
  TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM = 1
} TRITONREPOAGENT_ArtifactType;

/* An action of which a repository agent is notified. */
typedef enum TRITONREPOAGENT_ActionType {
  TRITONREPOAGENT_ACTION_LOAD = 0,
  TRITONREPOAGENT_ACTION_LOAD_COMPLETE = 1,
  TRITONREPOAGENT_ACTION_LOAD_FAIL = 2,
  TRITONREPOAGENT_ACTION_UNLOAD = 3,
  TRITONREPOAGENT_ACTION_UNLOAD_COMPLETE = 4
} TRITONREPOAGENT_ActionType;

/* What the server provides. */

TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_ApiVersion(
    uint32_t* major,
    uint32_t* minor);

TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelRepositoryLocation(
    TRITONREPOAGENT_Agent* agent,
    TRITONREPOAGENT_AgentModel* model,
    TRITONREPOAGENT_ArtifactType* artifact_type,
    const char** location);

TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelRepositoryLocationAcquire(
    TRITONREPOAGENT_Agent* agent,
    TRITONREPOAGENT_AgentModel* model,
    TRITONREPOAGENT_ArtifactType artifact_type,
    const char** location);

TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelRepositoryLocationRelease(
    TRITONREPOAGENT_Agent* agent,
    TRITONREPOAGENT_AgentModel* model,
    const char* location);

TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelRepositoryUpdate(
    TRITONREPOAGENT_Agent* agent,
    TRITONREPOAGENT_AgentModel* model,
    TRITONREPOAGENT_ArtifactType artifact_type,
    const char* location);

TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelParameterCount(
    TRITONREPOAGENT_Agent* agent,
    TRITONREPOAGENT_AgentModel* model,
    uint32_t* count);

TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelParameter(
    TRITONREPOAGENT_Agent* agent,
    TRITONREPOAGENT_AgentModel* model,
    uint32_t index,
    const char** parameter_name,
    const char** parameter_value);

TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelConfig(
    TRITONREPOAGENT_Agent* agent,
    TRITONREPOAGENT_AgentModel* model,
    uint32_t config_version,
    TRITONSERVER_Message** model_config);

TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelState(
    TRITONREPOAGENT_AgentModel* model,
    void** state);

TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelSetState(
    TRITONREPOAGENT_AgentModel* model,
    void* state);

TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_State(
    TRITONREPOAGENT_Agent* agent,
    void** state);

TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_SetState(
    TRITONREPOAGENT_Agent* agent,
    void* state);

/* What the library that is loaded provides. */

TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_Initialize(
    TRITONREPOAGENT_Agent* agent);

TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_Finalize(
    TRITONREPOAGENT_Agent* agent);

TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelInitialize(
    TRITONREPOAGENT_Agent* agent,
    TRITONREPOAGENT_AgentModel* model);

TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelFinalize(
    TRITONREPOAGENT_Agent* agent,
    TRITONREPOAGENT_AgentModel* model);

TRITONREPOAGENT_ISPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelAction(
    TRITONREPOAGENT_Agent* agent,
    TRITONREPOAGENT_AgentModel* model,
    TRITONREPOAGENT_ActionType action_type);

#ifdef __cplusplus
}
#endif
