// The same question under two settings, one after the other: the request that fills the cache for both, and the sentence about
// their times. Values in, texts out.
import {duration} from './format.js';

const kSide = ['kv', 'budget', 'reuse'];

// Whether two sides of the settings ask for the same; {} leaves all to the server.
export const isSame = (a, b) => kSide.every((name) => (a?.[name] ?? '') === (b?.[name] ?? ''));

// The fields of a request that brings the question into the cache before either side asks it: else the second side found
// there the first side's KV. `fields`: of both sides' requests; `reuse`: the server's own setting. null: neither side
// looks into the cache.
export function readingFields(fields, reuse = '') {
  const looks = fields.find(({vlcache}) => (vlcache.reuse ?? reuse) !== 'off');
  if (!looks) return null;
  const {kv_budget, ...vlcache} = looks.vlcache;
  return {...looks, max_tokens: 1, vlcache: {...vlcache, kv: 'full'}};  // a policy might leave less of the prompt there
}

const kWorthSaying = 0.9;  // of a question: with so much of it in the cache, the time says nothing about reading it

const because = ({served}) => (served.cache.prefix_reason ? ` (${served.cache.prefix_reason})` : '');

// How two answers came about, as far as it matters to their times.
export function circumstances(answers) {
  const [a, b] = answers, same = isSame(a.asked, b.asked) ? 'Both sides have the same settings. ' : '';
  if (!a.alone || !b.alone) return `${same}Both were computed at the same time and slowed each other down: their times do not compare the settings.`;
  const [first, second] = answers.map(({usage}) => usage.prompt_tokens_details.cached_tokens);
  const all = a.usage.prompt_tokens, ofAll = (n, answer) => (n > 0 ? `${n} of ${answer.usage.prompt_tokens} tokens` : `nothing${because(answer)}`);
  const asked = `${same}Asked one after the other, from the same cache: `;
  const found = first === second && all === b.usage.prompt_tokens
    ? first > 0 ? `each found ${first} of the question’s ${all} tokens there.` : `neither found any of the question there${because(b)}.`
    : `the first found ${ofAll(first, a)} of the question there, the second ${ofAll(second, b)}.`;
  const {reading} = a;
  return asked + found + (reading && reading.found < kWorthSaying * all ? ` Reading it for the first time took ${duration(reading.ms)}, before both, and is not counted.` : '');
}
