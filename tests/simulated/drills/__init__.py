"""Drills: parts of the engine that are driven by themselves, each against a model of its own.

A run brings a part into few of its states. A drill brings it into any: it does what callers and
brokers may do, in any order, and compares after each step what the part tells with what follows
from all that has happened. The model is a second derivation, simple and slow, written from what the
part promises. `drilled` has the list of all drills.

The files of a drill have names with the same beginning: `linked.py` is a drill, `linked_rows.py` is
a part of its model. These words are used in all of them:

- *dice*: the seeded random numbers from which everything is drawn. A seed draws the same again, as
  long as nobody changes what is drawn, or in which order.
- *row*: a plain record of something that has happened, or of a batch, record or request that there
  is. The model of a part consists of its rows.
- *bench*: the part that is driven, with the real or made-up parts that it needs, and its rows.
- *told* or *said*: what the engine answers. *due*: what the model expects, or a step that has to be
  taken now.
- *wrong*: a complaint in words (`comparing` has its form), or None if nothing is wrong.

Run one drill of one seed with `python -m tests.simulated.drills --only NAME --from SEED --seeds 1`.
"""
