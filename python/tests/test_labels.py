"""Owner labels per thread, against a model of the rules (contract 8.5)."""
import random
import threading
import unittest

from memscope_bpf._native import native
from memscope_bpf.describe import describe_label, describer, undescribe_label


class Model:
    """The rules: per level at most three different labels, counted, the newest counts; three of the user's, a fourth is passed over."""

    def __init__(self):
        self.system = [[] for _ in range(5)]
        self.user = []

    def push(self, label, level):
        stack = self.system[level]
        for entry in stack:
            if entry[0] == label:
                entry[1] += 1
                return
        if len(stack) < 3:
            stack.append([label, 1])

    def pop(self, label, level):
        for entry in self.system[level]:
            if entry[0] == label:
                entry[1] -= 1
        self.system[level] = [entry for entry in self.system[level] if entry[1]]

    def current(self):
        return [stack[-1][0] if stack else None for stack in self.system] + (self.user + [None] * 3)[:3]


def play(seed, steps):
    """Random calls; gives the first state that is not the model's."""
    choice, model, open_ranges = random.Random(seed), Model(), []
    for _ in range(steps):
        label, level = choice.choice("abcde"), choice.randrange(5)
        what = choice.randrange(4)
        if what == 0:
            describe_label(label, level)
            model.push(label, level)
        elif what == 1:
            undescribe_label(label, level)
            model.pop(label, level)
        elif what == 2 and len(open_ranges) < 6:
            open_ranges.append(describer(owner=label).__enter__())
            model.user.append(label)
        elif open_ranges:
            open_ranges.pop().__exit__(None, None, None)
            model.user.pop()
        if native.current_labels() != model.current():
            return native.current_labels(), model.current()
    return None


class Labels(unittest.TestCase):
    def test_random_calls_of_two_threads(self):
        found = {}
        threads = [threading.Thread(target=lambda seed=seed: found.update({seed: play(seed, 50000)})) for seed in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, {1: None, 2: None})
        self.assertEqual(native.current_labels(), [None] * 8)

    def test_fourth_of_the_user(self):
        with describer(owner="a"), describer(owner="b"), describer(owner="c"), describer(owner="d"):
            self.assertEqual(native.current_labels()[5:], ["a", "b", "c"])
        self.assertEqual(native.current_labels(), [None] * 8)

    def test_levels_of_the_user_do_not_act(self):
        for level in (5, 6, 7):
            describe_label("x", level)
        self.assertEqual(native.current_labels(), [None] * 8)

    def test_control_characters(self):
        table = [("a\n\f\r\b\t\v\x7fz", "a\\n\\f\\r\\b\\t\\v\\x7fz"), ("\0\x1b", "\\x00\\x1b"), ("é 中", "é 中"), ("", "")]
        for label, expected in table:
            with self.subTest(label=label), describer(owner=label):
                self.assertEqual(native.current_labels()[5], expected)


if __name__ == "__main__":
    unittest.main()
