"""Calls other models as WAY selects, and returns JSON."""

import asyncio
import json

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        way = pb_utils.get_input_tensor_by_name(request, "WAY").as_numpy().flat[0].decode()
        argument = pb_utils.get_input_tensor_by_name(request, "ARGUMENT").as_numpy()
        try:
            if way == "traced":
                result = contents(call(argument.flat[0].decode(), trace=request.trace()).exec())
            else:
                result = getattr(self, way)(argument.flat[0].decode())
        except pb_utils.TritonModelException as error:
            result = {"raised": str(error)}
        text = numpy.array([json.dumps(result).encode()], numpy.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)])

    def sync(self, model):
        return contents(call(model).exec())

    def many(self, model):
        return [contents(call(model, first=number).exec()) for number in range(50)]

    def concurrent(self, model):
        async def gather():
            calls = [call(model, first=number).async_exec() for number in range(20)]
            return await asyncio.gather(*calls)

        return [contents(response) for response in asyncio.run(gather())]

    def large(self, model):
        values = numpy.arange(4_000_000, dtype=numpy.float32).reshape(1, -1)
        tensors = [pb_utils.Tensor("INPUT0", values), pb_utils.Tensor("INPUT1", values)]
        response = request_to(model, tensors, ["OUTPUT0"]).exec()
        (output,) = response.output_tensors()
        return bool((output.as_numpy() == values + values).all())

    def parameters(self, model):
        tensors = [pb_utils.Tensor("IN", numpy.array([1.5], numpy.float32))]
        response = request_to(
            model,
            tensors,
            ["OUT"],
            request_id="inner",
            correlation_id=9,
            flags=pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
            timeout=5_000_000,
            parameters={"text": "é", "number": -3, "yes": True},
        ).exec()
        if response.has_error():
            return {"error": response.error().message()}
        (output,) = response.output_tensors()
        return json.loads(output.as_numpy()[0])

    def preferred(self, model):
        memory = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0)
        return contents(call(model, preferred_memory=memory).exec())

    def missing_input(self, model):
        tensors = [pb_utils.Tensor("INPUT0", numpy.ones((1, 1), numpy.float32))]
        return contents(request_to(model, tensors, ["OUTPUT0"]).exec())

    def unknown_output(self, model):
        return contents(call(model, outputs=["NOBODY"]).exec())

    def version(self, model):
        return contents(call(model, model_version=7).exec())

    def error(self, way):
        tensors = [pb_utils.Tensor("IN", numpy.array([[way.encode()]], numpy.object_))]
        return contents(request_to("errors", tensors, ["OUT"]).exec())

    def separate_flag(self, model):
        tensors = [pb_utils.Tensor("IN", numpy.array([1, 2, 3], numpy.int32))]
        return contents(request_to(model, tensors, ["OUT"]).exec())

    def decoupled(self, way):
        return [contents(response) for response in repeat(way).exec(decoupled=True)]

    def decoupled_concurrent(self, way):
        async def gather():
            calls = [repeat(way).async_exec(decoupled=True) for _ in range(5)]
            return await asyncio.gather(*calls)

        return [[contents(one) for one in responses] for responses in asyncio.run(gather())]

    def decoupled_called_plainly(self, way):
        return contents(repeat(way).exec())

    def decoupled_of(self, model):
        return [contents(response) for response in call(model).exec(decoupled=True)]

    def control(self, model):
        result = {"before": pb_utils.is_model_ready(model)}
        pb_utils.load_model(model)
        result["loaded"] = pb_utils.is_model_ready(model)
        result["version"] = pb_utils.is_model_ready(model, "1")
        result["other_version"] = pb_utils.is_model_ready(model, "2")
        result["response"] = contents(call(model).exec())
        pb_utils.unload_model(model)
        return result

    def load_configured(self, model):
        config = {
            "backend": "python",
            "max_batch_size": 16,
            "input": [
                {"name": name, "data_type": "TYPE_FP32", "dims": [-1]}
                for name in ("INPUT0", "INPUT1")
            ],
            "output": [
                {"name": name, "data_type": "TYPE_FP32", "dims": [-1]}
                for name in ("OUTPUT0", "OUTPUT1")
            ],
        }
        pb_utils.load_model(model_name=model, config=json.dumps(config))
        return pb_utils.is_model_ready(model_name=model)

    def load(self, model):
        pb_utils.load_model(model)
        return pb_utils.is_model_ready(model)

    def ready(self, model):
        return pb_utils.is_model_ready(model)

    def unload(self, model):
        pb_utils.unload_model(model)
        return True


def request_to(model, inputs, outputs, **options):
    return pb_utils.InferenceRequest(
        model_name=model, requested_output_names=outputs, inputs=inputs, **options
    )


def call(model, first=1.0, outputs=("OUTPUT0", "OUTPUT1"), **options):
    a = numpy.array([[first, 2]], numpy.float32)
    b = numpy.array([[10, 20]], numpy.float32)
    tensors = [pb_utils.Tensor("INPUT0", a), pb_utils.Tensor("INPUT1", b)]
    return request_to(model, tensors, list(outputs), **options)


def repeat(way):
    tensors = [
        pb_utils.Tensor("IN", numpy.array([4, 5, 6], numpy.int32)),
        pb_utils.Tensor("WAY", numpy.array([way.encode()], numpy.object_)),
    ]
    return request_to("repeat", tensors, ["OUT"])


def contents(response):
    if response.has_error():
        return {"error": response.error().message()}
    return {one.name(): one.as_numpy().tolist() for one in response.output_tensors()}
