// An image as large as the window, beside the answer about it and with what the cache has kept of it.
import {button, byId, el} from './dom.js';
import {keptText, veil} from './kept.js';
import {MarkdownView} from './markdown_view.js';
import {pictures} from './store.js';

const kStep = 1.25;      // of the zoom, by a key or a button
const kMost = 16;        // times the image's own size
const kPan = 80;         // pixels by an arrow key

class Viewer {
  constructor(shown, number, answers) {
    this.shown = shown;
    this.answers = answers;
    this.stage = el('div', {class: 'stage', tabindex: 0, role: 'region', 'aria-label': 'The image'});
    this.title = el('h2', {id: 'viewer-title'});
    this.size = el('span', {class: 'soft', role: 'status'});
    this.side = el('div', {class: 'beside'});
    this.veils = el('span', {});
    const several = shown.length > 1;
    byId('viewer').replaceChildren(
      el('div', {class: 'bar'}, this.title, el('span', {class: 'space'}), this.veils,
        several ? button('‹', () => this.go(-1), {'aria-label': 'Image before this one'}) : null,
        several ? button('›', () => this.go(1), {'aria-label': 'Next image'}) : null,
        button('−', () => this.zoomBy(1 / kStep), {'aria-label': 'Smaller'}), this.size,
        button('+', () => this.zoomBy(kStep), {'aria-label': 'Larger'}), button('Fit', () => this.fit()),
        button('Close', () => byId('viewer').close(), {class: 'main'})),
      el('div', {class: 'view'}, this.stage, answers.length > 0 ? this.side : null));
    this.stage.addEventListener('wheel', (event) => {
      if (!event.ctrlKey && !event.metaKey) return;  // as a pinch on a touchpad arrives; else the wheel scrolls
      event.preventDefault();
      this.zoomBy(event.deltaY < 0 ? kStep : 1 / kStep);
    }, {passive: false});
    this.stage.addEventListener('dblclick', () => (this.fitted ? this.setZoom(Math.max(1, 2 * this.zoom)) : this.fit()));
    byId('viewer').onkeydown = (event) => this.key(event);
    byId('viewer').showModal();
    this.open(number);
  }

  async open(number) {
    this.number = number;
    const picture = this.shown[number];
    this.title.textContent = picture.name;
    const url = await pictures.url(picture.id);
    const image = el('img', {alt: picture.name});
    this.frame = el('div', {class: 'kept'}, image);
    this.stage.replaceChildren(url ? this.frame : el('p', {}, 'This image is gone from the browser.'));
    if (url) image.src = url;
    this.fillSide(picture);
    this.fit();
    this.stage.focus();
  }

  // The server's figures of this image in an answer.
  keptBy(answer, picture) {
    const kept = answer.served?.kv.images?.[answer.pictures.indexOf(picture.id)];
    return kept?.kept ? kept : null;
  }

  fillSide(picture) {
    this.side.replaceChildren(...this.answers.flatMap((answer) => {
      const text = new MarkdownView(el('div', {class: 'text'}));
      text.show(answer.text.trim());
      const kept = this.keptBy(answer, picture);
      return [this.answers.length > 1 ? el('h3', {}, answer.label) : '', text.node, kept ? el('p', {class: 'soft'}, `${keptText(kept, 0)}.`) : ''];
    }));
    const choices = this.answers.map((answer) => [answer, this.keptBy(answer, picture)]).filter(([, kept]) => kept);
    this.veils.replaceChildren(...choices.map(([answer, kept]) => {
      const box = el('input', {type: 'checkbox', onchange: () => {
        this.veils.querySelectorAll('input').forEach((other) => (other.checked = other === box && box.checked));
        this.frame.querySelector('.veil')?.remove();
        if (box.checked) this.frame.append(veil(kept));
      }});
      return el('label', {class: 'check'}, box, choices.length > 1 ? `kept: ${answer.label}` : 'show what is kept');
    }));
  }

  // The zoom at which the whole image is seen.
  fitting() {
    const {width, height} = this.shown[this.number];
    return Math.min((this.stage.clientWidth - 2) / width, (this.stage.clientHeight - 2) / height);
  }

  fit() {
    this.setZoom(this.fitting());
    this.fitted = true;
  }

  zoomBy = (factor) => this.setZoom(this.zoom * factor);

  // The middle of the visible part stays in the middle.
  setZoom(zoom) {
    const {stage} = this, before = this.zoom;
    this.fitted = false;
    this.zoom = Math.min(Math.max(kMost, this.fitting()), Math.max(0.02, zoom));
    const middle = [stage.scrollLeft + stage.clientWidth / 2, stage.scrollTop + stage.clientHeight / 2];
    this.frame.style.width = `${this.zoom * this.shown[this.number].width}px`;
    this.size.textContent = `${Math.round(100 * this.zoom)} %`;
    if (before) {
      stage.scrollLeft = (middle[0] * this.zoom) / before - stage.clientWidth / 2;
      stage.scrollTop = (middle[1] * this.zoom) / before - stage.clientHeight / 2;
    }
  }

  go(step) {
    this.open((this.number + step + this.shown.length) % this.shown.length);
  }

  key(event) {
    const pan = {ArrowLeft: [-kPan, 0], ArrowRight: [kPan, 0], ArrowUp: [0, -kPan], ArrowDown: [0, kPan]}[event.key];
    if (event.key === '+' || event.key === '=') this.zoomBy(kStep);
    else if (event.key === '-') this.zoomBy(1 / kStep);
    else if (event.key === '0') this.fit();
    else if (event.key === '1') this.setZoom(1);
    else if (event.key === 'PageDown') this.go(1);
    else if (event.key === 'PageUp') this.go(-1);
    else if (pan && event.target === this.stage) this.stage.scrollBy(...pan);
    else return;
    event.preventDefault();
  }
}

// `shown`: the images of a question, `number` the one that is opened, `answers`: to that question.
export function openViewer(shown, number, answers) {
  return new Viewer(shown, number, answers);
}
