//! Measures how long an index takes to write and to search generated documents.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    index::{Index, IndexError, Query, Stamp},
    model::{Document, Filter},
    text::{DocTypes, parse},
};

/// Words that documents are made of, the common ones first.
const WORDS: u64 = 32_768;

/// A generator that needs no crate: what is made up has to be the same each time, not unpredictable.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// Common words come as often as in a language: the n-th about 1/n times as often as the first.
    fn word(&mut self) -> String {
        // A place below a bound that is itself of any magnitude with the same chance.
        let magnitude = self.below(WORDS.ilog2().into()) + 1;
        syllables(self.below(1 << magnitude))
    }
}

fn syllables(mut place: u64) -> String {
    const SYLLABLES: [&str; 16] =
        ["ka", "lo", "mi", "ner", "pu", "ra", "sen", "ti", "vo", "wex", "ba", "dor", "fi", "gul", "hy", "jam"];
    let mut word = String::new();
    loop {
        word.push_str(SYLLABLES.get(usize::try_from(place % 16).unwrap_or_default()).copied().unwrap_or("x"));
        place /= 16;
        if place == 0 {
            return word;
        }
    }
}

fn made_up(chance: &mut Chance, number: usize) -> (String, String) {
    let mut text = format!("# {} {}\n\n", chance.word(), chance.word());
    let size = 1000 + usize::try_from(chance.below(7000)).unwrap_or_default();
    while text.len() < size {
        if chance.below(4) == 0 {
            text.push_str(&format!("## {} {}\n\n", chance.word(), chance.word()));
        }
        for _ in 0..40 + chance.below(80) {
            text.push_str(&chance.word());
            text.push(if chance.below(12) == 0 { '\n' } else { ' ' });
        }
        text.push_str("\n\n");
    }
    (format!("part{}/document-{number}.md", number % 100), text)
}

/// What was measured.
#[derive(Debug)]
pub struct Measured {
    pub documents: usize,
    pub passages: usize,
    pub documents_per_second: f64,
    /// By words alone, and by words and vectors.
    pub lexical: Percentiles,
    pub fused: Percentiles,
}

/// Half of the searches, and 95 of 100, took no longer.
#[derive(Debug)]
pub struct Percentiles {
    pub p50: Duration,
    pub p95: Duration,
}

fn percentiles(mut times: Vec<Duration>) -> Percentiles {
    times.sort();
    let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default();
    Percentiles { p50: at(50), p95: at(95) }
}

fn vector(chance: &mut Chance, dimensions: usize) -> Vec<f32> {
    (0..dimensions).map(|_| chance.below(2000) as f32 / 1000.0 - 1.0).collect()
}

/// Puts so many documents into a new index in `dir`, and searches it so often.
///
/// # Errors
/// An index that cannot be written or read.
pub fn run(
    dir: &Path,
    documents: usize,
    searches: usize,
    dimensions: usize,
) -> Result<Measured, Box<dyn std::error::Error>> {
    measure(dir, documents, searches, dimensions).map_err(Into::into)
}

fn measure(dir: &Path, documents: usize, searches: usize, dimensions: usize) -> Result<Measured, IndexError> {
    let mut chance = Chance(0x9E37_79B9_7F4A_7C15);
    let types = DocTypes::built_in();
    let texts: Vec<(String, String)> = (0..documents).map(|number| made_up(&mut chance, number)).collect();
    let index = Index::open(&dir.join("bench.db"))?;
    let began = Instant::now();
    for batch in texts.chunks(64) {
        let parsed: Vec<(Stamp, Document)> = batch
            .iter()
            .filter_map(|(path, text)| {
                let stamp = Stamp { size: text.len() as u64, mtime_ns: 0, read_at_ns: 0, hash: [0; 32] };
                parse(path, text, &types).ok().map(|document| (stamp, document))
            })
            .collect();
        index.put(&parsed)?;
    }
    let indexed = began.elapsed();
    let queries: Vec<String> =
        (0..searches).map(|_| (0..3 + chance.below(6)).map(|_| chance.word()).collect::<Vec<_>>().join(" ")).collect();
    let filter = Filter::default();
    let ask = |vector: Option<&[f32]>, text: &str| -> Result<Duration, IndexError> {
        let began = Instant::now();
        index.search(&Query { text, vector, filter: &filter, limit: 10, min_score: 0.5 })?;
        Ok(began.elapsed())
    };
    let lexical = queries.iter().map(|text| ask(None, text)).collect::<Result<_, _>>()?;
    let pending = index.without_vectors("made up", usize::MAX >> 1)?;
    let vectors: Vec<_> = pending.iter().map(|(id, _)| (*id, vector(&mut chance, dimensions))).collect();
    index.set_vectors("made up", &vectors)?;
    let asked: Vec<Vec<f32>> = (0..searches).map(|_| vector(&mut chance, dimensions)).collect();
    // The first one loads the vectors.
    if let (Some(text), Some(vector)) = (queries.first(), asked.first()) {
        ask(Some(vector), text)?;
    }
    let fused = queries.iter().zip(&asked).map(|(text, vector)| ask(Some(vector), text)).collect::<Result<_, _>>()?;
    Ok(Measured {
        documents,
        passages: pending.len(),
        documents_per_second: documents as f64 / indexed.as_secs_f64(),
        lexical: percentiles(lexical),
        fused: percentiles(fused),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let measured = run(dir.path(), 50, 10, 16).unwrap();
        assert!(measured.documents == 50 && measured.passages > 50 && measured.documents_per_second > 0.0);
        assert!(measured.lexical.p95 >= measured.lexical.p50 && measured.fused.p95 >= measured.fused.p50);
    }
}
