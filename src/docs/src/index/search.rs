//! Searches documents by words and semantically, by vectors, and merges both rankings.

use foldhash::{HashMap, HashMapExt as _, HashSet};
use rusqlite::{Connection, Row, params_from_iter, types::Value as SqlValue};

use super::{
    documents::{self, document_of, read_level},
    lexical::{self, DocumentMatch},
    score::{self, CosineDistribution},
    storage::{Index, IndexError},
    vectors::{Matrix, PassageId},
};
use crate::model::{Filter, Hit, Level, Passage, Ranking};

/// The maximum number of documents in the semantic ranking.
const MAX_SEMANTIC_RANKS: usize = 200;

/// A search query.
pub(crate) struct Query<'a> {
    pub text: &'a str,
    /// The query's vector, from the model that embedded the passages. A vector with other dimensions is ignored.
    pub vector: Option<&'a [f32]>,
    pub filter: &'a Filter,
    pub limit: usize,
    /// The minimum relevance, from 0 to 1.
    pub min_relevance: f64,
}

/// The hits of a search, best first.
#[derive(Debug)]
pub(crate) struct SearchResult {
    pub hits: Vec<Hit>,
    /// The number of documents with the minimum relevance, returned or not.
    pub total: usize,
    pub ranking: Ranking,
}

/// A document with its place in a ranking.
#[derive(Clone, Copy)]
struct RankedDocument {
    document: i64,
    /// The score that determines the order: the match of words, a deviation, or the fused score of two ranks.
    order_score: f64,
    /// From 0 to 1.
    relevance: f64,
    passage: PassageId,
}

impl RankedDocument {
    /// Ranks a document by its match of words.
    fn from_match(document: i64, DocumentMatch { word_match, passage }: DocumentMatch) -> Self {
        Self { document, order_score: word_match, relevance: score::lexical_relevance(word_match), passage }
    }
}

impl Index {
    /// Searches the documents.
    ///
    /// # Errors
    /// Fails if the index cannot be read.
    pub fn search(&self, query: &Query<'_>) -> Result<SearchResult, IndexError> {
        let cosines = self.cosines(query.vector)?;
        self.read(|conn| {
            let by_words = rank_by_words(conn, query.text)?;
            let (mut ranked, ranking) = match cosines {
                None => (by_words, Ranking::Lexical),
                Some(cosines) => (fuse_rankings(by_words, &cosines), Ranking::Fused),
            };
            if let Some(accepted) = matching_documents(conn, query.filter)? {
                ranked.retain(|ranked| accepted.contains(&ranked.document));
            }
            make_relevance_monotonic(&mut ranked);
            ranked.retain(|ranked| ranked.relevance > 0.0 && ranked.relevance >= query.min_relevance);
            let total = ranked.len();
            ranked.truncate(query.limit);
            let hits = ranked.iter().map(|ranked| load_hit(conn, ranked)).collect::<rusqlite::Result<_>>()?;
            Ok(SearchResult { hits, total, ranking })
        })
    }

    /// Returns critical documents of any relevance, the most relevant first.
    ///
    /// # Errors
    /// Fails as [`Index::search`] does.
    pub fn critical_documents(&self, filter: &Filter, text: &str, limit: usize) -> Result<Vec<Hit>, IndexError> {
        if filter.levels.as_ref().is_some_and(|levels| !levels.contains(&Level::Critical)) {
            return Ok(Vec::new());
        }
        let filter = Filter { levels: Some(vec![Level::Critical]), ..filter.clone() };
        self.read(|conn| {
            let matches = lexical::search(conn, text)?;
            let rank = |document: i64| {
                let unmatched = DocumentMatch { word_match: 0.0, passage: documents::first_passage_of(document) };
                RankedDocument::from_match(document, matches.get(&document).copied().unwrap_or(unmatched))
            };
            let documents = matching_documents(conn, &filter)?.unwrap_or_default();
            let mut all: Vec<RankedDocument> = documents.into_iter().map(rank).collect();
            sort_by_order_score(&mut all);
            all.truncate(limit);
            all.iter().map(|ranked| load_hit(conn, ranked)).collect()
        })
    }

    /// Searches semantically alone and returns paths with their relevance, for measurements.
    ///
    /// # Errors
    /// Fails as [`Index::search`] does.
    #[cfg(test)]
    pub fn search_semantically(&self, vector: &[f32], limit: usize) -> Result<Vec<(String, f64)>, IndexError> {
        let cosines = self.cosines(Some(vector))?.unwrap_or_default();
        let distribution = CosineDistribution::from_cosines(cosines.iter().map(|(_, cosine)| f64::from(*cosine)));
        let mut ranked = rank_semantically(&cosines, &distribution);
        ranked.truncate(limit);
        self.read(|conn| {
            let hits = ranked.iter().map(|ranked| load_hit(conn, ranked).map(|hit| (hit.path, ranked.relevance)));
            hits.collect()
        })
    }

    /// Returns the cosine of each passage with the query's vector, if there are vectors with its dimensions.
    fn cosines(&self, vector: Option<&[f32]>) -> Result<Option<Vec<(PassageId, f32)>>, IndexError> {
        let Some(vector) = vector else { return Ok(None) };
        if let Some(matrix) = &*self.matrix.read() {
            return Ok(matrix.cosines(vector));
        }
        // The matrix is loaded under its write lock, so that concurrent writes are not missed.
        let mut matrix = self.matrix.write();
        if matrix.is_none() {
            *matrix = Some(self.read(Matrix::load)?);
        }
        Ok(matrix.as_ref().and_then(|matrix| matrix.cosines(vector)))
    }

    /// Returns the dimensions of the stored vectors; 0 if there are none.
    ///
    /// # Errors
    /// Fails as [`Index::search`] does.
    pub fn dimensions(&self) -> Result<usize, IndexError> {
        // Loads the vectors if they are not loaded yet.
        self.cosines(Some(&[1.0]))?;
        Ok(self.matrix.read().as_ref().map_or(0, Matrix::dimensions))
    }
}

fn sort_by_order_score(ranked: &mut [RankedDocument]) {
    let order = |a: &RankedDocument, b: &RankedDocument| {
        b.order_score.total_cmp(&a.order_score).then(b.relevance.total_cmp(&a.relevance))
    };
    ranked.sort_by(|a, b| order(a, b).then(a.document.cmp(&b.document)));
}

/// Raises relevances so that no document is less relevant than a document that ranks below it.
fn make_relevance_monotonic(ranked: &mut [RankedDocument]) {
    let mut max_relevance: f64 = 0.0;
    for ranked in ranked.iter_mut().rev() {
        max_relevance = max_relevance.max(ranked.relevance);
        ranked.relevance = max_relevance;
    }
}

fn rank_by_words(conn: &Connection, text: &str) -> rusqlite::Result<Vec<RankedDocument>> {
    let matches = lexical::search(conn, text)?.into_iter();
    let mut ranked: Vec<_> = matches.map(|(document, found)| RankedDocument::from_match(document, found)).collect();
    sort_by_order_score(&mut ranked);
    Ok(ranked)
}

/// Ranks the documents of the nearest passages by their deviation above the mean.
fn rank_semantically(cosines: &[(PassageId, f32)], distribution: &CosineDistribution) -> Vec<RankedDocument> {
    let mut best: HashMap<i64, (f32, PassageId)> = HashMap::new();
    for (passage, cosine) in cosines {
        let best = best.entry(document_of(*passage)).or_insert((f32::NEG_INFINITY, 0));
        if (*cosine, -passage) > (best.0, -best.1) {
            *best = (*cosine, *passage);
        }
    }
    let mut ranked: Vec<RankedDocument> = best
        .into_iter()
        .map(|(document, (cosine, passage))| {
            let deviations = distribution.deviations_above_mean(cosine.into());
            let relevance = distribution.fused_relevance(0.0, deviations);
            RankedDocument { document, order_score: deviations, relevance, passage }
        })
        .collect();
    sort_by_order_score(&mut ranked);
    ranked.truncate(MAX_SEMANTIC_RANKS);
    ranked
}

fn fuse_rankings(words: Vec<RankedDocument>, cosines: &[(PassageId, f32)]) -> Vec<RankedDocument> {
    type RankPair = (Option<(usize, RankedDocument)>, Option<(usize, RankedDocument)>);
    let distribution = CosineDistribution::from_cosines(cosines.iter().map(|(_, cosine)| f64::from(*cosine)));
    let mut ranks_by_document: HashMap<i64, RankPair> = HashMap::new();
    for (rank, ranked) in words.into_iter().enumerate() {
        ranks_by_document.entry(ranked.document).or_default().0 = Some((rank, ranked));
    }
    for (rank, ranked) in rank_semantically(cosines, &distribution).into_iter().enumerate() {
        ranks_by_document.entry(ranked.document).or_default().1 = Some((rank, ranked));
    }
    let mut ranked: Vec<RankedDocument> = ranks_by_document
        .into_iter()
        .filter_map(|(document, (words, semantic))| {
            let ranks = (words.map(|(rank, _)| rank), semantic.map(|(rank, _)| rank));
            let (words, semantic) = (words.map(|(_, ranked)| ranked), semantic.map(|(_, ranked)| ranked));
            // The passage comes from the ranking in which the document is higher.
            let passage = match (words, semantic) {
                (Some(words), Some(_)) if ranks.0 <= ranks.1 => words.passage,
                (_, Some(semantic)) => semantic.passage,
                (Some(words), None) => words.passage,
                (None, None) => return None,
            };
            let relevance = distribution.fused_relevance(
                words.map_or(0.0, |words| words.order_score),
                semantic.map_or(0.0, |semantic| semantic.order_score),
            );
            Some(RankedDocument { document, order_score: score::fused_rank_score(ranks), relevance, passage })
        })
        .collect();
    sort_by_order_score(&mut ranked);
    ranked
}

/// Returns the documents that a filter accepts; `None` if it accepts all.
fn matching_documents(conn: &Connection, filter: &Filter) -> rusqlite::Result<Option<HashSet<i64>>> {
    let mut conditions = Vec::new();
    let mut values: Vec<SqlValue> = Vec::new();
    let mut add_condition = |column: &str, all: Vec<SqlValue>| {
        let placeholders = vec!["?"; all.len()].join(", ");
        conditions.push(format!("{column} IN ({placeholders})"));
        values.extend(all);
    };
    if let Some(types) = &filter.doc_types {
        add_condition("doc_type", types.iter().map(|name| SqlValue::Text(name.clone())).collect());
    }
    if let Some(levels) = &filter.levels {
        add_condition("level", levels.iter().map(|level| SqlValue::Integer(*level as i64)).collect());
    }
    if conditions.is_empty() {
        return Ok(None);
    }
    let sql = format!("SELECT id FROM documents WHERE {}", conditions.join(" AND "));
    let mut statement = conn.prepare(&sql)?;
    let ids = statement.query_map(params_from_iter(values), |row| row.get(0))?;
    ids.collect::<rusqlite::Result<_>>().map(Some)
}

/// Loads a ranked document with its best passage.
fn load_hit(conn: &Connection, ranked: &RankedDocument) -> rusqlite::Result<Hit> {
    let sql = "SELECT path, title, summary, doc_type, date, documents.level, char_count, header_path,
         passages.first_line, passages.last_line, passages.text FROM documents
         LEFT JOIN passages ON passages.id = ?2 LEFT JOIN chunks ON chunks.id = passages.chunk WHERE documents.id = ?1";
    let read = |row: &Row<'_>| {
        Ok(Hit {
            path: row.get(0)?,
            title: row.get(1)?,
            summary: row.get(2)?,
            doc_type: row.get(3)?,
            date: row.get(4)?,
            level: read_level(row, 5)?,
            char_count: row.get(6)?,
            relevance: ranked.relevance,
            header_path: row.get::<_, Option<String>>(7)?.unwrap_or_default(),
            // A document of front matter alone has no passage.
            passage: Passage {
                first_line: row.get::<_, Option<u32>>(8)?.unwrap_or(1),
                last_line: row.get::<_, Option<u32>>(9)?.unwrap_or(1),
                text: row.get::<_, Option<String>>(10)?.unwrap_or_default(),
            },
        })
    };
    conn.prepare_cached(sql)?.query_row([ranked.document, ranked.passage], read)
}
