"""Models for the backend `token_counter`, whose requests are executed repeatedly until
they are done."""

from __future__ import annotations

import functools

from .repository import Example, ExampleMaker

STATE = """\
  state [ {
    input_name: "STEPS" output_name: "STEPS_NEXT" data_type: TYPE_INT32 dims: [ 1 ]
    initial_state { name: "zero" data_type: TYPE_INT32 dims: [ 1 ] zero_data: true }
  } ]
"""


def token_counter(
    decoupled: bool,
    strategy: str = "direct { }",
    max_batch_size: int = 4,
    delay_microseconds: int = 0,
    with_state: bool = False,
    idle_microseconds: int = 60_000_000,
) -> Example:
    """Produces COUNT tokens, one in each execution."""
    steps = 'output [ { name: "STEPS_NEXT" data_type: TYPE_INT32 dims: [ 1 ] } ]'
    config = f"""\
backend: "token_counter"
max_batch_size: {max_batch_size}
input [ {{ name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "TOKEN" data_type: TYPE_INT32 dims: [ -1 ] }} ]
output [ {{ name: "LIVE" data_type: TYPE_INT32 dims: [ 1 ] }} ]
{steps if with_state else ""}
model_transaction_policy {{ decoupled: {str(decoupled).lower()} }}
sequence_batching {{
  iterative_sequence: true
  max_sequence_idle_microseconds: {idle_microseconds}
  {strategy}
{STATE if with_state else ""}}}
parameters {{ key: "DELAY_MICROSECONDS" value {{ string_value: "{delay_microseconds}" }} }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""
    return Example(config, {})


MODELS: dict[str, ExampleMaker] = {
    f"tokens_{strategy}_{kind}_{state}": functools.partial(
        token_counter, kind == "decoupled", text, with_state=state == "state"
    )
    for strategy, text in {
        "direct": "direct { }",
        "oldest": "oldest { max_candidate_sequences: 4 }",
    }.items()
    for kind in ("decoupled", "single")
    for state in ("state", "memory")
}
