//! Answers a query: documents that match by words and by meaning, in one order.

use foldhash::{HashMap, HashMapExt as _, HashSet};
use rusqlite::{Connection, Row, params_from_iter, types::Value as Sql};

use super::{
    documents::{PASSAGES, PassageId, level, rank},
    lexical::{self, Matched},
    score::{self, Usual},
    storage::{Index, IndexError},
    vectors::Matrix,
};
use crate::model::{Filter, Hit, Level, Passage, Ranking};

/// Documents that have a place in the ranking by meaning.
const PLACES: usize = 200;

/// What is looked for.
pub(crate) struct Query<'a> {
    pub text: &'a str,
    /// Of the model that embedded the passages; vectors of other dimensions are as none.
    pub vector: Option<&'a [f32]>,
    pub filter: &'a Filter,
    pub limit: usize,
    /// From 0 to 1.
    pub min_score: f64,
}

/// What was found, best first.
#[derive(Debug)]
pub(crate) struct Found {
    pub hits: Vec<Hit>,
    /// How many documents are relevant enough, shown or not.
    pub total: usize,
    pub ranking: Ranking,
}

#[derive(Clone, Copy)]
struct Ranked {
    document: i64,
    /// What the order goes by.
    rank: f64,
    /// Relevance, from 0 to 1.
    score: f64,
    passage: PassageId,
}

impl Index {
    /// # Errors
    /// An index that cannot be read.
    pub fn search(&self, query: &Query<'_>) -> Result<Found, IndexError> {
        let cosines = self.cosines(query.vector)?;
        self.read(|conn| {
            let (mut ranked, ranking) = ranked(conn, query, cosines)?;
            if let Some(passes) = passes(conn, query.filter)? {
                ranked.retain(|ranked| passes.contains(&ranked.document));
            }
            lift(&mut ranked);
            ranked.retain(|ranked| ranked.score > 0.0 && ranked.score >= query.min_score);
            let total = ranked.len();
            ranked.truncate(query.limit);
            let hits = ranked.iter().map(|ranked| hit(conn, ranked)).collect::<rusqlite::Result<_>>()?;
            Ok(Found { hits, total, ranking })
        })
    }

    /// Critical documents whatever their relevance, the most relevant first.
    ///
    /// # Errors
    /// As [`Index::search`].
    pub fn critical(&self, filter: &Filter, text: &str, limit: usize) -> Result<Vec<Hit>, IndexError> {
        if filter.levels.as_ref().is_some_and(|levels| !levels.contains(&Level::Critical)) {
            return Ok(Vec::new());
        }
        let filter = Filter { levels: Some(vec![Level::Critical]), ..filter.clone() };
        self.read(|conn| {
            let matched = lexical::search(conn, text)?;
            let mut all: Vec<Ranked> = Vec::new();
            for document in passes(conn, &filter)?.unwrap_or_default() {
                let first = document * PASSAGES;
                let (matched, passage) =
                    matched.get(&document).map_or((0.0, first), |matched| (matched.matched, matched.passage));
                all.push(Ranked { document, rank: matched, score: score::of_words(matched), passage });
            }
            sort(&mut all);
            all.truncate(limit);
            all.iter().map(|ranked| hit(conn, ranked)).collect()
        })
    }

    /// The documents by meaning alone, as paths with their relevance: to measure what that is worth.
    ///
    /// # Errors
    /// As [`Index::search`].
    #[cfg(any(test, feature = "testing"))]
    pub fn search_by_meaning(&self, vector: &[f32], limit: usize) -> Result<Vec<(String, f64)>, IndexError> {
        let cosines = self.cosines(Some(vector))?.unwrap_or_default();
        let usual = Usual::of(cosines.iter().map(|(_, cosine)| f64::from(*cosine)));
        let mut ranked = by_meaning(&cosines, &usual);
        ranked.truncate(limit);
        self.read(|conn| {
            let hits = ranked.iter().map(|ranked| hit(conn, ranked).map(|hit| (hit.path, ranked.score)));
            hits.collect()
        })
    }

    /// The cosine of each passage with the query's vector, where there are vectors of its kind.
    fn cosines(&self, vector: Option<&[f32]>) -> Result<Option<Vec<(PassageId, f32)>>, IndexError> {
        let Some(vector) = vector else { return Ok(None) };
        if let Some(matrix) = &*self.matrix.read() {
            return Ok(matrix.cosines(vector));
        }
        // Under its lock, so that what is written meanwhile is not missed.
        let mut matrix = self.matrix.write();
        if matrix.is_none() {
            *matrix = Some(self.read(Matrix::load)?);
        }
        Ok(matrix.as_ref().and_then(|matrix| matrix.cosines(vector)))
    }

    /// Of the vectors that are there; 0 where there are none.
    ///
    /// # Errors
    /// As [`Index::search`].
    pub fn dimensions(&self) -> Result<usize, IndexError> {
        self.cosines(Some(&[1.0]))?;
        Ok(self.matrix.read().as_ref().map_or(0, Matrix::dimensions))
    }
}

fn sort(ranked: &mut [Ranked]) {
    let order = |a: &Ranked, b: &Ranked| b.rank.total_cmp(&a.rank).then(b.score.total_cmp(&a.score));
    ranked.sort_by(|a, b| order(a, b).then(a.document.cmp(&b.document)));
}

/// A document is at least as relevant as any that ranks below it.
fn lift(ranked: &mut [Ranked]) {
    let mut most: f64 = 0.0;
    for ranked in ranked.iter_mut().rev() {
        most = most.max(ranked.score);
        ranked.score = most;
    }
}

fn ranked(
    conn: &Connection,
    query: &Query<'_>,
    cosines: Option<Vec<(PassageId, f32)>>,
) -> rusqlite::Result<(Vec<Ranked>, Ranking)> {
    let words = by_words(conn, query.text)?;
    Ok(match cosines {
        None => (words, Ranking::Lexical),
        Some(cosines) => (fused(words, &cosines), Ranking::Fused),
    })
}

fn by_words(conn: &Connection, text: &str) -> rusqlite::Result<Vec<Ranked>> {
    let found = lexical::search(conn, text)?.into_iter();
    let mut ranked: Vec<Ranked> = found
        .map(|(document, Matched { matched, passage })| Ranked {
            document,
            rank: matched,
            score: score::of_words(matched),
            passage,
        })
        .collect();
    sort(&mut ranked);
    Ok(ranked)
}

/// The documents of the nearest passages; each ranks by how far it stands above what is usual.
fn by_meaning(cosines: &[(PassageId, f32)], usual: &Usual) -> Vec<Ranked> {
    let mut best: HashMap<i64, (f32, PassageId)> = HashMap::new();
    for (passage, cosine) in cosines {
        let best = best.entry(passage / PASSAGES).or_insert((f32::NEG_INFINITY, 0));
        if (*cosine, -passage) > (best.0, -best.1) {
            *best = (*cosine, *passage);
        }
    }
    let mut ranked: Vec<Ranked> = best
        .into_iter()
        .map(|(document, (cosine, passage))| {
            let above = usual.above(cosine.into());
            Ranked { document, rank: above, score: usual.of_both(0.0, above), passage }
        })
        .collect();
    sort(&mut ranked);
    ranked.truncate(PLACES);
    ranked
}

fn fused(words: Vec<Ranked>, cosines: &[(PassageId, f32)]) -> Vec<Ranked> {
    type Both = (Option<(usize, Ranked)>, Option<(usize, Ranked)>);
    let usual = Usual::of(cosines.iter().map(|(_, cosine)| f64::from(*cosine)));
    let mut both: HashMap<i64, Both> = HashMap::new();
    for (place, ranked) in words.into_iter().enumerate() {
        both.entry(ranked.document).or_default().0 = Some((place, ranked));
    }
    for (place, ranked) in by_meaning(cosines, &usual).into_iter().enumerate() {
        both.entry(ranked.document).or_default().1 = Some((place, ranked));
    }
    let mut ranked: Vec<Ranked> = both
        .into_iter()
        .filter_map(|(document, (words, meaning))| {
            let places = (words.map(|(place, _)| place), meaning.map(|(place, _)| place));
            let (words, meaning) = (words.map(|(_, ranked)| ranked), meaning.map(|(_, ranked)| ranked));
            // The passage of the side that has it further up.
            let passage = match (words, meaning) {
                (Some(words), Some(_)) if places.0 <= places.1 => words.passage,
                (_, Some(meaning)) => meaning.passage,
                (Some(words), None) => words.passage,
                (None, None) => return None,
            };
            let score =
                usual.of_both(words.map_or(0.0, |words| words.rank), meaning.map_or(0.0, |meaning| meaning.rank));
            Some(Ranked { document, rank: score::fused(places), score, passage })
        })
        .collect();
    sort(&mut ranked);
    ranked
}

/// The documents that a filter lets through; `None` where it lets all.
fn passes(conn: &Connection, filter: &Filter) -> rusqlite::Result<Option<HashSet<i64>>> {
    let mut conditions = Vec::new();
    let mut values: Vec<Sql> = Vec::new();
    let mut within = |column: &str, all: Vec<Sql>| {
        let marks = vec!["?"; all.len()].join(", ");
        conditions.push(format!("{column} IN ({marks})"));
        values.extend(all);
    };
    if let Some(types) = &filter.doc_types {
        within("doc_type", types.iter().map(|name| Sql::Text(name.clone())).collect());
    }
    if let Some(levels) = &filter.levels {
        within("level", levels.iter().map(|level| Sql::Integer(rank(*level))).collect());
    }
    if conditions.is_empty() {
        return Ok(None);
    }
    let sql = format!("SELECT id FROM documents WHERE {}", conditions.join(" AND "));
    let mut statement = conn.prepare(&sql)?;
    let ids = statement.query_map(params_from_iter(values), |row| row.get(0))?;
    ids.collect::<rusqlite::Result<_>>().map(Some)
}

fn hit(conn: &Connection, ranked: &Ranked) -> rusqlite::Result<Hit> {
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
            level: level(row.get(5)?),
            char_count: row.get(6)?,
            score: ranked.score,
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
