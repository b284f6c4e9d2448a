"""Bytes of files, packed or not."""

import codecs
import contextlib
import gzip
import importlib
import importlib.util
import io
import sys
from collections.abc import Iterator

from parts.messages import UserError, need


class Unpacked(io.RawIOBase):
    """The bytes of a chunk iterator as a file; what cannot be unpacked is a UserError that names the file."""

    def __init__(self, chunks: Iterator[bytes], name: str, inner):
        self.chunks, self.name, self.rest, self.inner = chunks, name, b"", inner

    def close(self) -> None:
        """Close the file below too."""
        self.inner.close()
        super().close()

    def readable(self) -> bool:
        """This is a file to read from."""
        return True

    def readinto(self, buffer) -> int:
        """Fill the buffer with what there is; 0 at the end."""
        try:
            while not self.rest and (chunk := next(self.chunks, None)) is not None:
                self.rest = chunk
        except UserError:
            raise
        except Exception as error:  # zlib, gzip, zstandard, codecs and the system each have their own
            raise UserError(f"{self.name}: got bytes that cannot be read ({error}); expected an intact file") from None
        size = min(len(buffer), len(self.rest))
        buffer[:size], self.rest = self.rest[:size], self.rest[size:]
        return size


def bounded(stream, name: str, limit: int) -> Iterator[bytes]:
    """Chunks of an unpacked stream; UserError once there is more than the limit."""
    total = 0
    while chunk := stream.read(1 << 18):
        total += len(chunk)
        advice = "try --max_bytes if the file is yours"
        need(total <= limit, f"{name}: got more than {limit} unpacked bytes; expected at most max_bytes; {advice}")
        yield chunk


def recoded(stream, codec: str) -> Iterator[bytes]:
    """UTF-16 as UTF-8."""
    decoder = codecs.getincrementaldecoder(codec)()
    while chunk := stream.read(1 << 18):
        yield decoder.decode(chunk).encode()
    yield decoder.decode(b"", final=True).encode()


def zstd_stream(raw, name: str):
    """A reader of zstd data: Python 3.14 has one, the package zstandard another."""
    with contextlib.suppress(ImportError):
        return importlib.import_module("compression.zstd").ZstdFile(raw)
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        advice = "try `pip install zstandard`, or unpack it first"
        raise UserError(f"{name}: got zstd data; expected the package zstandard; {advice}") from None
    return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)


def open_bytes(source: str, max_bytes: int) -> io.BufferedReader:
    """Open a file or stdin (`-`) as UTF-8 bytes: unpacked, recoded and without a byte order mark.

    Packing and encoding are told from the bytes, as names are often wrong.
    """
    name = "stdin" if source == "-" else source
    try:
        raw = sys.stdin.buffer if source == "-" else open(source, "rb")
        head = raw.peek(4)[:4]
    except OSError as error:
        raise UserError(f"got {name}: {error.strerror}; expected a readable file") from None
    if head[:2] == b"\x1f\x8b" or head == b"\x28\xb5\x2f\xfd":
        stream = gzip.GzipFile(fileobj=raw) if head[:2] == b"\x1f\x8b" else zstd_stream(raw, name)
        raw = io.BufferedReader(Unpacked(bounded(stream, name, max_bytes), name, raw), 1 << 20)
        head = raw.peek(4)[:4]
    need(head not in (b"\xff\xfe\0\0", b"\0\0\xfe\xff"), f"{name}: got UTF-32; expected UTF-8 or UTF-16")
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return io.BufferedReader(Unpacked(recoded(raw, "utf-16"), name, raw), 1 << 20)
    if head[:3] == codecs.BOM_UTF8:
        raw.read(3)
    return raw
