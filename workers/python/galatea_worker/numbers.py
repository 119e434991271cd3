"""Numbers on the wire, made from crates/backend-python/src/wire/numbers.rs."""

# Frames from the server on the socket for executions.
EXECUTE = 1
CALL_REPLY = 2
FINALIZE = 3
AUTO_COMPLETE = 4
INITIALIZE = 5

# Frames from the worker on the socket for executions.
RESULT = 1
CALL = 2
OK_JSON = 10
FAILED = 11
DONE = 12
HELLO = 20

# Frames from the server on the other socket.
B_CALL_REPLY = 1
B_CANCELLED = 2
B_FREE = 3
B_REPLY = 4
B_PAUSE = 5
B_RESUME = 6
B_IS_READY = 7

# Frames from the worker on the other socket.
B_LOG = 1
B_RESPONSE = 2
B_CALL = 3
B_CANCEL_CALL = 4
B_RELEASE = 5
B_CONTROL = 6
B_METRIC = 7
B_READY = 8

# Locations of a tensor's contents.
INLINE = 0
IN_INPUTS = 1
IN_OUTPUTS = 2
ON_DEVICE = 3

# Kinds of responses.
NO_RESPONSE = 0
TENSORS = 1
ERROR = 2

# Bounds.
INLINE_BYTES_MAX = 16384
