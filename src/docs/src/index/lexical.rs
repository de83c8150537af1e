//! Computes how well the words of a query match each document.

use foldhash::{HashMap, HashMapExt as _};
use rusqlite::{Connection, params};

use super::{documents::document_of, score, vectors::PassageId, words};

/// The weights of the title, of the headings above a passage, and of its text.
const COLUMN_WEIGHTS: &str = "4.0, 2.0, 1.0";
/// The parameter `k1` of BM25, as in FTS5.
const BM25_K1: f64 = 1.2;
/// The number of passages above which a term counts as common. Common terms say little and cost most, so they are used only
/// if the query has no other terms.
const COMMON_TERM_PASSAGES: usize = 6000;

/// The match of one document (see `score.rs`).
#[derive(Clone, Copy, Debug)]
pub(super) struct DocumentMatch {
    /// From 0 to 1.
    pub word_match: f64,
    /// The passage that matches best.
    pub passage: PassageId,
}

/// A term of the query with its contributions.
struct Term {
    weight: f64,
    /// The contribution of the term to each passage that has it, from 0 to 1.
    contributions: Vec<(PassageId, f64)>,
}

/// Returns the documents that have any of the query's terms, by id. Common terms count only if there are no others.
pub(super) fn search(conn: &Connection, query: &str) -> rusqlite::Result<HashMap<i64, DocumentMatch>> {
    let terms = words::query_terms(query);
    let passage_count: usize = conn.prepare_cached("SELECT count(*) FROM passages")?.query_row([], |row| row.get(0))?;
    let bounded_count = "SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ?1 LIMIT ?2)";
    let mut count = conn.prepare_cached(bounded_count)?;
    let mut counted_terms: Vec<(usize, &String)> = terms
        .iter()
        .map(|term| {
            let limit = COMMON_TERM_PASSAGES + 1;
            Ok((count.query_row(params![quote_term(term), limit], |row| row.get(0))?, term))
        })
        .collect::<rusqlite::Result<_>>()?;
    counted_terms.sort();
    let mut terms: Vec<Term> = Vec::new();
    let mut total_weight = 0.0;
    for (passages_with_term, term) in counted_terms {
        if passages_with_term > COMMON_TERM_PASSAGES && !terms.is_empty() {
            break;
        }
        let contributions =
            if passages_with_term > 0 { term_contributions(conn, term, passage_count)? } else { Vec::new() };
        let weight = score::term_weight(contributions.len(), passage_count);
        total_weight += weight;
        if !contributions.is_empty() {
            terms.push(Term { weight, contributions });
        }
    }
    Ok(combine_terms(&terms, total_weight))
}

/// Quotes a term so that FTS5 takes it for one word, whatever it contains.
fn quote_term(term: &str) -> String {
    format!("\"{}\"", term.replace('"', "\"\""))
}

/// Returns the contribution of a term to each passage with the term.
fn term_contributions(conn: &Connection, term: &str, passage_count: usize) -> rusqlite::Result<Vec<(PassageId, f64)>> {
    let sql = format!("SELECT rowid, bm25(words, {COLUMN_WEIGHTS}) FROM words WHERE words MATCH ?1");
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement.query_map([quote_term(term)], |row| Ok((row.get(0)?, row.get::<_, f64>(1)?)))?;
    let mut contributions: Vec<(PassageId, f64)> = rows.collect::<rusqlite::Result<_>>()?;
    // The factor of each passage's score in FTS5 (sqlite.org/fts5.html, "The bm25() function").
    let n = contributions.len() as f64;
    let idf = ((passage_count as f64 - n + 0.5) / (n + 0.5)).ln().max(1e-6);
    for (_, contribution) in &mut contributions {
        *contribution = (-*contribution / (idf * (BM25_K1 + 1.0))).clamp(0.0, 1.0);
    }
    Ok(contributions)
}

/// Combines the contributions of the terms into the match of each document.
fn combine_terms(terms: &[Term], total_weight: f64) -> HashMap<i64, DocumentMatch> {
    let mut passages: HashMap<PassageId, f64> = HashMap::new();
    let mut documents: HashMap<i64, f64> = HashMap::new();
    for term in terms {
        let mut best: HashMap<i64, f64> = HashMap::new();
        for (passage, contribution) in &term.contributions {
            *passages.entry(*passage).or_default() += term.weight * contribution;
            let best = best.entry(document_of(*passage)).or_default();
            *best = best.max(*contribution);
        }
        for (document, contribution) in best {
            *documents.entry(document).or_default() += term.weight * contribution;
        }
    }
    let mut matches: HashMap<i64, DocumentMatch> = HashMap::new();
    for (passage, sum) in passages {
        let document = document_of(passage);
        let joint_sum = documents.get(&document).copied().unwrap_or_default();
        let word_match = score::document_match(sum / total_weight, joint_sum / total_weight);
        match matches.get_mut(&document) {
            // Of equal passages the first is kept, so that results are deterministic.
            Some(best) if (best.word_match, -best.passage) >= (word_match, -passage) => {}
            _ => drop(matches.insert(document, DocumentMatch { word_match, passage })),
        }
    }
    matches
}
