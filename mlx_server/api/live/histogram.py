"""The latencies of /metrics as the dashboard draws them: plain counts, not cumulative ones."""

from __future__ import annotations

import itertools

import msgspec
from prometheus_client import Histogram


class HistogramFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Since the daemon started. bounds_s: upper ends of the buckets, each inclusive. counts: one per bucket, and last
    those beyond every bound."""

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float


def histogram_facts(histogram: Histogram) -> HistogramFacts:
    """histogram: of seconds, without labels or with their values."""
    (family,) = histogram.collect()
    buckets = [sample for sample in family.samples if sample.name.endswith("_bucket")]
    bounds_s = tuple(float(sample.labels["le"]) for sample in buckets[:-1])
    upto = [0, *(int(sample.value) for sample in buckets)]
    counts = tuple(after - before for before, after in itertools.pairwise(upto))
    sum_s = next(sample.value for sample in family.samples if sample.name.endswith("_sum"))
    return HistogramFacts(bounds_s=bounds_s, counts=counts, sum_s=sum_s)
