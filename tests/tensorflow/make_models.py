"""Creates the models in this directory with TensorFlow, and records TensorFlow's own results.

    python tests/tensorflow/make_models.py

The directory `models` is a repository for the server. For each model, `answers.json` contains
requests and the outputs that TensorFlow computes for them in Python.
"""

import json
import pathlib
import shutil

import numpy
import tensorflow as tf

HERE = pathlib.Path(__file__).parent
MODELS = HERE / "models"
#: The names of TensorFlow's types in requests.
DATATYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16",
    "float32": "FP32", "float64": "FP64", "string": "BYTES", "bfloat16": "BF16",
}
PLATFORM = 'platform: "tensorflow_savedmodel"\n'
GRAPH_PLATFORM = 'platform: "tensorflow_graphdef"\n'
#: The requests and outputs of each model.
ANSWERS = {}
#: Numbers of every model come from here, in the order of the models.
RANDOM = numpy.random.default_rng(27)


def spec(shape, dtype=tf.float32, name="x"):
    """The signature of an argument."""
    return tf.TensorSpec(shape, dtype, name=name)


def random(*shape):
    """Small numbers that are exact in a few decimal digits."""
    return (RANDOM.integers(-64, 64, shape) / 32).astype(numpy.float32)


def texts(*values):
    """An array of strings."""
    return numpy.array([value.encode() for value in values], dtype=object)


def folder(name, config):
    """The version directory of a new model."""
    version = MODELS / name / "1"
    shutil.rmtree(MODELS / name, ignore_errors=True)
    version.mkdir(parents=True)
    if config:
        (MODELS / name / "config.pbtxt").write_text(config)
    return version


def tensor(value):
    """A tensor of a request or a result, in the JSON form."""
    value = tf.convert_to_tensor(value)
    array = value.numpy()
    if value.dtype == tf.string:
        data = [text.decode() for text in array.reshape(-1)]
    elif value.dtype in (tf.float16, tf.bfloat16):
        data = array.astype(numpy.float32).reshape(-1).tolist()
    else:
        data = array.reshape(-1).tolist()
    datatype = DATATYPES[value.dtype.name]
    return {"datatype": datatype, "shape": list(array.shape), "data": data}


def record(name, function, requests):
    """Records a function's results for requests, which are dictionaries of tensors."""
    for request in requests:
        ANSWERS.setdefault(name, []).append({"inputs": request, "outputs": function(request)})


def saved(name, module, requests, config="", signatures=None, signature="serving_default"):
    """Saves a module, and records the results of the loaded model."""
    path = folder(name, config) / "model.savedmodel"
    signatures = signatures or {"serving_default": module.serve}
    tf.saved_model.save(module, path, signatures=signatures)
    (path / "fingerprint.pb").unlink(missing_ok=True)
    loaded = tf.saved_model.load(path)
    function = loaded.signatures[signature]

    def call(request):
        return function(**{key: tf.convert_to_tensor(value) for key, value in request.items()})

    record(name, call, requests)
    for empty in (path / "assets", path / "variables"):
        if empty.is_dir() and not any(empty.iterdir()):
            empty.rmdir()


class Mlp(tf.Module):
    def __init__(self):
        super().__init__()
        self.first = tf.Variable(random(16, 8))
        self.second = tf.Variable(random(8, 4))

    @tf.function(input_signature=[spec([None, 16])])
    def serve(self, x):
        return {"y": tf.nn.softmax(tf.nn.relu(x @ self.first) @ self.second)}


class Convolution(tf.Module):
    def __init__(self):
        super().__init__()
        self.kernel = tf.Variable(random(3, 3, 3, 2))

    @tf.function(input_signature=[spec([None, 8, 8, 3], name="image")])
    def serve(self, image):
        found = tf.nn.relu(tf.nn.conv2d(image, self.kernel, 1, "SAME"))
        return {"features": found, "mean": tf.reduce_mean(found, [1, 2])}


class Fixed(tf.Module):
    @tf.function(input_signature=[spec([2, 3])])
    def serve(self, x):
        return {"y": x @ tf.transpose(x)}


NUMBERS = [tf.uint8, tf.uint16, tf.uint32, tf.uint64, tf.int8, tf.int16, tf.int32, tf.int64,
           tf.float16, tf.float32, tf.float64, tf.bfloat16]


class Types(tf.Module):
    @tf.function(input_signature=[spec([None, 2], tf.bool, "of_bool")]
                 + [spec([None, 2], dtype, f"of_{dtype.name}") for dtype in NUMBERS])
    def serve(self, of_bool, *numbers):
        found = {"to_bool": tf.logical_not(of_bool)}
        for dtype, number in zip(NUMBERS, numbers):
            found[f"to_{dtype.name}"] = number + tf.cast(1, dtype)
        return found


class Strings(tf.Module):
    @tf.function(input_signature=[spec([None, 2], tf.string, "text")])
    def serve(self, text):
        return {
            "lower": tf.strings.lower(text, encoding="utf-8"),
            "joined": tf.strings.reduce_join(text, axis=1, keepdims=True, separator=" "),
            "bytes": tf.strings.length(text),
        }


class SumAndDifference(tf.Module):
    @tf.function(input_signature=[spec([None, 4], name="a"), spec([None, 4], name="b")])
    def serve(self, a, b):
        return {"sum": a + b, "difference": a - b}


class Signatures(tf.Module):
    @tf.function(input_signature=[spec([None, 2])])
    def serve(self, x):
        return {"y": x + 1.0}

    @tf.function(input_signature=[spec([None, 2], name="z")])
    def twice(self, z):
        return {"doubled": z * 2.0}


class Table(tf.Module):
    def __init__(self):
        super().__init__()
        keys = tf.constant(["cat", "dog", "a bird with a name that is longer than an object"])
        values = tf.constant([3, 5, 7], tf.int64)
        self.table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(keys, values), default_value=-1
        )

    @tf.function(input_signature=[spec([None, 1], tf.string, "word")])
    def serve(self, word):
        return {"number": self.table.lookup(word)}


class Counter(tf.Module):
    def __init__(self):
        super().__init__()
        self.total = tf.Variable(tf.zeros([2]))

    @tf.function(input_signature=[spec([2])])
    def serve(self, x):
        return {"total": self.total.assign_add(x)}


class Keeper(tf.Module):
    """Keeps the input of a request, and returns that of the previous request."""

    def __init__(self):
        super().__init__()
        self.kept = tf.Variable(tf.zeros([64]))

    @tf.function(input_signature=[spec([64])])
    def serve(self, x):
        before = tf.identity(self.kept)
        with tf.control_dependencies([before]):
            self.kept.assign(x)
        return {"before": before}


class LargeKeeper(tf.Module):
    """Keeps the input of a request of any size, and returns that of the previous request."""

    def __init__(self):
        super().__init__()
        self.kept = tf.Variable(tf.zeros([1]), shape=[None])

    @tf.function(input_signature=[spec([None])])
    def serve(self, x):
        before = tf.identity(self.kept)
        with tf.control_dependencies([before]):
            self.kept.assign(x)
        return {"before": before}


class Overwriter(tf.Module):
    """Writes to the memory of its input."""

    @tf.function(input_signature=[spec([2, 16])])
    def serve(self, x):
        return {"y": tf.raw_ops.InplaceAdd(x=x, i=[0], v=tf.ones([1, 16]))}


class AnyRank(tf.Module):
    @tf.function(input_signature=[spec(None)])
    def serve(self, x):
        return {"y": tf.identity(x)}


class Dynamic(tf.Module):
    @tf.function(input_signature=[spec([None, None])])
    def serve(self, x):
        return {"sorted": tf.sort(x, axis=1), "positive": tf.boolean_mask(x, x > 0)}


class Embedding(tf.Module):
    def __init__(self):
        super().__init__()
        self.rows = tf.Variable(random(10, 4))

    @tf.function(input_signature=[spec([None, None], tf.int64, "ids")])
    def serve(self, ids):
        return {"vectors": tf.gather(self.rows, ids), "pooled": tf.reduce_max(
            tf.gather(self.rows, ids), axis=1)}


class Ragged(tf.Module):
    @tf.function(input_signature=[spec([None], name="values"), spec([None], tf.int32, "ends")])
    def serve(self, values, ends):
        lengths = ends - tf.concat([[0], ends[:-1]], 0)
        rows = tf.repeat(tf.range(tf.size(ends)), lengths)
        return {"sum": tf.math.segment_sum(values, rows)[:, None]}


class Sequence(tf.Module):
    @tf.function(input_signature=[
        spec([None, 1]), spec([None, 1], tf.int32, "start"), spec([None, 1], name="before")])
    def serve(self, x, start, before):
        total = x + tf.where(start == 1, 0.0, before)
        return {"y": total, "after": tf.identity(total)}


class Scalar(tf.Module):
    @tf.function(input_signature=[spec([]), spec([3], name="v")])
    def serve(self, x, v):
        return {"scaled": x * v, "sum": tf.reduce_sum(v) + x}


class Identity(tf.Module):
    @tf.function(input_signature=[spec([None, 16])])
    def serve(self, x):
        return {"y": x}


def modules():
    saved("mlp", Mlp(), [{"x": random(1, 16)}, {"x": random(4, 16)}])
    saved("convolution", Convolution(), [{"image": random(2, 8, 8, 3)}])
    saved("fixed", Fixed(), [{"x": random(2, 3)}])
    numbers = {f"of_{dtype.name}": tf.cast([[1, 2], [3, 100]], dtype) for dtype in NUMBERS}
    saved("types", Types(), [{"of_bool": [[True, False], [False, False]], **numbers}])
    saved("strings", Strings(), [
        {"text": texts("Ab", "", "Ünï", "x" * 40).reshape(2, 2)},
        {"text": texts("One String that is longer than an object", "y").reshape(1, 2)},
    ])
    saved("sum_and_difference", SumAndDifference(), [
        {"a": random(3, 4), "b": random(3, 4)}, {"a": random(4, 4), "b": random(4, 4)}])
    module = Signatures()
    both = {"serving_default": module.serve, "twice": module.twice}
    config = PLATFORM + parameter("TF_SIGNATURE_DEF", "twice")
    saved("signatures", module, [{"z": random(2, 2)}], config, both, "twice")
    saved("table", Table(), [{"word": texts("dog", "fish", "cat").reshape(3, 1)},
                             {"word": texts("a bird with a name that is longer than an object")
                              .reshape(1, 1)}])
    saved("counter", Counter(), [{"x": [1.0, 2.0]}, {"x": [0.5, -1.0]}],
          PLATFORM + "instance_group [ { count: 1 } ]\n")
    kept = [random(64), random(64), random(64)]
    saved("keeper", Keeper(), [{"x": value} for value in kept],
          PLATFORM + "instance_group [ { count: 1 } ]\n")
    saved("large_keeper", LargeKeeper(), [{"x": [1.0, 2.0]}, {"x": [3.0]}],
          PLATFORM + "max_batch_size: 0 instance_group [ { count: 1 } ]\n"
          + 'input { name: "x" dims: [ -1 ] }\n')
    rows = numpy.arange(32, dtype=numpy.float32).reshape(2, 16)
    saved("overwriter", Overwriter(), [{"x": rows}])
    saved("any_rank", AnyRank(), [{"x": rows}], PLATFORM
          + 'input { name: "x" data_type: TYPE_FP32 dims: [ -1, -1 ] }\n'
          + 'output { name: "y" data_type: TYPE_FP32 dims: [ -1, -1 ] }\n')
    saved("dynamic", Dynamic(), [{"x": random(2, 5)}, {"x": random(1, 3)}], PLATFORM
          + 'input { name: "x" dims: [ -1, -1 ] }\n')
    saved("embedding", Embedding(), [{"ids": numpy.array([[1, 2, 9]], numpy.int64)},
                                     {"ids": numpy.array([[0, 3], [3, 4]], numpy.int64)}])
    saved("scalar", Scalar(), [{"x": numpy.float32(2.5), "v": random(3)}], PLATFORM
          + 'input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }\n'
          + 'output { name: "scaled" data_type: TYPE_FP32 dims: [ 3 ] }\n'
          + 'output { name: "sum" data_type: TYPE_FP32 dims: [ 1 ] }\n')
    saved("identity", Identity(), [{"x": random(2, 16)}])
    saved("ragged", Ragged(), [
        {"values": numpy.array([1, 2, 3, 4], numpy.float32), "ends": numpy.array([4], numpy.int32)}
    ], PLATFORM + "max_batch_size: 8\ndynamic_batching { }\n"
          + 'input { name: "values" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }\n'
          + 'batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ends"\n'
          + '  data_type: TYPE_INT32 source_input: "values" }\n')
    saved("sequence", Sequence(), [{
        "x": numpy.array([[2]], numpy.float32), "start": numpy.array([[0]], numpy.int32),
        "before": numpy.array([[3]], numpy.float32)}], PLATFORM + SEQUENCE)


SEQUENCE = """max_batch_size: 4
sequence_batching {
  control_input {
    name: "start"
    control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }
  }
  state { input_name: "before" output_name: "after" data_type: TYPE_FP32 dims: [ 1 ] }
}
"""


def parameter(key, value):
    """A parameter of a configuration."""
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def tagged():
    """A model of TensorFlow 1, whose graph has a different tag and signature."""
    path = folder("tagged", PLATFORM + parameter("TF_GRAPH_TAG", "serve1")) / "model.savedmodel"
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 2], name="x")
        y = tf.add(x, 3.0, name="y")
        info = v1.saved_model.utils.build_tensor_info
        signature = v1.saved_model.build_signature_def({"in": info(x)}, {"out": info(y)}, "any")
        builder = v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(session, ["serve1"], {"only": signature})
        builder.save()

        def call(request):
            return {"out": session.run(y, {x: request["in"]})}

        record("tagged", call, [{"in": random(2, 2)}])


def graphs():
    """Graphs without signatures."""
    v1 = tf.compat.v1
    path = folder("graph", GRAPH_PLATFORM + "max_batch_size: 8\n"
                  + 'input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }\n'
                  + 'output { name: "relu" data_type: TYPE_FP32 dims: [ 3 ] }\n'
                  + 'output { name: "number" data_type: TYPE_INT64 dims: [ 1 ] }\n')
    weights = random(4, 3)
    with tf.Graph().as_default() as graph, v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        relu = tf.nn.relu(x @ tf.constant(weights), name="relu")
        best = tf.argmax(relu, axis=1, name="best")[:, None]
        best = tf.identity(best, name="number")
        (path / "model.graphdef").write_bytes(graph.as_graph_def().SerializeToString())

        def call(request):
            return dict(zip(("relu", "number"), session.run([relu, best], {x: request["x"]})))

        record("graph", call, [{"x": random(5, 4)}])

    path = folder("graph_on_gpu", GRAPH_PLATFORM
                  + 'input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }\n'
                  + 'output { name: "relu" data_type: TYPE_FP32 dims: [ 2 ] }\n')
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [2], name="x")
        with tf.device("/device:GPU:0"):
            tf.nn.relu(x, name="relu")
        (path / "model.graphdef").write_bytes(graph.as_graph_def().SerializeToString())
    # A computer without a GPU can't execute it.
    record("graph_on_gpu", lambda request: {"relu": tf.nn.relu(request["x"])},
           [{"x": [-1.0, 2.0]}])

    path = folder("graph_with_init_ops", GRAPH_PLATFORM
                  + parameter("TF_INIT_OPS_FILE", "init_ops.json")
                  + 'input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }\n'
                  + 'output { name: "updated" data_type: TYPE_FP32 dims: [ 2 ] }\n'
                  + "instance_group [ { count: 1 } ]\n")
    v1.disable_resource_variables()
    with tf.Graph().as_default() as graph, v1.Session() as session:
        x = v1.placeholder(tf.float32, [2], name="x")
        total = v1.get_variable("total", initializer=tf.constant([10.0, 20.0]))
        updated = tf.identity(v1.assign_add(total, x), name="updated")
        v1.global_variables_initializer()
        (path / "model.graphdef").write_bytes(graph.as_graph_def().SerializeToString())
        (path / "init_ops.json").write_text('{ "init_ops": ["init"] }\n')
        session.run("init")

        def add(request):
            return {"updated": session.run(updated, {x: request["x"]})}

        record("graph_with_init_ops", add, [{"x": [1.0, 2.0]}, {"x": [3.0, 4.0]}])
    v1.enable_resource_variables()


def main():
    """Creates all models."""
    modules()
    tagged()
    graphs()
    encoded = {
        name: [
            {side: {key: tensor(value) for key, value in tensors.items()}
             for side, tensors in exchange.items()}
            for exchange in exchanges
        ]
        for name, exchanges in ANSWERS.items()
    }
    text = json.dumps(encoded, sort_keys=True)
    # One line for each model.
    text = text.replace('], "', '],\n"')
    (HERE / "answers.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
