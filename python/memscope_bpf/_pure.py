"""What stands in for the native half: the same names, and nothing happens. No tracer can have a probe here."""


class LabelRange:
    def __init__(self, *_arguments, **_keywords):
        pass

    def set_label(self, text):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        pass


class NamedRange:
    def __init__(self, *_arguments, **_keywords):
        pass

    def set_name(self, text):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        pass


def listening():
    return False


def current_labels():
    return [None] * 8


def _nothing(*_arguments, **_keywords):
    pass


config = start = stop = step = push_label = pop_label = describe_addr = snapshot = _nothing
