"""Small PDFs for tests: pages of text, or of a PNG file."""
import pathlib
import struct


def png_object(png):
    """(width, height, image object) of a PNG without interlacing and alpha: a PDF takes its data as they are."""
    width, height, depth, kind = struct.unpack(">IIBB", png[16:26])
    chunks, at = {}, 8
    while at < len(png):
        n = struct.unpack(">I", png[at:at + 4])[0]
        chunks[png[at + 4:at + 8]] = chunks.get(png[at + 4:at + 8], b"") + png[at + 8:at + 8 + n]
        at += 12 + n
    palette = chunks.get(b"PLTE", b"")
    space = {0: b"/DeviceGray", 2: b"/DeviceRGB", 3: b"[/Indexed /DeviceRGB %d <%s>]" % (len(palette) // 3 - 1, palette.hex().encode())}[kind]
    data = chunks[b"IDAT"]
    return width, height, (b"<< /Type /XObject /Subtype /Image /Width %d /Height %d /ColorSpace %s /BitsPerComponent %d /Filter /FlateDecode "
                           b"/DecodeParms << /Predictor 15 /Colors %d /BitsPerComponent %d /Columns %d >> /Length %d >>\nstream\n%s\nendstream"
                           % (width, height, space, depth, 3 if kind == 2 else 1, depth, width, len(data), data))


def make_pdf(*pages):
    """A page for each: a text, or the path of a PNG file, which fills it, a point for each of its pixels."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b"", b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = []
    for page in pages:
        width, height, image, more = 612, 792, None, b""
        if isinstance(page, pathlib.Path):
            width, height, image = png_object(page.read_bytes())
            drawing = b"q %d 0 0 %d 0 0 cm /Im Do Q" % (width, height)
            more = b"/XObject << /Im %d 0 R >>" % (len(objects) + 3)
        else:
            drawing = b"BT /F1 36 Tf 72 500 Td (%s) Tj ET" % page.encode()
        kids.append(b"%d 0 R" % (len(objects) + 1))
        objects.append(b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 %d %d] /Contents %d 0 R /Resources << /Font << /F1 3 0 R >> %s >> >>" % (width, height, len(objects) + 2, more))
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(drawing), drawing))
        if image:
            objects.append(image)
    objects[1] = b"<< /Type /Pages /Kids [%s] /Count %d >>" % (b" ".join(kids), len(kids))
    out, places = bytearray(b"%PDF-1.4\n"), []
    for number, text in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, text)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1) + b"".join(b"%010d 00000 n \n" % place for place in places)
    return bytes(out) + b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)
