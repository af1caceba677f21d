"""What is of a node, or of a pool: holders now, unused memory, gaps."""
import unittest

from base import QueryTest
from evidence import GIB, MIB, START

HOUR = START // 60


class NodeTop(QueryTest, unittest.TestCase):
    query = "node_top"

    @classmethod
    def scenario(cls, evidence):
        hal = {"layer": "hal", "pool": "hal"}
        # Minute 9 is the newest of node-1; pid 102 has ended before. node-2 is 70 minutes behind it.
        evidence.device([9], pid=100, pod="a", rank=0, live_bytes=3 * GIB, **hal)
        evidence.device([9], pid=101, pod="b", rank=1, live_bytes=GIB, level=2, **hal)
        evidence.device([8], pid=102, pod="c", live_bytes=9 * GIB, **hal)
        evidence.device([9], pid=100, pod="a", rank=0, live_bytes=2 * GIB, used_bytes=5 * GIB, untracked_bytes=3 * GIB)
        evidence.device([9], pid=101, pod="b", rank=1, device_id=-1, layer="host_pinned", pool="host", live_bytes=0)
        evidence.device([-61], pid=7, host="node-2", pod="it's", live_bytes=MIB)
        evidence.hold([9], GIB, place_key=1, pid=100)
        evidence.hold([9], GIB, place_key=2, pid=100)
        evidence.hold([8], 7 * GIB, place_key=3, pid=100)
        evidence.hold([9], 3 * GIB, place_key=3, pid=100, **hal)
        evidence.name(1, "a.py:1 f")

    def test_rows(self):
        columns = "host device_id layer pod pid rank live_bytes share used_bytes untracked_bytes top_place top_place_bytes minutes_behind level"
        rows = [
            ("node-1", -1, "host_pinned", "b", 101, 1, 0, None, None, 0, None, None, 0, 0),
            ("node-1", 0, "hal", "a", 100, 0, 3 * GIB, 0.75, None, 0, None, 3 * GIB, 0, 0),
            ("node-1", 0, "hal", "b", 101, 1, GIB, 0.25, None, 0, None, None, 0, 2),
            ("node-1", 0, "pool", "a", 100, 0, 2 * GIB, 1.0, 5 * GIB, 3 * GIB, "a.py:1 f", GIB, 0, 0),
            ("node-2", 0, "pool", "it's", 7, -1, MIB, 1.0, None, 0, None, None, 70, 0),
        ]
        self.expect(columns, rows)


class Fragmentation(QueryTest, unittest.TestCase):
    query = "fragmentation_by_job"

    @classmethod
    def scenario(cls, evidence):
        full = {"reserved_bytes": 10 * GIB, "used_bytes": 9 * GIB, "active_bytes": 9 * GIB + 256 * MIB}
        # First hour: rank 1 uses 6 of 10 GiB, and one of its requests fails. Second hour: none does.
        for hour, failures in ((0, 1), (60, 0)):
            evidence.device(range(hour, hour + 30), pid=100, **full)
            evidence.device(range(hour, hour + 30), pid=101, reserved_bytes=10 * GIB, used_bytes=6 * GIB, active_bytes=6 * GIB,
                            failures=lambda minute, n=failures, at=hour: n if minute == at else 0)
        # Third hour: little is unused, and a request fails: it is full.
        evidence.device(range(120, 150), pid=100, failures=lambda minute: 2 if minute == 121 else 0, **full)
        evidence.device(range(180, 189), pid=100, **full)
        # A pool without totals, and the driver, which is none.
        evidence.device(range(30), pool="atb", live_bytes=GIB)
        evidence.device(range(30), layer="hal", pool="hal", live_bytes=GIB)
        # Nothing is reserved yet.
        evidence.device(range(30), pool="empty", reserved_bytes=0, used_bytes=0)

    def test_rows(self):
        columns = "verdict reason pool epoch_hour processes reserved_bytes used_bytes waiting_bytes unused_share worst_share worst_pid failures minutes"
        silent = ("not judged", "the pool reports no totals, or 0")
        rows = [
            (*silent, "atb", HOUR, 1, None, None, None, None, None, None, 0, 0),
            (*silent, "empty", HOUR, 1, None, None, None, None, None, None, 0, 0),
            # Means of 9 and 6 GiB, of 256 MiB and 0; 5 of 20 GiB are unused.
            ("found", "requests fail beside unused memory", "pta", HOUR, 2, 10 * GIB, 15 * GIB // 2, 128 * MIB, 0.25, 0.4, 101, 1, 30),
            ("not found", "unused, and no request failed: a cache", "pta", HOUR + 1, 2, 10 * GIB, 15 * GIB // 2, 128 * MIB, 0.25, 0.4, 101, 0, 30),
            ("not found", "little is unused", "pta", HOUR + 2, 1, 10 * GIB, 9 * GIB, 256 * MIB, 0.1, 0.1, 100, 2, 30),
            ("not judged", "fewer than 10 minutes", "pta", HOUR + 3, 1, 10 * GIB, 9 * GIB, 256 * MIB, 0.1, 0.1, 100, 0, 9),
        ]
        self.expect(columns, rows)


class EvidenceGaps(QueryTest, unittest.TestCase):
    query = "evidence_gaps"

    @classmethod
    def scenario(cls, evidence):
        for pid in (1, 2):
            evidence.device(range(60), pid=pid, host="whole", used_bytes=GIB, live_bytes=GIB)
            # 10 minutes are missing; records are lost in two, of the agent and not of each process; one minute is at level 2.
            evidence.device([*range(20), *range(30, 60)], pid=pid, host="gaps", used_bytes=GIB,
                            lost=lambda minute: {3: 5, 4: 6}.get(minute, 0), level=lambda minute: 2 if minute == 9 else 0,
                            untracked_bytes=lambda minute: GIB if minute < 59 else GIB // 20)
        evidence.device(range(-60, -1), host="behind")
        evidence.device(range(51, 60), host="new")
        evidence.device(range(60), host="untracked", used_bytes=GIB, untracked_bytes=GIB // 2)
        evidence.device(range(60), host="untracked", pid=101, pool="atb", untracked_bytes=9 * GIB)

    def test_rows(self):
        columns = "verdict host missing_minutes minutes_behind lost minutes_with_loss degraded_minutes level untracked_share"
        rows = [
            ("found", "gaps", 10, 0, 11, 2, 1, 2, 0.05),
            ("found", "behind", 0, 61, 0, 0, 0, 0, None),
            ("found", "untracked", 0, 0, 0, 0, 0, 0, 0.5),
            ("not judged", "new", 0, 0, 0, 0, 0, 0, None),
            ("not found", "whole", 0, 0, 0, 0, 0, 0, 0.0),
        ]
        self.expect(columns, rows)


if __name__ == "__main__":
    unittest.main()
