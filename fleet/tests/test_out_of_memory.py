"""Failed requests, and what was held then."""
import unittest

from base import QueryTest
from evidence import GIB, MIB, START

NS = 1_000_000_000


def at(minute, second=0):
    return ((START + minute) * 60 + second) * NS


class OutOfMemory(QueryTest, unittest.TestCase):
    query = "out_of_memory"

    @classmethod
    def scenario(cls, evidence):
        # Three requests in a minute; one had success later. The largest was made at place 2; place 3 holds most.
        for second, key, size, recovered, bundle in (
            (5, 1, GIB, True, ""), (7, 2, 2 * GIB, False, "bundle_7.json"), (9, 1, GIB, False, "")
        ):
            evidence.add(
                "failures", 30, time_ns=at(30, second), rank=4, place_key=key, requested_bytes=size, recovered=recovered, bundle=bundle
            )
        for minute, factor in ((29, 9), (30, 1)):
            evidence.hold([minute], factor * 3 * GIB, place_key=3, rank=4)
            evidence.hold([minute], factor * GIB, place_key=2, rank=4)
            evidence.device([minute], rank=4, layer="hal", pool="hal", live_bytes=factor * 5 * GIB)
            evidence.device([minute], pid=101, pod="other", layer="hal", pool="hal", live_bytes=factor * 20 * GIB)
            evidence.device([minute], pid=102, pod="small", layer="hal", pool="hal", live_bytes=factor * GIB)
            # Elsewhere.
            evidence.device([minute], pid=103, pod="x", device_id=1, layer="hal", pool="hal", live_bytes=90 * GIB)
            evidence.device([minute], pid=101, pod="x", host="node-2", layer="hal", pool="hal", live_bytes=90 * GIB)
            evidence.hold([minute], 90 * GIB, place_key=9, rank=4, device_id=1)
            evidence.hold([minute], 90 * GIB, place_key=9, rank=4, layer="hal", pool="hal")
        # It died in the minute: the one before counts. Another one has no minute within five.
        evidence.add("failures", 40, time_ns=at(40), pid=200, job="died", place_key=7, requested_bytes=MIB)
        evidence.hold([38, 39], GIB, pid=200, job="died", place_key=2)
        # It holds most of the device itself: it is no other process.
        evidence.device([39], pid=200, job="died", layer="hal", pool="hal", live_bytes=9 * GIB)
        evidence.device([39], pid=201, pod="less", layer="hal", pool="hal", live_bytes=2 * GIB)
        evidence.add("failures", 50, time_ns=at(50), pid=300, job="late", requested_bytes=MIB)
        evidence.hold([44], GIB, pid=300, job="late", place_key=2)
        evidence.name(1, "a.py:1 f")
        evidence.name(2, "b.py:2 'g'")
        evidence.name(3, "c.py:3 \"h\"\ni")

    def of_job(self, job, columns, rows):
        self.expect(columns, rows, lambda row: row["job"] == job)

    def test_request(self):
        columns = "first_time_ns epoch_minute rank pid requests recovered largest_request_bytes asked_place bundle"
        self.of_job("train", columns, [(at(30, 5), START + 30, 4, 100, 3, 1, 2 * GIB, "b.py:2 'g'", "bundle_7.json")])

    def test_holders(self):
        columns = "held_minute held_bytes top_place top_place_bytes device_bytes other_pod other_pid other_bytes"
        row = (START + 30, 4 * GIB, "c.py:3 \"h\"\ni", 3 * GIB, 26 * GIB, "other", 101, 20 * GIB)
        self.of_job("train", columns, [row])

    def test_a_minute_before(self):
        columns = "held_minute held_bytes top_place asked_place device_bytes other_pid other_bytes"
        self.of_job("died", columns, [(START + 39, GIB, "b.py:2 'g'", None, 11 * GIB, 201, 2 * GIB)])

    def test_not_judged(self):
        self.of_job("late", "held_minute held_bytes top_place device_bytes other_pod", [(None,) * 5])

    def test_newest_first(self):
        self.expect("job", [("late",), ("died",), ("train",)])


class NoFailures(QueryTest, unittest.TestCase):
    query = "out_of_memory"

    @classmethod
    def scenario(cls, evidence):
        evidence.hold(range(3), MIB)
        evidence.device(range(3))

    def test_no_row(self):
        self.expect("job", [])


if __name__ == "__main__":
    unittest.main()
