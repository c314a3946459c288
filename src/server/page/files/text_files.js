// Files of text that are asked about, and the errors about files that cannot be.

const kMostBytes = 1024 * 1024;
const kStart = 512;  // bytes that are looked at to tell a text from anything else

// Whether a file's first bytes could be a text's.
export const looksLikeText = (head) => head.length > 0 && !head.includes(0);

// {name, text}; null: it is no text. Throws an Error that says why it cannot be taken.
export async function readTextFile(file) {
  const head = new Uint8Array(await file.slice(0, kStart).arrayBuffer());
  if (!looksLikeText(head)) return null;
  let text;
  try {
    text = new TextDecoder('utf-8', {fatal: true}).decode(await file.arrayBuffer());
  } catch {
    return null;
  }
  if (file.size > kMostBytes) throw new Error(`${file.name} is too long: a text file may have 1 MB.`);
  return {name: file.name, text};
}
