// Splits lines of code into tokens for highlighting. The texts of the tokens of a line together are the line, so that
// highlighting neither hides nor changes a character. Pure.

// Longer lines are not highlighted.
const MAX_LINE = 2000;

const words = (text) => new Set(text.split(' '));
const C_COMMENTS = { line: ['//'], block: ['/*', '*/'] };
const HASH = { line: ['#'], quotes: '"\'' };

// `line` begins a comment to the end of the line, `block` encloses one, `long` encloses texts of several lines.
const LANGUAGES = {
  javascript: { ...C_COMMENTS, quotes: '"\'', long: ['`'], keywords: words('async await break case catch class const continue debugger default delete do else export extends false finally for from function get if import in instanceof let new null of return set static super switch this throw true try typeof undefined var void while with yield') },
  typescript: { ...C_COMMENTS, quotes: '"\'', long: ['`'], keywords: words('abstract any as async await boolean break case catch class const continue declare default delete do else enum export extends false finally for from function get if implements import in infer instanceof interface is keyof let namespace never new null number of private protected public readonly return satisfies set static string super switch this throw true try type typeof undefined unknown var void while yield') },
  rust: { ...C_COMMENTS, quotes: '"', chars: true, keywords: words('as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while') },
  go: { ...C_COMMENTS, quotes: '"\'', long: ['`'], keywords: words('break case chan const continue default defer else fallthrough false for func go goto if import interface iota map nil package range return select struct switch true type var') },
  java: { ...C_COMMENTS, quotes: '"\'', long: ['"""'], keywords: words('abstract assert boolean break byte case catch char class const continue default do double else enum extends false final finally float for if implements import instanceof int interface long native new null package private protected public record return short static super switch synchronized this throw throws transient true try var void volatile while') },
  kotlin: { ...C_COMMENTS, quotes: '"\'', long: ['"""'], keywords: words('as break by catch class companion const continue data do else enum false finally for fun if import in init interface internal is it lateinit null object open override package private protected public return sealed super suspend this throw true try typealias val var when while') },
  swift: { ...C_COMMENTS, quotes: '"', long: ['"""'], keywords: words('as async await break case catch class continue default defer do else enum extension false fileprivate final for func guard if import in init inout internal is let nil open override private protocol public return self static struct super switch throw throws true try var where while') },
  c: { ...C_COMMENTS, quotes: '"\'', keywords: words('auto bool break case catch char class const constexpr continue default define delete do double else enum extern false float for goto if ifdef ifndef include inline int long namespace new nullptr operator override private protected public register return short signed sizeof static struct switch template this throw true try typedef typename union unsigned using virtual void volatile while') },
  csharp: { ...C_COMMENTS, quotes: '"\'', keywords: words('abstract as async await base bool break byte case catch char class const continue decimal default delegate do double else enum event false finally float for foreach get if in int interface internal is lock long namespace new null object out override params private protected public readonly record ref return sealed set short static string struct switch this throw true try typeof using var virtual void while yield') },
  php: { line: ['//', '#'], block: ['/*', '*/'], quotes: '"\'', keywords: words('abstract and array as break case catch class clone const continue declare default do echo else elseif extends false final finally fn for foreach function global if implements include instanceof interface isset match namespace new null or private protected public readonly require return static switch this throw trait true try use var while yield') },
  css: { block: ['/*', '*/'], quotes: '"\'', keywords: words('important media supports import keyframes layer container') },
  python: { ...HASH, long: ['"""', "'''"], keywords: words('and as assert async await break class continue def del elif else except False finally for from global if import in is lambda match None nonlocal not or pass raise return self True try while with yield') },
  ruby: { ...HASH, keywords: words('alias and begin break case class def do else elsif end ensure false for if in module next nil not or redo rescue retry return self super then true undef unless until when while yield') },
  shell: { ...HASH, spaced: true, keywords: words('case do done elif else esac exit export fi for function if in local readonly return set then until while ADD ARG CMD COPY ENTRYPOINT ENV EXPOSE FROM LABEL RUN USER VOLUME WORKDIR') },
  hcl: { line: ['#', '//'], block: ['/*', '*/'], quotes: '"', keywords: words('data false for if in locals module null output provider resource terraform true variable') },
  toml: { ...HASH, long: ['"""', "'''"], keywords: words('true false'), keys: true },
  yaml: { ...HASH, spaced: true, keywords: words('true false null yes no on off'), keys: true },
  json: { line: ['//'], quotes: '"', keywords: words('true false null'), keys: true },
  html: { block: ['<!--', '-->'], quotes: '"', keywords: new Set(), tags: true },
  sql: { line: ['--'], block: ['/*', '*/'], quotes: '\'"', doubled: true, caseless: true, keywords: words('add all alter and any as asc begin between by cascade case check column commit constraint copy create cross database default delete desc distinct drop else end except execute exists explain false foreign from full function grant group having if in index inner insert intersect into is join key lateral left like limit materialized merge not null offset on or order outer over partition primary references replace returning revoke right rollback schema select set table then transaction trigger true truncate union unique update using values view when where with') },
};

const NUMBER = /(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)[\p{L}\d_]*/uy;
const WORD = /[\p{L}_$][\p{L}\p{N}_$]*/uy;
const CHARACTER = /'(?:[^'\\]|\\(?:[^u]|u\{[\da-fA-F]+\}))'/uy;
const KEY = /^(\s*(?:- +)*)("[^"\\]*"|'[^'\\]*'|[\p{L}\p{N}_./$-]+)(?=\s*[:=](?:\s|$))/u;
const JSON_COLON = /\s*:/y;
const TAG = /<\/?[A-Za-z][\w:-]*|\/?>/y;

/** Returns true for a language that can be highlighted. */
export const isKnownLanguage = (language) => Object.hasOwn(LANGUAGES, language ?? '');

/**
 * Splits a line into `[{kind, text}]`, where the kind is `comment`, `string`, `number`, `keyword`, `key` or null. `state` is
 * what the previous line left open, or null. Returns `{tokens, state}`.
 */
export function tokenize(line, language, state = null) {
  const spec = LANGUAGES[language];
  if (!spec || line.length > MAX_LINE) return { tokens: line ? [{ kind: null, text: line }] : [], state };
  const tokens = [];
  let at = 0;
  const push = (kind, end) => {
    const text = line.slice(at, end);
    at = end;
    if (text === '') return;
    const last = tokens.at(-1);
    if (last && last.kind === kind) last.text += text;
    else tokens.push({ kind, text });
  };
  const match = (pattern) => {
    pattern.lastIndex = at;
    return pattern.exec(line)?.[0] ?? null;
  };
  if (!state && spec.keys && language !== 'json') {
    const key = KEY.exec(line);
    if (key) {
      push(null, key[1].length);
      push('key', key[0].length);
    }
  }
  while (at < line.length) {
    if (state) {
      const end = line.indexOf(state.end, at);
      push(state.kind, end === -1 ? line.length : end + state.end.length);
      if (end === -1) break;
      state = null;
      continue;
    }
    const begins = (mark) => line.startsWith(mark, at);
    const isSpaced = !spec.spaced || at === 0 || /\s/.test(line[at - 1]);
    if (spec.line?.some(begins) && isSpaced) {
      push('comment', line.length);
      break;
    }
    const long = spec.long?.find(begins);
    if (long || (spec.block && begins(spec.block[0]))) {
      const start = long ?? spec.block[0];
      state = long ? { kind: 'string', end: long } : { kind: 'comment', end: spec.block[1] };
      push(state.kind, at + start.length);
      continue;
    }
    if (spec.chars && line[at] === "'") {
      const character = match(CHARACTER);
      push(character ? 'string' : null, at + (character?.length ?? 1));
      continue;
    }
    if (spec.quotes.includes(line[at])) {
      const end = endOfString(line, at, spec.doubled);
      JSON_COLON.lastIndex = end;
      push(language === 'json' && JSON_COLON.test(line) ? 'key' : 'string', end);
      continue;
    }
    const tag = spec.tags ? match(TAG) : null;
    if (tag) {
      push('keyword', at + tag.length);
      continue;
    }
    const number = match(NUMBER);
    if (number) {
      push('number', at + number.length);
      continue;
    }
    const word = match(WORD);
    if (word) {
      const isKeyword = spec.keywords.has(spec.caseless ? word.toLowerCase() : word);
      push(isKeyword ? 'keyword' : null, at + word.length);
      continue;
    }
    push(null, at + String.fromCodePoint(line.codePointAt(at)).length);
  }
  return { tokens, state };
}

// A string that is not closed ends with the line.
function endOfString(line, at, doubled) {
  const quote = line[at];
  for (let i = at + 1; i < line.length; i += 1) {
    if (!doubled && line[i] === '\\') i += 1;
    else if (line[i] === quote) return i + 1;
  }
  return line.length;
}

/** Adds `tokens` to the rows of a diff. What a line of one side leaves open continues on the next line of that side. */
export function addTokens(rows, language) {
  let before = null;
  let after = null;
  const visit = (row) => {
    if (row.op === 'fold' && row.rows) {
      row.rows.forEach(visit);
    } else if (row.op === 'fold' || row.op === 'note') {
      before = null;
      after = null;
    } else if (row.op === 'delete') {
      ({ tokens: row.tokens, state: before } = tokenize(row.text, language, before));
    } else {
      const old = before;
      ({ tokens: row.tokens, state: after } = tokenize(row.text, language, after));
      if (row.op === 'equal') before = old === after ? after : tokenize(row.text, language, old).state;
    }
  };
  rows.forEach(visit);
  return rows;
}

/** Cuts tokens at the ends of consecutive `parts` of the line. Returns the tokens of each part. */
export function tokensOfParts(tokens, parts) {
  const out = [];
  let n = 0;
  let used = 0;
  for (const part of parts) {
    const list = [];
    let missing = part.length;
    while (missing > 0 && n < tokens.length) {
      const text = tokens[n].text.slice(used, used + missing);
      list.push({ kind: tokens[n].kind, text });
      missing -= text.length;
      used += text.length;
      if (used === tokens[n].text.length) {
        n += 1;
        used = 0;
      }
    }
    out.push(list);
  }
  return out;
}
