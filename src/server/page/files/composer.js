// The question before it is sent: its text, and images, PDFs, clips and text files that are pasted, dropped or picked.
import {isDocument, namesPages, readDocument} from './documents.js';
import {announce, button, byId, el, notice} from './dom.js';
import {bytes, count} from './format.js';
import {isPicture, readPicture, refuseOther} from './pictures.js';
import {readTextFile} from './text_files.js';
import {isFrameCount, isRate, readVideo, videoText} from './videos.js';

const kMaxRows = 8;

const imageFiles = (transfer) => [...(transfer?.files ?? [])];

const isVideo = (file) => Boolean(file.blob) && file.type.startsWith('video/');
const isImage = (file) => Boolean(file.blob) && !isDocument(file) && !isVideo(file);

export class Composer {
  // `actions`: {send(text, {attached, documents, videos, files}), stop(), editLast()}; `settings.shrink`: as of readPicture.
  constructor(settings, actions) {
    this.settings = settings;
    this.actions = actions;
    this.drafts = new Map();  // by conversation: {text, attached}, not sent yet
    this.sees = true;    // the model reads images
    this.watches = true;  // and clips
    this.running = false;
    this.text = byId('question');
    this.openDraft('');
    byId('composer').addEventListener('submit', (event) => {
      event.preventDefault();
      this.submit();
    });
    this.text.addEventListener('keydown', (event) => this.key(event));
    this.text.addEventListener('input', () => this.fit());
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

  // Images as readPicture gives them, PDFs and TIFFs as readDocument does, clips as readVideo does, and texts {name, text}.
  get attached() {
    return this.draft.attached;
  }

  // What is written and attached belongs to a conversation, by its id, and comes back with it.
  openDraft(id) {
    if (this.id === id) return;
    if (this.draft) this.draft.text = this.text.value;
    if (!this.drafts.has(id)) this.drafts.set(id, {text: '', attached: []});
    this.draft = this.drafts.get((this.id = id));
    this.text.value = this.draft.text;
    this.fit();
    this.show();
  }

  // As high as its text, within limits.
  fit() {
    const lines = this.text.value.split('\n').length;
    this.text.rows = Math.min(kMaxRows, Math.max(lines, Math.ceil(this.text.value.length / 80), 1));
  }

  // What a model does that sees images, or none.
  setModel({name, sees, watches, mostPixels}) {
    this.sees = sees;
    this.watches = watches;
    this.mostPixels = mostPixels;
    this.model = name;
    byId('pick').hidden = !sees;
    this.text.placeholder = sees ? 'Ask about an image' : 'Ask a question';
  }

  async read(file) {
    if (await isPicture(file)) {
      if (!this.sees) throw new Error(`${this.model} reads text only: it cannot see ${file.name}.`);
      return readPicture(file, this.settings.shrink, this.mostPixels);
    }
    const document = await readDocument(file);
    if (document !== null && !this.sees) throw new Error(`${this.model} reads text only: it cannot see the pages of ${file.name}.`);
    if (document !== null) return document;
    await refuseOther(file);
    const video = await readVideo(file);
    if (video !== null && !this.watches) throw new Error(`${this.model} reads no videos: it cannot see ${file.name}. Send images of the frames that matter.`);
    if (video !== null) return video;
    const text = await readTextFile(file);
    if (text === null) throw new Error(`${file.name} is neither a PDF, nor a clip, nor a text, nor one of the images that the server reads: JPEG, PNG, WebP, BMP, GIF or TIFF.`);
    return text;
  }

  async add(files) {
    const wrong = [], {draft} = this;  // another conversation may be opened before they are read
    for (const file of files) {
      try {
        const read = await this.read(file);
        draft.attached.push(read);
      } catch (error) {
        wrong.push(error.message);
      }
    }
    notice(wrong.join(' '));
    this.show();
    if (files.length > wrong.length) announce(`${count(draft.attached.length, 'file')} attached`);
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
      if (isDocument(file)) return el('li', {}, this.documentFields(file), button('×', remove, {'aria-label': `Remove ${file.name}`}));
      if (isVideo(file)) return el('li', {}, this.videoFields(file), button('×', remove, {'aria-label': `Remove ${file.name}`}));
      const url = file.blob && URL.createObjectURL(file.blob);
      return el('li', {}, url ? el('img', {src: url, alt: file.name, onload: () => URL.revokeObjectURL(url)}) : file.name,
        el('span', {class: 'soft'}, url ? `${file.width} × ${file.height}${file.shrunk ? ', made smaller' : ''}` : count(file.text.length, 'character')),
        button('×', remove, {'aria-label': `Remove ${file.name}`}));
    }));
  }

  submit() {
    if (this.running) {
      this.actions.stop();
      return;
    }
    const text = this.text.value.trim();
    if (!text && this.attached.length === 0) return;
    const attached = this.attached, documents = attached.filter(isDocument);
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
