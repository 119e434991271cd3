"""Tests of `async def execute`."""

import pytest
from harness import LOG, request
from test_failures import failure


def test_awaited_where_not_decoupled(load):
    worker = load("""
        import asyncio
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            async def execute(self, requests):
                await asyncio.sleep(0)
                return [pb_utils.InferenceResponse(parameters={"n": i})
                        for i in range(len(requests))]
    """)
    assert worker.answer["async"] is True
    result = worker.execute(request(1, []), request(2, []))
    assert [entry["response"]["parameters"] for entry in result["requests"]] == [
        '{"n": 0}', '{"n": 1}']


def test_exception_where_not_decoupled(load):
    worker = load("""
        import asyncio

        class TritonPythonModel:
            async def execute(self, requests):
                await asyncio.sleep(0)
                raise ValueError("bad")
    """)
    assert failure(worker).startswith(
        f"ValueError: bad\n\nAt:\n  {worker.path}(7): execute\n")


def test_many_requests_in_flight_where_decoupled(load):
    worker = load("""
        import asyncio
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            here = []

            async def execute(self, requests):
                self.here.append(asyncio.get_running_loop().create_future())
                mine = self.here[-1]
                if len(self.here) == 3:
                    for future in self.here:
                        future.set_result(None)
                await mine
                requests[0].get_response_sender().send(pb_utils.InferenceResponse(), 1)
    """, decoupled=True)
    for key in (1, 2, 3):
        assert worker.execute(request(key, []))["outcome"] == 1
    assert sorted(worker.read_response()[0] for _ in range(3)) == [1, 2, 3]
    assert worker.finalize() == 0


def test_exception_where_decoupled_is_logged_and_ends_the_request(load):
    worker = load("""
        class TritonPythonModel:
            async def execute(self, requests):
                raise ValueError("in the background")
    """, decoupled=True)
    assert worker.execute(request(4, []))["outcome"] == 1
    seen = {}
    for _ in range(2):
        kind, cursor = worker.read_b()
        seen[kind] = cursor
    cursor = seen[LOG]
    assert cursor.take("B") == 3
    cursor.text(), cursor.take("I")
    text = cursor.text()
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.endswith("ValueError: in the background\n") and worker.path in text
    assert seen[2].take("QI") == (4, 1)


def test_coroutine_of_is_ready(load):
    worker = load("""
        class TritonPythonModel:
            async def is_ready(self):
                return False

            def execute(self, requests):
                pass
    """)
    assert worker.answer["is_ready"] is True
    assert worker.is_ready() is False


@pytest.mark.numpy
def test_inputs_of_a_background_task_are_released_at_its_end(load, tmp_path):
    import struct
    from test_execute import block
    go_on = tmp_path / "go_on"
    worker = load(f"""
        import asyncio
        import os
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            async def execute(self, requests):
                array = requests[0].inputs()[0].as_numpy()
                while not os.path.exists({str(go_on)!r}):
                    await asyncio.sleep(0.001)  # sleep: polls until the test lets it go on
                requests[0].get_response_sender().send(pb_utils.InferenceResponse(
                    parameters={{"sum": int(array.sum())}}), 1)
    """, decoupled=True)
    content = struct.pack("<8192f", *[1] * 8192)
    assert worker.execute(request(1, [block(worker, content)]))["released"] == []
    go_on.touch()
    assert worker.read_response()[2]["parameters"] == '{"sum": 8192}'
    cursor = worker.expect_b(5)
    assert (cursor.take("I"), cursor.take("Q")) == (1, 4096)
