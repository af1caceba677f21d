"""Tables of analyses in packages for tables, as they are installed: what they take over is what there is, and is not copied.

Usage: python -m unittest tables, where pyarrow, polars and pandas are (`./x test` sees to it).
"""
import os
import tempfile
import unittest

import memscope_bpf
import pandas
import polars
import pyarrow

HEADER = "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)\n"
BLOCKS = 5000


def rows():
    """Marks A, B and C with 1000 blocks between each two, of which every third stays; an operator around each mark."""
    for number in range(BLOCKS):
        at_ns = 1000 + 10 * number
        attr = f'"{{allocation_id:{number + 1},addr:0x{number + 1:x}000,size:512,total:99999999,used:512}}"'
        if number in (0, 1000, 2000):
            yield f"OP_LAUNCH,ATEN_START,op{number},{at_ns},5,6,0,N/A,,,"
            yield f"MSTX,Mark,m,{at_ns + 1},5,6,0,N/A,,,"
            yield f"OP_LAUNCH,ATEN_END,op{number},{at_ns + 2},5,6,0,N/A,,,"
        yield f"MALLOC,PTA,N/A,{at_ns + 3},5,6,0,0x{number + 1:x}000,{attr},\"a.py(3): f\","
        if number % 3:
            yield f"FREE,PTA,N/A,{at_ns + 4},5,6,0,0x{number + 1:x}000,{attr},,"


def dump(folder):
    path = os.path.join(folder, "dump.csv")
    with open(path, "w") as file:
        file.write(HEADER + "".join(f"{number},{row}\n" for number, row in enumerate(rows())))
    return path


class Tables(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = dump(folder.name)
        self.tables = {
            "leaks": memscope_bpf.leaks(path, mark="m"), "decompose": memscope_bpf.decompose(path), "peaks": memscope_bpf.peaks(path),
            "fragmentation": memscope_bpf.fragmentation(path), "diff": memscope_bpf.diff(path, start=0),
            "inefficient": memscope_bpf.inefficient(path), "compare": memscope_bpf.compare(path, path),
        }

    def assert_same(self, found, wanted):
        self.assertEqual(list(found), list(wanted))
        for name, cells in wanted.items():
            there = [None if cell is None or pandas.isna(cell) else cell for cell in found[name]]
            self.assertEqual(there, cells, name)

    def test_there_is_something(self):
        leaks = self.tables["leaks"].to_dict()
        self.assertEqual(leaks["addr"], [4096 * (number + 1) for number in range(0, 1000, 3)])
        for name in ("decompose", "peaks", "diff", "compare", "fragmentation"):
            self.assertGreater(len(self.tables[name]), 0, name)

    def test_pyarrow(self):
        for name, table in self.tables.items():
            with self.subTest(name=name):
                for taken in (pyarrow.table(table), table.to_arrow(), pyarrow.RecordBatchReader.from_stream(table).read_all()):
                    taken.validate(full=True)
                    self.assert_same(taken.to_pydict(), table.to_dict())

    def test_polars(self):
        for name, table in self.tables.items():
            with self.subTest(name=name):
                for taken in (polars.DataFrame(table), table.to_polars()):
                    self.assert_same(taken.to_dict(as_series=False), table.to_dict())

    def test_pandas(self):
        for name, table in self.tables.items():
            with self.subTest(name=name):
                for taken in (pandas.DataFrame.from_arrow(table), table.to_pandas()):
                    self.assert_same(taken.to_dict(orient="list"), table.to_dict())

    def test_nothing_is_copied(self):
        """Who takes a table over twice gets the same memory twice."""
        table = self.tables["leaks"]

        def addresses(taken):
            return [buffer.address for column in taken.columns for chunk in column.chunks for buffer in chunk.buffers() if buffer is not None]

        first, second = pyarrow.table(table), pyarrow.table(table)
        self.assertEqual(addresses(first), addresses(second))
        self.assertGreater(len(set(addresses(first))), 10)


if __name__ == "__main__":
    unittest.main()
