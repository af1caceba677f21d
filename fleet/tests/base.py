"""What all tests of queries are made of: a scenario is written once, and each engine must give the rows that were worked out by hand."""
import tempfile

import duckdb
from engines import ENGINES
from evidence import Evidence


class QueryTest:
    """A query on a scenario; a part of a `unittest.TestCase`."""

    query = ""
    maxDiff = None

    @classmethod
    def scenario(cls, evidence):
        """Adds its rows."""
        raise NotImplementedError

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="memscope fleet ")
        cls.addClassCleanup(cls.folder.cleanup)
        evidence = Evidence()
        cls.scenario(evidence)
        evidence.write(cls.folder.name, duckdb.connect())
        cls.answers = {}
        for engine in ENGINES:
            cls.answers[engine.name] = cls.ask(engine(cls.folder.name))

    @classmethod
    def ask(cls, engine):
        """Names of columns, and rows."""
        return engine.query(cls.query)

    def test_engines_agree(self):
        first, *others = self.answers.values()
        for other in others:
            self.assertEqual(other, first)

    def expect(self, columns, rows, where=lambda row: True):
        """These columns of the rows that `where` chooses, in both engines and in their order."""
        for engine, (names, answer) in self.answers.items():
            with self.subTest(engine):
                picked = [dict(zip(names, row)) for row in answer]
                picked = [tuple(row[name] for name in columns.split()) for row in picked if where(row)]
                self.assertEqual(picked, rows)
