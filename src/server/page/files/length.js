// Whether a question fits into the model's context, as far as that is known before it is sent: its text is counted by the
// server, the conversation before it has been, and images that are new are left out.
import {countTokens} from './api.js';

const kPatience = 5000;  // ms for a count

// Tokens of a conversation up to its last answer, that excluded, as far as the server has said.
export function usedTokens({messages}) {
  const answers = messages.findLast((message) => message.answers?.some((answer) => answer.usage))?.answers ?? [];
  return Math.max(0, ...answers.map(({usage}) => usage?.prompt_tokens ?? 0));
}

const about = (n) => Number(n.toPrecision(2)).toLocaleString('en');

// What to do about a question of too many tokens. `text`: of the question; `files`: [{name}] beside it.
export function tooLongText({tokens, used, context, model, text, files}) {
  const sentence = (begin, n) => `${begin} ${about(n)} tokens; ${model} reads ${context.toLocaleString('en')}.`;
  if (tokens < context) return `${sentence('With the conversation before it, about', used + tokens)} Begin a new conversation, or shorten the question.`;
  const most = sentence('About', tokens);
  if (files.length === 0) return `${most} Shorten the question.`;
  const names = files.length > 2 ? 'some of the files' : files.map(({name}) => name).join(' or ');
  return `${most} Remove ${names}, or attach a part of ${files.length > 1 ? 'them' : 'it'}${text.length > context ? ', or shorten the question' : ''}.`;
}

const kFits = {text: '', sure: false};

export class LengthCheck {
  constructor() {
    this.last = {text: '', count: null};  // the promise of its tokens
  }

  // {text: why the question does not fit; '': it does, or that is not known, sure: its text alone does not}.
  async wrong({text, files, used, model}) {
    const whole = [...files.map((file) => file.text), text].join('\n');
    if (!model || new TextEncoder().encode(whole).length + used < model.context) return kFits;  // no token is shorter than a byte
    if (this.last.text !== whole) {
      this.last.stop?.abort();
      const stop = new AbortController();
      setTimeout(() => stop.abort(), kPatience);
      this.last = {text: whole, stop, count: countTokens(whole, stop.signal).catch(() => null)};
    }
    const {last} = this, tokens = await last.count;
    if (tokens === null && this.last === last) this.last = {text: '', count: null};  // it may be asked again
    if (tokens === null || used + tokens < model.context) return kFits;
    return {text: tooLongText({tokens, used, context: model.context, model: model.name, text, files}), sure: tokens >= model.context};
  }
}
