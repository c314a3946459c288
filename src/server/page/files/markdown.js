// The little of Markdown that models use, as elements: code, lists, headings, bold, italic. Everything else is text.
import {el} from './dom.js';

const kInline = /`([^`\n]+)`|\*\*(?=\S)([^\n]+?)\*\*|\*(?=\S)([^*\n]+?)\*/;

function inline(text) {
  const out = [];
  for (let match = kInline.exec(text); match; match = kInline.exec(text)) {
    if (match.index > 0) out.push(text.slice(0, match.index));
    if (match[1] !== undefined) out.push(el('code', {}, match[1]));
    else if (match[2] !== undefined) out.push(el('strong', {}, ...inline(match[2])));
    else out.push(el('em', {}, ...inline(match[3])));
    text = text.slice(match.index + match[0].length);
  }
  if (text) out.push(text);
  return out;
}

const kFence = /^\s*```/, kHeading = /^#{1,6} +(.*)/, kBullet = /^\s*[-*+] +(.*)/, kNumber = /^\s*(\d{1,9})[.)] +(.*)/;
const isPlain = (line) => line.trim() && ![kFence, kHeading, kBullet, kNumber].some((form) => form.test(line));

// Lines from `i` on that `form` matches, as items; what follows an item without a mark of its own belongs to it.
function list(lines, i, form, group, tag, attributes) {
  const items = [];
  for (; i < lines.length; ++i) {
    const match = form.exec(lines[i]);
    if (match) items.push(match[group]);
    else if (items.length > 0 && isPlain(lines[i]) && /^\s/.test(lines[i])) items[items.length - 1] += '\n' + lines[i].trim();
    else break;
  }
  return [el(tag, attributes, items.map((item) => el('li', {}, ...inline(item)))), i];
}

function codeBlock(lines, i) {
  let end = i + 1;
  while (end < lines.length && !kFence.test(lines[end])) ++end;
  return [el('pre', {}, el('code', {}, lines.slice(i + 1, end).join('\n'))), end + 1];
}

function paragraph(lines, i) {
  let end = i + 1;
  while (end < lines.length && isPlain(lines[end])) ++end;
  return [el('p', {}, ...inline(lines.slice(i, end).join('\n'))), end];
}

export function markdown(text) {
  const lines = text.split('\n');
  const out = [];
  for (let i = 0; i < lines.length;) {
    const line = lines[i], heading = kHeading.exec(line), number = kNumber.exec(line);
    let node = null;
    if (!line.trim()) ++i;
    else if (kFence.test(line)) [node, i] = codeBlock(lines, i);
    else if (heading) [node, i] = [el('p', {class: 'heading'}, ...inline(heading[1])), i + 1];
    else if (kBullet.test(line)) [node, i] = list(lines, i, kBullet, 1, 'ul', {});
    else if (number) [node, i] = list(lines, i, kNumber, 2, 'ol', {start: number[1]});
    else [node, i] = paragraph(lines, i);
    if (node) out.push(node);
  }
  return out;
}
