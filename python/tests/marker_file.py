"""What tracers and other tools rely on in the file of the native module: read from the file alone, of any architecture.

Usage: marker_file.py FILE...: says what is wrong, and fails if anything is.
"""
import struct
import sys

# Name of the note, and how many arguments there are.
MARKERS = {
    "memscope_marks_1": ("presence", 0), "memscope_mark_settings": ("settings", 3),
    "memscope_mark_config": ("config", 3), "memscope_mark_start": ("start", 0),
    "memscope_mark_stop": ("stop", 0), "memscope_mark_step": ("step", 0), "memscope_mark_labels": ("labels", 2),
    "memscope_mark_label_text": ("label_text", 2), "memscope_mark_label_addr": ("label_addr", 3),
    "memscope_mark_snapshot": ("snapshot", 2), "memscope_mark_range": ("range", 2),
    "memscope_mark_trace_text": ("trace_text", 2), "memscope_mark_trace": ("trace", 1),
    "memscope_mark_watch": ("watch", 4), "memscope_mark_unwatch": ("unwatch", 1),
}
# By the ELF header's number of the machine: `nop; nop5; ret`, or `nop; ret`, and where arguments are.
MACHINES = {
    62: (bytes.fromhex("900f1f440000c3"), ["8@%rdi", "8@%rsi", "8@%rdx", "8@%rcx"]),
    183: (bytes.fromhex("1f2003d5c0035fd6"), ["8@x0", "8@x1", "8@x2", "8@x3"]),
}
SEMAPHORE = "memscope_semaphore"
LOAD, DYNSYM = 1, 11


class File:
    """As much of an ELF file as is needed."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        assert self.data[:6] == b"\x7fELF\x02\x01", "no ELF file of 64 bits"
        self.machine = struct.unpack_from("<H", self.data, 18)[0]
        programs, sections = struct.unpack_from("<QQ", self.data, 32)
        program_size, program_count, section_size, section_count, names = struct.unpack_from("<5H", self.data, 54)
        self.loads = []
        for index in range(program_count):
            kind, _flags, offset, addr, _physical, size = struct.unpack_from("<IIQQQQ", self.data, programs + index * program_size)
            if kind == LOAD:
                self.loads.append((addr, offset, size))
        headers = [struct.unpack_from("<IIQQQQIIQQ", self.data, sections + index * section_size) for index in range(section_count)]
        self.sections = {self.text(headers[names][4] + header[0]): header for header in headers}
        self.symbols = self._symbols(next(header for header in headers if header[1] == DYNSYM), headers)

    def text(self, at):
        return self.data[at:self.data.index(b"\0", at)].decode()

    def _symbols(self, table, headers):
        strings, found = headers[table[6]][4], {}
        for at in range(table[4], table[4] + table[5], 24):
            name, _info, _other, section, addr, _size = struct.unpack_from("<IBBHQQ", self.data, at)
            if section:
                found[self.text(strings + name)] = addr
        return found

    def offset(self, addr):
        """Where in the file the byte is that is loaded to an address."""
        return next(offset + addr - start for start, offset, size in self.loads if start <= addr < start + size)

    def notes(self):
        """Address, provider, name, arguments and semaphore of each note."""
        header = self.sections[".note.stapsdt"]
        at, end = header[4], header[4] + header[5]
        while at < end:
            owner, size, kind = struct.unpack_from("<III", self.data, at)
            assert (kind, self.data[at + 12:at + 12 + owner]) == (3, b"stapsdt\0"), "a note of another kind"
            body = at + 12 + (owner + 3) // 4 * 4
            addr, _base, semaphore = struct.unpack_from("<QQQ", self.data, body)
            provider, name, arguments = self.data[body + 24:body + size].split(b"\0")[:3]
            yield addr, provider.decode(), name.decode(), arguments.decode(), semaphore
            at = body + (size + 3) // 4 * 4


def problems(path):
    """What is not as it has to be."""
    file = File(path)
    code, places = MACHINES[file.machine]
    found = []
    missing = [name for name in [*MARKERS, SEMAPHORE] if name not in file.symbols]
    if missing:
        return [f"not exported: {', '.join(missing)}"]
    for name in MARKERS:
        addr = file.symbols[name]
        there = file.data[file.offset(addr):][:len(code)]
        if there != code or addr % 16:
            found.append(f"{name} at {addr:#x} is {there.hex()}")
    semaphore = file.symbols[SEMAPHORE]
    if file.data[file.offset(semaphore):][:2] != b"\0\0":
        found.append("the semaphore is not zero")
    wanted = sorted(
        (file.symbols[name], "msmemscope", note, " ".join(places[:count]), semaphore if note == "presence" else 0)
        for name, (note, count) in MARKERS.items())
    notes = sorted(file.notes())
    if notes != wanted:
        found.append(f"notes are {notes}, not {wanted}")
    unknown = [name for name in file.symbols if name.startswith("memscope_") and name not in MARKERS and name != SEMAPHORE]
    if unknown:
        found.append(f"unknown: {', '.join(unknown)}")
    return found


if __name__ == "__main__":
    wrong = [f"{path}: {problem}" for path in sys.argv[1:] for problem in problems(path)]
    print("\n".join(wrong) or f"markers are as they have to be: {', '.join(sys.argv[1:])}")
    sys.exit(bool(wrong) or len(sys.argv) < 2)
