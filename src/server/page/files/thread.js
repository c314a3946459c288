// A conversation as it is seen: questions with their images, answers as they grow, the actions on each. Of a long
// conversation a part is in the document, which moves along when it is scrolled.
import {show as showVersion, versions} from './branches.js';
import {answerCard} from './card.js';
import {comparison} from './compare.js';
import {documentText} from './documents.js';
import {videoText} from './videos.js';
import {button, el} from './dom.js';
import {markdown as blocksOf} from './markdown.js';
import {MarkdownView, copyButton} from './markdown_view.js';
import {pictures} from './store.js';
import {openViewer} from './viewer.js';
import {readingState} from './words.js';

const kNearEnd = 80;   // pixels: a reader so close to the end stays there while an answer grows
const kWindow = 120;   // messages in the document
const kEdge = 8;       // pixels between the view's edge and answers that begin there
const kVerdict = 48;   // pixels of a comparison's first line
const kStep = 40;      // messages that come and go when the reader nears an end of them
const kTick = 250;     // ms between two looks at the clock while a prompt is read

const kWaits = ['Waits for a comparison in another tab.', 'Waits for the first answer, which is asked alone.'];  // by the side

const kThumbnail = [320, 256];  // pixels at most

// Reserves its room before it is loaded, so that the elements after it stay in place.
function thumbnail(picture) {
  const image = el('img', {alt: picture.name, title: `${picture.name}, ${picture.width} × ${picture.height}`});
  const scale = Math.min(1, kThumbnail[0] / picture.width, kThumbnail[1] / picture.height);
  image.style.width = `${scale * picture.width}px`;
  image.style.aspectRatio = `${picture.width} / ${picture.height}`;
  pictures.url(picture.id).then((url) => {
    if (url) image.src = url;
    else image.replaceWith(el('span', {class: 'soft'}, `${picture.name} is gone`));
  });
  return image;
}

const fileFold = ({name, text}) => el('details', {class: 'file'}, el('summary', {}, name), el('pre', {tabindex: 0}, text));

export class Thread {
  // `actions`: {edit(index, text), regenerate(), changed(): another version is shown}.
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
    this.views = new Map();  // by answer
    this.due = null;         // answers that have changed since the last frame
    this.begin = this.end = 0;
    this.after = null;       // an element after all messages
    node.addEventListener('scroll', () => this.scrolled());
    setInterval(() => this.tick(), kTick);
  }

  // `after`: the element at the end, or null.
  show(conversation, isRunning, after = null) {
    const stay = conversation !== this.conversation || this.nearEnd();
    const focused = document.activeElement?.dataset?.focus;
    const n = conversation.messages.length;
    if (stay || this.end > n) this.end = n;
    this.begin = Math.max(0, this.end - Math.max(kWindow, stay ? 0 : this.end - this.begin));
    this.conversation = conversation;
    this.isRunning = isRunning;
    this.after = after;
    this.fillWindow();
    if (focused) this.node.querySelector(`[data-focus="${focused}"]`)?.focus();
    if (stay) this.toEnd();
  }

  fillWindow() {
    this.views.clear();
    this.node.replaceChildren(...this.nodes(this.begin, this.end));
    this.node.classList.toggle('whole', this.end === this.conversation.messages.length);
    if (this.after && this.end === this.conversation.messages.length) this.node.append(this.after);
  }

  nodes(begin, end) {
    return this.conversation.messages.slice(begin, end).map((message, i) =>
      message.role === 'user' ? this.question(message, begin + i) : this.answers(message, begin + i));
  }

  nearEnd = () => this.node.scrollHeight - this.node.scrollTop - this.node.clientHeight < kNearEnd;

  toEnd() {
    const n = this.conversation.messages.length;
    if (this.end < n) {
      [this.begin, this.end] = [Math.max(0, n - kWindow), n];
      this.fillWindow();
    }
    this.node.scrollTop = this.node.scrollHeight;
    this.showCompared();
  }

  // Answers stay visible where the table that compares them does not fit below: from their beginning, or if they are
  // longer than the view their end with the table's first line.
  showCompared() {
    const compared = this.node.querySelector('.answers.two:last-of-type:has(.comparison)');
    if (!compared || this.end < this.conversation.messages.length) return;
    const view = this.node.getBoundingClientRect(), end = view.bottom - (this.after?.isConnected ? this.after.offsetHeight : 0);
    const answers = [...compared.querySelectorAll('.answer')].map((node) => node.getBoundingClientRect());
    const top = answers[0].top - kEdge, bottom = Math.max(...answers.map((box) => box.bottom));
    if (top >= view.top) return;
    this.node.scrollTop += bottom - top <= end - view.top ? top - view.top : Math.max(top - view.top, bottom + kVerdict - end);
  }

  // Message `index` in the middle of the view.
  showAt(index) {
    const n = this.conversation.messages.length;
    this.begin = Math.max(0, Math.min(index - kWindow / 2, n - kWindow));
    this.end = Math.min(n, this.begin + kWindow);
    this.fillWindow();
    this.node.children[index - this.begin]?.scrollIntoView({block: 'center'});
  }

  // Messages near the visible ones come into the document, others leave it; visible ones stay in place.
  scrolled() {
    if (!this.conversation) return;
    const {scrollTop, clientHeight, scrollHeight} = this.node, n = this.conversation.messages.length;
    const up = scrollTop < clientHeight && this.begin > 0;
    const down = scrollHeight - scrollTop - clientHeight < clientHeight && this.end < n;
    if (!up && !down) return;
    const anchor = [...this.node.children].find((child) => child.offsetTop + child.offsetHeight > scrollTop);
    const before = anchor.offsetTop;
    const begin = Math.max(0, Math.min(this.begin + (up ? -kStep : kStep), n - kWindow));
    this.move(begin, Math.min(n, begin + kWindow));
    this.node.scrollTop = scrollTop + anchor.offsetTop - before;
  }

  move(begin, end) {
    const forget = (messages) => messages.forEach((message) => message.answers?.forEach((answer) => this.views.delete(answer)));
    const messages = this.conversation.messages;
    if (end === messages.length && this.end < end && this.after) this.node.append(this.after);
    else if (end < messages.length) this.after?.remove();
    if (begin < this.begin) {
      for (let i = end; i < this.end; ++i) this.node.children[end - this.begin].remove();
      forget(messages.slice(end, this.end));
      this.node.prepend(...this.nodes(begin, this.begin));
    } else {
      for (let i = this.begin; i < begin; ++i) this.node.firstChild.remove();
      forget(messages.slice(this.begin, begin));
      const last = this.node.children[this.end - begin - 1];
      last.after(...this.nodes(this.end, end));
    }
    [this.begin, this.end] = [begin, end];
    this.node.classList.toggle('whole', end === messages.length);
  }

  question(message, index) {
    const node = el('article', {class: 'question', 'aria-label': 'Question'});
    if (message.pictures.length) {
      node.append(el('div', {class: 'pictures'}, message.pictures.map((picture, i) =>
        el('button', {type: 'button', class: 'picture', 'aria-label': `Open ${picture.name}`, onclick: () => this.open(index, i)}, thumbnail(picture)))));
    }
    node.append(...(message.documents ?? []).map((document) => el('p', {class: 'file'}, documentText(document))),
      ...(message.videos ?? []).map((video) => el('p', {class: 'file'}, videoText(video))),
      ...(message.files ?? []).map(fileFold), el('p', {class: 'text'}, message.text));
    const actions = el('div', {class: 'actions'}, this.versionButtons(index));
    if (!this.isRunning) {
      const edit = () => this.editor(node, message, index);
      actions.append(button('Edit', edit, {class: 'quiet', 'data-focus': `edit-${index}`}));
    }
    if (actions.childElementCount > 0) node.append(actions);
    return node;
  }

  // ‹ 1 of 2 › where a question has been edited.
  versionButtons(index) {
    const found = versions(this.conversation, index);
    if (!found) return null;
    const {current, count} = found;
    const to = (number, sign, label) => button(sign, () => {
      showVersion(this.conversation, index, number);
      this.actions.changed();
    }, {class: 'quiet', 'aria-label': label, 'data-focus': `version-${index}-${label}`, disabled: this.isRunning || number < 0 || number >= count});
    return el('span', {class: 'versions'}, to(current - 1, '‹', 'Earlier version'), el('span', {class: 'soft'}, `${current + 1} of ${count}`),
      to(current + 1, '›', 'Later version'));
  }

  // The images of question `index`, image `number` first, beside its answers and what these have kept of them.
  open(index, number) {
    const answers = this.conversation.messages[index + 1]?.answers ?? [];
    openViewer(this.conversation.messages[index].pictures, number, answers);
  }

  // In place of the question, until it is sent or given up.
  editor(node, message, index) {
    const text = el('textarea', {rows: 3, 'aria-label': 'Edit the question', value: message.text});
    const cancel = () => node.replaceWith(this.question(message, index));
    const send = () => this.actions.edit(index, text.value.trim());
    text.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      } else if (event.key === 'Escape') {
        event.stopPropagation();
        cancel();
      }
    });
    const later = this.conversation.messages.length > index + 1;
    node.replaceChildren(
      ...node.querySelectorAll('.pictures'), text,
      el('div', {class: 'actions'}, later ? el('span', {class: 'soft'}, 'The old question and what came after it stay as another version.') : null,
        button('Cancel', cancel), button('Send', send, {class: 'main'})));
    text.focus();
  }

  // The last question, to be edited by a key.
  editLast() {
    this.toEnd();
    const edits = this.node.querySelectorAll('[data-focus^="edit-"]');
    edits[edits.length - 1]?.click();
  }

  answers(message, index) {
    const last = index === this.conversation.messages.length - 1;
    const several = message.answers.length > 1;
    const node = el('div', {class: several ? 'answers two' : 'answers'},
      message.answers.map((answer, i) => this.answer(answer, several, last && !this.isRunning && i === 0, index, i)));
    if (several && !(last && this.isRunning)) node.append(comparison(message.answers) ?? '');
    return node;
  }

  answer(answer, several, mayRepeat, index, number) {
    const body = el('div', {class: 'text'});
    const foot = el('div', {});
    const node = el('article', {class: 'answer', 'aria-label': several ? `Answer, ${answer.label}` : 'Answer'},
      several ? el('h3', {}, answer.label) : null, body, foot);
    const view = {body, foot, mayRepeat, several, text: new MarkdownView(el('div', {})), index, number};
    body.append(view.text.node);
    this.views.set(answer, view);
    this.fill(answer, view);
    return node;
  }

  fill(answer, view) {
    const running = answer.state === 'running';
    view.body.setAttribute('aria-busy', running);  // the page's status reads it out once it is whole
    view.text.show(answer.text.trim(), answer.thought?.trim(), running);
    if (running) {
      this.fillRunning(answer, view);
      return;
    }
    view.cursor?.remove();
    view.reading?.remove();
    const repeat = (answer.retry ? 'Try again' : 'Regenerate') + (view.several ? ', both' : '');
    const said = blocksOf(answer.text.trim()).some((block) => block.kind !== 'thought');
    view.foot.replaceChildren(...[
      answer.state === 'stopped' ? el('p', {class: 'soft'}, 'Stopped.') : null,
      answer.state === 'failed' ? el('p', {class: 'wrong'}, answer.error) : null,
      answer.state === 'done' && !said ? el('p', {class: 'soft'}, 'The model said nothing.') : null,
      el('div', {class: 'actions'}, answer.text ? copyButton(answer.text) : null,
        view.mayRepeat ? button(repeat, () => this.actions.regenerate(), {class: 'quiet', 'data-focus': 'repeat'}) : null),
      answerCard(answer, {conversation: this.conversation, index: view.index, number: view.number})].filter((child) => child !== null));
  }

  // Before the first word: how far the question has been read. After it: a cursor.
  fillRunning(answer, view) {
    view.foot.replaceChildren();
    if (answer.text || answer.thought) {
      view.reading?.remove();
      view.cursor ??= el('span', {class: 'cursor'});
      view.body.append(view.cursor);
      return;
    }
    view.reading ??= el('div', {class: 'reading'}, el('progress', {max: 1, 'aria-label': 'Reading the question'}), el('span', {class: 'soft'}));
    const waits = answer.begun === null;
    const {text, share} = readingState(answer.progress, performance.now() - answer.begun);
    if (share === null) view.reading.firstChild.removeAttribute('value');
    else view.reading.firstChild.value = share;
    view.reading.firstChild.hidden = waits;
    view.reading.lastChild.textContent = waits ? kWaits[view.number] : text;
    if (!view.reading.isConnected) view.body.append(view.reading);
  }

  // The time left, between what the server tells.
  tick() {
    for (const [answer, view] of this.views) {
      if (answer.state === 'running' && !answer.text && !answer.thought) this.fillRunning(answer, view);
    }
  }

  // Once a frame at most.
  update(answer) {
    if (!this.views.has(answer)) return;
    if (this.due === null) {
      this.due = new Set();
      requestAnimationFrame(() => {
        const stay = this.nearEnd();
        for (const changed of this.due) {
          if (this.views.has(changed)) this.fill(changed, this.views.get(changed));
        }
        this.due = null;
        if (stay) this.toEnd();
      });
    }
    this.due.add(answer);
  }
}
