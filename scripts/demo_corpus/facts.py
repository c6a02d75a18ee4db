"""Questions for facts."""

from __future__ import annotations

import random

from demo_corpus.relation_list import RELATIONS
from demo_corpus.turn import Turn

_WEIGHTS = [len(r.rows) ** 0.7 for r in RELATIONS]


def fact_turn(rng: random.Random, split: str) -> Turn:
    """A question of a random relation, larger tables more often."""
    return rng.choices(RELATIONS, _WEIGHTS)[0].turn(rng, split)
