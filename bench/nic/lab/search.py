"""The search for the highest rate without loss, by halving; pure but for the trials that it is handed."""

import statistics

# An invalid trial says nothing and is repeated, so often.
TRIES = 3


def halve(low, high, resolution, passes):
    """The highest rate in [low, high] at which `passes(rate)` held, to within `resolution` of it; 0: at none.

    `passes` answers True, False, or None when no valid trial could be had. Loss is not monotonic on a busy machine, so
    the answer is a rate that did pass, never one in between.
    """
    first = passes(high)
    if first is None:
        return None
    if first:
        return high
    best = 0
    while high - low > resolution * high:
        middle = (low + high) // 2
        found = passes(middle)
        if found is None:
            return None
        if found:
            best, low = middle, middle
        else:
            high = middle
    if best == 0:
        found = passes(low)
        best = low if found else best
    return best


def valid(attempt):
    """The first valid one of a few attempts, else None; all are kept by who makes them."""
    for _ in range(TRIES):
        out = attempt()
        if out["valid"]:
            return out
    return None


def spread(values):
    """Lowest, median, highest: the lowest is what may be claimed."""
    values = [value for value in values if value is not None]
    if not values:
        return {"runs": 0, "lowest": None, "median": None, "highest": None}
    return {"runs": len(values), "lowest": min(values), "median": statistics.median(values), "highest": max(values)}


def percentiles(samples):
    """p50, p99, p99.9 and the longest; a percentile that the samples are too few for is left out."""
    ordered = sorted(samples)
    out = {"count": len(ordered)}
    for name, part, least in (("p50", 0.5, 1), ("p99", 0.99, 100), ("p99.9", 0.999, 1000)):
        if len(ordered) >= least:
            out[name] = ordered[min(len(ordered) - 1, int(part * len(ordered)))]
    if ordered:
        out["longest"] = ordered[-1]
    return out
