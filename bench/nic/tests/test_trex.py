"""TRex's part against a stand-in of its programming interface: the packets are those that the check looks for."""

import importlib.util
import os
import struct
import sys
import types
import unittest

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "trex")
sys.path.insert(0, FOLDER)


class Told:
    """Anything of TRex's: remembers what it was made of."""

    def __init__(self, *given, **named):
        self.given, self.__dict__ = given, {**named, "given": given}


NAMES = (
    "STLVmFlowVar", "STLVmWrFlowVar", "STLScVmRaw", "STLPktBuilder", "STLStream", "STLTXCont", "STLTXSingleBurst",
    "STLTXMultiBurst",
)
API = types.SimpleNamespace(**{name: type(name, (Told,), {}) for name in NAMES})
sys.modules["trex_stl_lib"] = types.SimpleNamespace(api=API)

import streams  # noqa: E402  (beside trex/)


def profile(name):
    """A profile file, loaded as TRex does."""
    spec = importlib.util.spec_from_file_location(name, os.path.join(FOLDER, f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.register()


def sent(stream, count):
    """The frames that the field engine makes of a stream's packet."""
    packet, engine = bytearray(stream.packet.pkt_buffer), stream.packet.vm.given[0]
    variable, writes = engine[0], engine[1:]
    for number in range(count):
        for write in writes:
            struct.pack_into(">Q", packet, write.pkt_offset, variable.min_value + number * variable.step)
        yield bytes(packet)


class Trex(unittest.TestCase):
    """Streams and profiles."""

    def check(self, sizes, flows, skew):
        """Everything that TRex sends of a plan is found by value."""
        plan = streams.frames.Plan(sizes, flows, 5, skew, rounds=20, by_size=True)
        mode = lambda count, part: API.STLTXSingleBurst(total_pkts=count, pps=1e6 * part)  # noqa: E731
        made, found = streams.streams(API, plan, mode, cores=3), streams.frames.Found(plan)
        for stream in made:
            for packet in sent(stream, stream.mode.total_pkts):
                head = struct.pack("<IIII", 0, 0, len(packet), len(packet))
                found.take(streams.frames.PCAP_HEAD + head + packet, False)
        self.assertEqual((found.missing(), found.wrong, found.foreign, found.duplicate), (0, 0, 0, 0))
        self.assertEqual(sum(stream.mode.total_pkts for stream in made), plan.frames)
        self.assertAlmostEqual(sum(stream.mode.pps for stream in made), 1e6)

    def test_streams_send_what_is_looked_for(self):
        self.check([128], 1, False)
        self.check([64], 4, True)
        self.check("imix", 2, False)

    def test_profiles_load_and_keep_their_rate(self):
        for name, given in (("cbr", {"size": "64", "flows": "4"}), ("imix", {})):
            made = profile(name).get_streams(direction=0, rate="2000000", **given)
            self.assertAlmostEqual(sum(stream.mode.pps for stream in made), 2e6)
        self.assertEqual(len(profile("imix").get_streams()), 3)

    def test_a_feed_comes_in_bursts(self):
        (stream,) = profile("feed").get_streams(burst="500", pause_us="2000", bursts="7")
        self.assertEqual((stream.mode.pkts_per_burst, stream.mode.ibg, stream.mode.count), (500, 2000.0, 7))


if __name__ == "__main__":
    unittest.main()
