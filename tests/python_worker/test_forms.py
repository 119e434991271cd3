"""Tests of repeated frames, which are read using what is known from the first one."""

import struct
import sys

import pytest
from harness import WORKER

sys.path.insert(0, str(WORKER))

from galatea_worker import arrays, wire  # noqa: E402
from galatea_worker.errors import WireError  # noqa: E402
from galatea_worker.forms import _FORMS_MAX, _PAUSE, Forms  # noqa: E402
from galatea_worker.numbers import EXECUTE  # noqa: E402
from galatea_worker.request import Own, get_requests  # noqa: E402
from galatea_worker.tensor import Tensor  # noqa: E402

np = pytest.importorskip("numpy")
arrays.load()
OWN = Own("m", 1, frozenset({"OUT"}))


def encoded(*tensors):
    parts = [wire.pack_u32(len(tensors))]
    for tensor in tensors:
        wire.put_tensor(parts, tensor, wire.Blocks())
    return b"".join(parts)


def execute_frame(key, *tensors, identifier="", wanted=(), count=1):
    names = wire.pack_u32(len(wanted)) + b"".join(map(wire.put_text, wanted))
    request = (struct.pack("<Q", key) + wire.put_text(identifier) + b"\0"
               + struct.pack("<IQ", 0, 0) + wire.put_text("") + b"\0" + names + encoded(*tensors))
    body = struct.pack("<BI", EXECUTE, count) + request
    return wire.pack_u32(len(body)) + body


def read_often(frame, times=2 * _PAUSE):
    """It is long enough for its form to be known."""
    for _ in range(times):
        get_requests(frame, OWN)


def values(frame):
    (request,) = get_requests(frame, OWN)
    return request, [(one.name(), one.as_numpy().tolist()) for one in request.inputs()]


def numbers(*items, name="IN"):
    return Tensor(name, np.array(items, np.float32))


def test_frames_of_a_form_differ_in_key_and_contents():
    first = execute_frame(7, numbers(1, 2), numbers(3, name="B"), wanted=["OUT"])
    read_often(first)
    request, found = values(execute_frame(8, numbers(5, 6), numbers(7, name="B"), wanted=["OUT"]))
    assert (request._key, found) == (8, [("IN", [5, 6]), ("B", [7])])
    assert request.requested_output_names() == {"OUT"} and request.request_id() == ""
    assert request.parameters() == "{}" and request._model_name == "m"
    found = values(first)[0].inputs()[0].as_numpy()
    found[0] = 9  # of this request alone
    assert values(first)[1][0] == ("IN", [1, 2])


@pytest.mark.parametrize(("tensor", "wanted"), [
    (numbers(1, 2, name="OTHER"), ["OUT"]),
    (Tensor("IN___", np.array([1, 2], np.int32)), ["OUT"]),
    (Tensor("IN___", np.array([[1], [2]], np.float16)), ["OUT"]),
    (numbers(1, 2, name="IN___"), ["TUO"]),
])
def test_what_differs_elsewhere_is_read_anew(tensor, wanted):
    read_often(execute_frame(1, numbers(3, 4, name="IN___"), wanted=["OUT"]))
    request, found = values(execute_frame(2, tensor, wanted=wanted))
    assert found == [(tensor.name(), tensor.as_numpy().tolist())]
    assert request.requested_output_names() == set(wanted)
    assert request.inputs()[0]._dtype == tensor._dtype
    assert request.inputs()[0].shape() == tensor.shape()


def test_a_frame_of_a_known_length_is_checked():
    good = execute_frame(1, numbers(1, 2))
    read_often(good)
    with pytest.raises((WireError, struct.error)):
        get_requests(execute_frame(1, numbers(1, 2), count=2), OWN)
    at = good.index(struct.pack("<q", 2))
    with pytest.raises(WireError):
        get_requests(good[:at] + struct.pack("<q", 3) + good[at + 8:], OWN)


def test_frames_of_which_none_repeats_are_seldom_learned():
    forms = Forms(0)
    frames = [encoded(Tensor("T", np.array([b"x" * n], np.object_))) for n in range(400)]
    for data in frames:
        assert forms.find(data) is None
        tensor, _ = wire.get_tensor(data, 4)
        forms.learn(data, [tensor], None)
    known = [data for data in frames if forms.find(data)]
    assert 0 < len(known) <= min(_FORMS_MAX, len(frames) // _PAUSE + 1)


def test_an_array_that_has_grown_since_is_sent_with_its_length():
    array = np.zeros(2, np.float32)
    wire.put_tensor([], Tensor("GROWS", array), wire.Blocks())
    tensor = Tensor("GROWS", array)
    array.resize(4, refcheck=False)
    parts = []
    wire.put_tensor(parts, tensor, wire.Blocks())
    assert b"".join(parts).endswith(b"\0" + wire.pack_u32(16) + bytes(16))
