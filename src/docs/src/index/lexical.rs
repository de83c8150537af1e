//! How well the words of a query match each document.

use foldhash::{HashMap, HashMapExt as _};
use rusqlite::Connection;

use super::{
    documents::{PASSAGES, PassageId},
    score, words,
};

/// Weights of the title, of the headings above a passage, and of its text.
const COLUMNS: &str = "4.0, 2.0, 1.0";
/// Of BM25 as FTS5 has it.
const K1: f64 = 1.2;
/// Terms that so many passages have are looked at only where no others are asked for: they tell little and cost most.
const COMMON: usize = 2000;
const COMMON_SHARE: f64 = 0.15;

/// What matches of one document.
#[derive(Debug)]
pub(super) struct Matched {
    /// From 0 to 1.
    pub matched: f64,
    pub passage: PassageId,
}

struct Term {
    weight: f64,
    /// What the term adds to each passage that has it, from 0 to 1.
    hits: Vec<(PassageId, f64)>,
}

/// The documents that have any of the query's words, by id.
pub(super) fn search(conn: &Connection, query: &str) -> rusqlite::Result<HashMap<i64, Matched>> {
    let asked = words::asked(query);
    let all: usize = conn.prepare_cached("SELECT count(*) FROM passages")?.query_row([], |row| row.get(0))?;
    let mut counts = Vec::new();
    {
        let mut count = conn.prepare_cached("SELECT count(*) FROM words WHERE words MATCH ?1")?;
        for term in &asked {
            counts.push(count.query_row([quoted(term)], |row| row.get::<_, usize>(0))?);
        }
    }
    let is_common = |count: usize| count > COMMON && count as f64 > COMMON_SHARE * all as f64;
    let any_rare = counts.iter().any(|count| *count > 0 && !is_common(*count));
    let mut terms = Vec::new();
    let mut whole = 0.0;
    for (term, count) in asked.iter().zip(counts) {
        if any_rare && is_common(count) {
            continue;
        }
        let weight = score::weight(count, all);
        whole += weight;
        if count > 0 {
            terms.push(Term { weight, hits: hits(conn, term, count, all)? });
        }
    }
    Ok(combined(&terms, whole))
}

/// A term as FTS5 takes it for one word, whatever stands in it.
fn quoted(term: &str) -> String {
    format!("\"{}\"", term.replace('"', "\"\""))
}

fn hits(conn: &Connection, term: &str, count: usize, all: usize) -> rusqlite::Result<Vec<(PassageId, f64)>> {
    // What FTS5 multiplies each passage's part with (sqlite.org/fts5.html, "The bm25() function").
    let (n, all) = (count as f64, all as f64);
    let idf = ((all - n + 0.5) / (n + 0.5)).ln().max(1e-6);
    let sql = format!("SELECT rowid, bm25(words, {COLUMNS}) FROM words WHERE words MATCH ?1");
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement.query_map([quoted(term)], |row| {
        let bm25: f64 = row.get(1)?;
        Ok((row.get(0)?, (-bm25 / (idf * (K1 + 1.0))).clamp(0.0, 1.0)))
    })?;
    rows.collect()
}

fn combined(terms: &[Term], whole: f64) -> HashMap<i64, Matched> {
    let mut passages: HashMap<PassageId, f64> = HashMap::new();
    let mut together: HashMap<i64, f64> = HashMap::new();
    for term in terms {
        let mut best: HashMap<i64, f64> = HashMap::new();
        for (passage, part) in &term.hits {
            *passages.entry(*passage).or_default() += term.weight * part;
            let best = best.entry(passage / PASSAGES).or_default();
            *best = best.max(*part);
        }
        for (document, part) in best {
            *together.entry(document).or_default() += term.weight * part;
        }
    }
    let mut found: HashMap<i64, Matched> = HashMap::new();
    for (passage, sum) in passages {
        let document = passage / PASSAGES;
        let matched = 0.7 * sum / whole + 0.3 * together.get(&document).copied().unwrap_or_default() / whole;
        match found.get_mut(&document) {
            // The first of equal ones, so that the answer is the same each time.
            Some(best) if (best.matched, -best.passage) >= (matched, -passage) => {}
            _ => drop(found.insert(document, Matched { matched, passage })),
        }
    }
    found
}
