// Three clicks that show what the cache does: a question about a page, the same with a tenth of the cache, and another in a new
// conversation. All figures come from these very requests: a salt of the tour's own lets them share nothing with earlier ones.
import {demoPicture} from './api.js';
import {button, el} from './dom.js';
import {duration} from './format.js';
import {readPicture} from './pictures.js';
import {newId} from './store.js';
import {firstToken, missReason, percentText} from './words.js';

const kLetter = `To: Maria Duarte, Rua do Sol 14, Lisbon
From: Northwind Lamps, Harbour Street 3, Cork

Dear Ms Duarte, thank you for your order of 2 March 2026. We have packed twelve brass desk lamps, model KT, at 34.50 each, in two
boxes. The carrier collected them on 14 March 2026; the voyage takes about eight days, so that they should reach Lisbon on
22 March. Please open the boxes while the driver waits, and note on his sheet what is damaged; we replace it free of charge.
The lamps come with plugs for Portugal and with bulbs of six watts. Do not use bulbs of more than forty watts: the shades would
become too hot. A spare switch lies in each box, below the paper. The invoice, number KT4821, comes to 435.75 with tax of 21.75 and
is due on 13 April 2026. If you pay before the end of March, you may subtract two percent. With kind regards, Aoife Byrne.
`;

const kPage = {name: 'page.png', what: 'this page', questions: ['What is the TOTAL?', 'What is the DATE?']};
const kText = {name: 'letter.txt', what: 'this letter', questions: ['How much is the invoice?', 'When did the carrier collect the lamps?']};
const kFull = {kv: 'full', name: 'Everything kept'};
// It drafts an answer before it chooses what to keep: also short answers are then given from a tenth.
const kTenth = {kv: 'draft', budget: '0.1', name: 'A tenth kept'};

const kNext = {class: 'main', 'data-focus': 'tour'};  // the button that leads on

export class Tour {
  // `actions`: {begin(conversation, text, {attached, files, sides}), newConversation(), again(): asks the last question once
  // more, failed(error, retry), end()}.
  constructor(actions) {
    this.actions = actions;
    this.demo = null;  // the page, once it is there
  }

  material = (sees) => (sees ? kPage : kText);

  async begin(step, tour, name) {
    const sees = tour.sees, {questions} = this.material(sees);
    try {
      if (sees) this.demo ??= await demoPicture();
    } catch (error) {
      this.actions.failed(error, () => this.begin(step, tour, name));
      return;
    }
    const conversation = this.actions.newConversation();
    Object.assign(conversation, {name, tour: {...tour, step}});
    const attached = sees ? [await readPicture(new File([this.demo], kPage.name), '')] : [];
    const files = sees ? [] : [{name: kText.name, text: kLetter}];
    const sides = step === 2 ? [kFull, kTenth] : [kFull];
    await this.actions.begin(conversation, questions[step === 3 ? 1 : 0], {attached, files, sides});
  }

  // An empty conversation's content, where the tour has not been taken.
  welcome(sees) {
    const {name, what, questions} = this.material(sees);
    const start = () => this.begin(1, {sees, fields: {cache_salt: newId(), temperature: 0, max_tokens: 128, enable_thinking: false}}, 'Tour 1: a question');
    return el('section', {class: 'tour welcome', 'aria-label': 'Tour'},
      el('h3', {}, 'See what the cache does, in three clicks'),
      sees ? el('img', {src: 'page/demo.png', alt: 'The page: an invoice of twelve lines', width: 160, height: 160})
        : el('pre', {tabindex: 0, role: 'region', 'aria-label': name}, kLetter),
      el('ol', {}, el('li', {}, `Ask about ${what}: “${questions[0]}”`), el('li', {}, 'Ask the same with a tenth of the cache'),
        el('li', {}, 'Ask another question in a new conversation')),
      el('div', {class: 'actions'}, button('1. Ask about ' + what, start, kNext), button('No, thanks', () => this.actions.end(), {class: 'quiet'})),
      el('p', {class: 'soft'}, sees ? 'Or add an image of your own and ask about it.' : 'Or ask a question of your own.'));
  }

  // The element after the answers of one of the tour's conversations.
  next({tour, messages}) {
    const answers = messages[1]?.answers ?? [];
    if (messages.length > 2 || answers.length === 0) return null;
    const label = `Tour, click ${tour.step} of 3`;
    if (answers.some((answer) => answer.state !== 'done' || !answer.served)) {
      return el('section', {class: 'tour', 'aria-label': `${label}, not answered`}, el('p', {}, 'The tour continues after the answer to this question.'),
        button('Try again', () => this.actions.again(), kNext));
    }
    const figures = {...tour, figures: [...(tour.figures ?? []).slice(0, tour.step - 1), figuresOf(answers)]};
    const {questions} = this.material(tour.sees);
    const shown = {
      1: () => [el('p', {}, `The model has read the ${tour.sees ? 'page' : 'letter'} once. Now the same question, with a tenth of what the model ` +
        'remembers of it, beside the answer that keeps everything.'),
        button('2. Ask with a tenth of the cache', () => this.begin(2, figures, 'Tour 2: a tenth of the cache'), kNext)],
      2: () => [el('p', {}, `Now another question about the same ${tour.sees ? 'page' : 'letter'}, in a new conversation: “${questions[1]}”`),
        button('3. Ask again in a new conversation', () => this.begin(3, figures, 'Tour 3: asked again'), kNext)],
      3: () => summary(figures.figures, tour.sees).concat(button('Done', () => this.actions.end(), kNext)),
    };
    return el('section', {class: 'tour', 'aria-label': label}, shown[tour.step]());
  }
}

// What the summary needs of each step.
function figuresOf(answers) {
  return answers.map((answer) => ({label: answer.label, text: answer.text.trim(), first: firstToken(answer), kv: answer.served.kv.bytes,
    saved: answer.served.cache.saved_ms ?? 0, cached: answer.usage.prompt_tokens_details.cached_tokens, prompt: answer.usage.prompt_tokens, reason: answer.served.cache.prefix_reason}));
}

// Three sentences: what the tenth cost, what the last question saved, and why.
function summary([[first], [full, tenth], [again]], sees) {
  const what = sees ? 'page' : 'letter';
  const same = full.text === tenth.text;
  const share = percentText(tenth.kv / full.kv);
  const memory = `${share} of the memory, which is held in pages of 64 tokens`;
  const cost = same ? `nothing in the answer, which is the same word for word, with ${memory}`
    : `the answer, which is no longer the same, for ${memory}`;
  const later = tenth.first - full.first;
  const time = later > 0 ? `; the first token came ${duration(later)} later, because choosing what to keep takes time` : '';
  const saved = again.cached > 0
    ? [`What the new question saved: ${again.saved > 0 ? `about ${duration(again.saved)}` : `${again.cached} tokens`} of computing. Its first words ` +
        `came after ${duration(again.first)}, at click 1 after ${duration(first.first)}.`,
      `Why: ${again.cached} of its ${again.prompt} prompt tokens, the ${what} among them, were in the cache since click 1. Only what was new was computed.`]
    : ['What the new question saved: nothing. Nothing was reused.', `Why: ${missReason(again.reason, true)}.`];
  return [el('h3', {}, 'What you have seen'), el('ul', {}, [`What the tenth cost: ${cost}${time}.`, ...saved].map((text) => el('li', {}, text)))];
}
