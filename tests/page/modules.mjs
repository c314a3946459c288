// The page's pure modules, without a browser:   node modules.mjs FOLDER   (test_modules.py runs it on a copy of the page's files)
import assert from 'node:assert/strict';
import path from 'node:path';
import {pathToFileURL} from 'node:url';

const load = (name) => import(pathToFileURL(path.join(process.argv[2], name)));
const {markdown} = await load('markdown.js');
const {inline, webAddress} = await load('inline.js');
const {announcement, spoken, tabSeparated} = await load('plain_text.js');
const {exported, imported} = await load('conversation_file.js');
const {allMessages, fork, show, versions} = await load('branches.js');
const {found} = await load('search.js');
const {titleOf} = await load('title.js');
const words = await load('words.js');
const {circumstances, isSame, readingFields} = await load('comparing.js');
const {wrongField} = await load('settings.js');
const {documentText, isPdf, isTiff, namesPages} = await load('documents.js');
const {otherImage} = await load('pictures.js');
const {clipType, frameChoice, isFrameCount, isRate, videoText} = await load('videos.js');
const {falseClaim, textOf} = await load('text_files.js');
const {tooLongText, usedTokens} = await load('length.js');
const {loadSettings} = await load('store.js');

// Rows of a table as texts: "th" and "td" are told apart by a # before the former, spans by [columns x rows].
function rowsOf(table) {
  const text = (children) => children.map((child) => child.text ?? (child.kind === 'break' ? '/' : child.children ? `${child.kind}(${text(child.children)})` : child)).join('');
  const cell = ({children, header, colspan, rowspan}) => `${header ? '#' : ''}${text(children)}${colspan || rowspan ? `[${colspan ?? 1}x${rowspan ?? 1}]` : ''}`;
  return [...table.head, ...table.rows].map((row) => row.map(cell).join(' | '));
}

const kKinds = new Set(['paragraph', 'heading', 'rule', 'quote', 'list', 'code', 'math', 'table', 'thought', 'break', 'strong', 'em', 'strike', 'underline', 'sub', 'sup', 'link']);

// What a browser lays out: no row is wider than 200 columns and its last cell, whatever hangs down into it.
function checkGrid(rows, text) {
  let hanging = [];
  for (const row of rows) {
    const columns = [...row.map(({colspan = 1}) => colspan), ...hanging.map(({columns: n}) => n)].reduce((a, b) => a + b, 0);
    assert.ok(columns <= 400, `${columns} columns: ${text}`);
    hanging = [...hanging, ...row.map(({colspan = 1, rowspan = 1}) => ({columns: colspan, rows: rowspan}))].map((span) => ({...span, rows: span.rows - 1})).filter((span) => span.rows > 0);
  }
}

// Every kind in a tree is known, links lead to the web, spans and tables are bounded.
function checkTree(tree, text) {
  let nCells = 0;
  JSON.stringify(tree, (key, value) => {
    if (key === 'kind') assert.ok(kKinds.has(value), text);
    if (key === 'href') assert.match(value, /^https?:/, text);
    if (key === 'colspan') assert.ok(value > 1 && value <= 200, text);
    if (key === 'rowspan') assert.ok(value > 1 && value <= 1000, text);
    if (key === 'head' || key === 'rows') nCells += value.flat().length;
    if (value?.kind === 'table') checkGrid([...value.head, ...value.rows], text);
    return value;
  });
  assert.ok(nCells <= 10000, `${nCells} cells`);
}

const tests = {
  // ---- Settings ----
  settingsOfAnEarlierReleaseHavePresentNames() {
    const loaded = (stored) => {
      globalThis.localStorage = {getItem: () => stored};
      const {a, b, compare} = loadSettings();
      return [a.kv, a.budget, b.kv, b.budget, compare];
    };
    assert.deepEqual(loaded(JSON.stringify({a: {kv: 'vlcache@paper', budget: '0.3'}, b: {kv: 'snapkv:w=8+vlcache/h2o'}, compare: true})),
      ['vl-cache@paper', '0.3', 'snapkv:w=8+vl-cache/h2o', undefined, true]);
    for (const [stored, shown] of [['vlcache', 'vl-cache'], ['vlcache:p=0.02', 'vl-cache:p=0.02'], ['post_vision+vlcache', 'post_vision+vl-cache'], ['vl-cache', 'vl-cache'],
      ['vlcache2', 'vlcache2'], ['snapkv@vlcache', 'snapkv@vlcache'], ['auto', 'auto'], ['', ''], [undefined, undefined]]) {
      assert.equal(loaded(JSON.stringify({a: {kv: stored}}))[0], shown);
    }
    for (const none of [null, '{', '{"a": {"budget": "0.5"}}']) assert.deepEqual(loaded(none).slice(2), ['draft', '0.1', false]);
  },
  // ---- Markdown ----
  blocksOfEveryKind() {
    const text = '# Head\n\nA\nB\n\n> said\n> - so\n\n---\n\n| a | b |\n|:-:|--:|\n| `x|y` | 2 |\n| 3 |\n\n```js title\nlet x;\n```\n$$\nx\n$$\n~~~\nopen';
    const kinds = markdown(text).map((block) => block.kind);
    assert.deepEqual(kinds, ['heading', 'paragraph', 'quote', 'rule', 'table', 'code', 'math', 'code']);
    const [, paragraph, quote, , table, code, math, open] = markdown(text);
    assert.deepEqual(paragraph.children, ['A\nB']);
    assert.deepEqual(quote.blocks.map((block) => block.kind), ['paragraph', 'list']);
    const [center, right] = [{align: 'center'}, {align: 'right'}];
    assert.deepEqual(table, {kind: 'table', caption: null, rest: '', head: [[{children: ['a'], header: true, ...center}, {children: ['b'], header: true, ...right}]],
      rows: [[{children: [{kind: 'code', text: 'x|y'}], ...center}, {children: ['2'], ...right}], [{children: ['3'], ...center}, {children: [], ...right}]]});
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
      ['<b onclick=x>', ['<b onclick=x>']], ['<B onclick="x>y">a</b>', [strong('a')]], ['H<sub>2</sub>O, a<BR/>b', ['H', {kind: 'sub', children: ['2']}, 'O, a', {kind: 'break'}, 'b']],
      ['<b>open', ['<b>open']], ['</b>', ['</b>']], ['<i><b>x</b></i>', [em(strong('x'))]], ['a < b <c>', ['a < b <c>']], ['<script>x</script>', ['<script>x</script>']],
      ['&lt;b&gt;', ['&lt;b&gt;']], ['`<b>x</b>`', [{kind: 'code', text: '<b>x</b>'}]], ['<constructor>a</constructor>', ['<constructor>a</constructor>']],
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
  tablesOfHtml() {
    for (const [text, expected] of [
      ['<table>\n<thead><tr><th>Item</th><th colspan="2">Price</th></tr></thead>\n<tbody><tr><td rowspan=2>Rope</td><td>3.10</td><td>EUR</td></tr><tr><td>4</td><td></td></tr></tbody>\n</table>',
        ['#Item | #Price[2x1]', 'Rope[1x2] | 3.10 | EUR', '4 | ']],
      ['<TABLE border=1><TR><TD>a<TD>b<TR><TD>c', ['a | b', 'c']],                                        // nothing is closed
      ['<table><tr>\n\n<td>a\n\n# b</td>\n\n</tr></table>', ['a\n\n# b']],                                // blank lines
      ['<table><td>**a** $x$ `y` <b onclick="z">c<i>d</b>e</i><br>f<p>g</p><p>h</p></td></table>', ['strong(a) x y strong(cem(d))e/f/g/h']],
      ['<table><td>H<sub>2</sub>O x<sup>2</sup> <u>u</u> <span style="a>b">s</span> <foo>t</foo> 3 < 4</td>', ['Hsub(2)O xsup(2) underline(u) s <foo>t</foo> 3 < 4']],
      ['<table><td>a<script>alert(1)</script><style>b{}</style><!-- c --><![CDATA[<b>d</b>]]><img src=x onerror=alert(1)></td>', ['a<b>d</b>']],
      ['<table><td><script>a</td></table>', ['a']], ['<table><td><!-- a</td></table>', ['<!-- a']],
      ['<table><td>&lt;b&gt;x&lt;/b&gt; &amp;amp; &#65;&#x42;&#0;&#xd800;&nbsp;&no; $a&lt;b$</td></table>', ['<b>x</b> &amp; AB\ufffd\ufffd\xa0&no; a<b']],
      ['<table><td colspan=99999999999 rowspan="0">a</td><td colspan="-3" data-colspan=7 rowspan=5000>b</td><td colspan=300>c</td></table>', ['a[200x1] | b | c']], ['<table><td rowspan=5000>a</td><td rowspan=0>b</td></table>', ['a[1x1000] | b']],
      [`<table><tr><td colspan=150 rowspan=3>a</td></tr>${'<tr><td colspan=150 rowspan=3>b</td></tr>'.repeat(3)}</table>`, ['a[150x3]', 'b[50x3]', 'b', 'b[150x3]']],
      ['<table><tr><td>a<table><tr><td>b</td><td>c</td></tr><tr><td>d</td></tr></table>e</td><td>f</td></tr></table>', ['a/b c/d/e | f']],
      ['<table><td>&constructor; <constructor>a</constructor></td>', ['&constructor; <constructor>a</constructor>']],
    ]) assert.deepEqual(rowsOf(markdown(text)[0]), expected, text);
    const [table] = markdown('<table><caption>Sales <b>2026</b></caption><tr><td>a</td></tr></table>');
    assert.deepEqual(table.caption, ['Sales ', {kind: 'strong', children: ['2026']}]);
    const [link] = markdown('<table><td>[a](javascript:x) [b](https://c.example/?d=1&amp;e=2)</td></table>')[0].rows[0][0].children.slice(1);
    assert.equal(link.href, 'https://c.example/?d=1&e=2');
  },
  whereTablesOfHtmlBeginAndEnd() {
    const kinds = (text, growing) => markdown(text, growing).map((block) => block.kind);
    for (const [text, expected] of [
      ['Here <table><td>a</td></table> there', ['paragraph', 'table', 'paragraph']], ['a\n<table><td>b</td></table>\nc', ['paragraph', 'table', 'paragraph']],
      ['<table><tr><td>a</td></tr>\n\n# Head', ['table', 'heading']],                                     // the end tag is missing
      ['<div class="x"><html><body><table><td>a</td></table></body></html></div>\nb', ['table', 'paragraph']], ['<div>\n<table>\n<td>a</td></table>\n\n</div>', ['table']],
      ['<table><td>a</td></table><table><td>b</td></table>', ['table', 'table']], ['<table><tr><td>a</td></tr><table><tr><td>b', ['table', 'table']],
      ['Use the <table> tag', ['paragraph']], ['<table>', ['paragraph']], ['<table>\n\n- a', ['paragraph', 'list']], ['<tables><td>a', ['paragraph']], ['<table x', ['paragraph']],
      ['`<table><td>a`', ['paragraph']], ['```\n<table><td>a</td>\n```', ['code']], ['> <table>\n> <td>a</td></table>', ['quote']], ['<div>a</div>', ['paragraph']],
    ]) assert.deepEqual(kinds(text), expected, text);
    assert.deepEqual(markdown('- a\n  <table><td>b</td>\n  </table>\n- c')[0].items.map((item) => item.map((block) => block.kind)), [['paragraph', 'table'], ['paragraph']]);
    // While it is written no piece of a tag is seen, and what has been seen stays.
    const whole = 'Prices:\n<table border="1">\n<tr><th>Item</th></tr>\n<tr><td colspan="2">a &lt; <b>b</b></td></tr>\n</table>';
    for (let n = 1, before = 0; n <= whole.length; ++n) {
      const blocks = markdown(whole.slice(0, n), true), shown = blocks.map((block) => (block.kind === 'table' ? rowsOf(block).join('\n') : block.children.join(''))).join('\n');
      assert.doesNotMatch(shown, /<\/?[a-z"=\d ]*$|<t|colspan/, whole.slice(0, n));
      assert.ok(blocks.length >= before);
      before = blocks.length;
    }
  },
  tablesThatAreTooLargeAreTextInPart() {
    const cells = (n) => '<tr><td>1</td><td>2</td></tr>\n'.repeat(n / 2);
    const [large] = markdown(`<table>\n${cells(100000)}</table>`);
    assert.equal(large.rows.length, 2000);
    assert.equal(large.rest, cells(100000 - 4000).trim());
    const [wide] = markdown(`<table><tr>${'<td>1</td>'.repeat(100000)}</tr></table>`);
    assert.deepEqual([wide.rows.length, wide.rest.length > 900000], [0, true]);
    for (const n of [200, 201]) {
      const [html] = markdown(`<table><tr>${'<td>1</td>'.repeat(n)}</tr></table>`), [pipes] = markdown(`${'|a'.repeat(n)}|\n${'|-'.repeat(n)}|\n|1|`);
      assert.deepEqual([html.rows.length, pipes.head.length], n > 200 ? [0, 0] : [1, 1]);
    }
    const [breaks] = markdown(`<table><tr><td>a</td></tr><tr><td>${'x<br>'.repeat(100000)}</td></tr></table>`);
    assert.deepEqual([rowsOf(breaks), breaks.rest.length > 400000], [['a'], true]);
    const [pipes] = markdown(`|a|b|\n|-|-|\n${'|1|2|\n'.repeat(50000)}`);
    assert.deepEqual([pipes.rows.length, pipes.rest.split('\n').length], [1999, 48001]);
    const many = markdown(`${'<table><td>1</td></table>\n'.repeat(20000)}`);
    assert.ok(many.filter((table) => table.rows.length > 0).length < 10000);
    for (const tree of [large, wide, breaks, pipes, many]) checkTree(tree, 'large');
    const [deep] = markdown(`${'<table><tr><td>'.repeat(10000)}x${'</td></tr></table>'.repeat(10000)}`);
    assert.deepEqual(rowsOf(deep), ['x']);
  },
  answersAreReadOutWithoutMarkup() {
    for (const [text, expected] of [
      ['# Total\n\nIt is **435.75** and `x` [here](https://a.example/) $E=mc^2$.', 'Total.\nIt is 435.75 and x here E=mc^2.'],
      ['<think>Is it so?</think>\nYes.', 'Yes.'], ['<think>Is it', ''], ['so?</think>Yes.', 'Yes.'], ['- a\n  - *b*\n\n3. c', 'a\nb\n3. c'], ['> said\n\n---\n~~no~~', 'said\nno'],
      ['|Item|Count|\n|-|-|\n|Lamp|12|\n|Rope||', 'Item, Count.\nLamp, 12.\nRope.'], ['```py\nx = 1\n```\n$$\na_1\n$$', 'x = 1\na_1'],
      ['<table><caption>Prices</caption><tr><th>Item</th></tr><tr><td>L&amp;R<br>12 <b onclick=x>EUR</b></td><td>4</td></tr></table>\nDone.', 'Prices.\nItem.\nL&R 12 EUR, 4.\nDone.'],
    ]) assert.equal(spoken(text), expected, text);
    const answer = (text, more) => ({text, state: 'done', error: '', label: 'full', ...more});
    assert.equal(announcement([answer('**7**')]), 'Answer: 7');
    assert.equal(announcement([answer('7'), answer('<think>hm', {label: 'window', state: 'stopped'})]), 'Answer, full: 7\nStopped.');
    assert.equal(announcement([answer('<think>a</think>')]), 'The model said nothing.');
    assert.equal(announcement([answer('', {state: 'failed', error: 'The server does not answer.'})]), 'The server does not answer.');
  },
  tablesAreCopiedAsGrids() {
    const [table] = markdown('<table><tr><th>Item</th><th colspan=2>Price</th></tr><tr><td rowspan=9>a\tb</td><td>1</td><td>**2**</td></tr><tr><td>3<br>4</td></tr></table>');
    assert.equal(tabSeparated(table), 'Item\tPrice\t\na b\t1\t2\n\t3 4');
  },
  // No text takes time that grows faster than itself: these took minutes if it did.
  hostileTexts() {
    for (const text of ['<table>\n', '<table><tr>\n', '<table><!--\n', '<table><tr><td><script>', '<td a="<td \n', '<div>\n', 'x <table><tr><td>a</td></tr></table>', '<table><td><![CDATA[',
      '<b>', '<b><i>', '<table><td>&lt;&', '<table><tr><td colspan=1000 rowspan=1000>a', '<t ', '<table><caption>', '<table><td><b><i>', '<table><td>a="\'']) {
      const repeated = text.repeat(30000 / text.length);
      for (const whole of [repeated, `<table><tr><td>${repeated}--></i></b>]]></script>`]) checkTree(markdown(whole), text);
    }
    for (const text of ['*a ', '[', '`', '>', '$a ', '- ', '**a*', '_a', '|', '<think>\n', '1. a\n', '`a``b', '[a](http://b ', '\\(', '> - ', '| a\n|-\n', '$$\n']) {
      markdown(text.repeat(20000 / text.length));
    }
  },
  // Whatever comes, a tree comes out, and links of the web only.
  randomTexts() {
    const pieces = ['*', '**', '_', '`', '```', '$', '$$', '\\(', '\\)', '[', ']', '(', ')', '!', '|', '|-|', '- ', '1. ', '> ', '#', '---', '<think>', '</think>', '~~', '\n', '\n\n', '  ', '\t', 'a', 'é', '\\', '<br>',
      'https://b.example', 'javascript:x', '\u2028', '\ud800', '<table>', '</table>', '<tr>', '<td>', '</td>', '<th colspan=7>', '<td rowspan="9', '>', '<', '</', '<thead>', '<caption>',
      '<b onclick="x">', '</b>', '<i>', '<script>', '</script>', '<style>', '<!--', '-->', '<![CDATA[', ']]>', '&lt;', '&#106;', '<img src=x onerror=y>', '<div>', '</div>', "'", '"'];
    let seed = 7;
    const next = (n) => (seed = (seed * 48271) % 2147483647) % n;
    for (let i = 0; i < 3000; ++i) {
      const text = Array.from({length: next(40)}, () => pieces[next(pieces.length)]).join('');
      checkTree(markdown(text, i % 2 === 0), text);
      assert.doesNotThrow(() => spoken(text), text);
    }
  },

  // ---- conversation files ----
  async conversationsComeBack() {
    const conversation = {id: '1', name: 'Invoice', created: 1, updated: 2, forks: {0: {}}, tour: {step: 1}, messages: [
      {role: 'user', text: 'TOTAL?', pictures: [{id: 'p', name: 'page.png', width: 2, height: 3}], documents: [{id: 'd', name: 'a.pdf', pages: '2-3'}],
        videos: [{id: 'v', name: 'a.mp4', seconds: 5, fps: '0.5', max_frames: '8'}], files: [{name: 'a.txt', text: 'A'}]},
      {role: 'assistant', answers: [{label: 'full', asked: {kv: 'full'}, pictures: ['p'], thought: 'hm', text: '7', state: 'done', seen: {first: 1, total: 2},
        alone: true, reading: {ms: 3, found: 4}}]}]};
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
    assert.deepEqual([answer.alone, answer.reading], [true, {ms: 3, found: 4}]);
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
  titlesEndAtWords() {
    for (const [text, expected] of [
      ['What is the TOTAL?', 'What is the TOTAL?'], ['', ''], ['  a\n\nb\t c ', 'a b c'], ['x'.repeat(60), 'x'.repeat(60)],
      ['Please read this invoice and tell me in one a little longer line', 'Please read this invoice and tell me in one a little longer…'],
      ['Read the first page of the report, then the second, and also: the third one', 'Read the first page of the report, then the second, and…'],
      [`See https://a.example/${'b'.repeat(80)}`, 'See https://a.example/…'], ['Compare the two invoices of Northwind Lamps and name the KT-4821-B item', 'Compare the two invoices of Northwind Lamps and name the…'], ['y'.repeat(61), `${'y'.repeat(59)}…`],
      ['👨‍👩‍👧‍👦'.repeat(70), `${'👨‍👩‍👧‍👦'.repeat(59)}…`], ['🇵🇹'.repeat(61), `${'🇵🇹'.repeat(59)}…`], ['e\u0301'.repeat(61), `${'e\u0301'.repeat(59)}…`],
    ]) assert.equal(titleOf(text), expected, text);
    const chinese = '请阅读这张发票并告诉我总金额是多少以及付款的最后期限是哪一天'.repeat(4), title = titleOf(chinese).slice(0, -1);
    const words = Array.from(new Intl.Segmenter('zh', {granularity: 'word'}).segment(chinese), ({index}) => index);
    assert.ok(chinese.startsWith(title) && words.includes(title.length) && title.length > 50, title);
    assert.ok(titleOf('z '.repeat(1e6)).length < 61);
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
      served: {cache: {images, saved_ms: saved, prefix_reason: reason}, kv: {bytes: 1024, peak_bytes: 1024, slots: [[34, 34]], ...kv}}});
    const says = (...args) => words.verdict(answer(...args)).join(' ');
    assert.equal(says([image({source: 'ram', recomputed_tokens: 10})], {saved: 1200}), '95 % of this image came from the cache: about 1.20 s saved.');
    assert.equal(says([image({source: 'prefix'}), image({})], {saved: 30}), '50 % of these 2 images came from the cache: about 30 ms saved.');
    assert.equal(says([image({})]), 'Nothing came from the cache: it was not asked about before.');
    assert.equal(says([image({reason: 'reuse is off'})]), 'Nothing came from the cache: reuse is switched off on this server (--reuse off).');
    assert.match(words.verdict(answer([image({})]), true)[0], /^Nothing came from the cache: this server keeps nothing, or too little /);
    assert.equal(says([image({encoder: 'hit'})]), 'The image was known and not encoded again; the rest was computed.');
    assert.equal(says([], {cached: 200}), '80 % of the question came from the cache.');
    assert.equal(says([], {cached: 3, reason: 'no cached prompt continues like this'}), 'Nothing came from the cache: it was not asked about before.');
    assert.match(says([image({})], {kv: {peak_bytes: 10240}}), / 10 % of the prompt was kept for the answer \(25 of 251 tokens, and the answer’s own 9\): memory, in pages of 64 tokens, fell from 10\.0 KiB to 1\.0 KiB\.$/);
    assert.match(says([image({})], {kv: {peak_bytes: 10240, slots: [[4, 4]]}}), / 0 % of the prompt was kept for the answer \(0 of 251 tokens/);  // fewer than the answer has
    assert.match(says([image({})], {kv: {peak_bytes: 10240, slots: undefined}}), / A part of the prompt was kept for the answer: memory, /);
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
  whatWasReadBefore() {
    const stats = (asked, prefix, images, ms) => ({prefix: {tokens: prefix, asked_tokens: asked}, image_kv: {tokens: images}, saved_ms: ms});
    assert.equal(words.readBefore(stats(0, 0, 0, 0)), 'Since this server started, nothing has been asked.');
    assert.equal(words.readBefore(stats(1000, 700, 40, 185000)), 'Since this server started: 74 % of what was asked had been read before; about 3 min saved.');
    assert.equal(words.readBefore(stats(1000, 0, 0, 0)), 'Since this server started: 0 % of what was asked had been read before.');
    assert.match(words.readBefore(stats(1000, 999, 0, 1500)), /: 99 % .*; about 1\.50 s saved\.$/);
  },

  // ---- two sides ----
  sidesAreReadBeforeEither() {
    assert.ok(isSame({kv: 'full'}, {kv: 'full', budget: '', reuse: ''}) && isSame({}, {kv: '', name: 'x'}) && !isSame({kv: 'full'}, {}));
    const side = (vlcache) => ({temperature: 0, max_tokens: 128, cache_salt: 's', vlcache: {explain: true, ...vlcache}});
    assert.deepEqual(readingFields([side({kv: 'snapkv', kv_budget: '0.1'}), side({})]), {...side({kv: 'full'}), max_tokens: 1});
    assert.deepEqual(readingFields([side({reuse: 'off'}), side({reuse: 'exact'})]).vlcache, {explain: true, reuse: 'exact', kv: 'full'});
    assert.equal(readingFields([side({reuse: 'off'}), side({reuse: 'off'})]), null);
    assert.equal(readingFields([side({reuse: 'off'}), side({})], 'off'), null);  // the server's own setting
    assert.ok(readingFields([side({reuse: 'off'}), side({reuse: 'auto'})], 'off'));
  },
  sidesSayWhatTheyFound() {
    const answer = (found, kv = 'full', more = {}) => ({asked: {kv}, alone: true, reading: null, usage: {prompt_tokens: 279, prompt_tokens_details: {cached_tokens: found}}, served: {cache: {prefix_reason: ''}}, ...more});
    assert.equal(circumstances([answer(278), answer(278, 'snapkv')]), 'Asked one after the other, from the same cache: each found 278 of the question’s 279 tokens there.');
    assert.equal(circumstances([answer(278, 'full', {reading: {ms: 2500, found: 0}}), answer(247, 'snapkv')]),
      'Asked one after the other, from the same cache: the first found 278 of 279 tokens of the question there, the second 247 of 279 tokens. Reading it for the first time took 2.50 s, before both, and is not counted.');
    const off = {served: {cache: {prefix_reason: 'reuse is off'}}};
    assert.match(circumstances([answer(278), answer(0, 'full', off)]), /^Both sides have the same settings\. .* the second nothing \(reuse is off\)\.$/);
    assert.match(circumstances([answer(0, 'full', off), answer(0, 'h2o', off)]), /: neither found any of the question there \(reuse is off\)\.$/);
    assert.match(circumstances([answer(0, 'full', {alone: false}), answer(0, 'h2o')]), /^Both were computed at the same time/);  // by an earlier page
    assert.doesNotMatch(circumstances([answer(278, 'full', {reading: {ms: 30, found: 270}}), answer(278, 'h2o')]), /first time/);
  },
  refusalsNameTheirField() {
    for (const [error, expected] of [
      ["unknown KV policy 'pointr' (did you mean 'pointer'?); there are draft with a budget, and full without one", {name: 'kv', text: "Policy: unknown KV policy 'pointr' (did you mean 'pointer'?)"}],
      ["KV budget: expected a share, found '2x'", {name: 'budget', text: "Budget: expected a share, found '2x'"}],
      ["'full' takes no KV budget", {name: 'budget', text: "Budget: 'full' takes no KV budget"}],
      ["unknown chooser of reuse 'exat'; known are mpic", {name: 'reuse', text: "Reuse: unknown chooser of reuse 'exat'; known are mpic"}],
    ]) assert.deepEqual(wrongField(error), expected);
  },
  progressInWords() {
    const told = (share, left, waiting = false) => ({share, left, waiting, ms: 2000});
    assert.deepEqual(words.readingState(null, 500), {text: 'Reading the question', share: null});
    assert.deepEqual(words.readingState(told(0.257, 6), 2000), {text: 'Reading the question: 25 %, about 6 s left', share: 0.257});
    assert.equal(words.readingState(told(0.5, 4), 3000).text, 'Reading the question: 50 %, about 3 s left');
    assert.equal(words.readingState(told(0.5, 4), 9000).text, 'Reading the question: 50 %');
    assert.equal(words.readingState(told(0.01, 594), 2000).text, 'Reading the question: 1 %, about 10 min left');
    assert.equal(words.readingState(told(0.1), 2000).text, 'Reading the question: 10 %');
    assert.equal(words.readingState(told(1, 0), 2000).text, 'Reading the question: 100 %');
    assert.deepEqual(words.readingState(told(0, undefined, true), 2000), {text: 'Waiting: the server is busy with other questions', share: null});
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
    const utf16 = (text) => bytes('\xff\xfe' + text.replace(/./gs, '$&\0'));
    for (const [head, expected] of [[of('Añb\n'), 'Añb\n'], [of('\x1b[31mred\x1b[0m\r\n\f'), '\x1b[31mred\x1b[0m\r\n\f'], [of('a\0b'), null], [of(''), null], [utf16('Lamp'), 'Lamp'],
      [bytes('caf\xe9'), null], [of('\x01\x02\x03\x04 junk'), null], [bytes('\xff\xfe\xff'), null], [of(`${'a'.repeat(500)}\x01`), `${'a'.repeat(500)}\x01`]]) assert.equal(textOf(head), expected);
    assert.deepEqual([textOf(of('é').slice(0, 1), true), textOf(of('aé').slice(0, 2), true), textOf(of('é').slice(0, 1))], [null, 'a', null]);
  },
  filesThatAreNotWhatTheySay() {
    const claim = (name, type = '', hasText = true) => falseClaim({name, type}, hasText) ?? '';
    assert.equal(claim('bad.png'), 'bad.png is not an image that can be read: it contains text. To ask about that, rename it to .txt.');
    assert.equal(claim('bad.PDF', '', false), 'bad.PDF is not a PDF that can be read: it contains something else, or is damaged.');
    assert.match(claim('scan', 'image/tiff'), /^scan is not an image/);
    assert.match(claim('a.mp4', 'video/mp4'), /^a\.mp4 is not a clip/);
    assert.match(claim('logo.svg', 'image/svg+xml'), /^logo\.svg is an SVG, which the server does not read; convert it/);
    for (const [name, type] of [['a.txt', 'text/plain'], ['a.ts', 'video/mp2t'], ['a.ts', 'video/vnd.dlna.mpeg-tts'], ['png', ''], ['a.png.txt', 'text/plain'], ['Makefile', '']]) assert.equal(claim(name, type), '', name);
  },
  questionsThatAreTooLong() {
    const text = (more) => tooLongText({tokens: 9123, used: 0, context: 4096, model: 'tinydoc', text: '?', files: [], ...more});
    assert.equal(text({}), 'About 9,100 tokens; tinydoc reads 4,096. Shorten the question.');
    assert.equal(text({files: [{name: 'a.md'}]}), 'About 9,100 tokens; tinydoc reads 4,096. Remove a.md, or attach a part of it.');
    assert.equal(text({files: [{name: 'a.md'}, {name: 'b.md'}], text: 'x'.repeat(9000)}), 'About 9,100 tokens; tinydoc reads 4,096. Remove a.md or b.md, or attach a part of them, or shorten the question.');
    assert.equal(text({tokens: 3000, used: 2000}), 'With the conversation before it, about 5,000 tokens; tinydoc reads 4,096. Begin a new conversation, or shorten the question.');
    const usage = (prompt_tokens) => ({usage: {prompt_tokens, completion_tokens: 5}});
    assert.equal(usedTokens({messages: [{text: 'a'}, {answers: [usage(7)]}, {text: 'b'}, {answers: [usage(30), usage(40)]}, {text: 'c'}, {answers: [{usage: null}]}]}), 40);
    assert.equal(usedTokens({messages: []}), 0);
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
