"""The configurations of models that perf_analyzer and other load generators call."""

IDENTITY = """
backend: "identity" max_batch_size: 8 dynamic_batching { }
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
"""
#: OUT is the sum of the sequence's IN.
ACCUMULATOR = """
backend: "example_accumulator" max_batch_size: 4
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
sequence_batching {
  oldest { max_candidate_sequences: 16 }
  state {
    input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_INT32 dims: [ 1 ]
    initial_state { name: "zero" data_type: TYPE_INT32 dims: [ 1 ] zero_data: true }
  }
}
"""
#: The tensors of servers of language models.
WORDS = """
backend: "example_words"
model_transaction_policy { decoupled: true }
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] optional: true },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true },
  { name: "exclude_input_in_output" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
]
output { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }
"""
