"""What was read back is judged by value: missing, twice, changed, of another run; and the search is by halving."""

import os
import random
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from lab import frames, search  # noqa: E402


def played(plan):
    """The capture of a plan, as bytes."""
    with tempfile.NamedTemporaryFile() as file:
        plan.write(file.name)
        return file.read()


def records(data):
    """A pcap's records, whole."""
    at, out = len(frames.PCAP_HEAD), []
    while at < len(data):
        end = at + frames.RECORD_HEAD_BYTES + int.from_bytes(data[at + 8 : at + 12], "little")
        out.append(data[at:end])
        at = end
    return out


def judged(plan, kept, merged=False):
    """What is found in these records."""
    found = frames.Found(plan)
    found.take(frames.PCAP_HEAD + b"".join(kept), merged)
    return found


PLANS = (
    frames.Plan([128], 1, 7, frames=2000), frames.Plan("imix", 3, 7, skew=True, frames=2000),
    frames.Plan([64], 2, 7, frames=2000), frames.Plan([128], 1, 7, frames=2000, bare=True),
    frames.Plan("imix", 2, 7, frames=2000, by_size=True),
)


class Frames(unittest.TestCase):
    """By value."""

    def test_all_is_found(self):
        for plan in PLANS:
            found = judged(plan, records(played(plan)))
            self.assertEqual((found.found(), found.missing(), found.wrong, found.foreign), (plan.frames, 0, 0, 0))
            self.assertEqual(len(records(played(plan))), plan.frames)

    def test_order_does_not_matter_but_number_does(self):
        for plan in PLANS:
            all_ = records(played(plan))
            random.Random(1).shuffle(all_)
            lost, twice = all_[:5], all_[5:8]
            found = judged(plan, all_[5:] + twice)
            self.assertEqual((found.missing(), found.duplicate), (len(lost), len(twice)))
            self.assertEqual(sum(last - first + 1 for _, first, last in found.ranges()), len(lost))

    def test_every_byte_of_the_payload_counts(self):
        for sizes, bare in (([128], False), ("imix", False), ([99], True)):
            plan = frames.Plan(sizes, 1, 7, frames=60, bare=bare)
            all_ = records(played(plan))
            for record in range(3):
                body = all_[record]
                for at in range(frames.RECORD_HEAD_BYTES + frames.HEADERS_BYTES, len(body)):
                    changed = body[:at] + bytes([body[at] ^ 0x40]) + body[at + 1 :]
                    found = judged(plan, [*all_[:record], changed, *all_[record + 1 :]])
                    # A changed sequence of a bare frame may be another frame's number: then that one is there twice.
                    self.assertEqual(found.missing(), 1, (at, plan.pattern[record % len(plan.pattern)]))
                    self.assertEqual(found.wrong + found.foreign + found.duplicate, 1)

    def test_another_run_is_foreign(self):
        plan, other = frames.Plan([128], 1, 7, frames=100), frames.Plan([128], 1, 8, frames=100)
        found = judged(plan, records(played(other)))
        self.assertEqual((found.foreign, found.missing()), (100, 100))

    def test_parts_that_were_read_apart_are_one(self):
        plan = PLANS[1]
        all_ = records(played(plan))
        whole, second = judged(plan, all_[:700]), judged(plan, all_[690:])
        whole.merge(second)
        self.assertEqual((whole.missing(), whole.duplicate, whole.records), (0, 10, len(all_) + 10))

    def test_headers_are_sound(self):
        body = frames.frame(201, 128, 1)
        self.assertEqual(frames.checksum(body[14:34]), 0)
        self.assertEqual((frames.group(201), len(body)), ("239.192.1.2", 124))
        self.assertEqual(body[:6], bytes([1, 0, 0x5E, 64, 1, 2]))

    def test_shares(self):
        plan = frames.Plan([128], 5, 1, skew=True, frames=10000)
        self.assertEqual([plan.sent_of(flow) / plan.frames for flow in range(5)], [0.8, 0.05, 0.05, 0.05, 0.05])
        imix = [size for _, size in frames.Plan("imix", 1, 1, rounds=1).pattern]
        self.assertEqual([imix.count(size) for size in (64, 570, 1518)], [28, 16, 4])


class Search(unittest.TestCase):
    """By halving."""

    def test_it_finds_the_edge_from_below(self):
        for edge in (10_000, 12_345, 77_777, 99_999):
            found = search.halve(10_000, 100_000, 0.01, lambda rate, edge=edge: rate <= edge)
            self.assertLessEqual(found, edge)
            self.assertGreaterEqual(found, edge - 1_000)

    def test_ends(self):
        self.assertEqual(search.halve(1, 100, 0.01, lambda _: True), 100)
        self.assertEqual(search.halve(1, 100, 0.01, lambda _: False), 0)
        self.assertIsNone(search.halve(1, 100, 0.01, lambda _: None))

    def test_what_never_is_valid_is_no_answer(self):
        self.assertIsNone(search.valid(lambda: {"valid": False}))
        tries = iter([{"valid": False}, {"valid": True, "n": 2}])
        self.assertEqual(search.valid(lambda: next(tries))["n"], 2)

    def test_percentiles_need_samples(self):
        self.assertEqual(search.percentiles(range(1000)), {"count": 1000, "p50": 500, "p99": 990, "p99.9": 999, "longest": 999})
        self.assertNotIn("p99", search.percentiles(range(99)))
        self.assertEqual(search.spread([3, None, 1, 2]), {"runs": 3, "lowest": 1, "median": 2, "highest": 3})


if __name__ == "__main__":
    unittest.main()
