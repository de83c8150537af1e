// Tests the texts of the dashboard: how they are chosen and filled, and that each language has all of them.

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import { languageOf, LANGUAGES, Locale } from '../../src/rest/assets/js/core/locale.js';

const MODULES = new URL('../../src/rest/assets/js/', import.meta.url);
const codes = Object.keys(LANGUAGES);
const texts = Object.fromEntries(await Promise.all(codes.map(async (code) => [code, (await import(new URL(`locales/${code}.js`, MODULES))).default])));

/** Returns the names in the placeholders of a text or of all its plural forms. */
const placeholders = (text) => [...new Set(Object.values(typeof text === 'string' ? [text] : text).flatMap((form) => [...form.matchAll(/\{(\w+)\}/g)].map(([, name]) => name)))].sort();

test('a text is filled with values, plural forms and nodes', () => {
  const english = { name: 'The server {name}', files: { one: '{count} file of {name}', other: '{count} files of {name}' }, twice: '{a} and {a}' };
  const german = { ...english, files: { one: '{count} Datei von {name}', other: '{count} Dateien von {name}' } };
  const locale = new Locale('en', english);
  assert.equal(locale.t('name', { name: '{count}' }), 'The server {count}', 'a value is not filled again');
  assert.equal(locale.t('files', { count: 1, name: 'a' }), '1 file of a');
  assert.equal(locale.t('files', { count: 1234, name: 'a' }), '1,234 files of a');
  assert.equal(new Locale('de', german).t('files', { count: 1234, name: 'a' }), '1.234 Dateien von a');
  assert.equal(locale.t('twice', { a: 'x' }), 'x and x');
  const node = { tagName: 'STRONG' };
  assert.deepEqual(locale.parts('name', { name: node }), ['The server ', node]);
  assert.deepEqual(locale.parts('files', { count: 2, name: node }), ['2', ' files of ', node]);
});

test('a missing text or value is an error without a fallback, and the English text with one', () => {
  const english = { greeting: 'Hello {name}', only: 'Only English' };
  assert.throws(() => new Locale('en', english).t('none'), /there is no text none/);
  assert.throws(() => new Locale('en', english).t('greeting'), /greeting needs name/);
  const german = new Locale('de', { greeting: 'Hallo {name}' }, english);
  assert.deepEqual([german.t('greeting', { name: 'x' }), german.t('greeting'), german.t('only'), german.t('none')], ['Hallo x', 'Hallo ', 'Only English', 'none']);
});

test('the first known language of the browser is used', () => {
  for (const [languages, expected] of [[['de-AT', 'en'], 'de'], [['fr', 'de', 'en'], 'de'], [['en-GB', 'de'], 'en'], [['fr-FR'], 'en'], [['constructor'], 'en'], [[], 'en']]) assert.equal(languageOf(languages), expected, languages.join());
});

test('each text stands in the area that its key names', async () => {
  for (const code of codes) {
    const areas = readdirSync(new URL(`locales/${code}/`, MODULES));
    const joined = [];
    for (const area of areas) {
      const keys = Object.keys((await import(new URL(`locales/${code}/${area}`, MODULES))).default);
      assert.deepEqual(keys.filter((key) => !key.startsWith(`${area.replace('.js', '')}.`)), [], `${code}/${area}`);
      joined.push(...keys);
    }
    assert.deepEqual(Object.keys(texts[code]).sort(), joined.sort(), `locales/${code}.js joins all areas`);
  }
});

test('no key is defined twice', () => {
  for (const code of codes) {
    for (const area of readdirSync(new URL(`locales/${code}/`, MODULES))) {
      const keys = [...readFileSync(new URL(`locales/${code}/${area}`, MODULES), 'utf8').matchAll(/^ {2}'([^']+)':/gm)].map(([, key]) => key);
      assert.deepEqual(keys.filter((key, n) => keys.indexOf(key) !== n), [], `${code}/${area}`);
    }
  }
});

test('all languages have the same keys and placeholders', () => {
  for (const code of codes) {
    assert.deepEqual(Object.keys(texts[code]).sort(), Object.keys(texts.en).sort(), code);
    const { pluralCategories } = new Intl.PluralRules(code).resolvedOptions();
    for (const [key, text] of Object.entries(texts[code])) {
      assert.deepEqual(placeholders(text), placeholders(texts.en[key]), `${code}: ${key}`);
      if (typeof text !== 'string') assert.deepEqual(Object.keys(text).sort(), [...pluralCategories].sort(), `${code}: ${key} has all plural forms`);
    }
  }
});

test('every text is used, and every used text exists', () => {
  const code = readdirSync(MODULES, { recursive: true }).filter((name) => name.endsWith('.js') && !name.startsWith('locales/')).map((name) => readFileSync(new URL(name, MODULES), 'utf8')).join('\n');
  const areas = [...new Set(Object.keys(texts.en).map((key) => key.split('.')[0]))].join('|');
  const named = [...code.matchAll(new RegExp(`'((?:${areas})\\.[\\w.-]+)'`, 'g'))].map(([, key]) => key);
  // A key with a part that is computed, such as `shell.view.${name}`.
  const computed = [...code.matchAll(new RegExp(`\`((?:${areas})\\.[^\`]*)\``, 'g'))].map(([, template]) => new RegExp(`^${template.replaceAll('.', '\\.').replace(/\$\{[^}]*\}/g, '[\\w-]+')}$`));
  assert.deepEqual([...new Set(named)].filter((key) => !Object.hasOwn(texts.en, key)), [], 'used without a text');
  for (const pattern of computed) assert.ok(Object.keys(texts.en).some((key) => pattern.test(key)), `${pattern} has no text`);
  assert.deepEqual(Object.keys(texts.en).filter((key) => !named.includes(key) && !computed.some((pattern) => pattern.test(key))), [], 'not used');
  assert.deepEqual([...code.matchAll(/\b(?:t|parts)\('([^']*)'/g)].map(([, key]) => key).filter((key) => !Object.hasOwn(texts.en, key)), [], 'used without a text');
});
