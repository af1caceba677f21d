"""A day against the same day a week before."""
import unittest

from base import QueryTest
from evidence import MIB

WEEK = 7 * 24 * 60
# The newest minute is 1439: the last 24 hours are minutes 0 to 1439.
NOW = range(1340, 1440)
THEN = range(NOW.start - WEEK, NOW.stop - WEEK)
COLUMNS = "verdict reason layer pool place bytes_before bytes_after difference_bytes process_minutes_before process_minutes_after"


class GrowthWeek(QueryTest, unittest.TestCase):
    query = "growth_week"

    @classmethod
    def scenario(cls, evidence):
        # Two processes, then four: sums double, means do not. The line of place 1 has moved, and it holds 100 MiB more.
        for minutes, processes, key, held in ((THEN, 2, 1, 200), (NOW, 4, 2, 300)):
            for process in range(processes):
                evidence.device(minutes, rank=process, pid=100 + process, live_bytes=(held + 10) * MIB)
                evidence.hold(minutes, held * MIB, place_key=key, rank=process, pid=100 + process)
                evidence.hold(minutes, 10 * MIB, place_key=3, rank=process, pid=100 + process)
        evidence.name(1, "model.py:10 build")
        evidence.name(2, "model.py:12 build")
        evidence.name(3, "libx.so x::f")
        # A place that is new, in half of the minutes, and one that has gone; neither has a name.
        evidence.device(THEN, job="serve", pid=200, live_bytes=80 * MIB, level=1)
        evidence.device(NOW, job="serve", pid=200, live_bytes=50 * MIB)
        evidence.hold(THEN, 80 * MIB, place_key=-5, job="serve", pid=200)
        evidence.hold(NOW[:50], 100 * MIB, place_key=6, job="serve", pid=200)
        # 16 MiB more of 400 are 4 %, and 15 more of 15 too little.
        evidence.device(THEN, job="same", pid=300, live_bytes=415 * MIB)
        evidence.device(NOW, job="same", pid=300, live_bytes=446 * MIB)
        for minutes, first, second in ((THEN, 400, 15), (NOW, 416, 30)):
            evidence.hold(minutes, first * MIB, place_key=1, job="same", pid=300)
            evidence.hold(minutes, second * MIB, place_key=3, job="same", pid=300)
        evidence.device(NOW, job="new", pid=400, live_bytes=MIB)
        evidence.device(THEN, job="gone", pid=500, live_bytes=MIB)
        evidence.device(THEN[:59], job="short", pid=600, live_bytes=MIB)
        evidence.device(NOW, job="short", pid=600, live_bytes=900 * MIB)
        # Days between the two are no part.
        evidence.device(range(-1000, -900), job="new", pid=400, live_bytes=MIB)

    def of_job(self, job, rows):
        self.expect(COLUMNS, rows, lambda row: row["job"] == job)

    def test_means_by_process(self):
        rows = [
            ("grew", None, "pool", "pta", None, 210 * MIB, 310 * MIB, 100 * MIB, 200, 400),
            ("grew", None, "pool", "pta", "model.py build", 200 * MIB, 300 * MIB, 100 * MIB, 200, 400),
        ]
        self.of_job("train", rows)

    def test_places_come_and_go(self):
        rows = [
            ("shrank", None, "pool", "pta", None, 80 * MIB, 50 * MIB, -30 * MIB, 100, 100),
            ("grew", None, "pool", "pta", "place 6", 0, 50 * MIB, 50 * MIB, 100, 100),
            ("shrank", None, "pool", "pta", "place -5", 80 * MIB, 0, -80 * MIB, 100, 100),
        ]
        self.of_job("serve", rows)
        self.expect("level", [(1,)] * 3, lambda row: row["job"] == "serve")

    def test_little_is_the_same(self):
        self.of_job("same", [("grew", None, "pool", "pta", None, 415 * MIB, 446 * MIB, 31 * MIB, 100, 100)])

    def test_not_judged(self):
        self.of_job("new", [("not judged", "no minutes a week ago", "pool", "pta", None, None, MIB, None, 0, 100)])
        rows = [("not judged", "fewer than 60 minutes a week ago", "pool", "pta", None, MIB, 900 * MIB, 899 * MIB, 59, 100)]
        self.of_job("short", rows)
        self.of_job("gone", [])


if __name__ == "__main__":
    unittest.main()
