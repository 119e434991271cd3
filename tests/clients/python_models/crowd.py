"""Follows the `way` parameter of a request, in the mode that the configuration specifies.

It doesn't need numpy, so its worker starts quickly.
"""

import asyncio
import json
import os
import signal
import threading
import time

import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
SLOW_SECONDS = 0.01


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        mode = config["parameters"]["mode"]["string_value"]
        self.execute = getattr(self, mode)

    def plain(self, requests):
        return [answer(request, act(way_of(request))) for request in requests]

    async def waiting(self, requests):
        found = []
        for request in requests:
            way = way_of(request)
            if way == "slow":
                await asyncio.sleep(SLOW_SECONDS)  # sleep: slow requests overlap with others
            found.append(answer(request, act(way if way != "slow" else "good")))
        return found

    def calls(self, requests):
        found = []
        for request in requests:
            way = way_of(request)
            call = pb_utils.InferenceRequest(
                model_name="callee",
                requested_output_names=["OUT"],
                inputs=request.inputs(),
                parameters={"way": "good" if way == "kill" else way},
            )
            reply = call.exec()
            act("kill" if way == "kill" else "good")
            found.append(reply if reply.has_error() else answer(request, None))
        return found

    def decoupled(self, requests):
        for request in requests:
            way = way_of(request)
            sender = request.get_response_sender()
            if way == "slow":
                threading.Thread(target=send, args=(request, sender, way)).start()
            else:
                send(request, sender, way)

    async def background(self, requests):
        for request in requests:
            way = way_of(request)
            if way == "slow":
                await asyncio.sleep(SLOW_SECONDS)  # sleep: slow requests overlap with others
            send(request, request.get_response_sender(), way)


def way_of(request):
    return json.loads(request.parameters()).get("way", "good")


def act(way):
    """Dies, fails, or is slow."""
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "slow":
        time.sleep(SLOW_SECONDS)  # sleep: slow requests overlap with others
    return pb_utils.TritonError("asked to fail") if way == "fail" else None


def answer(request, error):
    if error is not None:
        return pb_utils.InferenceResponse(error=error)
    output = pb_utils.Tensor.from_dlpack("OUT", request.inputs()[0])
    return pb_utils.InferenceResponse([output])


def send(request, sender, way):
    """Sends three responses, and the end separately. A worker that dies does so in
    between."""
    for number in range(3):
        if number == 1:
            error = act(way)
            if error is not None:
                sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
                return
        sender.send(answer(request, None))
    sender.send(flags=FINAL)
