// Conversations as data, and the answers that are on their way. Knows nothing of how they are shown.
import {ApiError, streamChat} from './api.js';
import {allMessages, fork} from './branches.js';
import {conversations, newId, pictures} from './store.js';
import {titleOf} from './title.js';
import {frameChoice} from './videos.js';

// A conversation: {id, name, created, updated, messages, forks (branches.js), tour (tour.js)}. Messages alternate:
//   {role: 'user', text, pictures: [{id, name, width, height}], documents: [{id, name, pages}],
//    videos: [{id, name, seconds, fps, max_frames}], files: [{name, text}]}
//   {role: 'assistant', answers: [answer]}: one, or two side by side, each of which continues with its own.
// An answer: {label, asked, sent (the request without its messages, and the system message), pictures: [id of each in
//   its prompt; none where pages of PDFs or frames of clips are images there, too], thought, text, state, error, retry, finish, usage, served, seen: {first, total}, progress} with state running,
//   done, stopped or failed; times as this page saw them, in ms; progress as of readingState, while a prompt is read.

const kSaveEvery = 2000;  // ms, while an answer grows

export const newConversation = () => ({id: newId(), name: '', created: Date.now(), updated: Date.now(), messages: []});

const pictureIds = (conversation) =>
  allMessages(conversation).flatMap((message) => [...(message.documents ?? []), ...(message.videos ?? []), ...(message.pictures ?? [])].map((picture) => picture.id));

function labelOf(side) {
  return side.name || [side.kv, side.budget, side.reuse && `reuse ${side.reuse}`].filter(Boolean).join(' ') || 'the server’s settings';
}

function newAnswer(side) {
  return {label: labelOf(side), asked: side, sent: null, pictures: [], thought: '', text: '', state: 'running', error: '', retry: false,
    finish: '', usage: null, served: null, seen: {first: null, total: null}, begun: performance.now(), progress: null};
}

// What of the messages before `end` the model is to see in one side's answer: questions without a word of an answer
// are left out, but for the last one.
function history(conversation, end, number) {
  const turns = [];
  for (let i = 0; i < end; i += 2) {
    const question = conversation.messages[i];
    if (i + 1 >= end) {
      turns.push(question);
      continue;
    }
    const answers = conversation.messages[i + 1].answers;
    const answer = answers[Math.min(number, answers.length - 1)];
    if (answer.text || answer.state === 'done') turns.push(question, {role: 'assistant', text: answer.text});
  }
  return turns;
}

// A text file stands in the question as its name and its text.
const textOf = (message) => [...(message.files ?? []).map((file) => `${file.name}:\n\n${file.text.trimEnd()}\n`), message.text].join('\n');

async function contentOf(message, urlOf) {
  const {documents = [], videos = []} = message;
  if (!message.pictures?.length && !documents.length && !videos.length) return textOf(message);
  const parts = [];
  for (const {id, name, pages} of documents) {
    parts.push({type: 'file', file: {filename: name, file_data: await urlOf(id)}, ...(pages ? {vlcache: {pages}} : {})});
  }
  for (const video of videos) parts.push({type: 'video_url', video_url: {url: await urlOf(video.id)}, ...frameChoice(video)});
  for (const {id} of message.pictures ?? []) parts.push({type: 'image_url', image_url: {url: await urlOf(id)}});
  return [...parts, {type: 'text', text: textOf(message)}];
}

async function messagesOf(turns, system, urlOf) {
  const messages = system ? [{role: 'system', content: system}] : [];
  for (const turn of turns) messages.push({role: turn.role, content: await contentOf(turn, urlOf)});
  return messages;
}

// Settings and their names in a request.
const kSampling = {temperature: 'temperature', maxTokens: 'max_tokens', topP: 'top_p', topK: 'top_k', minP: 'min_p', seed: 'seed',
  repetition: 'repetition_penalty', presence: 'presence_penalty', frequency: 'frequency_penalty'};

// A request without its messages.
function fieldsOf(conversation, side, settings) {
  const vlcache = {explain: true};
  if (side.kv) vlcache.kv = side.kv;
  if (side.budget) vlcache.kv_budget = side.budget;
  if (side.reuse) vlcache.reuse = side.reuse;
  const body = {stream: true, stream_options: {include_usage: true}, return_progress: true, vlcache};
  for (const [setting, name] of Object.entries(kSampling)) {
    if ((settings[setting] ?? '') !== '') body[name] = Number(settings[setting]);
  }
  return {...body, ...conversation.tour?.fields};
}

// The request of an answer, messages included, with images cut short: for people to read.
export async function requestShown(conversation, index, number) {
  const answer = conversation.messages[index].answers[number];
  const {system, fields} = answer.sent ?? {system: '', fields: {}};
  const short = async (id) => `${(await pictures.dataUri(id)).slice(0, 48)}…`;
  return {messages: await messagesOf(history(conversation, index, number), system, short), ...fields};
}

export class Chat {
  // `changed(conversation, answer)`: an answer has grown or ended; answer null: several things have. `unsaved(error)`:
  // the browser does not store the conversation.
  constructor(settings, changed, unsaved) {
    this.settings = settings;
    this.changed = changed;
    this.unsaved = unsaved;
    this.running = new Map();  // id of a conversation: the AbortController of its answers
  }

  isRunning = (conversation) => this.running.has(conversation.id);

  stop = (conversation) => this.running.get(conversation.id)?.abort();

  // A new question after all others, with images as readPicture gives them, documents as readDocument does, videos as readVideo does and files {name, text}. `sides`: as in the
  // settings, how it is asked; by default as they say.
  async ask(conversation, text, {attached = [], documents = [], videos = [], files = [], sides = null} = {}) {
    for (const picture of [...attached, ...documents, ...videos]) await pictures.put(picture);
    const shown = attached.map(({id, name, width, height}) => ({id, name, width, height}));
    const named = documents.map(({id, name, pages}) => ({id, name, pages}));
    const clips = videos.map(({id, name, seconds, fps, max_frames}) => ({id, name, seconds, fps, max_frames}));
    conversation.messages.push({role: 'user', text, pictures: shown, documents: named, videos: clips, files});
    if (!conversation.name) conversation.name = titleOf(text) || files[0]?.name || documents[0]?.name || videos[0]?.name || 'An image';
    return this.answer(conversation, sides);
  }

  // The last question once more.
  regenerate(conversation) {
    const last = conversation.messages.at(-1);
    if (last.role === 'assistant') conversation.messages.pop();
    return this.answer(conversation, conversation.tour && last.answers ? last.answers.map((answer) => answer.asked) : null);
  }

  // Another text for the question at `index`: a new version of the conversation from there on.
  edit(conversation, index, text) {
    fork(conversation, index, {...conversation.messages[index], text});
    return this.answer(conversation);
  }

  // Answers the last question; resolves when that is done, however it ends.
  async answer(conversation, asked = null) {
    const settings = structuredClone(this.settings);
    const sides = asked ?? (settings.compare ? [settings.a, settings.b] : [settings.a]);
    const message = {role: 'assistant', answers: sides.map(newAnswer)};
    conversation.messages.push(message);
    const controller = new AbortController();
    this.running.set(conversation.id, controller);
    this.changed(conversation, null);
    const save = () => this.save(conversation).catch(this.unsaved);
    await save();
    const timer = setInterval(save, kSaveEvery);
    await Promise.all(message.answers.map((answer, i) => this.run(conversation, answer, i, settings, controller.signal)));
    clearInterval(timer);
    this.running.delete(conversation.id);
    await save();
    this.changed(conversation, null);
  }

  async run(conversation, answer, number, settings, signal) {
    const begin = answer.begun;
    try {
      const turns = history(conversation, conversation.messages.length - 1, number);
      if (turns.every((turn) => !turn.documents?.length && !turn.videos?.length)) answer.pictures = turns.flatMap((turn) => (turn.pictures ?? []).map((picture) => picture.id));
      answer.sent = {system: settings.system, fields: fieldsOf(conversation, answer.asked, settings)};
      const messages = await messagesOf(turns, settings.system, pictures.dataUri);
      for await (const event of streamChat({messages, ...answer.sent.fields}, signal)) {
        this.take(answer, event, performance.now() - begin);
        this.changed(conversation, answer);
      }
      answer.state = 'done';
    } catch (error) {
      answer.state = error.name === 'AbortError' ? 'stopped' : 'failed';
      if (answer.state === 'failed') answer.error = error.message;
      answer.retry = error instanceof ApiError && error.retry;
    }
    answer.seen.total = performance.now() - begin;
    answer.progress = null;
    this.changed(conversation, answer);
  }

  take(answer, event, ms) {
    if (event.usage) answer.usage = event.usage;
    if (event.vlcache) answer.served = event.vlcache;
    if (event.prompt_progress) {
      const told = {done: event.prompt_progress.processed, ms};
      answer.progress = {...told, total: event.prompt_progress.total, first: answer.progress?.first ?? told};
    }
    for (const choice of event.choices) {
      const {content, reasoning_content: thought} = choice.delta;
      if (content || thought) answer.seen.first ??= ms;
      answer.thought += thought ?? '';
      answer.text += content ?? '';
      if (choice.finish_reason) answer.finish = choice.finish_reason;
    }
  }

  async save(conversation) {
    conversation.updated = Date.now();
    if (!conversation.deleted) await conversations.put(conversation);
  }

  async remove(conversation) {
    conversation.deleted = true;
    this.stop(conversation);
    for (const id of pictureIds(conversation)) await pictures.remove(id);
    await conversations.remove(conversation.id);
  }
}

// Keeps a conversation that came from a file: {name, messages, pictures} as `imported` gives it.
export async function addImported({name, messages, pictures: read}) {
  const conversation = {...newConversation(), name, messages};
  for (const picture of read) await pictures.put(picture);
  await conversations.put(conversation);
  return conversation;
}

// All there are, the latest first. Answers that were growing when the page was closed have been stopped by that.
export async function loadConversations() {
  const all = await conversations.all();
  for (const message of all.flatMap(allMessages)) {
    for (const answer of message.answers ?? []) {
      if (answer.state === 'running') answer.state = 'stopped';
    }
  }
  return all.sort((a, b) => b.updated - a.updated);
}
