// An answer without its markup: as a screen reader reads it out, and a table as it is pasted into a spreadsheet.
import {markdown} from './markdown.js';

const inlineText = (children) => children.map((part) => {
  if (typeof part === 'string') return part;
  if (part.kind === 'break') return '\n';
  return part.text ?? inlineText(part.children);
}).join('');

const sentence = (text) => (/[\p{L}\p{N})]$/u.test(text) ? `${text}.` : text);
const cellText = ({children}) => inlineText(children).replace(/\s+/g, ' ').trim();
const rowText = (row) => sentence(row.map(cellText).filter(Boolean).join(', '));

// Row by row; rows that are shown as text are left out.
function tableText({caption, head, rows, rest}) {
  const lines = [caption && sentence(inlineText(caption).trim()), ...[...head, ...rows].map(rowText), rest && 'The rest of the table is not read out.'];
  return lines.filter(Boolean).join('\n');
}

const itemText = (list, item, i) => `${list.ordered ? `${list.start + i}. ` : ''}${blocksText(item)}`;

const kTexts = {
  paragraph: ({children}) => inlineText(children),
  heading: ({children}) => sentence(inlineText(children)),
  rule: () => '',
  quote: ({blocks}) => blocksText(blocks),
  list: (list) => list.items.map((item, i) => itemText(list, item, i)).join('\n'),
  code: ({text}) => text,
  math: ({text}) => text,
  table: tableText,
  thought: () => '',
};

const blocksText = (blocks) => blocks.map((block) => kTexts[block.kind](block)).filter(Boolean).join('\n');

// The text of an answer as it is read out: without marks, thoughts and tags, formulas as their source.
export const spoken = (text) => blocksText(markdown(text)).trim();

// The announcement of answers that have ended.
export function announcement(answers) {
  return answers.map(({text, state, error, label}) => {
    const said = spoken(text);
    const answer = said ? `Answer${answers.length > 1 ? `, ${label}` : ''}: ${said}` : state === 'done' ? 'The model said nothing.' : '';
    return [answer, state === 'stopped' ? 'Stopped.' : error].filter(Boolean).join(' ');
  }).join('\n');
}

// Rows of tab-separated values, in a grid: where a cell spans several places, the others are empty.
export function tabSeparated({head, rows}) {
  const grid = [...head, ...rows].map(() => []);
  [...head, ...rows].forEach((row, y) => {
    let x = 0;
    for (const cell of row) {
      while (grid[y][x] !== undefined) ++x;
      const height = Math.min(cell.rowspan ?? 1, grid.length - y), width = cell.colspan ?? 1;
      for (let i = 0; i < height * width; ++i) grid[y + Math.floor(i / width)][x + (i % width)] = '';
      grid[y][x] = cellText(cell);
      x += width;
    }
  });
  return grid.map((row) => Array.from(row, (text) => text ?? '').join('\t')).join('\n');
}
