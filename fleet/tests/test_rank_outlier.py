"""More than peers. With equal peers of 256 MiB a spread is 2 % of these, 5.12 MiB; of small ones 1 MiB."""
import unittest

from base import QueryTest
from evidence import MIB


class RankOutlier(QueryTest, unittest.TestCase):
    query = "rank_outlier"

    @classmethod
    def scenario(cls, evidence):
        hours = range(120)
        # Rank 3 holds four times as much, in the last hour alone, and does not grow in it.
        for rank in range(4):
            held = 256 * MIB
            evidence.hold(hours[:60], held, rank=rank, pid=100 + rank)
            evidence.hold(hours[60:], 4 * held if rank == 3 else held, rank=rank, pid=100 + rank)
        # Peers differ: 100, 200, 300, 400, 500 MiB; the median is 300, the deviations 200, 100, 0, 100, 200, their median 100.
        # 1.4826 * 100 = 148.26 MiB; 500 is 1.3 spreads away, and 1500 of rank 5 would be: then the median is 350, deviations are
        # 250, 150, 50, 50, 150, 1150, their median 150: 1150 / 222.39 = 5.2.
        for rank, held in enumerate((100, 200, 300, 400, 500, 1500)):
            evidence.hold(hours, held * MIB, job="varied", rank=rank, pid=200 + rank)
        # Half of its minutes it holds nothing: the mean is 100 MiB. Its other place shows that it was seen.
        for rank in range(3):
            evidence.hold(hours, MIB, place_key=2, job="half", rank=rank, pid=300 + rank)
            evidence.hold(hours[60:90] if rank == 0 else hours, 200 * MIB if rank == 0 else 10 * MIB, job="half", rank=rank, pid=300 + rank)
        # Two devices of a process are added up.
        for rank in range(3):
            for device in (0, 1):
                evidence.hold(hours, (100 if rank == 1 else 10) * MIB, job="devices", rank=rank, pid=400 + rank, device_id=device)
        # A place of one rank, of four: no peers. A small one is not listed.
        for rank in range(4):
            evidence.hold(hours, MIB, job="stage", rank=rank, pid=500 + rank)
        evidence.hold(hours, 64 * MIB, place_key=3, job="stage", rank=0, pid=500)
        evidence.hold(hours, 64 * MIB - 1, place_key=4, job="stage", rank=1, pid=501)
        # The job ended earlier than others: its own last hour counts. Rank 2 was started 9 minutes before.
        for rank in range(4):
            minutes = range(51, 60) if rank == 2 else range(60)
            evidence.hold(minutes, 300 * MIB if rank == 2 else 10 * MIB, job="late", rank=rank, pid=600 + rank)
        for process in range(3):
            evidence.hold(hours, (200 if process else 2000) * MIB, job="unknown", rank=-1, pid=700 + process, level=1)
        evidence.hold(hours, 900 * MIB, job="single", rank=0, pid=800)
        evidence.hold(range(115, 120), MIB, job="new", rank=0, pid=900)
        evidence.name(1, "model.py:1 build")

    def of_job(self, job, columns, rows):
        self.expect(columns, rows, lambda row: row["job"] == job)

    def test_flat_and_high(self):
        # (1024 - 256) / 5.12 = 150
        rows = [("found", "holds more than its peers", 3, 103, "model.py:1 build", 1024 * MIB, 256 * MIB, 150.0, 4, 4)]
        self.of_job("train", "verdict reason rank pid place bytes peers_bytes robust_z ranks ranks_of_job", rows)

    def test_peers_that_differ(self):
        self.of_job("varied", "verdict reason rank ranks_of_job", [("not found", "ranks hold alike", None, 6)])

    def test_minutes_without_the_place_are_0(self):
        # (100 - 10) MiB / 1 MiB
        self.of_job("half", "verdict rank bytes peers_bytes robust_z", [("found", 0, 100 * MIB, 10 * MIB, 90.0)])

    def test_devices_are_added(self):
        self.of_job("devices", "verdict rank bytes peers_bytes robust_z", [("found", 1, 200 * MIB, 20 * MIB, 180.0)])

    def test_places_of_few_ranks(self):
        rows = [("not judged", "fewer than 3 ranks have this place", 0, 3, 64 * MIB, 1, 4)]
        self.of_job("stage", "verdict reason rank place_key bytes ranks ranks_of_job", rows)
        self.of_job("single", "verdict reason rank place_key ranks_of_job", [("not judged", "fewer than 3 ranks", None, None, 1)])

    def test_few_minutes(self):
        self.of_job("late", "verdict reason rank bytes", [("not judged", "fewer than 10 minutes", 2, 300 * MIB)])
        self.of_job("new", "verdict reason rank bytes", [("not judged", "fewer than 10 minutes", None, None)])

    def test_unknown_ranks(self):
        # Spread: 2 % of 200 MiB, 4 MiB; (2000 - 200) / 4
        self.of_job("unknown", "verdict rank pid robust_z level", [("found", -1, 700, 450.0, 1)])


if __name__ == "__main__":
    unittest.main()
