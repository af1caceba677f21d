"""Two sides that the user names."""
import unittest

from base import QueryTest
from evidence import GIB, MIB, START

SIDES = f"""create or replace temporary view rollout_sides as
select 'before' as side, 'v1' as job, {START} as from_minute, {START + 59} as to_minute
union all select 'after', 'v2', {START + 100}, {START + 129}
union all select 'after', 'v3', {START + 100}, {START + 199}"""


class Rollout(QueryTest, unittest.TestCase):
    query = "rollout"

    @classmethod
    def ask(cls, engine):
        engine.run(SIDES)
        return super().ask(engine)

    @classmethod
    def scenario(cls, evidence):
        # Before: minutes 0 to 59; the minutes beyond are no part, nor is another job.
        evidence.device(range(80), job="v1", pid=1, live_bytes=GIB)
        evidence.hold(range(80), lambda minute: GIB if minute < 60 else 9 * GIB, job="v1", pid=1)
        evidence.device(range(80), job="other", pid=2, live_bytes=7 * GIB)
        evidence.hold(range(80), 7 * GIB, job="other", pid=2)
        # After: 30 minutes of v2 with 2 GiB, and 70 of v3 with 1 GiB: 130 / 100.
        evidence.device(range(90, 150), job="v2", pid=3, live_bytes=2 * GIB)
        evidence.hold(range(90, 150), 2 * GIB, place_key=2, job="v2", pid=3)
        evidence.device(range(130, 200), job="v3", pid=4, live_bytes=GIB)
        evidence.hold(range(130, 200), GIB, place_key=2, job="v3", pid=4)
        evidence.hold(range(130, 200), 3 * MIB, place_key=3, job="v3", pid=4)
        evidence.name(1, "kv.py:7 grow (\"a\":1 b)")
        evidence.name(2, "kv.py:9 grow (\"a\":1 b)")
        # A pool that the new version has no more, and one with too few minutes.
        evidence.device(range(60), job="v1", pid=1, pool="atb", live_bytes=32 * MIB)
        evidence.device(range(20), job="v1", pid=1, layer="hal", pool="hal", live_bytes=32 * MIB)
        evidence.device(range(130, 200), job="v3", pid=4, layer="hal", pool="hal", live_bytes=96 * MIB)

    def test_rows(self):
        mean = 1395864371  # 1.3 GiB
        columns = "verdict reason layer pool place bytes_before bytes_after difference_bytes process_minutes_before process_minutes_after"
        rows = [
            ("grew", None, "pool", "pta", None, GIB, mean, mean - GIB, 60, 100),
            ("not judged", "fewer than 60 minutes before", "hal", "hal", None, 32 * MIB, 96 * MIB, 64 * MIB, 20, 70),
            ("not judged", "no minutes after", "pool", "atb", None, 32 * MIB, None, None, 60, 0),
            ("grew", None, "pool", "pta", "kv.py grow (\"a\":1 b)", GIB, mean, mean - GIB, 60, 100),
        ]
        self.expect(columns, rows)


if __name__ == "__main__":
    unittest.main()
