// What the page says of an answer in sentences, and of errors in words: values in, texts out.
import {bytes, duration} from './format.js';

// ---- errors ----------------------------------------------------------------------------------------------------------

const kFields = [
  [/^messages\[\d+\]\.content\[\d+\]\.(?:image_url(?:\.url)?|text): /, 'The image: '],
  [/^messages\[\d+\]\.content\[\d+\]\.file(?:\.file_data)?: /, 'The PDF: '],
  [/^messages\[\d+\]\.content\[\d+\]\.video(?:_url)?(?:\.url)?: /, 'The clip: '],
  [/; select pages with .*$/, '; write which pages beside its name, such as 1-3.'],
  [/^messages\[\d+\](?:\.content)?(?:\[\d+\])?: /, 'The conversation: '],
  [/^(?:vlcache\.)?kv_budget: /, 'Settings, Budget: '],
  [/^(?:vlcache\.)?kv: /, 'Settings, Policy: '],
  [/^(?:vlcache\.)?reuse: /, 'Settings, Reuse: '],
  [/^(?:max_tokens|max_completion_tokens): /, 'Settings, Tokens at most: '],
  [/^(temperature|top_p|top_k|min_p|seed|repetition_penalty|presence_penalty|frequency_penalty): /,
    (_, name) => `Settings, ${name.replaceAll('_', ' ')}: `],
];

// The server's errors begin with the name of a field of the API, which a reader of the page has never seen.
export function inWords(message) {
  return kFields.reduce((text, [field, words]) => text.replace(field, words), message);
}

// ---- answers ---------------------------------------------------------------------------------------------------------

const kNew = ['first use', 'no cached prompt continues like this'];  // reasons of the server's, as far as it remembers

// Why nothing came from the cache. `again`: it is known that the same was asked before.
export function missReason(text, again = false) {
  if (text === 'reuse is off') return 'reuse is switched off on this server (--reuse off)';
  if (!kNew.includes(text)) return text;
  return again ? 'this server keeps nothing, or too little to have kept it (--cache-ram)' : 'it was not asked about before';
}

const kLittle = 0.05;  // a beginning that all prompts share says nothing about the cache

// A share that is nearly all is not all.
export function percentText(share) {
  if (share >= 0.995 && share < 1) return '99 %';
  return share > 0 && share < 0.01 ? `${(100 * share).toFixed(1)} %` : `${Math.round(100 * share)} %`;
}

// {tokens, reused}: of the images of a prompt.
export function pictureTokens(served) {
  const sum = (of) => served.cache.images.reduce((total, image) => total + of(image), 0);
  return {tokens: sum((image) => image.n_tokens), reused: sum((image) => (image.source === 'computed' ? 0 : image.n_tokens - image.recomputed_tokens))};
}

// The server's estimate: what these tokens took when they were computed.
const savedText = (ms) => (ms > 0 ? `: about ${duration(ms)} saved` : '');

// What the cache did for an answer; `again` as of missReason.
export function reuseSentence({usage, served}, again = false) {
  const cached = usage.prompt_tokens_details.cached_tokens / Math.max(1, usage.prompt_tokens);
  const {tokens, reused} = pictureTokens(served);
  const n = served.cache.images.length;
  const saved = savedText(served.cache.saved_ms ?? 0);
  if (n > 0 && reused > 0) return `${percentText(reused / tokens)} of ${n > 1 ? `these ${n} images` : 'this image'} came from the cache${saved}.`;
  if (n === 0 && cached >= kLittle) return `${percentText(cached)} of the question came from the cache${saved}.`;
  const known = served.cache.images.filter((image) => image.encoder === 'hit').length;
  if (known > 0) return `${n > 1 ? 'The images were' : 'The image was'} known and not encoded again; the rest was computed.`;
  const reason = n > 0 ? served.cache.images[0].reason : served.cache.prefix_reason;
  return `Nothing came from the cache${reason ? `: ${missReason(reason, again)}` : ''}.`;
}

// {n, of, share, own}: the tokens of a question that are left, mean over layers and heads, and the answer's own, which are kept
// besides (its last one never has KV). A budget is a share of the question, so this is the figure to name. null: the server did
// not say.
export function keptTokens({usage, served}) {
  const heads = (served.kv.slots ?? []).flat();
  if (heads.length === 0) return null;
  const of = Math.max(1, usage.prompt_tokens), own = Math.max(0, usage.completion_tokens - 1);
  const n = Math.max(0, heads.reduce((a, b) => a + b, 0) / heads.length - own);
  return {n, of, share: n / of, own};
}

// What a policy took away; '': nothing.
export function keptSentence(answer) {
  const {kv} = answer.served, kept = keptTokens(answer);
  if (kv.bytes >= kv.peak_bytes) return '';
  const memory = `memory, in pages of 64 tokens, fell from ${bytes(kv.peak_bytes)} to ${bytes(kv.bytes)}.`;
  if (kept === null) return `A part of the prompt was kept for the answer: ${memory}`;
  return `${percentText(kept.share)} of the prompt was kept for the answer (${Math.round(kept.n)} of ${kept.of} tokens, and the answer’s own ${kept.own}): ${memory}`;
}

export const firstToken = ({seen, served}) => seen.first ?? served?.timings_ms.ttft ?? null;

// The sentences that an answer's card begins with; `again` as of missReason.
export function verdict(answer, again = false) {
  const cut = answer.finish === 'length' ? 'It was cut at the limit of tokens.' : '';
  return [reuseSentence(answer, again), keptSentence(answer), cut].filter(Boolean);
}

// ---- the server's totals --------------------------------------------------------------------------------------------

// What its caches have done since it started: images in the beginnings of earlier prompts count as those at other places do.
export function readBefore({prefix, image_kv: images, saved_ms: ms = 0}) {
  if (prefix.asked_tokens === 0) return 'Since this server started, nothing has been asked.';
  const found = prefix.tokens + images.tokens;
  const time = ms >= 1000 ? `; about ${ms < 120000 ? duration(ms) : `${Math.round(ms / 60000)} min`} saved` : '';
  return `Since this server started: ${percentText(found / prefix.asked_tokens)} of what was asked had been read before${time}.`;
}

// ---- two answers beside each other -----------------------------------------------------------------------------------

const kMostWords = 1500;  // of each text; longer ones are compared from both ends only

// Pieces of `a` and of `b` in order, as {text, changed}: words of one that the other does not have at that place.
export function differences(a, b) {
  const x = a.match(/\s+|[\p{L}\p{N}]+|./gsu) ?? [], y = b.match(/\s+|[\p{L}\p{N}]+|./gsu) ?? [];
  let head = 0, tail = 0;
  while (head < Math.min(x.length, y.length) && x[head] === y[head]) ++head;
  while (tail < Math.min(x.length, y.length) - head && x[x.length - 1 - tail] === y[y.length - 1 - tail]) ++tail;
  const n = x.length - head - tail, m = y.length - head - tail;
  const inX = new Array(x.length).fill(false), inY = new Array(y.length).fill(false);
  if (n <= kMostWords && m <= kMostWords) markCommon(x, y, head, n, m, inX, inY);
  const pieces = (words, same) => {
    const out = [];
    words.forEach((text, i) => {
      const changed = i >= head && i < words.length - tail && !same[i];
      if (out.length > 0 && out.at(-1).changed === changed) out.at(-1).text += text;
      else out.push({text, changed});
    });
    return out;
  };
  return [pieces(x, inX), pieces(y, inY)];
}

// The longest common subsequence of the n words of x and the m of y from `head` on.
function markCommon(x, y, head, n, m, inX, inY) {
  const length = Array.from({length: n + 1}, () => new Uint16Array(m + 1));
  for (let i = n - 1; i >= 0; --i) {
    for (let j = m - 1; j >= 0; --j) {
      length[i][j] = x[head + i] === y[head + j] ? length[i + 1][j + 1] + 1 : Math.max(length[i + 1][j], length[i][j + 1]);
    }
  }
  for (let i = 0, j = 0; i < n && j < m;) {
    if (x[head + i] === y[head + j]) inX[head + i++] = inY[head + j++] = true;
    else if (length[i + 1][j] >= length[i][j + 1]) ++i;
    else ++j;
  }
}

// ---- while a prompt is read ------------------------------------------------------------------------------------------

// `progress`: {share, left: seconds or undefined, waiting, ms: when that was told}, null before the first; times since
// the question was sent. The words at `ms`: {text, share: null if it is not known}.
export function readingState(progress, ms) {
  if (!progress) return {text: 'Reading the question', share: null};
  const {share, left, waiting} = progress;
  if (waiting) return {text: 'Waiting: the server is busy with other questions', share: share || null};
  const rest = left === undefined ? 0 : 1000 * left - (ms - progress.ms);
  const time = share < 1 && rest >= 500 ? `, ${rest < 60000 ? `about ${Math.ceil(rest / 1000)} s` : `about ${Math.ceil(rest / 60000)} min`} left` : '';
  return {text: `Reading the question: ${Math.floor(100 * share)} %${time}`, share};
}
