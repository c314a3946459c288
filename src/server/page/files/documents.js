// PDFs and TIFFs that are asked about: known by their first bytes, sent as they are, with the pages that are to be read.
import {newId} from './store.js';

const kMostBytes = 40 * 1024 * 1024;  // of a request's 64 MiB (--max-body), which has them in base64
const kHead = 1024;                   // bytes within which a PDF says what it is

export const isPdf = (head) => String.fromCharCode(...head.slice(0, kHead)).includes('%PDF-');

// Browsers show no TIFF; the server reads its pages like a PDF's.
export const isTiff = (head) => ['II*\0', 'MM\0*', 'II+\0', 'MM\0+'].includes(String.fromCharCode(...head.slice(0, 4)));

// Whether readDocument has read it.
export const isDocument = (file) => ['application/pdf', 'image/tiff'].includes(file.type);

// Whether a text names pages as the server accepts them; '' means all.
export const namesPages = (text) => /^(\d+(-\d*)?(,\d+(-\d*)?)*)?$/.test(text.replace(/\s/g, ''));

// {id, name, type, blob, pages: ''}; null: it is no PDF and no TIFF. Throws an Error that says why it cannot be taken.
export async function readDocument(file) {
  const head = new Uint8Array(await file.slice(0, kHead).arrayBuffer());
  const [type, kind] = isTiff(head) ? ['image/tiff', 'TIFF'] : isPdf(head) ? ['application/pdf', 'PDF'] : [null, ''];
  if (type === null) return null;
  if (file.size > kMostBytes) throw new Error(`${file.name} is too large: a ${kind} may have ${kMostBytes / 1024 / 1024} MB.`);
  return {id: newId(), name: file.name || `document.${kind.toLowerCase()}`, type, blob: new Blob([await file.arrayBuffer()], {type}), pages: ''};
}

// The same of a data URI, bytes unchanged.
export async function documentOfUri({name, url, pages}) {
  const bytes = Uint8Array.from(atob(url.slice(url.indexOf(',') + 1)), (c) => c.charCodeAt(0));
  const document = await readDocument(new File([bytes], name));
  if (document === null) throw new Error(`${name} is neither a PDF nor a TIFF`);
  return {...document, pages: namesPages(pages) ? pages : ''};
}

// "report.pdf, pages 3-7"
export const documentText = ({name, pages}) => (pages ? `${name}, page${/^\d+$/.test(pages) ? '' : 's'} ${pages}` : name);
