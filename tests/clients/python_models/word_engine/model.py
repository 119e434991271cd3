"""A Python backend around an engine that forms batches itself, as those for language models
do.

`execute` only passes requests on. The engine's event loop creates their responses, and a
second thread sends those of streams.
"""

import json
import os
import queue
import threading

import numpy
import triton_python_backend_utils as pb_utils
from engine import Engine

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    @classmethod
    def auto_complete_config(cls, config):
        known = [one["name"] for one in config.as_dict()["input"]]
        for name, kind, optional in [
            ("text_input", "TYPE_STRING", False),
            ("stream", "TYPE_BOOL", True),
            ("count", "TYPE_INT32", True),
        ]:
            if name not in known:
                config.add_input(
                    {"name": name, "data_type": kind, "dims": [1], "optional": optional}
                )
        config.add_output({"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1]})
        config.set_model_transaction_policy({"decoupled": True})
        config.set_max_batch_size(0)
        return config

    def initialize(self, args):
        self.name = args["model_name"]
        assert args["model_instance_kind"] == "MODEL", args
        with open(os.path.join(pb_utils.get_model_dir(), "engine.json")) as file:
            self.settings = json.load(file)
        labels = {"model": self.name}
        self.families = [
            pb_utils.MetricFamily(
                name=f"words:{name}", description=name, kind=pb_utils.MetricFamily.COUNTER
            )
            for name in ("prompts_total", "cancelled_total")
        ]
        self.prompts, self.cancelled = (one.Metric(labels=labels) for one in self.families)
        self.engine = Engine()
        self.responses = queue.Queue()
        self.sending = threading.Thread(target=self.send_all)
        self.sending.start()

    def execute(self, requests):
        for request in requests:
            if self.settings.get("sick"):
                self.refuse(request)
            else:
                self.engine.start(self.serve(request))
        return None

    def refuse(self, request):
        pb_utils.unload_model(self.name)
        error = pb_utils.TritonError("the engine is sick", pb_utils.TritonError.UNAVAILABLE)
        response = pb_utils.InferenceResponse(error=error)
        request.get_response_sender().send(response, flags=FINAL)

    async def serve(self, request):
        sender = request.get_response_sender()
        self.prompts.increment(1)
        try:
            await self.generate(request, sender)
        except RuntimeError as error:
            failed = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
            sender.send(failed, flags=FINAL)

    async def generate(self, request, sender):
        prompt = self.value(request, "text_input", b"").decode()
        streams = self.value(request, "stream", False)
        count = json.loads(request.parameters()).get("count", 1)
        words = []
        async for word, is_last in self.engine.generate(
            prompt, int(self.value(request, "count", count))
        ):
            if sender.is_cancelled():
                self.cancelled.increment(1)
                error = pb_utils.TritonError("cancelled", pb_utils.TritonError.CANCELLED)
                sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
                return
            words.append(word)
            if streams:
                self.responses.put((sender, self.response(word), FINAL if is_last else 0))
        if not streams:
            sender.send(self.response(*words), flags=FINAL)

    @staticmethod
    def value(request, name, default):
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        return tensor.as_numpy()[0] if tensor else default

    @staticmethod
    def response(*words):
        text = numpy.array([" ".join(words).encode()], numpy.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)])

    def send_all(self):
        while True:
            item = self.responses.get()
            if item is None:
                return
            sender, response, flags = item
            sender.send(response, flags)

    def finalize(self):
        self.engine.stop()
        self.responses.put(None)
        self.sending.join()
        pb_utils.Logger.log_info(f"{self.name}: all threads have ended")
