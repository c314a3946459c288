// Two answers to one question in one table: whether they are the same, what each took, which patches each kept.
import {circumstances} from './comparing.js';
import {el} from './dom.js';
import {bytes, duration, rate} from './format.js';
import {keptPictures} from './kept.js';
import {differences, firstToken, keptTokens, percentText} from './words.js';
import {tokensPerSecond} from './card.js';

const kAboutShares = 'Tokens kept: of the prompt, images and text together; the answer’s own are kept besides. Memory is held in pages ' +
  'of 64 tokens, so that a short question saves less of it.';
const marked = (pieces) => pieces.map(({text, changed}) => (changed ? el('mark', {}, text) : text));

function keptCell(answer) {
  const kept = keptTokens(answer);
  return kept === null ? '–' : `${Math.round(kept.n)} of ${kept.of} (${percentText(kept.share)})`;
}

function sentence([a, b], same) {
  const share = b.served.kv.bytes / a.served.kv.bytes;
  const saved = share < 1 ? `, with ${percentText(share)} of the memory` : share > 1 ? `, with ${share.toFixed(1)} times the memory` : '';
  return same ? `The second answer is the same as the first, word for word${saved}.` : `The second answer differs from the first${saved}; differences are marked.`;
}

// null unless both answers have ended and the server has said what they took.
export function comparison(answers) {
  if (answers.length !== 2 || answers.some((answer) => answer.state !== 'done' || !answer.served)) return null;
  const [a, b] = answers, texts = answers.map((answer) => answer.text.trim()), same = texts[0] === texts[1];
  const pieces = differences(...texts), [before, after] = answers.map((answer) => answer.served.kv.bytes);
  const row = (name, cells, why = '') => el('tr', {}, el('th', {scope: 'row', title: why}, name), cells.map((cell) => el('td', {}, cell)));
  const both = (of) => answers.map(of);
  const pictures = both((answer) => keptPictures(answer.served.kv.images ?? [], answer.pictures, true));
  return el('section', {class: 'comparison', 'aria-label': 'Both answers compared'},
    el('p', {class: 'verdict'}, sentence(answers, same)),
    el('p', {class: 'soft'}, circumstances(answers)),
    el('div', {class: 'table', tabindex: 0, role: 'region', 'aria-label': 'Comparison'}, el('table', {},
      el('thead', {}, el('tr', {}, el('td', {}), el('th', {scope: 'col'}, a.label), el('th', {scope: 'col'}, b.label))),
      el('tbody', {},
        row(same ? 'Answer: the same' : 'Answer: not the same', pieces.map(marked)),
        row('First token', both((answer) => duration(firstToken(answer)))),
        row('Speed after it', both((answer) => (tokensPerSecond(answer) === null ? '–' : rate(tokensPerSecond(answer))))),
        row('Memory (KV) at the end', [bytes(before), bytes(after) + (after === before ? '' : ` (${percentText(after / before)})`)],
          'The KV of the prompt and its answer, in whole pages'),
        row('Tokens kept', both(keptCell), 'Mean over the model’s layers and heads'),
        pictures.some(Boolean) ? row('What was kept of the image', pictures.map((node) => node ?? '–')) : null))),
    after < before ? el('p', {class: 'soft'}, kAboutShares) : null);
}
