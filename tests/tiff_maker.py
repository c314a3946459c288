"""Small TIFFs for tests: a page for each PNG file."""
import functools
import struct
import zlib


@functools.cache
def rgb_of(png):
    """(width, height, RGB bytes) of a PNG of 8 bits, grey, RGB or with a palette, without interlacing and alpha."""
    width, height, depth, kind = struct.unpack(">IIBB", png[16:26])
    assert depth == 8 and kind in (0, 2, 3), (depth, kind)
    chunks, at = {}, 8
    while at < len(png):
        n = struct.unpack(">I", png[at:at + 4])[0]
        chunks[png[at + 4:at + 8]] = chunks.get(png[at + 4:at + 8], b"") + png[at + 8:at + 8 + n]
        at += 12 + n
    step = 3 if kind == 2 else 1
    data, n_row = zlib.decompress(chunks[b"IDAT"]), width * step
    before, out = bytes(n_row), bytearray()
    for y in range(height):
        kind_of_row, row = data[y * (n_row + 1)], bytearray(data[y * (n_row + 1) + 1:(y + 1) * (n_row + 1)])
        if kind_of_row:
            for i in range(n_row):
                a, b, c = row[i - step] if i >= step else 0, before[i], before[i - step] if i >= step else 0
                p = a + b - c
                paeth = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
                row[i] = (row[i] + (0, a, b, (a + b) // 2, paeth)[kind_of_row]) & 255
        out += row
        before = row
    palette = chunks.get(b"PLTE", b"")
    if kind != 2:
        out = b"".join(palette[3 * v:3 * v + 3] if kind == 3 else bytes((v, v, v)) for v in out)
    return width, height, bytes(out)


def make_tiff(*paths, order="<", deflate=False):
    """A TIFF of RGB pages, one strip each."""
    out, link = bytearray(b"II*\0" if order == "<" else b"MM\0*") + bytes(4), 4
    for path in paths:
        width, height, rgb = rgb_of(path.read_bytes())
        data = zlib.compress(rgb) if deflate else rgb
        at = len(out)
        out += data + bytes(len(data) % 2) + struct.pack(order + "HHH", 8, 8, 8)
        entries = ((256, 4, 1, width), (257, 4, 1, height), (258, 3, 3, len(out) - 6), (259, 3, 1, 8 if deflate else 1), (262, 3, 1, 2),
                   (273, 4, 1, at), (277, 3, 1, 3), (278, 4, 1, height), (279, 4, 1, len(data)))
        out[link:link + 4] = struct.pack(order + "I", len(out))
        out += struct.pack(order + "H", len(entries))
        for tag, kind, count, value in entries:
            inline = struct.pack(order + "HH", value, 0) if kind == 3 and count == 1 else struct.pack(order + "I", value)
            out += struct.pack(order + "HHI", tag, kind, count) + inline
        link = len(out)
        out += bytes(4)
    return bytes(out)
