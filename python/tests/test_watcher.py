"""What watcher.watch() and remove() take, and what they refuse."""
import unittest
from unittest import mock

from memscope_bpf import _watcher, watcher

Tensor = type("Tensor", (), {"__module__": "torch", "nbytes": 64, "data_ptr": lambda self: 0x1000})
Parameter = type("Parameter", (Tensor,), {"__module__": "torch.nn.parameter"})


class Watch(unittest.TestCase):
    def test_misuse(self):
        table = [
            ((Tensor(),), {}, TypeError),
            ((), {"name": "a"}, TypeError),
            ((0x1000,), {"length": 1}, TypeError),
            (("0x1000",), {"name": "a", "length": 1}, TypeError),
            ((object(),), {"name": "a"}, TypeError),
            ((0x1000,), {"name": "a", "length": 1, "dump_nums": True}, TypeError),
            ((1, 2), {"name": "a", "length": 1}, TypeError),
            ((Parameter(),), {"name": "a"}, TypeError),
            ((0x1000,), {"name": "a"}, TypeError),
            ((Tensor(),), {"name": "a", "length": 1}, TypeError),
            ((0x1000,), {"name": "a", "length": 0}, TypeError),
            ((0x1000,), {"name": "a", "length": True}, TypeError),
            ((0,), {"name": "a", "length": 1}, TypeError),
            ((2**64,), {"name": "a", "length": 1}, TypeError),
            ((0x1000,), {"name": 3, "length": 1}, TypeError),
            ((0x1000,), {"name": "a" * 65, "length": 1}, ValueError),
            ((0x1000,), {"name": "é" * 33, "length": 1}, ValueError),
            ((0x1000,), {"name": "a", "length": 1, "dump_nums": "1"}, TypeError),
            ((0x1000,), {"name": "a", "length": 1, "dump_nums": -2}, TypeError),
            ((0x1000,), {"name": "a", "length": 1, "dump": 1}, TypeError),
        ]
        for arguments, keywords, error in table:
            with self.subTest(arguments=arguments, keywords=keywords), self.assertRaises(error):
                watcher.watch(*arguments, **keywords)
        for arguments, keywords in [((), {}), ((3,), {}), ((Tensor(),), {"length": 1}), ((Tensor(),), {"name": "a"})]:
            with self.subTest(arguments=arguments, keywords=keywords), self.assertRaises(TypeError):
                watcher.remove(*arguments, **keywords)

    def test_calls(self):
        """Without a tracer nothing is said; with one, what is to be watched; until it is heard the first time."""
        with mock.patch.object(_watcher, "native") as native, mock.patch.object(_watcher, "time"), \
                mock.patch.object(_watcher, "_has_handler", side_effect=[False, False, True]):
            own = _watcher._Watcher()
            native.listening.return_value = False
            own.watch(Tensor(), name="a")
            native.watch.assert_not_called()
            native.listening.return_value = True
            own.watch(Tensor(), name="a")
            self.assertEqual(native.watch.mock_calls, [mock.call("a", 0x1000, 64, 2**64 - 1)] * 4)
            native.watch.reset_mock()
            own.watch(0x2000, length=8, name="b", dump_nums=3)
            own.watch(0x2000, length=8, name="b", dump_nums=0)
            native.watch.assert_called_once_with("b", 0x2000, 8, 3)
            own.remove(0x2000, length=8)
            own.remove(Tensor())
            self.assertEqual(native.unwatch.mock_calls, [mock.call(0x2000), mock.call(0x1000)])


if __name__ == "__main__":
    unittest.main()
