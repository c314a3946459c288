// Which patches of an image stay in the KV cache: bright ones do, as in `vlcache inspect`.
import {el, svg} from './dom.js';
import {pictures} from './store.js';

let nMasks = 0;  // masks are found by an id

// A tenth of the heads is to be seen, too.
const brightness = (share) => Math.sqrt(share);

// A patch's or the veil's end at the image's edge lies beyond it, and the frame cuts it off: an edge within a pixel
// would mix dark and bright.
const beyond = (at, end) => (at <= 0 ? -0.05 * end : at >= end ? 1.05 * end : at);

export function veil(image) {
  const id = `kept-${++nMasks}`, {width, height} = image;
  const area = ([left, top, right, bottom]) => {
    const x = beyond(left, width), y = beyond(top, height);
    return {x, y, width: beyond(right, width) - x, height: beyond(bottom, height) - y};
  };
  const cells = image.rects.flatMap((rect, i) =>
    (rect === null || !(image.kept[i] > 0) ? [] : [svg('rect', {...area(rect), opacity: brightness(image.kept[i]).toFixed(3)})]));
  const all = area([0, 0, width, height]);
  return svg('svg', {class: 'veil', viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', 'aria-hidden': 'true'},
    svg('mask', {id}, svg('rect', {...all, fill: '#fff'}), svg('g', {fill: '#000', 'shape-rendering': 'crispEdges'}, cells)),
    svg('rect', {class: 'veil-dark', ...all, mask: `url(#${id})`}));
}

function percentOf(image) {
  const mean = image.kept.reduce((sum, share) => sum + share, 0) / Math.max(1, image.kept.length);
  return Math.round(1000 * mean) / 10;
}

// What a figure of a kept image says. Image `number`: 0 for the only one.
export function keptText(image, number) {
  return `${number > 0 ? `Image ${number}: ` : ''}${percentOf(image)} % of its ${image.kept.length} tokens are kept, over all layers and heads`;
}

// `short`: the caption is only the share.
function figure(image, number, id, short) {
  if (!image.kept) return el('p', {class: 'soft'}, `Image ${number}: too many tokens to be shown.`);
  const text = keptText(image, number);
  const picture = el('img', {alt: text});
  picture.style.aspectRatio = `${image.width} / ${image.height}`;
  pictures.url(id).then((url) => url && (picture.src = url));
  const frame = el('div', {class: 'kept'}, picture, veil(image));
  const show = el('input', {type: 'checkbox', checked: true, onchange: () => frame.classList.toggle('bare', !show.checked)});
  const caption = short ? `${percentOf(image)} % of the image: bright patches are kept` : `${text}. Bright patches are kept.`;
  return el('figure', {}, el('figcaption', {}, caption), frame,
    el('label', {class: 'check'}, show, ' show what is kept'));
}

// `images`: the server's, `ids`: of the same images, in the order of the prompt.
export function keptPictures(images, ids, short = false) {
  if (images.length === 0 || images.length !== ids.length) return null;
  return el('div', {class: 'kept-all'}, images.map((image, i) => figure(image, i + 1, ids[i], short)));
}
