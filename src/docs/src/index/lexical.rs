//! Scores how well the words of a query match each document.

use foldhash::{HashMap, HashMapExt as _};
use rusqlite::{Connection, params};

use super::{documents::MAX_PASSAGES, score, vectors::PassageId, words};

/// The weights of the title, of the headings above a passage, and of its text.
const COLUMN_WEIGHTS: &str = "4.0, 2.0, 1.0";
/// The parameter `k1` of BM25, as in FTS5.
const BM25_K1: f64 = 1.2;
/// The number of passages from which a term is common. Common terms say little and cost most, so they are used only if
/// the query has no other terms.
const COMMON_TERM_PASSAGES: usize = 6000;

/// The match of one document.
#[derive(Debug)]
pub(super) struct DocumentMatch {
    /// The score, from 0 to 1.
    pub score: f64,
    pub passage: PassageId,
}

struct Term {
    weight: f64,
    /// The score that the term adds to each passage that has it, from 0 to 1.
    hits: Vec<(PassageId, f64)>,
}

/// Returns the documents that have any of the query's words, by id.
pub(super) fn search(conn: &Connection, query: &str) -> rusqlite::Result<HashMap<i64, DocumentMatch>> {
    let terms = words::query_terms(query);
    let passage_count: usize = conn.prepare_cached("SELECT count(*) FROM passages")?.query_row([], |row| row.get(0))?;
    let mut counted = Vec::new();
    {
        let up_to = "SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ?1 LIMIT ?2)";
        let mut count = conn.prepare_cached(up_to)?;
        for term in &terms {
            counted.push((
                count.query_row(params![quote_term(term), COMMON_TERM_PASSAGES + 1], |row| row.get::<_, usize>(0))?,
                term,
            ));
        }
    }
    counted.sort();
    let mut terms: Vec<Term> = Vec::new();
    let mut total_weight = 0.0;
    for (count, term) in counted {
        if count > COMMON_TERM_PASSAGES && !terms.is_empty() {
            break;
        }
        let found = if count > 0 { term_hits(conn, term, passage_count)? } else { Vec::new() };
        let weight = score::term_weight(found.len(), passage_count);
        total_weight += weight;
        if !found.is_empty() {
            terms.push(Term { weight, hits: found });
        }
    }
    Ok(combine(&terms, total_weight))
}

/// Quotes a term so that FTS5 takes it for one word, whatever it contains.
fn quote_term(term: &str) -> String {
    format!("\"{}\"", term.replace('"', "\"\""))
}

/// Returns the score that a term adds to each passage with the term.
fn term_hits(conn: &Connection, term: &str, passage_count: usize) -> rusqlite::Result<Vec<(PassageId, f64)>> {
    let sql = format!("SELECT rowid, bm25(words, {COLUMN_WEIGHTS}) FROM words WHERE words MATCH ?1");
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement.query_map([quote_term(term)], |row| Ok((row.get(0)?, row.get::<_, f64>(1)?)))?;
    let mut hits: Vec<(PassageId, f64)> = rows.collect::<rusqlite::Result<_>>()?;
    // The factor of each passage's score in FTS5 (sqlite.org/fts5.html, "The bm25() function").
    let n = hits.len() as f64;
    let idf = ((passage_count as f64 - n + 0.5) / (n + 0.5)).ln().max(1e-6);
    for (_, contribution) in &mut hits {
        *contribution = (-*contribution / (idf * (BM25_K1 + 1.0))).clamp(0.0, 1.0);
    }
    Ok(hits)
}

fn combine(terms: &[Term], total_weight: f64) -> HashMap<i64, DocumentMatch> {
    let mut passages: HashMap<PassageId, f64> = HashMap::new();
    let mut document_scores: HashMap<i64, f64> = HashMap::new();
    for term in terms {
        let mut best: HashMap<i64, f64> = HashMap::new();
        for (passage, contribution) in &term.hits {
            *passages.entry(*passage).or_default() += term.weight * contribution;
            let best = best.entry(passage / MAX_PASSAGES).or_default();
            *best = best.max(*contribution);
        }
        for (document, contribution) in best {
            *document_scores.entry(document).or_default() += term.weight * contribution;
        }
    }
    let mut found: HashMap<i64, DocumentMatch> = HashMap::new();
    for (passage, sum) in passages {
        let document = passage / MAX_PASSAGES;
        let matched =
            0.7 * sum / total_weight + 0.3 * document_scores.get(&document).copied().unwrap_or_default() / total_weight;
        match found.get_mut(&document) {
            // Of equal passages the first is kept, so that results are deterministic.
            Some(best) if (best.score, -best.passage) >= (matched, -passage) => {}
            _ => drop(found.insert(document, DocumentMatch { score: matched, passage })),
        }
    }
    found
}
