// The page's pure modules, without a browser:   node modules.mjs FOLDER   (test_modules.py runs it on a copy of the page's files)
import assert from 'node:assert/strict';
import path from 'node:path';
import {pathToFileURL} from 'node:url';

const load = (name) => import(pathToFileURL(path.join(process.argv[2], name)));
const {markdown, inline, webAddress} = await load('markdown.js');
const {exported, imported} = await load('conversation_file.js');
const {allMessages, fork, show, versions} = await load('branches.js');
const {found} = await load('search.js');
const words = await load('words.js');
const {documentText, isPdf, isTiff, namesPages} = await load('documents.js');
const {otherImage} = await load('pictures.js');
const {clipType, frameChoice, isFrameCount, isRate, videoText} = await load('videos.js');
const {looksLikeText} = await load('text_files.js');

const tests = {
  // ---- Markdown ----
  blocksOfEveryKind() {
    const text = '# Head\n\nA\nB\n\n> said\n> - so\n\n---\n\n| a | b |\n|:-:|--:|\n| `x|y` | 2 |\n| 3 |\n\n```js title\nlet x;\n```\n$$\nx\n$$\n~~~\nopen';
    const kinds = markdown(text).map((block) => block.kind);
    assert.deepEqual(kinds, ['heading', 'paragraph', 'quote', 'rule', 'table', 'code', 'math', 'code']);
    const [, paragraph, quote, , table, code, math, open] = markdown(text);
    assert.deepEqual(paragraph.children, ['A\nB']);
    assert.deepEqual(quote.blocks.map((block) => block.kind), ['paragraph', 'list']);
    assert.deepEqual(table, {kind: 'table', align: ['center', 'right'], head: [['a'], ['b']], rows: [[[{kind: 'code', text: 'x|y'}], ['2']], [['3'], []]]});
    assert.deepEqual([code.language, code.text, math.text, open.text], ['js', 'let x;', 'x', 'open']);
  },
  listsInLists() {
    const [list] = markdown('3. one\n   - a\n     1. deep\n4. two\n  - b\n\n   more\n');
    assert.deepEqual([list.ordered, list.start, list.items.length], [true, 3, 2]);
    assert.deepEqual(list.items[0].map((block) => block.kind), ['paragraph', 'list']);
    assert.equal(list.items[0][1].items[0][1].ordered, true);
    assert.deepEqual(list.items[1].map((block) => block.kind), ['paragraph', 'list', 'paragraph']);
    assert.deepEqual(markdown('- a\n- b\n\ntext').map((block) => block.kind), ['list', 'paragraph']);
    assert.deepEqual(markdown('- a\n1. b').map((block) => block.ordered), [false, true]);
    assert.deepEqual(markdown('In\n2026. We').map((block) => block.kind), ['paragraph']);
  },
  emphasis() {
    const strong = (...children) => ({kind: 'strong', children}), em = (...children) => ({kind: 'em', children});
    for (const [text, expected] of [
      ['**a *b***', [strong('a ', em('b'))]], ['***a***', [strong(em('a'))]], ['*a* _b_ __c__', [em('a'), ' ', em('b'), ' ', strong('c')]],
      ['2 * 3 * 4', ['2 * 3 * 4']], ['**open', ['**open']], ['snake_case_name', ['snake_case_name']], ['~~no~~', [{kind: 'strike', children: ['no']}]],
      ['\\*a\\*', ['*a*']], ['``a`b``', [{kind: 'code', text: 'a`b'}]], ['`*a*`', [{kind: 'code', text: '*a*'}]], ['a<br>b', ['a', {kind: 'break'}, 'b']],
      ['<b onclick=x>', ['<b onclick=x>']],
    ]) assert.deepEqual(inline(text), expected, text);
  },
  formulasAndPrices() {
    const math = (text, display = false) => ({kind: 'math', text, display});
    for (const [text, expected] of [
      ['$E=mc^2$.', [math('E=mc^2'), '.']], ['\\(a\\) \\[b\\] $$c$$', [math('a'), ' ', math('b', true), ' ', math('c', true)]],
      ['$5 and $10', ['$5 and $10']], ['$ 5 $', ['$ 5 $']], ['costs $5; $x$', ['costs $5; ', math('x')]], ['a $x', ['a $x']], ['$a\\$b$', [math('a\\$b')]],
    ]) assert.deepEqual(inline(text), expected, text);
    assert.deepEqual(markdown('\\[\nx\n\\]'), [{kind: 'math', text: 'x'}]);
    assert.equal(markdown('$$\nx\n\n y')[0].kind, 'paragraph');
  },
  linksLeadToTheWebOnly() {
    const link = (href, ...children) => ({kind: 'link', href, children});
    for (const [text, expected] of [
      ['[a](https://b.example/c_(d) "e")', [link('https://b.example/c_(d)', 'a')]], ['![a](http://b.example/)', [link('http://b.example/', 'image: a')]],
      ['https://b.example/x.', [link('https://b.example/x', 'https://b.example/x'), '.']],
    ]) assert.deepEqual(inline(text), expected, text);
    for (const bad of ['javascript:alert(1)', ' JavaScript:alert(1)', 'data:text/html,x', 'file:///etc/passwd', '/v1/cache/reset', '//b.example', 'vbscript:x', 'https://']) {
      assert.equal(webAddress(bad), null, bad);
      assert.ok(!JSON.stringify(inline(`[a](${bad}) ![a](${bad})`)).includes('"link"'), bad);
    }
  },
  thoughts() {
    assert.deepEqual(markdown('<think>\na\n\nb</think>\n\nc').map((block) => [block.kind, block.open]), [['thought', false], ['paragraph', undefined]]);
    assert.deepEqual(markdown('<think>a').map((block) => [block.kind, block.open]), [['thought', true]]);
    assert.deepEqual(markdown('a</think>b').map((block) => block.kind), ['thought', 'paragraph']);
    assert.deepEqual(markdown('say `<think>`').map((block) => block.kind), ['paragraph']);
  },
  // No text takes time that grows faster than itself: these took minutes if it did.
  hostileTexts() {
    for (const text of ['*a ', '[', '`', '>', '$a ', '- ', '**a*', '_a', '|', '<think>\n', '1. a\n', '`a``b', '[a](http://b ', '\\(', '> - ', '| a\n|-\n', '$$\n']) {
      markdown(text.repeat(20000 / text.length));
    }
  },
  // Whatever comes, a tree comes out, and links of the web only.
  randomTexts() {
    const pieces = ['*', '**', '_', '`', '```', '$', '$$', '\\(', '\\)', '[', ']', '(', ')', '!', '|', '|-|', '- ', '1. ', '> ', '#', '---', '<think>', '</think>', '~~', '\n', '\n\n', '  ', '\t', 'a', 'é', '\\', '<br>',
      'https://b.example', 'javascript:x', '\u2028', '\ud800'];
    let seed = 7;
    const next = (n) => (seed = (seed * 48271) % 2147483647) % n;
    for (let i = 0; i < 5000; ++i) {
      const text = Array.from({length: next(40)}, () => pieces[next(pieces.length)]).join('');
      const tree = JSON.stringify(markdown(text));
      for (const [, href] of tree.matchAll(/"href":"([^"]*)"/g)) assert.match(href, /^https?:/, text);
    }
  },

  // ---- conversation files ----
  async conversationsComeBack() {
    const conversation = {id: '1', name: 'Invoice', created: 1, updated: 2, forks: {0: {}}, tour: {step: 1}, messages: [
      {role: 'user', text: 'TOTAL?', pictures: [{id: 'p', name: 'page.png', width: 2, height: 3}], documents: [{id: 'd', name: 'a.pdf', pages: '2-3'}],
        videos: [{id: 'v', name: 'a.mp4', seconds: 5, fps: '0.5', max_frames: '8'}], files: [{name: 'a.txt', text: 'A'}]},
      {role: 'assistant', answers: [{label: 'full', asked: {kv: 'full'}, pictures: ['p'], thought: 'hm', text: '7', state: 'done', seen: {first: 1, total: 2}}]}]};
    const file = await exported(conversation, async (id) => `data:image/png;base64,${id}`);
    const id = (url) => `new-${url.slice(-1)}`;
    const {name, messages, pictures} = await imported(file, 'x.json', {
      picture: async ({url, name: of}) => ({id: id(url), name: of, width: 2, height: 3}), document: async ({url, name: of, pages}) => ({id: id(url), name: of, pages}),
      video: async ({url, name: of, fps, max_frames}) => ({id: id(url), name: of, seconds: 5, fps: String(fps), max_frames: String(max_frames)})});
    assert.equal(name, 'Invoice');
    assert.deepEqual(pictures.map(({id}) => id), ['new-p', 'new-d', 'new-v']);
    assert.deepEqual(messages[0], {...conversation.messages[0], pictures: [{id: 'new-p', name: 'page.png', width: 2, height: 3}],
      documents: [{id: 'new-d', name: 'a.pdf', pages: '2-3'}], videos: [{id: 'new-v', name: 'a.mp4', seconds: 5, fps: '0.5', max_frames: '8'}]});
    const [answer] = messages[1].answers;
    assert.deepEqual([answer.text, answer.thought, answer.pictures, answer.state, answer.served, answer.seen], ['7', 'hm', ['new-p'], 'done', null, {first: 1, total: 2}]);
  },
  async filesThatAreNoConversation() {
    for (const text of ['{', 'null', '7', '{}', '{"messages":[]}', '{"messages":[null]}', '{"messages":[{"role":"assistant","answers":[]}]}']) {
      await assert.rejects(imported(text, 'x.json', {picture: async () => ({})}), /x\.json is no conversation that this page has exported: /, text);
    }
  },

  // ---- versions, search ----
  versionsPartAndReturn() {
    const say = (text) => ({text}), texts = () => conversation.messages.map((message) => message.text).join('');
    const conversation = {messages: [...'abcd'].map(say)};
    fork(conversation, 2, say('C'));
    conversation.messages.push(say('D'));
    fork(conversation, 0, say('A'));
    assert.equal(texts(), 'A');
    assert.deepEqual([versions(conversation, 0), versions(conversation, 2)], [{current: 1, count: 2}, null]);
    show(conversation, 0, 0);
    assert.equal(texts(), 'abCD');
    show(conversation, 2, 0);
    assert.equal(texts(), 'abcd');
    show(conversation, 0, 1);
    assert.equal(texts(), 'A');
    show(conversation, 0, 0);
    assert.equal(texts(), 'abcd');
    fork(conversation, 2, say('x'));
    assert.deepEqual(versions(conversation, 2), {current: 2, count: 3});
    assert.equal(allMessages(conversation).map((message) => message.text).sort().join(''), 'ACDabcdx');
    assert.doesNotThrow(() => JSON.stringify(conversation));
  },
  searchLooksIntoAnswers() {
    const conversation = {name: 'Invoice', messages: [{text: 'What?'}, {answers: [{text: `${'x '.repeat(60)}Lisbon\n${'y '.repeat(60)}`}]}]};
    assert.deepEqual(found(conversation, 'invo'), {index: null, snippet: ''});
    assert.equal(found(conversation, ' LISBON ').index, 1);
    assert.match(found(conversation, 'lisbon').snippet, /^….*Lisbon y.*…$/);
    assert.equal(found(conversation, 'Cork'), null);
  },

  // ---- sentences ----
  cardsBeginWithWhatTheyMean() {
    const image = (more) => ({n_tokens: 200, recomputed_tokens: 0, source: 'computed', encoder: 'computed', reason: 'first use', ...more});
    const answer = (images, {cached = 0, saved = 0, kv = {}, reason = ''} = {}) => ({finish: 'stop', usage: {prompt_tokens: 251, completion_tokens: 10, prompt_tokens_details: {cached_tokens: cached}},
      served: {cache: {images, saved_ms: saved, prefix_reason: reason}, kv: {bytes: 1024, peak_bytes: 1024, slots: [[26, 26]], ...kv}}});
    const says = (...args) => words.verdict(answer(...args)).join(' ');
    assert.equal(says([image({source: 'ram', recomputed_tokens: 10})], {saved: 1200}), '95 % of this image came from the cache: about 1.20 s saved.');
    assert.equal(says([image({source: 'prefix'}), image({})], {saved: 30}), '50 % of these 2 images came from the cache: about 30 ms saved.');
    assert.equal(says([image({})]), 'Nothing came from the cache: it was not asked about before.');
    assert.equal(says([image({reason: 'reuse is off'})]), 'Nothing came from the cache: reuse is switched off on this server (--reuse off).');
    assert.match(words.verdict(answer([image({})]), true)[0], /^Nothing came from the cache: this server keeps nothing, or too little /);
    assert.equal(says([image({encoder: 'hit'})]), 'The image was known and not encoded again; the rest was computed.');
    assert.equal(says([], {cached: 200}), '80 % of the question came from the cache.');
    assert.equal(says([], {cached: 3, reason: 'no cached prompt continues like this'}), 'Nothing came from the cache: it was not asked about before.');
    assert.match(says([image({})], {kv: {peak_bytes: 10240}}), /10 % of what the model had read was kept: memory fell from 10\.0 KiB to 1\.0 KiB\.$/);
  },
  differencesAreMarked() {
    const marked = (a, b) => words.differences(a, b).map((pieces) => pieces.map(({text, changed}) => (changed ? `[${text}]` : text)).join(''));
    assert.deepEqual(marked('TOTAL: 435.75', 'TOTAL: 7.75'), ['TOTAL: [435].75', 'TOTAL: [7].75']);
    assert.deepEqual(marked('a b c', 'a x b c y'), ['a b c', 'a [x ]b c[ y]']);
    assert.deepEqual(marked('same', 'same'), ['same', 'same']);
    assert.deepEqual(marked('', 'b'), ['', '[b]']);
    const long = Array.from({length: 5000}, (_, i) => `a${i}`).join(' ');
    assert.equal(words.differences(`x ${long}`, `y ${long.toUpperCase()}`)[0][0].changed, true);
  },
  progressInWords() {
    const told = (done, ms, first = {done, ms}) => ({done, ms, total: 1000, first});
    assert.deepEqual(words.readingState(null, 500), {text: 'Reading the question: 0 %', share: 0});
    assert.equal(words.readingState(told(250, 2000), 2000).text, 'Reading the question: 25 %, about 6 s left');
    assert.equal(words.readingState(told(500, 4000, {done: 250, ms: 2000}), 5000).text, 'Reading the question: 50 %, about 3 s left');
    assert.equal(words.readingState(told(10, 6000), 6000).text, 'Reading the question: 1 %, about 10 min left');
    assert.equal(words.readingState(told(1000, 9000), 9000).text, 'Reading the question: 100 %');
  },
  errorsNameNoFields() {
    for (const [error, said] of [
      ['messages[0].content[1].image_url: PNG: too large', 'The image: PNG: too large'], ['vlcache.kv_budget: expected', 'Settings, Budget: expected'],
      ['repetition_penalty: expected', 'Settings, repetition penalty: expected'], ['the prompt has 9 tokens', 'the prompt has 9 tokens'],
    ]) assert.equal(words.inWords(error), said);
  },
  pagesOfPdfs() {
    for (const text of ['', '2', '3-7', '1, 4-6,9-']) assert.ok(namesPages(text), text);
    for (const text of ['-', '1,', 'a', '1-2-3', '1;2']) assert.ok(!namesPages(text), text);
    assert.deepEqual(['', '2', '1,3'].map((pages) => documentText({name: 'a.pdf', pages})), ['a.pdf', 'a.pdf, page 2', 'a.pdf, pages 1,3']);
    assert.equal(words.inWords('messages[0].content[0].file: the PDF has 70 pages; expected at most 64; select pages with "vlcache": {"pages": "1-3"} in its part'),
      'The PDF: the PDF has 70 pages; expected at most 64; write which pages beside its name, such as 1-3.');
  },
  framesOfClips() {
    for (const text of ['', '1', '0.5', '.5', '1000']) assert.ok(isRate(text), text);
    for (const text of ['0', '-1', 'a', '1001', '1.', '1e3']) assert.ok(!isRate(text), text);
    for (const text of ['', '1', '4096']) assert.ok(isFrameCount(text), text);
    for (const text of ['0', '1.5', '4097', '-1']) assert.ok(!isFrameCount(text), text);
    assert.deepEqual([frameChoice({fps: '0.5', max_frames: ''}), frameChoice({fps: '', max_frames: '8'})], [{fps: 0.5}, {max_frames: 8}]);
    assert.equal(videoText({name: 'a.mp4', seconds: 5, fps: '1', max_frames: '8'}), 'a.mp4, 5.00 s, 1 frame a second, 8 frames at most');
    assert.equal(videoText({name: 'a.avi', seconds: null, fps: '', max_frames: ''}), 'a.avi');
    assert.equal(words.inWords('messages[0].content[0].video_url: it has no video'), 'The clip: it has no video');
  },
  filesByTheirFirstBytes() {
    const of = (text) => new TextEncoder().encode(text);
    assert.deepEqual([isPdf(of('%PDF-1.7')), isPdf(of('\n%PDF-1.7')), isPdf(of('%PNG'))], [true, true, false]);
    const bytes = (text) => Uint8Array.from(text, (c) => c.charCodeAt(0));
    assert.deepEqual(['\0\0\0\x1cftypavif', '\0\0\0\x18ftypheic', '\0\0\0\x18ftypisom', '\xff\x0a', '\x89PNG'].map((text) => otherImage(bytes(text))),
      ['AVIF, which the server does not read; convert it first (ffmpeg -i x.avif x.png)', 'HEIC, which the server does not read; convert it first (heif-convert x.heic x.png)', null,
        'JPEG XL, which the server does not read; convert it first (djxl x.jxl x.png)', null]);
    assert.deepEqual(['II*\0', 'MM\0*', 'II+\0', 'MM\0+', 'II*', 'MM*\0', ''].map((text) => isTiff(of(text))), [true, true, true, true, false, false, false]);
    assert.deepEqual(['\0\0\0\x18ftypisom', 'RIFF\0\0\0\0AVI ', 'RIFF\0\0\0\0WEBP', 'GIF89a'].map((text) => clipType(of(text))), ['video/mp4', 'video/x-msvideo', null, null]);
    assert.deepEqual([looksLikeText(of('Añb')), looksLikeText(of('a\0b')), looksLikeText(of(''))], [true, false, false]);
  },
};

for (const [name, test] of Object.entries(tests)) {
  try {
    await test();
    console.log(`ok ${name}`);
  } catch (error) {
    console.log(`failed ${name}: ${error.stack}`);
    process.exitCode = 1;
  }
}
