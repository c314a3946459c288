// A conversation's title: the beginning of its first question, cut between words.

const kMost = 60;      // characters as a reader counts them
const kLooked = 2000;  // code units that are looked at
const kNoEnd = /[\s,;:.!?([{“"'–—-]+$/u;

// Older browsers know neither the words of all languages nor all characters.
const pieces = (text, granularity) => (Intl.Segmenter ? Array.from(new Intl.Segmenter(undefined, {granularity}).segment(text), ({segment}) => segment)
  : text.split(granularity === 'word' ? /(?<= )/ : /(?:)/u));

// Also words of languages that are written without spaces are kept whole; a word that is longer than a title is cut between
// characters, of which an emoji of several signs is one.
export function titleOf(text) {
  const line = text.slice(0, kLooked).replace(/\s+/g, ' ').trim();
  const characters = pieces(line, 'grapheme');
  if (characters.length <= kMost) return line;
  let title = '', n = 0;
  for (const word of pieces(line, 'word')) {
    n += pieces(word, 'grapheme').length;
    if (n >= kMost) break;
    title += word;
  }
  const space = title.lastIndexOf(' ');
  if (space >= kMost / 3 && /^[!-~]{2}$/.test(title.at(-1) + line[title.length])) title = title.slice(0, space);  // "KT-4821" stays whole
  title = title.replace(kNoEnd, '');
  return `${title || characters.slice(0, kMost - 1).join('')}…`;
}
