// What an answer has cost and what was kept for it: figures, slots of every layer, patches over the pictures.
import {el, facts, svg} from './dom.js';
import {bytes, count, duration, rate} from './format.js';
import {keptPictures} from './kept.js';

const kBarHeight = 80;  // of the drawing, in its own units

// Tokens/s of the answer after its first token; null: it has no second one.
function tokensPerSecond({usage, served}) {
  const n = usage.completion_tokens - 1;
  return n > 0 && served.timings_ms.decode > 0 ? (1000 * n) / served.timings_ms.decode : null;
}

// From what there was at most to what is left, where a policy has taken something away.
function keptBytes(kv) {
  return kv.bytes < kv.peak_bytes ? `KV ${bytes(kv.peak_bytes)} → ${bytes(kv.bytes)}` : `KV ${bytes(kv.bytes)}`;
}

function headline(answer) {
  const {usage, served, seen} = answer;
  if (!served) {
    if (seen.first === null || seen.total === null) return [];
    return [`first words after ${duration(seen.first)}`, `ended after ${duration(seen.total)}`];
  }
  const perSecond = tokensPerSecond(answer);
  const cached = usage.prompt_tokens_details.cached_tokens;
  return [
    `first token ${duration(seen.first ?? served.timings_ms.ttft)}`,
    perSecond === null ? null : rate(perSecond),
    keptBytes(served.kv),
    cached > 0 ? `${cached} of ${usage.prompt_tokens} prompt tokens reused` : 'all computed',
    answer.finish === 'length' ? 'cut at the limit of tokens' : null,
  ].filter(Boolean);
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
  const text = `${low < high ? `${low} to ${high}` : low} slots per head in ${count(layers.length, 'layer')}, of ${count(nTokens, 'token')}`;
  return el('figure', {},
    el('figcaption', {}, `Budget per layer: ${text}`),
    svg('svg', {class: 'bars', role: 'img', 'aria-label': text, viewBox: `0 0 ${10 * layers.length} ${kBarHeight}`, preserveAspectRatio: 'none'}, bars));
}

const kSources = {computed: 'computed', prefix: 'there as a prefix', ram: 'loaded from memory'};
const kEncoders = {skipped: '', hit: 'embeddings reused', computed: 'encoded'};

// Where a picture's KV has come from, in a line.
function pictureFacts(image, i) {
  const recomputed = Math.round(image.recomputed_tokens);
  return [`picture ${i + 1}`, [
    `${count(image.n_tokens, 'token')} ${kSources[image.source] ?? `loaded from ${image.source}`}`,
    image.source !== 'computed' && recomputed > 0 ? `${recomputed} of them recomputed` : '',
    kEncoders[image.encoder],
  ].filter(Boolean).join(', ') + (image.reason ? `; not more: ${image.reason}` : '')];
}

function details(answer) {
  const {usage, served, seen} = answer;
  if (!served) return [el('p', {class: 'soft'}, 'The server says more at the end of an answer, which this one has not reached.')];
  const t = served.timings_ms, kv = served.kv, cache = served.cache;
  const times = [`${duration(t.vision)} encoding pictures`, `${duration(t.prefill)} prompt`,
    t.compress > 0 ? `${duration(t.compress)} policy` : null, `${duration(t.decode)} answer`];
  const prefix = `${count(cache.prefix_tokens, 'token')} as a prefix` + (cache.prefix_reason ? `; not more: ${cache.prefix_reason}` : '');
  return [
    facts([
      ['policy', kv.mode],
      ['tokens', `${count(usage.prompt_tokens, 'token')} of prompt, ${usage.completion_tokens} of answer`],
      ['first token', `${seen.first === null ? '' : `seen here after ${duration(seen.first)}; `}${duration(t.ttft)} at the server, ${duration(t.queue)} of that before its turn`],
      ['times', times.filter(Boolean).join(', ')],
      ['reused', prefix],
      ['KV pages', `${bytes(kv.peak_bytes)} at most, ${bytes(kv.bytes)} at the end; with tables ${bytes(kv.prompt_bytes)} after the prompt`],
      ...cache.images.map(pictureFacts),
    ]),
    budgetBars(kv.slots ?? [], usage.prompt_tokens + usage.completion_tokens - 1),
    keptPictures(kv.images ?? [], answer.pictures),
  ].filter((child) => child !== null);
}

// Its inside is made when it is opened.
export function answerCard(answer) {
  const parts = headline(answer);
  if (parts.length === 0) return el('div', {});
  const card = el('details', {class: 'card'}, el('summary', {}, parts.map((part) => el('span', {}, part))));
  card.addEventListener('toggle', () => card.open && card.childElementCount === 1 && card.append(...details(answer)));
  return card;
}
