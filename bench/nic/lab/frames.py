"""Frames that carry (flow, sequence) by value: written as a capture to play, recognised in what was read back.

Every frame is Ethernet, IPv4, UDP to the flow's own group. Its payload is a MoldUDP64 packet of one message; the message
repeats the sequence and is filled to the frame's size. A frame too short for that, or made bare, carries only the packet's
first 18 bytes (session and sequence): no segment for the decoder, so only a store of raw frames keeps it.

Alone (`python3 frames.py --help`) it writes a capture on a generator box; it needs no other file of this folder.
"""

import argparse
import array
import json
import random
import struct
import sys

ETHERNET_BYTES = 14
HEADERS_BYTES = ETHERNET_BYTES + 20 + 8
FCS_BYTES = 4
TAG_BYTES = 10
SEQUENCE_AT = HEADERS_BYTES + TAG_BYTES
BARE_BYTES = TAG_BYTES + 8
MESSAGE_AT = HEADERS_BYTES + TAG_BYTES + 8 + 2 + 2
# The shortest frame (as RFC 2544 counts, with its FCS) that holds a message with the sequence in it.
SEGMENT_FRAME_BYTES = MESSAGE_AT + 8 + FCS_BYTES
# 28 x 64, 16 x 570, 4 x 1518: the mix that CSIT uses.
IMIX = ((64, 28), (570, 16), (1518, 4))
FILLER = 0xA5
PORT = 10378
PCAP_HEAD = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262144, 1)
RECORD_HEAD_BYTES = 16
# Frames written at once: some MB.
CHUNK_FRAMES = 16384


def group(flow):
    """The destination of a flow: groups of the organisation-local scope."""
    return f"239.192.{flow // 200}.{1 + flow % 200}"


def tag(flow, seed):
    """The session of a flow in this run: 10 characters, so that no other run's frame is taken for one of this."""
    return b"%03u%07x" % (flow, seed & 0xFFFFFFF)


def checksum(header):
    """The internet checksum of 20 bytes."""
    total = sum(struct.unpack(">10H", header))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def frame(flow, frame_bytes, seed, bare=False):
    """One frame without its FCS. `frame_bytes` counts the FCS."""
    length = max(frame_bytes, 64) - FCS_BYTES
    address = bytes(int(part) for part in group(flow).split("."))
    ethernet = bytes([1, 0, 0x5E, address[1] & 0x7F, *address[2:]]) + bytes([2, 0, 0, 0, 0, 1]) + b"\x08\x00"
    ip_bytes = length - ETHERNET_BYTES
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, ip_bytes, 0, 0x4000, 16, 17, 0, bytes([198, 51, 100, 1]), address)
    ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
    # One source port a flow: what spreads flows over queues. No UDP checksum: the sequence changes without it.
    udp = struct.pack(">HHHH", 40000 + flow, PORT, ip_bytes - 20, 0)
    return ethernet + ip + udp + payload(flow, length - HEADERS_BYTES, seed, bare)


def payload(flow, payload_bytes, seed, bare=False):
    """The UDP payload of a frame; its sequence, in one place or two, is 0 and set later."""
    head = tag(flow, seed) + bytes(8)
    if bare or payload_bytes < MESSAGE_AT - HEADERS_BYTES + 8:
        return head + bytes([FILLER]) * (payload_bytes - BARE_BYTES)
    body_bytes = payload_bytes - (MESSAGE_AT - HEADERS_BYTES)
    return head + struct.pack(">HHQ", 1, body_bytes, 0) + bytes([FILLER]) * (body_bytes - 8)


class Plan:
    """What is sent: a round of frames, again and again; and how many frames in all."""

    def __init__(self, sizes, flows, seed, skew=False, frames=0, rounds=0, bare=False, by_size=False):
        """`sizes` are frame lengths with FCS, or IMIX. `skew`: 80 % of the frames in flow 0, the rest in the others.

        `bare`: no frame is a segment. `by_size`: each size of a flow is a flow of its own, where a generator counts so.
        """
        self.seed, self.flows, self.skew, self.is_imix, self.bare = seed, flows, skew, sizes == "imix", bare
        self.flows_asked = flows
        self.sizes = [size for size, count in IMIX for _ in range(count)] if self.is_imix else list(sizes)
        order = [0] * (4 * (flows - 1)) + list(range(1, flows)) if skew and flows > 1 else list(range(flows))
        # A round in which every flow has every size equally often.
        pattern = [(flow, size) for flow in order for size in self.sizes]
        if by_size:
            distinct = sorted(set(self.sizes))
            self.flows = flows = flows * len(distinct)
            pattern = [(flow * len(distinct) + distinct.index(size), size) for flow, size in pattern]
        random.Random(seed).shuffle(pattern)
        self.pattern = pattern
        self.rounds = rounds or max(1, -(-frames // len(pattern)))
        self.frames = self.rounds * len(pattern)
        self.per_round = [sum(1 for at, _ in pattern if at == flow) for flow in range(flows)]

    def sent_of(self, flow):
        """Frames of one flow."""
        return self.rounds * self.per_round[flow]

    def bytes_on_wire(self):
        """Bytes of all frames with FCS, preamble and gap."""
        return self.rounds * sum(max(size, 64) + 20 for _, size in self.pattern)

    def mean_frame_bytes(self):
        """The mean frame, with FCS."""
        return sum(max(size, 64) for _, size in self.pattern) / len(self.pattern)

    def is_bare(self):
        """Whether some frame is too short to be a segment."""
        return self.bare or any(size < SEGMENT_FRAME_BYTES for _, size in self.pattern)

    def write(self, path):
        """Writes the capture: pcap with ns, a frame a microsecond. Columns are set by stride: fast without a library."""
        chunk_rounds = max(1, CHUNK_FRAMES // len(self.pattern))
        with open(path, "wb") as out:
            out.write(PCAP_HEAD)
            for first in range(0, self.rounds, chunk_rounds):
                out.write(self._chunk(first, min(chunk_rounds, self.rounds - first)))

    def _chunk(self, first, rounds):
        one, places, taken = bytearray(), [], [0] * self.flows
        for flow, size in self.pattern:
            body = frame(flow, size, self.seed, self.bare)
            places.append((flow, taken[flow], len(one), len(body)))
            taken[flow] += 1
            one += struct.pack("<IIII", 0, 0, len(body), len(body)) + body
        stride, data = len(one), one * rounds
        for at, (flow, index, start, length) in enumerate(places):
            begin, step = 1 + first * self.per_round[flow] + index, self.per_round[flow]
            numbers = array.array("Q", range(begin, begin + rounds * step, step)).tobytes()
            spots = [SEQUENCE_AT] if self.bare or length < MESSAGE_AT + 8 else [SEQUENCE_AT, MESSAGE_AT]
            for byte in range(8):
                column = numbers[7 - byte :: 8] if sys.byteorder == "little" else numbers[byte::8]
                for spot in spots:
                    data[start + RECORD_HEAD_BYTES + spot + byte :: stride] = column
            self._stamp(data, start, stride, first * len(self.pattern) + at, rounds)
        return data

    def _stamp(self, data, start, stride, first, rounds):
        stamps = range(first * 1000, (first + rounds * len(self.pattern)) * 1000, len(self.pattern) * 1000)
        for at, value in ((0, lambda ns: ns // 10**9), (4, lambda ns: ns % 10**9)):
            column = array.array("I", [value(ns) for ns in stamps])
            if sys.byteorder == "big":
                column.byteswap()
            octets = column.tobytes()
            for byte in range(4):
                data[start + at + byte :: stride] = octets[byte::4]


class Found:
    """What was read back: each (flow, sequence) once, more than once, wrong in a byte, or none of this run's."""

    def __init__(self, plan):
        self.plan = plan
        self.seen = [bytearray(plan.sent_of(flow)) for flow in range(plan.flows)]
        self.records = self.duplicate = self.wrong = self.foreign = 0
        self.expected = {}
        for flow, size in set(plan.pattern):
            whole = frame(flow, size, plan.seed, plan.bare)
            key = (tag(flow, plan.seed), len(whole) - HEADERS_BYTES)
            self.expected[key] = (flow, whole[HEADERS_BYTES:])

    def take(self, data, merged):
        """Takes in a pcap's bytes. `merged`: frames were made anew around their messages, so only payloads are ours."""
        if struct.unpack_from("<I", data)[0] not in (0xA1B23C4D, 0xA1B2C3D4):
            raise ValueError("not a little-endian pcap")
        at, end, expected, tail_at, bare = len(PCAP_HEAD), len(data), self.expected, BARE_BYTES, self.plan.bare
        addresses = {flow: frame(flow, 64, 0)[30:34] for flow in range(self.plan.flows)}
        while at + RECORD_HEAD_BYTES <= end:
            length = int.from_bytes(data[at + 8 : at + 12], "little")
            body = data[at + RECORD_HEAD_BYTES + HEADERS_BYTES : at + RECORD_HEAD_BYTES + length]
            record_at, at = at + RECORD_HEAD_BYTES, at + RECORD_HEAD_BYTES + length
            self.records += 1
            known = expected.get((body[:TAG_BYTES], len(body)))
            if known is None:
                self.foreign += 1
                continue
            flow, whole = known
            sequence = int.from_bytes(body[TAG_BYTES:BARE_BYTES], "big")
            same = body[tail_at : tail_at + 4] == whole[tail_at : tail_at + 4]
            if bare:
                same = body[tail_at:] == whole[tail_at:]
            elif len(body) >= tail_at + 12:
                same = same and body[tail_at + 4 : tail_at + 12] == body[TAG_BYTES:BARE_BYTES]
                same = same and body[tail_at + 12 :] == whole[tail_at + 12 :]
            if not merged:
                same = same and data[record_at + 30 : record_at + 34] == addresses[flow]
            seen = self.seen[flow]
            if not same or not 1 <= sequence <= len(seen):
                self.wrong += 1
            elif seen[sequence - 1]:
                self.duplicate += 1
            else:
                seen[sequence - 1] = 1

    def merge(self, other):
        """Takes in what another process found in another part."""
        for name in ("records", "duplicate", "wrong", "foreign"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for flow, (mine, theirs) in enumerate(zip(self.seen, other.seen)):
            both = int.from_bytes(mine, "little"), int.from_bytes(theirs, "little")
            self.duplicate += bin(both[0] & both[1]).count("1")
            self.seen[flow] = bytearray((both[0] | both[1]).to_bytes(len(mine), "little"))

    def missing(self):
        """Frames of the plan that were not found."""
        return sum(len(seen) - seen.count(1) for seen in self.seen)

    def found(self):
        """Different frames found."""
        return sum(seen.count(1) for seen in self.seen)

    def ranges(self, most=32):
        """The first ranges that are missing: (flow, first, last)."""
        out = []
        for flow, seen in enumerate(self.seen):
            at = seen.find(0)
            while at >= 0 and len(out) < most:
                end = seen.find(1, at)
                end = len(seen) if end < 0 else end
                out.append([flow, at + 1, end])
                at = seen.find(0, end)
        return out

    def report(self):
        """For the result file."""
        return {
            "sent": self.plan.frames, "found": self.found(), "missing": self.missing(), "duplicate": self.duplicate,
            "wrong": self.wrong, "foreign": self.foreign, "records": self.records, "missing_ranges": self.ranges(),
        }


def main():
    parser = argparse.ArgumentParser(description="Writes a capture of numbered frames for `sluice feed play`.")
    parser.add_argument("--sizes", default="128", help="frame bytes with FCS, separated by commas, or imix (128)")
    parser.add_argument("--flows", type=int, default=1, help="flows, each with a group of its own (1)")
    parser.add_argument("--skew", action="store_true", help="80 %% of the frames in the first flow")
    parser.add_argument("--by-size", action="store_true", help="each size of a flow is a flow of its own")
    parser.add_argument("--rounds", type=int, required=True, help="rounds of the pattern (every flow with every size)")
    parser.add_argument("--seed", type=int, required=True, help="marks the frames of this run")
    parser.add_argument("--out", required=True, help="the capture")
    asked = parser.parse_args()
    sizes = asked.sizes if asked.sizes == "imix" else [int(size) for size in asked.sizes.split(",")]
    plan = Plan(sizes, asked.flows, asked.seed, asked.skew, rounds=asked.rounds, by_size=asked.by_size)
    plan.write(asked.out)
    print(json.dumps({"frames": plan.frames, "out": asked.out}))


if __name__ == "__main__":
    main()
