// Holds the texts of the page in its language. Texts never contain markup: values and nodes are inserted between their words.

import english from '../locales/en.js';
import { preference, setPreference } from './prefs.js';

/** The languages by their code, each with its own name. A new one needs a file with the keys of `locales/en.js`. */
export const LANGUAGES = { en: 'English', de: 'Deutsch' };
const OTHER_TEXTS = { de: () => import('../locales/de.js') };
const PLACEHOLDER = /\{(\w+)\}/;

/** The texts of a language. A text that is missing is taken from `fallback`; without one, it is an error. */
export class Locale {
  language;
  #texts;
  #fallback;
  #plurals;
  #numbers;

  constructor(language, texts, fallback = null) {
    this.language = language;
    this.#texts = texts;
    this.#fallback = fallback;
    this.#plurals = new Intl.PluralRules(language);
    this.#numbers = new Intl.NumberFormat(language);
  }

  /** Returns the text of a key with `{name}` replaced. Of `{ one, other }`, `values.count` chooses the form. */
  t(key, values = {}) {
    return this.parts(key, values).join('');
  }

  /** Returns a text as strings and nodes, which take the place of `{name}`. Numbers have the form of the language. */
  parts(key, nodes = {}) {
    const text = this.#find(key);
    const form = typeof text === 'string' ? text : text[this.#plurals.select(nodes.count)];
    return form.split(PLACEHOLDER).map((piece, n) => (n % 2 ? this.#value(key, piece, nodes[piece]) : piece)).filter((piece) => piece !== '');
  }

  #find(key) {
    const text = this.#texts[key] ?? this.#fallback?.[key];
    if (text !== undefined) return text;
    if (this.#fallback) return key;
    throw new Error(`there is no text ${key}`);
  }

  #value(key, name, value) {
    if (typeof value === 'number') return this.#numbers.format(value);
    if (value !== undefined) return value;
    if (this.#fallback) return '';
    throw new Error(`${key} needs ${name}`);
  }
}

let locale = new Locale('en', english);

/** The code of the page's language. Modules that read it while they load must load after `loadLanguage`. */
export let language = 'en';

export const t = (key, values) => locale.t(key, values);
export const parts = (key, nodes) => locale.parts(key, nodes);

/** Returns the code of the chosen language, or an empty text if the browser's applies. */
export const chosenLanguage = () => preference('language', ['', ...Object.keys(LANGUAGES)]);

/** Remembers the language and loads the page again, since texts are read once. An empty code stands for the browser's. */
export function chooseLanguage(code) {
  setPreference('language', code);
  location.reload();
}

/** Returns the first of the browser's languages that the page has. */
export const languageOf = (languages) => languages.map((tag) => tag.split('-')[0].toLowerCase()).find((code) => Object.hasOwn(LANGUAGES, code)) ?? 'en';

/** Loads the texts of the chosen language, or keeps the English ones if they cannot be loaded. */
export async function loadLanguage() {
  const code = chosenLanguage() || languageOf(navigator.languages);
  let texts = english;
  try {
    if (OTHER_TEXTS[code]) texts = (await OTHER_TEXTS[code]()).default;
    language = code;
  } catch {
    // The texts are then English.
  }
  locale = new Locale(language, texts, english);
  document.documentElement.lang = language;
}
