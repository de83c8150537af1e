// Finds the literals of a module that look like text for readers. A text stands in the files of the languages instead.

// Attributes that readers see or hear, and properties that set such a text.
const VISIBLE_KEYS = new Set(['aria-label', 'aria-description', 'title', 'placeholder', 'alt', 'label', 'explanation', 'legend']);
const VISIBLE_PROPERTIES = new Set(['textContent', 'innerText', 'title', 'placeholder']);
// Calls that show their arguments, with the number of the first one that is shown.
const SHOWING = { h: 2, fill: 1, announce: 0, notice: 0, emptyState: 1, section: 0, append: 0, prepend: 0, before: 0, after: 0, replaceWith: 0, 'super': 0 };
// What only programs read: keys of attributes, and calls that take selectors, storage keys or messages for programmers.
const TECHNICAL_KEYS = new Set(['class', 'className', 'aria-describedby', 'aria-labelledby', 'aria-controls', 'aria-keyshortcuts', 'viewBox', 'd', 'key']);
const TECHNICAL_CALLS = new Set(['querySelector', 'querySelectorAll', 'closest', 'matches', 'matchMedia', 't', 'parts', 'TypeError', 'RangeError', 'startsWith', 'endsWith', 'includes', 'test', 'split', 'join', 'RegExp', 'Set']);
// Elements whose content is the same in all languages.
const VERBATIM = new Set(['kbd', 'code']);
const BEFORE_REGEX = new Set(['return', 'typeof', 'case', 'in', 'of', 'do', 'else', 'void', 'delete', 'await', 'yield', '=>']);

/** Splits a module into `{type, text, line}`: names, strings, parts of templates, and punctuation. Comments and regular expressions are left out. */
export function tokensOf(source) {
  const tokens = [];
  const braces = [];
  let line = 1;
  let at = 0;
  const add = (type, text) => tokens.push({ type, text, line });
  const take = (pattern) => {
    pattern.lastIndex = at;
    const found = pattern.exec(source)?.[0];
    if (found === undefined) return null;
    at += found.length;
    return found;
  };
  // Reads a part of a template up to its end or to the next `${`.
  const template = () => {
    let text = '';
    while (at < source.length) {
      if (source[at] === '\\') {
        text += source.slice(at, at + 2);
        at += 2;
      } else if (source[at] === '`') {
        at += 1;
        add('template', text);
        return add('punctuation', '`');
      } else if (source.startsWith('${', at)) {
        at += 2;
        add('template', text);
        braces.push('${');
        return add('punctuation', '${');
      } else {
        if (source[at] === '\n') line += 1;
        text += source[at];
        at += 1;
      }
    }
    throw new Error('a template has no end');
  };
  while (at < source.length) {
    const start = at;
    if (take(/\s+|\/\/[^\n]*|\/\*[^]*?\*\//y)) {
      line += source.slice(start, at).split('\n').length - 1;
      continue;
    }
    const previous = tokens.at(-1);
    const isValueBefore = previous && (previous.type !== 'punctuation' ? !BEFORE_REGEX.has(previous.text) : [')', ']', '}', '`'].includes(previous.text));
    if (!isValueBefore && take(/\/(?:[^\/\\\n[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+\/\w*/y)) {
      add('regex', source.slice(start, at));
      continue;
    }
    const string = take(/'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"/y);
    if (string) {
      add('string', string.slice(1, -1));
      continue;
    }
    const name = take(/[#\w$]+/y);
    if (name) {
      add('name', name);
      continue;
    }
    const mark = take(/=>|\?\.|\.\.\.|[=!]==?|[^]/y);
    if (mark === '`') {
      add('punctuation', '`(');
      template();
    } else if (mark === '}' && braces.pop() === '${') {
      add('punctuation', '$}');
      template();
    } else {
      if (mark === '{') braces.push('{');
      add('punctuation', mark);
    }
  }
  return tokens;
}

const OPENING = { '(': ')', '[': ']', '{': '}', '${': '$}', '`(': '`' };
const hasWords = (text) => /[\p{L}\p{N}][^\p{L}\p{N}\s]*\s+[^\p{L}\p{N}\s]*\p{L}/u.test(text);
// A word such as `Approve` or `Edit…`. Names in code begin with a small letter.
const isCapitalized = (text) => /^\p{Lu}\p{Ll}+[.…]?$/u.test(text);
// The beginning or the end of a sentence around a value.
const isFragment = (type, text) => /\p{L}/u.test(text) && (type === 'template' ? /\s/ : /^\s|\s$/).test(text);
const hasLetters = (text) => /\p{L}/u.test(text.replaceAll(/\\./g, ''));

/** Returns the number of the closing token for that of each opening one. */
function closingBrackets(tokens) {
  const open = [];
  const closes = new Map();
  for (const [n, { type, text }] of tokens.entries()) {
    if (type !== 'punctuation') continue;
    if (OPENING[text]) open.push(n);
    else if (Object.values(OPENING).includes(text)) closes.set(open.pop(), n);
  }
  return closes;
}

/** Returns the literals of a module that look like visible text, as `{text, line}`. */
export function visibleLiterals(source) {
  const tokens = tokensOf(source);
  const found = [];
  const frames = [{ open: '' }];
  // Returns what surrounds a literal: the key of an attribute, or the call and the number of the argument.
  const contextOf = () => {
    for (const frame of frames.toReversed()) {
      // What is made of the items of an array is looked at where it is made.
      if (frame.isReceiver) return {};
      if (frame.open === '{') return frame.key === undefined ? { statement: frame.statement } : { key: frame.key };
      if (frame.open === '(' && frame.call !== null) return { call: frame.call, argument: frame.argument, tag: frame.tag };
    }
    return { statement: frames[0].statement };
  };
  const closes = closingBrackets(tokens);
  const isCompared = (n) => [tokens[n - 1], tokens[n + 1]].some((near) => near && ['===', '!==', '==', '!='].includes(near.text) && near.type === 'punctuation') || tokens[n - 1]?.text === 'case';
  for (const [n, token] of tokens.entries()) {
    const { type, text, line } = token;
    const frame = frames.at(-1);
    if (type === 'punctuation') {
      if (OPENING[text]) {
        const before = tokens[n - 1];
        const isCall = text === '(' && before?.type === 'name' && !['if', 'for', 'while', 'switch', 'return', 'of', 'in', 'await', 'catch'].includes(before.text);
        frames.push({ open: text, isReceiver: text === '[' && tokens[closes.get(n) + 1]?.text === '.', call: isCall ? before.text : null, argument: 0, tag: isCall && tokens[n + 1]?.type === 'string' ? tokens[n + 1].text : null });
      } else if (Object.values(OPENING).includes(text)) {
        frames.pop();
      } else if (text === ',') {
        frame.argument += 1;
        frame.key = undefined;
      } else if (text === ';') {
        frame.statement = undefined;
        frame.key = undefined;
      } else if (text === ':' && frame.open === '{' && frame.key === undefined && ['{', ','].includes(tokens[n - 2]?.text) && ['name', 'string'].includes(tokens[n - 1].type)) {
        frame.key = tokens[n - 1].text;
      } else if (text === '=' && tokens[n - 1]?.type === 'name' && tokens[n - 2]?.text === '.') {
        frame.statement = tokens[n - 1].text;
      } else if (text === '=>' || text === '}') {
        frame.statement = undefined;
      }
      continue;
    }
    if (type !== 'string' && type !== 'template') continue;
    if (tokens[n + 1]?.text === ':' && ['{', ','].includes(tokens[n - 1]?.text)) continue;
    if (tokens[n - 1]?.text === 'from' || tokens[n - 1]?.text === 'import' || isCompared(n)) continue;
    const { key, call, argument, tag, statement } = contextOf();
    if (TECHNICAL_KEYS.has(key) || TECHNICAL_KEYS.has(statement) || TECHNICAL_CALLS.has(call)) continue;
    if (call === 'h' && VERBATIM.has(tag)) continue;
    const isShown = VISIBLE_KEYS.has(key) || VISIBLE_PROPERTIES.has(statement) || (Object.hasOwn(SHOWING, call ?? '') && argument >= SHOWING[call]);
    if (hasWords(text) || isCapitalized(text) || isFragment(type, text) || (isShown && hasLetters(text))) found.push({ text, line });
  }
  return found;
}
