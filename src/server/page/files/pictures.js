// From a file to a picture that may be sent: known by its first bytes, seen to be readable, smaller only on demand.
import {newId} from './store.js';

const kForms = [
  ['image/png', [0x89, 0x50, 0x4e, 0x47]],
  ['image/jpeg', [0xff, 0xd8, 0xff]],
  ['image/gif', [0x47, 0x49, 0x46, 0x38]],
  ['image/bmp', [0x42, 0x4d]],
];

function typeOf(head) {
  const text = String.fromCharCode(...head);
  if (text.startsWith('RIFF') && text.slice(8, 12) === 'WEBP') return 'image/webp';
  const form = kForms.find(([, mark]) => mark.every((byte, i) => head[i] === byte));
  return form ? form[0] : null;
}

async function shrunk(bitmap, side) {
  const scale = side / Math.max(bitmap.width, bitmap.height);
  const canvas = document.createElement('canvas');
  canvas.width = Math.max(1, Math.round(scale * bitmap.width));
  canvas.height = Math.max(1, Math.round(scale * bitmap.height));
  const context = canvas.getContext('2d');
  context.imageSmoothingQuality = 'high';
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, 'image/png'));
  return {blob, type: 'image/png', width: canvas.width, height: canvas.height};
}

// {id, name, type, blob, width, height}. `side`: pixels that are allowed; '' or 0: any. Throws an Error that says why
// not.
export async function readPicture(file, side) {
  const type = typeOf(new Uint8Array(await file.slice(0, 16).arrayBuffer()));
  const name = file.name || 'picture';
  if (type === null) throw new Error(`${name} is none of the pictures that the server reads: PNG, JPEG, WebP, GIF, BMP.`);
  const blob = new Blob([await file.arrayBuffer()], {type});  // a copy: the file may change
  let bitmap;
  try {
    bitmap = await createImageBitmap(blob);
  } catch {
    throw new Error(`${name} is damaged: the browser cannot read it.`);
  }
  const picture = {id: newId(), name, type, blob, width: bitmap.width, height: bitmap.height};
  const tooLarge = side > 0 && Math.max(bitmap.width, bitmap.height) > side;
  if (tooLarge) Object.assign(picture, await shrunk(bitmap, Number(side)));
  bitmap.close();
  return picture;
}
