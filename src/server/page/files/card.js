// The cost of an answer and the KV kept for it: a sentence for the reader, and below a fold figures, slots of every
// layer, patches over the images, and request and answer as JSON.
import {requestShown} from './chat.js';
import {el, facts, svg} from './dom.js';
import {bytes, count, duration, rate} from './format.js';
import {keptPictures} from './kept.js';
import {copyButton} from './markdown_view.js';
import {firstToken, verdict} from './words.js';

const kBarHeight = 80;  // of the drawing, in its own units

// Tokens/s of the answer after its first token; null: it has no second one.
export function tokensPerSecond({usage, served}) {
  const n = usage.completion_tokens - 1;
  return n > 0 && served.timings_ms.decode > 0 ? (1000 * n) / served.timings_ms.decode : null;
}

// Mean slots per head of each layer, with the fewest and the most of its heads where they differ.
function budgetBars(slots, nTokens) {
  const layers = slots.map((heads, number) => ({
    number, mean: heads.reduce((a, b) => a + b, 0) / heads.length, low: Math.min(...heads), high: Math.max(...heads),
  })).filter((layer) => slots[layer.number].length > 0);
  if (layers.length === 0) return null;
  const top = Math.max(nTokens, ...layers.map((layer) => layer.high));
  const y = (n) => kBarHeight * (1 - n / top);
  const round = (n) => Math.round(10 * n) / 10;
  const bars = layers.flatMap((layer, i) => [
    svg('rect', {class: 'bar-of', x: 10 * i + 1, y: y(layer.mean), width: 8, height: kBarHeight - y(layer.mean)},
      svg('title', {}, `layer ${layer.number}: ${round(layer.mean)} slots per head` + (layer.low < layer.high ? `, ${layer.low} to ${layer.high}` : ''))),
    layer.low < layer.high ? svg('line', {class: 'range', x1: 10 * i + 5, x2: 10 * i + 5, y1: y(layer.low), y2: y(layer.high)}) : null]);
  const means = layers.map((layer) => layer.mean);
  const low = round(Math.min(...means)), high = round(Math.max(...means));
  const text = `${low < high ? `${low} to ${high}` : low} of ${count(nTokens, 'token')} in each of ${count(layers.length, 'layer')}, mean over its heads`;
  return el('figure', {},
    el('figcaption', {}, `Kept: ${text}. A full bar is everything.`),
    svg('svg', {class: 'bars', role: 'img', 'aria-label': text, viewBox: `0 0 ${10 * layers.length} ${kBarHeight}`, preserveAspectRatio: 'none'}, bars));
}

const kSources = {computed: 'computed', prefix: 'from the cache, as the beginning of an earlier prompt', ram: 'from the cache in memory'};
const kEncoders = {skipped: '', hit: 'not encoded again', computed: 'encoded'};

// Where an image's KV has come from, in a line.
function pictureFacts(image, i) {
  const recomputed = Math.round(image.recomputed_tokens);
  return [`image ${i + 1}`, [
    `${count(image.n_tokens, 'token')} ${kSources[image.source] ?? `from the cache on ${image.source}`}`,
    image.source !== 'computed' && recomputed > 0 ? `${recomputed} of them recomputed` : '',
    kEncoders[image.encoder],
  ].filter(Boolean).join(', ') + (image.reason ? ` (${image.reason})` : '')];
}

function figures(answer) {
  const {usage, served} = answer;
  if (!served) return [el('p', {class: 'soft'}, 'The server says more at the end of an answer, which this one has not reached.')];
  const t = served.timings_ms, kv = served.kv, cache = served.cache;
  const perSecond = tokensPerSecond(answer);
  const read = t.read ?? 0;  // answers of earlier releases count it as waiting
  const times = [read >= 1 ? `${duration(read)} decoding files` : null, `${duration(Math.max(0, t.queue - read))} waiting`, `${duration(t.vision)} encoding images`, `${duration(t.prefill)} reading the prompt`,
    t.compress > 0 ? `${duration(t.compress)} choosing what to keep` : null, `${duration(t.decode)} answering`];
  return [
    facts([
      ['first token', `after ${duration(firstToken(answer))} here, after ${duration(t.ttft)} at the server`],
      ['speed after it', perSecond === null ? null : rate(perSecond)],
      ['times', times.filter(Boolean).join(', ')],
      ['tokens', `${count(usage.prompt_tokens, 'token')} of prompt, ${usage.completion_tokens} of answer`],
      ['from the cache', `${usage.prompt_tokens_details.cached_tokens} of ${usage.prompt_tokens} prompt tokens` + (cache.prefix_reason ? ` (not more: ${cache.prefix_reason})` : '')],
      ...cache.images.map(pictureFacts),
      ['policy', kv.mode + (kv.not_compressed ? ` (not compressed: ${kv.not_compressed})` : '')],
      ['memory (KV)', `${bytes(kv.peak_bytes)} at most, ${bytes(kv.bytes)} at the end; ${bytes(kv.prompt_bytes)} with tables after the prompt`],
    ]),
    budgetBars(kv.slots ?? [], usage.prompt_tokens + usage.completion_tokens - 1),
    keptPictures(kv.images ?? [], answer.pictures),
  ].filter((child) => child !== null);
}

const jsonBlock = (name, value) => {
  const text = JSON.stringify(value, null, 1);
  return [el('div', {class: 'bar'}, el('span', {class: 'soft'}, name), el('span', {class: 'space'}), copyButton(text)),
    el('pre', {tabindex: 0, role: 'region', 'aria-label': name}, text)];
};

// A fold whose inside is made when it is opened.
function fold(summary, make) {
  const node = el('details', {}, el('summary', {}, summary));
  node.addEventListener('toggle', async () => node.open && node.childElementCount === 1 && node.append(...(await make())));
  return node;
}

async function asJson(answer, {conversation, index, number}) {
  const {thought, text, finish, usage, served, error} = answer;
  const said = {content: text, ...(thought ? {reasoning_content: thought} : {}), finish_reason: finish, ...(error ? {error} : {}), usage, vlcache: served};
  return [...jsonBlock('Request (images cut short)', await requestShown(conversation, index, number)), ...jsonBlock('Answer (of all its events)', said)];
}

// `where`: {conversation, index, number} of the answer.
export function answerCard(answer, where) {
  const {served, seen} = answer;
  if (!served && (seen.first === null || seen.total === null)) return el('div', {});
  const first = firstToken(answer);
  const sentences = [...(served ? verdict(answer, where.conversation.tour?.step === 3) : []), first === null ? '' : `First words after ${duration(first)}.`].filter(Boolean);
  return el('div', {class: 'card'}, el('p', {class: 'verdict'}, sentences.join(' ')),
    fold('Figures', () => figures(answer)), answer.sent ? fold('JSON', () => asJson(answer, where)) : null);
}
