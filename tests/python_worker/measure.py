"""Measures a worker's cost: its process's CPU time per request, start time and memory.

Run it as a program: ``python measure.py [INTERPRETER]``.
"""

import os
import struct
import sys
import tempfile
import time

import harness
from harness import EXECUTE, Tensor, fp32, request
from test_execute import IDENTITY
from test_failures import model

SENDER = model("""sender = requests[0].get_response_sender()
                for _ in range(1000):
                    sender.send(pb_utils.InferenceResponse([tensor]))
                sender.send(flags=1)""", """import numpy as np
        tensor = pb_utils.Tensor("OUT", np.ones(1, np.int32))""")


def cpu_ns(pid):
    """The CPU time of all threads of a process."""
    folder = f"/proc/{pid}/task"
    return sum(int(open(f"{folder}/{task}/schedstat").read().split()[0])
               for task in os.listdir(folder))


def started(python, source, decoupled=False):
    folder = tempfile.mkdtemp()
    worker = harness.Worker(python)
    answer = worker.initialize(harness.write_model(folder, source), decoupled=decoupled)
    assert answer[0] == "ok", answer
    return worker


def per_request(worker, payload, count):
    """The worker's CPU time and the elapsed time per execution, in microseconds."""
    body = struct.pack("<IB", len(payload) + 5, EXECUTE) + struct.pack("<I", 1) + payload

    def run(times):
        for _ in range(times):
            worker.a.sendall(body)
            worker.results.recv(65536)

    run(count // 10)
    cpu, wall = cpu_ns(worker.process.pid), time.perf_counter_ns()
    run(count)
    return ((cpu_ns(worker.process.pid) - cpu) / count / 1000,
            (time.perf_counter_ns() - wall) / count / 1000)


def main():
    python = sys.argv[1] if len(sys.argv) > 1 else None
    begin = time.perf_counter()
    worker = harness.Worker(python)
    print(f"start until HELLO: {(time.perf_counter() - begin) * 1000:.1f} ms")
    worker.close()
    worker = started(python, "class TritonPythonModel: pass")
    with open(f"/proc/{worker.process.pid}/smaps_rollup") as rollup:
        sizes = {line.split()[0]: line.split()[1] for line in rollup if "kB" in line}
    print(f"idle, no numpy: Rss {sizes['Rss:']} kB, Pss {sizes['Pss:']} kB")
    worker.close()
    worker = started(python, IDENTITY)
    for _ in range(3):
        print("identity of 16 FP32: %.1f us CPU, %.1f us wall" % per_request(
            worker, request(7, [fp32("IN", [1.0] * 16)]), 20000))
    worker.inputs[:1 << 20] = os.urandom(1 << 20)
    block = Tensor("IN", "FP32", [1 << 18], place=1, offset=0, length=1 << 20)
    print("identity of 1 MiB: %.1f us CPU, %.1f us wall" % per_request(
        worker, request(7, [block]), 5000))
    worker.close()
    worker = started(python, IDENTITY.replace(".as_numpy()", ".as_numpy() * 2"))
    print("1 MiB times two: %.1f us CPU, %.1f us wall" % per_request(
        worker, request(7, [block]), 2000))
    worker.close()
    worker = started(python, SENDER, decoupled=True)
    cpu, wall = cpu_ns(worker.process.pid), time.perf_counter_ns()
    for key in range(1, 21):
        worker.send_requests(request(key, []))
        rest = 1001 * 4
        frames = 0
        buffered = bytearray()
        while frames < 1001:
            buffered += worker.b.recv(1 << 20)
            at = 0
            while at + 4 <= len(buffered):
                size = struct.unpack_from("<I", buffered, at)[0] + 4
                if at + size > len(buffered):
                    break
                at += size
                frames += 1
            del buffered[:at]
        worker.result()
    del rest
    print("response of a sender: %.1f us CPU, %.1f us wall" % (
        (cpu_ns(worker.process.pid) - cpu) / 20020 / 1000,
        (time.perf_counter_ns() - wall) / 20020 / 1000))
    worker.close()


if __name__ == "__main__":
    main()
