"""docs/fleet.md and its Chinese twin have the answers that the queries give, and what the files say."""
import os
import re
import tempfile
import unittest

import duckdb
from engines import FLEET, DuckDb, text
from examples import COLUMNS, SIDES, answers, pages, put, scenario


class Pages(unittest.TestCase):
    def test_examples(self):
        printed = answers()
        for path in pages():
            with self.subTest(path), open(path, encoding="utf-8") as file:
                page = file.read()
                self.assertEqual(put(page, printed), page, "run `python examples.py --write`")

    def test_every_query_is_there(self):
        files = [name.removesuffix(".sql") for name in os.listdir(FLEET) if name.endswith(".sql")]
        queries = {name for name in files if not name.endswith(("duckdb", "spark"))}
        self.assertEqual(queries, set(COLUMNS))
        for path in pages():
            with open(path, encoding="utf-8") as file:
                self.assertEqual(set(re.findall(r"^### (\w+)$", file.read(), re.MULTILINE)), queries)

    def test_statements_are_those_of_the_files(self):
        for path in pages():
            with self.subTest(path), open(path, encoding="utf-8") as file:
                recipe = re.search(r"```sql\n(copy .*?)```", file.read(), re.DOTALL).group(1)
                self.assertIn(recipe, text("compact_duckdb.sql"))

    def test_heads_name_every_column(self):
        """The comment of a query has each column of its answer."""
        with tempfile.TemporaryDirectory() as folder:
            scenario().write(folder, duckdb.connect())
            engine = DuckDb(folder)
            engine.run(SIDES)
            for query in COLUMNS:
                head = " ".join(line for line in text(f"{query}.sql").splitlines() if line.startswith("--"))
                missing = [name for name in engine.query(query)[0] if not re.search(rf"\b{name}\b", head)]
                self.assertEqual(missing, [], query)


if __name__ == "__main__":
    unittest.main()
