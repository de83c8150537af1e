//! How well the words of a query match each document.

use foldhash::{HashMap, HashMapExt as _};
use rusqlite::{Connection, params};

use super::{
    documents::{PASSAGES, PassageId},
    score, words,
};

/// Weights of the title, of the headings above a passage, and of its text.
const COLUMNS: &str = "4.0, 2.0, 1.0";
/// Of BM25 as FTS5 has it.
const K1: f64 = 1.2;
/// A term that more passages have tells little and costs most: it is looked at only where no other one is asked for.
const COMMON: usize = 6000;

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
    let mut counted = Vec::new();
    {
        let up_to = "SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ?1 LIMIT ?2)";
        let mut count = conn.prepare_cached(up_to)?;
        for term in &asked {
            counted.push((count.query_row(params![quoted(term), COMMON + 1], |row| row.get::<_, usize>(0))?, term));
        }
    }
    counted.sort();
    let mut terms: Vec<Term> = Vec::new();
    let mut whole = 0.0;
    for (count, term) in counted {
        if count > COMMON && !terms.is_empty() {
            break;
        }
        let found = if count > 0 { hits(conn, term, all)? } else { Vec::new() };
        let weight = score::weight(found.len(), all);
        whole += weight;
        if !found.is_empty() {
            terms.push(Term { weight, hits: found });
        }
    }
    Ok(combined(&terms, whole))
}

/// A term as FTS5 takes it for one word, whatever stands in it.
fn quoted(term: &str) -> String {
    format!("\"{}\"", term.replace('"', "\"\""))
}

/// What a term adds to each passage that has it.
fn hits(conn: &Connection, term: &str, all: usize) -> rusqlite::Result<Vec<(PassageId, f64)>> {
    let sql = format!("SELECT rowid, bm25(words, {COLUMNS}) FROM words WHERE words MATCH ?1");
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement.query_map([quoted(term)], |row| Ok((row.get(0)?, row.get::<_, f64>(1)?)))?;
    let mut hits: Vec<(PassageId, f64)> = rows.collect::<rusqlite::Result<_>>()?;
    // What FTS5 multiplies each passage's part with (sqlite.org/fts5.html, "The bm25() function").
    let (n, all) = (hits.len() as f64, all as f64);
    let idf = ((all - n + 0.5) / (n + 0.5)).ln().max(1e-6);
    for (_, part) in &mut hits {
        *part = (-*part / (idf * (K1 + 1.0))).clamp(0.0, 1.0);
    }
    Ok(hits)
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
