// The question before it is sent: its text, and images, PDFs, clips and text files that are pasted, dropped or picked.
import {isDocument, namesPages, readDocument} from './documents.js';
import {announce, button, byId, el, notice} from './dom.js';
import {bytes, count} from './format.js';
import {LengthCheck} from './length.js';
import {isPicture, readPicture, refuseOther} from './pictures.js';
import {readTextFile} from './text_files.js';
import {isFrameCount, isRate, readVideo, videoText} from './videos.js';

const kMaxRows = 8;
const kPause = 400;  // ms without a key before a long text is counted

const imageFiles = (transfer) => [...(transfer?.files ?? [])];

const isVideo = (file) => Boolean(file.blob) && file.type.startsWith('video/');
const isImage = (file) => Boolean(file.blob) && !isDocument(file) && !isVideo(file);

export class Composer {
  // `actions`: {send(text, {attached, documents, videos, files}), stop(), editLast(), used(): tokens of the conversation so far};
  // `settings.shrink`: as of readPicture.
  constructor(settings, actions) {
    this.settings = settings;
    this.actions = actions;
    this.drafts = new Map();  // by conversation: {text, attached}, not sent yet
    this.sees = true;    // the model reads images
    this.watches = true;  // and clips
    this.running = false;
    this.length = new LengthCheck();
    this.text = byId('question');
    this.openDraft('');
    byId('composer').addEventListener('submit', (event) => {
      event.preventDefault();
      this.submit();
    });
    this.text.addEventListener('keydown', (event) => this.key(event));
    this.text.addEventListener('input', () => {
      this.fit();
      this.checkLength(kPause);
    });
    byId('pick').addEventListener('click', () => byId('files').click());
    byId('files').addEventListener('change', (event) => {
      const files = [...event.target.files];
      event.target.value = '';  // the same file may be picked again
      this.add(files);
    });
    this.listen();
  }

  // Paste and drop anywhere on the page.
  listen() {
    document.addEventListener('paste', (event) => {
      const files = imageFiles(event.clipboardData);
      if (files.length === 0) return;
      event.preventDefault();
      this.add(files);
    });
    const hasFiles = (event) => event.dataTransfer?.types.includes('Files');
    document.addEventListener('dragover', (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      byId('drop').hidden = false;
    });
    document.addEventListener('dragleave', (event) => {
      if (event.relatedTarget === null) byId('drop').hidden = true;
    });
    document.addEventListener('drop', (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      byId('drop').hidden = true;
      this.add(imageFiles(event.dataTransfer));
    });
  }

  key(event) {
    if (event.isComposing) return;
    if (event.key === 'Enter' && !event.shiftKey) {
      event.preventDefault();
      if (!this.running) this.submit();
    } else if (event.key === 'ArrowUp' && this.text.value === '' && !this.running) {
      event.preventDefault();
      this.actions.editLast();
    }
  }

  // Images as readPicture gives them, PDFs and TIFFs as readDocument does, clips as readVideo does, texts {name, text}, and in
  // place of a file that is being read {name, reading: true}.
  get attached() {
    return this.draft.attached;
  }

  // What is written and attached belongs to a conversation, by its id, and comes back with it.
  openDraft(id) {
    if (this.id === id) return;
    if (this.draft) Object.assign(this.draft, {text: this.text.value, sends: false});
    if (!this.drafts.has(id)) this.drafts.set(id, {text: '', attached: []});
    this.draft = this.drafts.get((this.id = id));
    this.text.value = this.draft.text;
    this.fit();
    this.show();
  }

  // Says before it is sent that a question is too long, or that files are still being read.
  checkLength(pause = 0) {
    clearTimeout(this.timer);
    const {draft} = this, reading = draft.attached.filter((file) => file.reading);
    if (draft.sends && reading.length > 0) {
      this.hint(`Sent as soon as ${reading.length > 1 ? `${reading.length} files have` : `${reading[0].name} has`} been read.`);
      return;
    }
    this.timer = setTimeout(async () => {
      const wrong = await this.length.wrong(this.question());
      if (draft === this.draft) this.hint(wrong.text);
    }, pause);
  }

  question = () => ({text: this.text.value, files: this.attached.filter((file) => file.text !== undefined), used: this.actions.used(), model: this.model});

  hint(text, wrong = false) {
    const node = byId('hint');
    if (node.textContent === text && !wrong) return;  // it is not read out again
    node.textContent = text;
    node.classList.toggle('wrong', wrong);
  }

  // As high as its text, within limits.
  fit() {
    const lines = this.text.value.split('\n').length;
    this.text.rows = Math.min(kMaxRows, Math.max(lines, Math.ceil(this.text.value.length / 80), 1));
  }

  // What a model does that sees images, or none.
  setModel(model) {
    const {sees, watches} = model;
    Object.assign(this, {sees, watches, model});
    this.checkLength();
    byId('pick').hidden = !sees;
    this.text.placeholder = sees ? 'Ask about an image' : 'Ask a question';
  }

  async read(file) {
    if (await isPicture(file)) {
      if (!this.sees) throw new Error(`${this.model.name} reads text only: it cannot see ${file.name}.`);
      return readPicture(file, this.settings.shrink, this.model?.mostPixels);
    }
    const document = await readDocument(file);
    if (document !== null && !this.sees) throw new Error(`${this.model.name} reads text only: it cannot see the pages of ${file.name}.`);
    if (document !== null) return document;
    await refuseOther(file);
    const video = await readVideo(file);
    if (video !== null && !this.watches) throw new Error(`${this.model.name} reads no videos: it cannot see ${file.name}. Send images of the frames that matter.`);
    if (video !== null) return video;
    const text = await readTextFile(file);
    if (text === null) throw new Error(`${file.name} is neither a PDF, nor a clip, nor a text, nor one of the images that the server reads: JPEG, PNG, WebP, BMP, GIF or TIFF.`);
    return text;
  }

  // Each file has its place at once, in the conversation in which it was picked.
  async add(files) {
    const {draft} = this, wrong = [];
    const places = files.map((file) => ({name: file.name || 'image', reading: true}));
    draft.attached.push(...places);
    this.show();
    for (const [i, file] of files.entries()) {
      const read = await this.read(file).catch((error) => void wrong.push(error.message));
      const at = draft.attached.indexOf(places[i]);
      if (at >= 0) draft.attached.splice(at, 1, ...(read ? [read] : []));  // else it was removed meanwhile
      if (draft === this.draft) this.show();
    }
    notice(wrong.join(' '));
    if (draft !== this.draft) return;
    if (files.length > wrong.length) announce(`${count(this.attached.length, 'file')} attached`);
    const sends = draft.sends && wrong.length === 0;
    draft.sends = false;
    if (sends) this.submit();
    else this.checkLength();
    this.text.focus();
  }

  // A PDF's name and the pages that are to be read.
  documentFields(document) {
    const pages = el('input', {value: document.pages, placeholder: 'all', size: 8, inputMode: 'text', autocomplete: 'off',
      'aria-label': `Pages of ${document.name}`, title: 'Such as 3-7 or 1,4-6; empty: all'});
    pages.addEventListener('input', () => {
      document.pages = pages.value.replace(/\s/g, '');
      pages.setCustomValidity(namesPages(document.pages) ? '' : 'Pages such as 3-7 or 1,4-6.');
    });
    return [document.name, el('span', {class: 'soft'}, bytes(document.blob.size)), el('label', {class: 'pages'}, 'pages ', pages)];
  }

  // A clip's first frame, name and length, and how many frames are to be shown.
  videoFields(video) {
    const field = (key, label, isRight, wrong) => {
      const input = el('input', {value: video[key], placeholder: 'auto', size: 5, inputMode: 'decimal', autocomplete: 'off', title: wrong,
        'aria-label': `${label} of ${video.name}`});
      input.addEventListener('input', () => {
        video[key] = input.value.trim();
        input.setCustomValidity(isRight(video[key]) ? '' : wrong);
      });
      return el('label', {class: 'pages'}, `${label} `, input);
    };
    return [video.thumbnail && el('img', {src: video.thumbnail, alt: ''}), videoText({name: video.name, seconds: video.seconds}),
      el('span', {class: 'soft'}, bytes(video.blob.size)),
      field('fps', 'frames a second', isRate, 'A number such as 1 or 0.5; empty: as the model was trained'),
      field('max_frames', 'frames at most', isFrameCount, 'A number from 1 to 4096; empty: as the model was trained')].filter(Boolean);
  }

  show() {
    byId('attached').replaceChildren(...this.attached.map((file, i) => {
      const remove = () => {
        this.attached.splice(i, 1);
        this.show();
        this.text.focus();
      };
      if (file.reading) return el('li', {class: 'soft', 'aria-busy': true}, `reading ${file.name}…`, button('×', remove, {'aria-label': `Remove ${file.name}`}));
      if (isDocument(file)) return el('li', {}, this.documentFields(file), button('×', remove, {'aria-label': `Remove ${file.name}`}));
      if (isVideo(file)) return el('li', {}, this.videoFields(file), button('×', remove, {'aria-label': `Remove ${file.name}`}));
      const url = file.blob && URL.createObjectURL(file.blob);
      return el('li', {}, url ? el('img', {src: url, alt: file.name, onload: () => URL.revokeObjectURL(url)}) : file.name,
        el('span', {class: 'soft'}, url ? `${file.width} × ${file.height}${file.shrunk ? ', made smaller' : ''}` : count(file.text.length, 'character')),
        button('×', remove, {'aria-label': `Remove ${file.name}`}));
    }));
    this.checkLength();
  }

  async submit() {
    if (this.running) {
      this.actions.stop();
      return;
    }
    const {draft} = this;
    if (!this.text.value.trim() && draft.attached.length === 0) return;
    if (draft.attached.some((file) => file.reading)) {
      draft.sends = true;
      this.checkLength();
      return;
    }
    const wrong = await this.length.wrong(this.question());
    if (draft !== this.draft || this.running) return;
    if (wrong.sure) this.hint(wrong.text, true);
    else this.sendDraft();
  }

  sendDraft() {
    const text = this.text.value.trim(), attached = this.attached, documents = attached.filter(isDocument);
    if (!text && attached.length === 0) return;  // it has been sent meanwhile
    const wrong = documents.find((document) => !namesPages(document.pages));
    if (wrong) {
      notice(`${wrong.name}: “${wrong.pages}” names no pages; write them as 3-7 or 1,4-6.`);
      return;
    }
    const videos = attached.filter(isVideo), unclear = videos.find((video) => !isRate(video.fps) || !isFrameCount(video.max_frames));
    if (unclear) {
      notice(`${unclear.name}: frames a second may be above 0 to 1000, frames at most 1 to 4096.`);
      return;
    }
    this.clear();
    notice('');
    this.actions.send(text, {attached: attached.filter(isImage), documents, videos, files: attached.filter((file) => !file.blob)});
  }

  clear() {
    this.draft.attached = [];
    this.text.value = '';
    this.fit();
    this.show();
  }

  // While an answer runs the button stops it; the next question may be written already.
  setRunning(running) {
    this.running = running;
    byId('send').textContent = running ? 'Stop' : 'Send';
    byId('send').classList.toggle('stop', running);
  }
}
