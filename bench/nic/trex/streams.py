"""The frames of lab/frames.py as TRex streams: the same bytes, their sequence written by TRex's field engine.

Each flow is one stream with a session of its own, so that its sequence counts by itself: TRex has no counter that two
streams share, so each size of a mix is a flow of its own (`by_size` in frames.Plan). A stream is pinned to one core:
cores would share its counter out among themselves.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lab"))
import frames  # noqa: E402  (it needs nothing else of its folder)


def counter(api, length, bare):
    """The field engine: a 64-bit sequence from 1 in the packet's header, and again in its message."""
    places = [frames.SEQUENCE_AT] if bare or length < frames.MESSAGE_AT + 8 else [frames.SEQUENCE_AT, frames.MESSAGE_AT]
    engine = [api.STLVmFlowVar(name="sequence", min_value=1, max_value=(1 << 63) - 1, size=8, op="inc", step=1)]
    engine += [api.STLVmWrFlowVar(fv_name="sequence", pkt_offset=place, is_big=True) for place in places]
    return api.STLScVmRaw(engine)


def streams(api, plan, mode, cores=1):
    """A stream for each flow of the plan; `mode(count, part)` says how its `count` frames of each `part` of all are sent."""
    out = []
    for flow, size in sorted(set(plan.pattern)):
        share = plan.pattern.count((flow, size))
        packet = frames.frame(flow, size, plan.seed, plan.bare)
        builder = api.STLPktBuilder(pkt_buffer=packet, vm=counter(api, len(packet), plan.bare))
        how = mode(plan.rounds * share, share / len(plan.pattern))
        out.append(api.STLStream(name=f"flow{flow}-{size}", packet=builder, mode=how, core_id=flow % cores))
    return out


def tunables(given, **defaults):
    """A profile's tunables (`start -f FILE -t rate=1000000,size=128`): numbers, with their defaults."""
    return {name: type(value)(given.get(name, value)) for name, value in defaults.items()}
