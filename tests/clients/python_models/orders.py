"""Sends and returns responses in the order that a request asks for.

An order is `BEFORE/BESIDE/AFTER/RETURN`. The first three are what the model sends before it
returns, on a thread while it executes, and on a thread after it has returned, each a list of
the letters in `step`. The last is what it returns. `?` requests the exceptions that the sends
have raised.
"""

import threading

import numpy
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """Keeps the exceptions until they are requested."""

    def initialize(self, args):
        """No exception has been raised yet."""
        self.raised = []
        self.number = 0
        self.thread = None
        self.go = threading.Event()

    def response(self):
        """A response with the next number."""
        self.number += 1
        value = numpy.array([self.number], numpy.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)])

    def error(self):
        """An error with the next number."""
        self.number += 1
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"error {self.number}"))

    def step(self, sender, letter):
        """Sends a response or an error, which is the last one if the letter is upper-case,
        or ends the responses."""
        try:
            if letter == "s":
                sender.send(self.response())
            elif letter == "S":
                sender.send(self.response(), flags=FINAL)
            elif letter == "e":
                sender.send(self.error())
            elif letter == "E":
                sender.send(self.error(), flags=FINAL)
            else:
                sender.send(flags=FINAL)
        except Exception as error:
            self.raised.append(f"{type(error).__name__}: {error}")

    def steps(self, sender, letters):
        """Sends them one after the other."""
        for letter in letters:
            self.step(sender, letter)

    def behind(self, sender, letters, returned):
        """Sends after the execution has returned.

        Unless the model returns nothing, the time makes a difference, and the next request
        specifies it.
        """
        self.go.wait(0.05 if returned == "none" else None)
        self.steps(sender, letters)

    def told(self, request):
        """Responds with the exceptions that were raised."""
        if self.thread is not None:
            self.go.set()
            self.thread.join()
            self.thread = None
        text, self.raised = "|".join(self.raised) or "-", []
        error = pb_utils.InferenceResponse(error=pb_utils.TritonError(text))
        request.get_response_sender().send(error, flags=FINAL)

    def execute(self, requests):
        """Follows the order of the only request."""
        (request,) = requests
        text = pb_utils.get_input_tensor_by_name(request, "ORDER").as_numpy()[0].decode()
        if text == "?":
            return self.told(request)
        self.number = 0
        before, beside, after, returned = text.split("/")
        sender = request.get_response_sender()
        self.steps(sender, before)
        if beside:
            thread = threading.Thread(target=self.steps, args=(sender, beside))
            thread.start()
            thread.join()
        if after:
            self.go.clear()
            self.thread = threading.Thread(target=self.behind, args=(sender, after, returned))
            self.thread.start()
        if returned == "raise":
            raise ValueError("raised")
        return {
            "none": lambda: None,
            "empty": list,
            "nothing": lambda: [None],
            "one": lambda: [self.response()],
            "error": lambda: [self.error()],
            "two": lambda: [self.response(), self.response()],
            "text": lambda: "abc",
            "number": lambda: [3],
        }[returned]()
