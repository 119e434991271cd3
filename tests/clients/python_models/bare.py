"""Uses the whole interface without numpy: returns its input in the way that WAY selects."""

import asyncio
import json
import sys
import threading

import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        for add in (config.add_input, config.add_output):
            add({"name": "DATA", "data_type": "TYPE_FP32", "dims": [-1]})
        config.set_max_batch_size(0)
        return config

    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.called = parameters["called"]["string_value"]
        family = pb_utils.MetricFamily(
            name=args["model_name"], description="requests", kind=pb_utils.MetricFamily.COUNTER
        )
        self.families = [family]
        self.counter = family.Metric(labels={})
        self.about = {
            "python": "%d.%d.%d" % sys.version_info[:3],
            "gil": getattr(sys, "_is_gil_enabled", lambda: True)(),
            "numpy": "numpy" in sys.modules,
        }

    async def execute(self, requests):
        return await asyncio.gather(*map(self.serve, requests))

    async def serve(self, request):
        self.counter.increment(1)
        if not self.called:
            return self.return_it(request)
        call = pb_utils.InferenceRequest(
            model_name=self.called, requested_output_names=["DATA"], inputs=request.inputs()
        )
        response = await call.async_exec()
        if response.has_error():
            return response
        pb_utils.Logger.log_info(f"{self.called} answered")
        return pb_utils.InferenceResponse(response.output_tensors(), parameters=self.about)

    def return_it(self, request):
        """Uses a thread that is unrelated to the server's threads."""
        sender = request.get_response_sender()
        response = pb_utils.InferenceResponse(request.inputs())
        thread = threading.Thread(target=sender.send, args=(response, FINAL))
        thread.start()
        thread.join()

    def finalize(self):
        pb_utils.Logger.log_info("bare: finalized")
