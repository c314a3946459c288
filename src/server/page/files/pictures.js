// From a file to an image that may be sent: known by its first bytes, seen to be readable, smaller where it must be or on
// demand.
import {newId} from './store.js';

// What a canvas and a request may have (--max-body, with room for the rest). No model here sees more than some megapixels.
const kMostSide = 16384, kMostBytes = 32 * 1024 * 1024, kSideOfLargeFiles = 3000;

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

// Images that the server does not read, AVIF and HEIC in the container of clips, and the commands that convert them.
const kOthers = [
  [4, 'ftypavif', 'AVIF', 'ffmpeg -i x.avif x.png'], [4, 'ftypavis', 'AVIF', 'ffmpeg -i x.avif x.png'], [4, 'ftyphe', 'HEIC', 'heif-convert x.heic x.png'],
  [4, 'ftypmif1', 'HEIC or AVIF', 'heif-convert x.heic x.png, or ffmpeg -i x.avif x.png'], [0, '\0\0\x01\0', 'ICO', 'ffmpeg -i x.ico x.png'],
  [0, '8BPS', 'PSD', 'ffmpeg -i x.psd x.png'], [0, '\xff\x0a', 'JPEG XL', 'djxl x.jxl x.png'], [4, 'JXL ', 'JPEG XL', 'djxl x.jxl x.png'], [4, 'jP  ', 'JPEG 2000', 'ffmpeg -i x.jp2 x.png'],
];

// "AVIF, which the server does not read; convert it first (ffmpeg -i x.avif x.png)", by the first bytes; null: no such image.
export function otherImage(head) {
  const text = String.fromCharCode(...head);
  const other = kOthers.find(([at, mark]) => text.startsWith(mark, at));
  return other ? `${other[2]}, which the server does not read; convert it first (${other[3]})` : null;
}

const typeOfFile = async (file) => typeOf(new Uint8Array(await file.slice(0, 16).arrayBuffer()));

// Throws an Error for an image that the server does not read.
export async function refuseOther(file) {
  const other = otherImage(new Uint8Array(await file.slice(0, 16).arrayBuffer()));
  if (other !== null) throw new Error(`${file.name} is ${other}.`);
}

export const isPicture = async (file) => (await typeOfFile(file)) !== null;

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

// {id, name, type, blob, width, height, shrunk: whether it was made smaller}. `side`: pixels that are allowed; '' or 0: as many as
// the server accepts, `mostPixels` in all. Throws an Error that says why not.
export async function readPicture(file, side, mostPixels = Infinity) {
  const type = await typeOfFile(file);
  const name = file.name || 'image';
  if (type === null) throw new Error(`${name} is none of the images that the server reads: JPEG, PNG, WebP, BMP, GIF or TIFF.`);
  const blob = new Blob([await file.arrayBuffer()], {type});  // a copy: the file may change
  let bitmap;
  try {
    bitmap = await createImageBitmap(blob);
  } catch {
    throw new Error(`${name} is damaged, or too large for this browser.`);
  }
  const picture = {id: newId(), name, type, blob, width: bitmap.width, height: bitmap.height, shrunk: false};
  const {width, height} = bitmap, longest = Math.max(width, height);
  const most = Math.min(Number(side) || Infinity, longest * Math.min(1, Math.sqrt(mostPixels / (width * height)), kMostSide / longest),
    blob.size > kMostBytes ? kSideOfLargeFiles : Infinity);
  if (most < longest) Object.assign(picture, await shrunk(bitmap, Math.floor(most)), {shrunk: true});
  bitmap.close();
  return picture;
}

// The same of a data URI, bytes unchanged.
export async function pictureOfUri({name, url}) {
  const bytes = Uint8Array.from(atob(url.slice(url.indexOf(',') + 1)), (c) => c.charCodeAt(0));
  return readPicture(new File([bytes], name), '');
}
