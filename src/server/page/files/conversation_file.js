// A conversation as a file, images included, and back. Of a conversation with several versions the one that is shown.
import {frameChoice} from './videos.js';

// `dataUri(id)`: of an image's bytes.
export async function exported(conversation, dataUri) {
  const messages = [];
  for (const message of conversation.messages) {
    const files = [];
    for (const picture of message.pictures ?? []) files.push({...picture, url: await dataUri(picture.id)});
    const documents = [];
    for (const document of message.documents ?? []) documents.push({...document, url: await dataUri(document.id)});
    const videos = [];
    for (const video of message.videos ?? []) videos.push({name: video.name, ...frameChoice(video), url: await dataUri(video.id)});
    messages.push(message.pictures ? {...message, pictures: files, documents, videos} : message);
  }
  const {id, name, created, updated} = conversation;
  return JSON.stringify({id, name, created, updated, messages}, null, 1);
}

// What cards read of an answer: a file may have been changed by hand.
const isNumber = (value) => typeof value === 'number';
const isString = (value) => typeof value === 'string';
const maybe = (isRight) => (value) => value === undefined || value === null || isRight(value);
const listOf = (isRight) => (value) => Array.isArray(value) && value.every((element) => isRight(element));
const objectOf = (fields) => (value) =>
  typeof value === 'object' && value !== null && Object.entries(fields).every(([name, isRight]) => isRight(value[name]));

const isUsage = objectOf({
  prompt_tokens: isNumber, completion_tokens: isNumber, prompt_tokens_details: objectOf({cached_tokens: isNumber}),
});
const isReading = objectOf({ms: isNumber, found: isNumber});
const isShown = objectOf({width: isNumber, height: isNumber, kept: listOf(isNumber), rects: listOf(maybe(listOf(isNumber)))});
const isTooLarge = objectOf({width: isNumber, height: isNumber, kept: (value) => value === undefined});
const isServed = objectOf({
  timings_ms: objectOf(Object.fromEntries(['queue', 'ttft', 'vision', 'prefill', 'compress', 'decode'].map((time) => [time, isNumber]))),
  kv: objectOf({
    mode: isString, bytes: isNumber, peak_bytes: isNumber, prompt_bytes: isNumber, slots: maybe(listOf(listOf(isNumber))),
    images: maybe(listOf((image) => isShown(image) || isTooLarge(image))),
  }),
  cache: objectOf({
    prefix_tokens: isNumber, images: listOf(objectOf({n_tokens: isNumber, recomputed_tokens: isNumber, source: isString, encoder: isString})),
  }),
});

const string = (value) => (isString(value) ? value : '');
const number = (value) => (isNumber(value) ? value : null);

function answerOf(file, newIds) {
  const explained = isUsage(file.usage) && isServed(file.served);
  return {
    label: string(file.label),
    asked: {kv: string(file.asked?.kv), budget: string(file.asked?.budget), reuse: string(file.asked?.reuse)},
    pictures: (file.pictures ?? []).map((id) => newIds.get(id)).filter(Boolean),
    thought: string(file.thought),
    text: string(file.text),
    sent: null,
    state: ['done', 'failed'].includes(file.state) ? file.state : 'stopped',
    error: string(file.error),
    retry: file.retry === true,
    finish: string(file.finish),
    usage: explained ? file.usage : null,
    served: explained ? file.served : null,
    seen: {first: number(file.seen?.first), total: number(file.seen?.total)},
    alone: file.alone === true,
    reading: isReading(file.reading) ? file.reading : null,
  };
}

const fileOf = (file) => ({name: string(file.name), text: string(file.text)});

// `of`: {picture({name, url}): a picture as readPicture gives it, document({name, url, pages}): a PDF as readDocument does,
// video({name, url, fps, max_frames}): a clip as readVideo does}; `found`: their list.
async function messagesOf(file, of, found) {
  const newIds = new Map();  // of pictures: a conversation that is imported twice is two
  const messages = [];
  for (const [i, message] of file.messages.entries()) {
    if (message.role !== (i % 2 === 0 ? 'user' : 'assistant')) throw new Error('messages do not alternate');
    if (message.role === 'assistant') {
      if (message.answers.length === 0) throw new Error('an answer is missing');
      messages.push({role: 'assistant', answers: message.answers.map((answer) => answerOf(answer, newIds))});
      continue;
    }
    const shown = [];
    for (const picture of message.pictures ?? []) {
      const read = await of.picture({name: string(picture.name), url: picture.url});
      found.push(read);
      newIds.set(picture.id, read.id);
      shown.push({id: read.id, name: read.name, width: read.width, height: read.height});
    }
    const documents = [];
    for (const {name, url, pages} of message.documents ?? []) {
      const read = await of.document({name: string(name), url, pages: string(pages)});
      found.push(read);
      documents.push({id: read.id, name: read.name, pages: read.pages});
    }
    const videos = [];
    for (const {name, url, fps, max_frames} of message.videos ?? []) {
      if (!isString(url)) throw new Error(`${string(name) || 'a video'} is a list of frames, which this page does not take`);
      const read = await of.video({name: string(name), url, fps, max_frames});
      found.push(read);
      videos.push({id: read.id, name: read.name, seconds: read.seconds, fps: read.fps, max_frames: read.max_frames});
    }
    messages.push({role: 'user', text: string(message.text), pictures: shown, documents, videos, files: (message.files ?? []).map(fileOf)});
  }
  if (messages.length === 0) throw new Error('there is no message');
  return messages;
}

// {name, messages, pictures, which has the PDFs and clips, too} of a file's text; `of` as messagesOf takes it. Throws an Error that says
// why not.
export async function imported(text, fileName, of) {
  const pictures = [];
  try {
    const content = JSON.parse(text);
    return {name: string(content.name) || fileName, messages: await messagesOf(content, of, pictures), pictures};
  } catch (error) {
    throw new Error(`${fileName} is no conversation that this page has exported: ${error.message}`);
  }
}
