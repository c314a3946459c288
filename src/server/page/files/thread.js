// A conversation as it is seen: questions with their pictures, answers as they grow, what may be done with each.
import {answerCard} from './card.js';
import {button, el} from './dom.js';
import {count} from './format.js';
import {markdown} from './markdown.js';
import {pictures} from './store.js';

const kNearEnd = 80;  // pixels: who is so close to the end wants to stay there

export function thumbnail(picture) {
  const image = el('img', {alt: picture.name, title: `${picture.name}, ${picture.width} × ${picture.height}`});
  pictures.url(picture.id).then((url) => {
    if (url) image.src = url;
    else image.replaceWith(el('span', {class: 'soft'}, `${picture.name} is gone`));
  });
  return image;
}

export class Thread {
  // `actions`: {edit(index, text), regenerate()}.
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
    this.views = new Map();  // by answer
    this.due = null;         // answers that have changed since the last frame
  }

  show(conversation, isRunning) {
    const stay = this.nearEnd();
    const focused = document.activeElement?.dataset?.focus;
    this.views.clear();
    this.conversation = conversation;
    this.isRunning = isRunning;
    const messages = conversation.messages;
    this.node.replaceChildren(
      ...messages.map((message, i) => (message.role === 'user' ? this.question(message, i) : this.answers(message, i))));
    if (messages.length === 0) this.node.append(el('p', {class: 'soft empty'}, 'Add a picture and ask about it.'));
    if (focused) this.node.querySelector(`[data-focus="${focused}"]`)?.focus();
    if (stay) this.toEnd();
  }

  nearEnd = () => this.node.scrollHeight - this.node.scrollTop - this.node.clientHeight < kNearEnd;
  toEnd = () => (this.node.scrollTop = this.node.scrollHeight);

  question(message, index) {
    const node = el('article', {class: 'question', 'aria-label': 'Question'});
    if (message.pictures.length) {
      node.append(el('div', {class: 'pictures'}, message.pictures.map(thumbnail)));
    }
    node.append(el('p', {class: 'text'}, message.text));
    if (!this.isRunning) {
      const edit = () => this.editor(node, message, index);
      node.append(el('div', {class: 'actions'}, button('Edit', edit, {class: 'quiet', 'data-focus': `edit-${index}`})));
    }
    return node;
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
    const later = this.conversation.messages.length - index - 2;
    const warning = later > 0 ? el('span', {class: 'soft'}, `${count(later, 'message')} after it will be forgotten`) : null;
    node.replaceChildren(
      ...node.querySelectorAll('.pictures'), text,
      el('div', {class: 'actions'}, warning, button('Cancel', cancel), button('Send', send, {class: 'main'})));
    text.focus();
  }

  // The last question, for who wants to edit it by a key.
  editLast() {
    const edits = this.node.querySelectorAll('[data-focus^="edit-"]');
    edits[edits.length - 1]?.click();
  }

  answers(message, index) {
    const last = index === this.conversation.messages.length - 1;
    const several = message.answers.length > 1;
    return el('div', {class: several ? 'answers two' : 'answers'},
      message.answers.map((answer, i) => this.answer(answer, several, last && !this.isRunning && i === 0)));
  }

  answer(answer, several, mayRepeat) {
    const body = el('div', {class: 'text'});
    const foot = el('div', {});
    const node = el('article', {class: 'answer', 'aria-label': several ? `Answer, ${answer.label}` : 'Answer'},
      several ? el('h3', {}, answer.label) : null, body, foot);
    const view = {body, foot, mayRepeat, several};
    this.views.set(answer, view);
    this.fill(answer, view);
    return node;
  }

  fill(answer, view) {
    const running = answer.state === 'running';
    view.body.setAttribute('aria-busy', running);  // the page's status reads it out once it is whole
    view.body.replaceChildren(...markdown(answer.text.trim()));
    if (running) {
      view.body.append(el('span', {class: 'cursor'}, answer.text ? '' : 'reading…'));
      view.foot.replaceChildren();
      return;
    }
    const repeat = (answer.retry ? 'Try again' : 'Regenerate') + (view.several ? ', both' : '');
    const copy = answer.text && navigator.clipboard ? button('Copy', () => navigator.clipboard.writeText(answer.text), {class: 'quiet'}) : null;
    view.foot.replaceChildren(...[
      answer.state === 'stopped' ? el('p', {class: 'soft'}, 'Stopped.') : null,
      answer.state === 'failed' ? el('p', {class: 'wrong'}, answer.error) : null,
      answer.state === 'done' && !answer.text ? el('p', {class: 'soft'}, 'The model said nothing.') : null,
      el('div', {class: 'actions'}, copy,
        view.mayRepeat ? button(repeat, () => this.actions.regenerate(), {class: 'quiet', 'data-focus': 'repeat'}) : null),
      answerCard(answer)].filter((child) => child !== null));
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
