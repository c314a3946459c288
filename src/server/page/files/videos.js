// Clips that are asked about: known by their first bytes, sent as they are, with how many of their frames are to be shown.
import {newId} from './store.js';
import {duration} from './format.js';

const kMostBytes = 44 * 1024 * 1024;  // of a request's 64 MiB (--max-body), which has them in base64
const kPatience = 5000;               // ms that a browser has to read a clip's beginning
const kThumbnailSide = 160;           // pixels

const kForms = [
  [4, 'ftyp', 'video/mp4'], [4, 'moov', 'video/quicktime'], [0, '\x1a\x45\xdf\xa3', 'video/webm'], [8, 'AVI ', 'video/x-msvideo'],
  [0, 'FLV\x01', 'video/x-flv'], [0, 'OggS', 'video/ogg'], [0, '\x30\x26\xb2\x75', 'video/x-ms-asf'], [0, '\x00\x00\x01\xba', 'video/mpeg'],
];

// The media type of a clip's first bytes; null: they are none's.
export function clipType(head) {
  const text = String.fromCharCode(...head);
  const form = kForms.find(([at, mark]) => text.startsWith(mark, at));
  return form ? form[2] : null;
}

// Whether a text is a number of frames a second, or of frames, as the server accepts them; '' means as the model's settings say.
export const isRate = (text) => text === '' || (/^\d*\.?\d+$/.test(text) && Number(text) > 0 && Number(text) <= 1000);
export const isFrameCount = (text) => text === '' || (/^\d{1,4}$/.test(text) && Number(text) >= 1 && Number(text) <= 4096);

// What a browser that knows the format says of a clip: {seconds, thumbnail}; nulls: it does not know it.
async function lookAt(blob) {
  const none = {seconds: null, thumbnail: null};
  const video = document.createElement('video');
  const url = URL.createObjectURL(blob);
  const event = (name) => new Promise((resolve, reject) => {
    video.addEventListener(name, resolve, {once: true});
    video.addEventListener('error', reject, {once: true});
    setTimeout(reject, kPatience);
  });
  try {
    video.muted = true;
    video.preload = 'auto';
    const loaded = event('loadeddata');
    video.src = url;
    await loaded;
    const scale = Math.min(1, kThumbnailSide / Math.max(video.videoWidth, video.videoHeight, 1));
    const canvas = document.createElement('canvas');
    canvas.width = Math.max(1, Math.round(scale * video.videoWidth));
    canvas.height = Math.max(1, Math.round(scale * video.videoHeight));
    canvas.getContext('2d').drawImage(video, 0, 0, canvas.width, canvas.height);
    return {seconds: Number.isFinite(video.duration) ? video.duration : null, thumbnail: canvas.toDataURL('image/png')};
  } catch {
    return none;
  } finally {
    video.removeAttribute('src');
    URL.revokeObjectURL(url);
  }
}

// {id, name, type, blob, seconds, thumbnail, fps: '', max_frames: ''}; null: it is no clip. Throws an Error that says why it cannot be
// taken.
export async function readVideo(file) {
  const type = clipType(new Uint8Array(await file.slice(0, 16).arrayBuffer()));
  if (type === null) return null;
  if (file.size > kMostBytes) throw new Error(`${file.name} is too large: a clip may have ${kMostBytes / 1024 / 1024} MB.`);
  const blob = new Blob([await file.arrayBuffer()], {type});  // a copy: the file may change
  return {id: newId(), name: file.name || 'clip', type, blob, ...await lookAt(blob), fps: '', max_frames: ''};
}

// The same of a data URI, bytes unchanged.
export async function videoOfUri({name, url, fps, max_frames}) {
  const bytes = Uint8Array.from(atob(url.slice(url.indexOf(',') + 1)), (c) => c.charCodeAt(0));
  const video = await readVideo(new File([bytes], name));
  if (video === null) throw new Error(`${name} is not a clip`);
  const text = (value, isRight) => (isRight(String(value ?? '')) ? String(value ?? '') : '');
  return {...video, fps: text(fps, isRate), max_frames: text(max_frames, isFrameCount)};
}

// What a request has of a clip, and a conversation's file: numbers where they were written.
export const frameChoice = ({fps, max_frames}) => ({...(fps ? {fps: Number(fps)} : {}), ...(max_frames ? {max_frames: Number(max_frames)} : {})});

// "clip.mp4, 5.0 s, 1 frame a second, 64 frames at most"
export function videoText({name, seconds, fps, max_frames}) {
  return [name, seconds ? duration(seconds * 1000) : '', fps && `${fps} frame${Number(fps) === 1 ? '' : 's'} a second`,
    max_frames && `${max_frames} frame${Number(max_frames) === 1 ? '' : 's'} at most`].filter(Boolean).join(', ');
}
