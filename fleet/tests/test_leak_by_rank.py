"""Growth by rank. 1 MiB a minute is 1048576; with flat peers its distance is 1048576 / 8192 = 128 spreads."""
import unittest

from base import QueryTest
from evidence import MIB

HOSTILE_JOB = "it's \"x\"\n; drop table places --"
HOSTILE_PLACE = "a'b\".py:3 f\ng"


def leak(minute):
    return (minute + 1) * MIB


class LeakByRank(QueryTest, unittest.TestCase):
    query = "leak_by_rank"

    @classmethod
    def scenario(cls, evidence):
        hour = range(60)
        # Rank 2 leaks at place 3, which no other rank has. Rank 1 fills a cache within 20 minutes. Rank 3 holds more than all, and is flat.
        for rank in range(4):
            evidence.hold(hour, 1024 * MIB if rank == 3 else 256 * MIB, rank=rank, pid=100 + rank)
        evidence.hold(hour, leak, place_key=3, rank=2, pid=102)
        evidence.hold(hour, lambda minute: min(minute + 1, 20) * 10 * MIB, place_key=4, rank=1, pid=101)
        # Rank 0 leaks, and is started again.
        long = range(80)
        evidence.hold(long[:40], leak, job="restart", rank=0, pid=200)
        evidence.hold(long[40:], lambda minute: (minute - 39) * MIB, job="restart", rank=0, pid=201)
        for rank in (1, 2):
            evidence.hold(long, 5 * MIB, job="restart", rank=rank, pid=201 + rank)
        # A third of the minutes is missing: the slope is the same. Rank 1 has nothing from minute 20 to 59.
        evidence.hold([minute for minute in hour if minute % 3], leak, job="gaps", rank=0, pid=300)
        evidence.hold([*range(20), *range(60, 80)], leak, place_key=2, job="gaps", rank=1, pid=301)
        for rank in (2, 3):
            evidence.hold(hour, MIB, job="gaps", rank=rank, pid=300 + rank)
        evidence.hold(hour, leak, job="single", rank=0, pid=400)
        # Ranks are not known: processes are compared.
        for process in range(3):
            evidence.hold(hour, leak if process == 1 else MIB, job="unknown", rank=-1, pid=500 + process)
        evidence.hold(range(20), leak, job="short", rank=0, pid=600)
        for rank in range(3):
            evidence.hold(hour, leak, job="all", rank=rank, pid=700 + rank)
        # 59 blocks are added, and 30 records are lost on its host, some before it began: 29 would be too few.
        for rank in range(3):
            evidence.hold(range(10, 70), leak if rank == 0 else MIB, job="lossy", rank=rank, host="node-2", pid=800 + rank)
            evidence.hold(range(10, 70), leak if rank == 0 else MIB, job="lucky", rank=rank, host="node-3", pid=850 + rank)
        for lost, host in ((30, "node-2"), (29, "node-3")):
            for pid in (800, 801):
                evidence.device([5], host=host, pid=pid, lost=1000)
                evidence.device([30], host=host, pid=pid, lost=lost)
        for rank in range(3):
            evidence.hold(hour, 7 * MIB, job="quiet", rank=rank, pid=900 + rank, level=2)
        evidence.hold(range(5), 7 * MIB, job="new", rank=0, pid=950)
        # A slope of one minute is NaN in DuckDB, which is above all numbers there.
        evidence.hold([7], 7 * MIB, job="moment", rank=0, pid=955)
        # It frees all of it at its end.
        for rank in range(3):
            evidence.hold(range(61), lambda minute: 0 if minute == 60 else leak(minute), job="ended", rank=rank, pid=960 + rank)
        # Slow growth is none, on one rank or on all.
        for rank in range(3):
            evidence.hold(hour, lambda minute: MIB + minute * 65535, job="slow", rank=rank, pid=970 + rank)
        for rank in range(3):
            evidence.hold(hour, leak if rank else MIB, place_key=9, job=HOSTILE_JOB, rank=rank, pod="p'\"\n" + str(rank), pid=980 + rank)
        evidence.hold(hour, MIB, place_key=9, job=HOSTILE_JOB, rank=3, pod="p", pid=983)
        evidence.hold(hour, MIB, place_key=9, job=HOSTILE_JOB, rank=4, pod="p", pid=984)
        evidence.name(3, "serve.py:7 step")
        evidence.name(3, "serve.py:7 step", host="node-2")
        evidence.name(9, HOSTILE_PLACE)

    def of_job(self, job, columns, rows):
        self.expect(columns, rows, lambda row: row["job"] == job)

    def test_one_rank_grows(self):
        columns = "verdict reason rank pid layer place_key place bytes_per_minute peers_bytes_per_minute robust_z ranks minutes"
        self.of_job("train", columns, [("found", "this rank", 2, 102, "pool", 3, "serve.py:7 step", MIB, 0, 128.0, 4, 60)])

    def test_a_process_is_judged_on_its_own(self):
        rows = [("found", 0, 200, MIB, 0, 3, 40), ("found", 0, 201, MIB, 0, 3, 40)]
        self.of_job("restart", "verdict rank pid bytes_per_minute peers_bytes_per_minute ranks minutes", rows)

    def test_missing_minutes(self):
        rows = [("found", "this rank", 0, MIB, 40), ("not judged", "a quarter without minutes", 1, MIB, 40)]
        self.of_job("gaps", "verdict reason rank bytes_per_minute minutes", rows)

    def test_too_little_to_judge(self):
        columns = "verdict reason rank bytes_per_minute minutes"
        self.of_job("single", columns, [("not judged", "fewer than 3 ranks", 0, MIB, 60)])
        self.of_job("short", columns, [("not judged", "fewer than 30 minutes", 0, MIB, 20)])
        self.of_job("new", columns, [("not judged", "fewer than 30 minutes", None, None, 5)])
        self.of_job("moment", columns, [("not judged", "fewer than 30 minutes", None, None, 1)])

    def test_unknown_ranks(self):
        self.of_job("unknown", "verdict rank pid robust_z ranks", [("found", -1, 501, 128.0, 3)])

    def test_all_ranks_grow(self):
        rows = [("found", "most ranks", None, None, 1, MIB, MIB, 3)]
        columns = "verdict reason rank pid place_key bytes_per_minute peers_bytes_per_minute ranks"
        self.of_job("all", columns, rows)

    def test_the_end_of_a_process_is_no_part(self):
        self.of_job("ended", "verdict reason bytes_per_minute minutes", [("found", "most ranks", MIB, 60)])

    def test_lost_frees_look_like_growth(self):
        self.of_job("lossy", "verdict reason rank", [("undecided", "records lost", 0)])
        self.of_job("lucky", "verdict reason rank", [("found", "this rank", 0)])

    def test_nothing_grows(self):
        for job in ("quiet", "slow"):
            self.of_job(job, "verdict reason rank ranks minutes", [("not found", "nothing grows steadily", None, 3, 60)])

    def test_names_are_no_sql(self):
        # Two of five grow: the median is that of the three others.
        columns = "verdict rank pod place robust_z"
        rows = [("found", rank, f"p'\"\n{rank}", HOSTILE_PLACE, 128.0) for rank in (1, 2)]
        self.of_job(HOSTILE_JOB, columns, rows)

    def test_order(self):
        verdicts = [row[0] for row in self.answers["DuckDB"][1]]
        self.assertEqual(verdicts, sorted(verdicts, key=["found", "undecided", "not judged", "not found"].index))


if __name__ == "__main__":
    unittest.main()
