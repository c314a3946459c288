// Files of text that are asked about, and the errors about files whose content is not as their name says.

const kMostBytes = 1024 * 1024;
const kStart = 4096;               // bytes that are looked at before all of a file is read
const kMostControls = 0.01;        // of a text's characters; a log has a few

const kMarks = [['utf-16le', [0xff, 0xfe]], ['utf-16be', [0xfe, 0xff]]];  // other texts are UTF-8

// Control characters except white space and the ones that fill a terminal's log.
const kControl = /[\0-\x06\x0e-\x1a\x1c-\x1f\x7f]/g;

// The text of a file's bytes, or of their beginning if `more` follow; null: they are none.
export function textOf(bytes, more = false) {
  const encoding = kMarks.find(([, mark]) => mark.every((byte, i) => bytes[i] === byte))?.[0] ?? 'utf-8';
  let text;
  try {
    text = new TextDecoder(encoding, {fatal: true}).decode(bytes, {stream: more});
  } catch {
    return null;
  }
  const controls = text.match(kControl)?.length ?? 0;
  return text === '' || text.includes('\0') || controls > kMostControls * text.length ? null : text;
}

// Ends of names, or media types, and the word for the files that have them.
const kClaims = [
  [/\.(png|jpe?g|jfif|gif|webp|bmp|tiff?|ico|hei[cf]|avif|jxl|jp2|psd)$/i, /^image\//, 'an image'],
  [/\.pdf$/i, /^application\/pdf$/, 'a PDF'],
  [/\.(mp4|m4v|mov|mkv|webm|avi|flv|wmv|mpe?g)$/i, /^video\/(?!mp2t|vnd\.dlna)/, 'a clip'],  // .ts is TypeScript, too
];

// Why a file that is neither an image nor a PDF nor a clip cannot be a text either; null: it may be one.
export function falseClaim({name, type}, hasText) {
  if (/\.svgz?$/i.test(name) || type === 'image/svg+xml') {
    return `${name} is an SVG, which the server does not read; convert it first (rsvg-convert x.svg -o x.png).`;
  }
  const claim = kClaims.find(([ending, media]) => ending.test(name) || media.test(type))?.[2];
  if (!claim) return null;
  return `${name} is not ${claim} that can be read: ${hasText ? 'it contains text. To ask about that, rename it to .txt.' : 'it contains something else, or is damaged.'}`;
}

// {name, text}; null: it is no text. Throws an Error that says why it cannot be taken.
export async function readTextFile(file) {
  if (file.size === 0) throw new Error(`${file.name} is empty.`);
  const head = textOf(new Uint8Array(await file.slice(0, kStart).arrayBuffer()), file.size > kStart);
  const wrong = falseClaim(file, head !== null);
  if (wrong !== null) throw new Error(wrong);
  if (head === null) return null;
  if (file.size > kMostBytes) throw new Error(`${file.name} is too long: a text file may have 1 MB.`);
  const text = textOf(new Uint8Array(await file.arrayBuffer()));
  return text === null ? null : {name: file.name, text};
}
