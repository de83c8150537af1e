//! Measures how long an index takes to write and to search generated documents.

use std::time::{Duration, Instant};

use crate::{
    index::{FileStamp, Index, IndexError, Query},
    model::{Document, Filter},
    text::{DocTypes, parse},
};

/// The number of different words in generated documents.
const WORDS: u64 = 32_768;

/// A small random number generator. Its values must be reproducible, not unpredictable.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// Returns a word with the frequencies of a natural language: the n-th appears about 1/n times as often as the
    /// first.
    fn random_word(&mut self) -> String {
        // A rank below a bound that has any magnitude with the same probability.
        let magnitude = self.below(WORDS.ilog2().into()) + 1;
        syllables(self.below(1 << magnitude))
    }
}

fn syllables(mut number: u64) -> String {
    const SYLLABLES: [&str; 16] =
        ["ka", "lo", "mi", "ner", "pu", "ra", "sen", "ti", "vo", "wex", "ba", "dor", "fi", "gul", "hy", "jam"];
    let mut word = String::new();
    loop {
        word.push_str(SYLLABLES.get(usize::try_from(number % 16).unwrap_or_default()).copied().unwrap_or("x"));
        number /= 16;
        if number == 0 {
            return word;
        }
    }
}

fn generate_document(rng: &mut Rng, number: usize) -> (String, String) {
    let mut text = format!("# {} {}\n\n", rng.random_word(), rng.random_word());
    let size = 1000 + usize::try_from(rng.below(7000)).unwrap_or_default();
    while text.len() < size {
        if rng.below(4) == 0 {
            text.push_str(&format!("## {} {}\n\n", rng.random_word(), rng.random_word()));
        }
        for _ in 0..40 + rng.below(80) {
            text.push_str(&rng.random_word());
            text.push(if rng.below(12) == 0 { '\n' } else { ' ' });
        }
        text.push_str("\n\n");
    }
    (format!("part{}/document-{number}.md", number % 100), text)
}

/// The results of a measurement.
#[derive(Debug)]
struct SpeedReport {
    documents: usize,
    passages: usize,
    documents_per_second: f64,
    /// Search times by words alone, and below by words and vectors.
    lexical: Percentiles,
    fused: Percentiles,
}

/// The 50th and the 95th percentile of search times.
#[derive(Debug)]
struct Percentiles {
    p50: Duration,
    p95: Duration,
}

fn percentiles(mut times: Vec<Duration>) -> Percentiles {
    times.sort();
    let percentile = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default();
    Percentiles { p50: percentile(50), p95: percentile(95) }
}

fn random_vector(rng: &mut Rng, dimensions: usize) -> Vec<f32> {
    (0..dimensions).map(|_| rng.below(2000) as f32 / 1000.0 - 1.0).collect()
}

/// Writes the given number of documents to a new index, and runs the given number of searches.
fn measure(documents: usize, searches: usize, dimensions: usize) -> Result<SpeedReport, IndexError> {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng(0x9E37_79B9_7F4A_7C15);
    let types = DocTypes::built_in();
    let texts: Vec<(String, String)> = (0..documents).map(|number| generate_document(&mut rng, number)).collect();
    let index = Index::open(&dir.path().join("bench.db"))?;
    let started_at = Instant::now();
    for batch in texts.chunks(64) {
        let parsed: Vec<(FileStamp, Document)> = batch
            .iter()
            .filter_map(|(path, text)| {
                let stamp = FileStamp { size: text.len() as u64, mtime_ns: 0, read_at_ns: 0, hash: [0; 32] };
                parse(path, text, &types).ok().map(|document| (stamp, document))
            })
            .collect();
        index.put(&parsed)?;
    }
    let indexed = started_at.elapsed();
    let queries: Vec<String> =
        (0..searches).map(|_| (0..3 + rng.below(6)).map(|_| rng.random_word()).collect::<Vec<_>>().join(" ")).collect();
    let filter = Filter::default();
    let ask = |vector: Option<&[f32]>, text: &str| -> Result<Duration, IndexError> {
        let started_at = Instant::now();
        index.search(&Query { text, vector, filter: &filter, limit: 10, min_relevance: 0.5 })?;
        Ok(started_at.elapsed())
    };
    let lexical = queries.iter().map(|text| ask(None, text)).collect::<Result<_, _>>()?;
    let pending = index.unembedded_passages("made up", 0, usize::MAX >> 1)?;
    let vectors: Vec<_> = pending.iter().map(|(id, _)| (*id, random_vector(&mut rng, dimensions))).collect();
    index.set_vectors("made up", &vectors)?;
    let query_vectors: Vec<Vec<f32>> = (0..searches).map(|_| random_vector(&mut rng, dimensions)).collect();
    // The first search loads the vectors.
    if let (Some(text), Some(vector)) = (queries.first(), query_vectors.first()) {
        ask(Some(vector), text)?;
    }
    let fused =
        queries.iter().zip(&query_vectors).map(|(text, vector)| ask(Some(vector), text)).collect::<Result<_, _>>()?;
    Ok(SpeedReport {
        documents,
        passages: pending.len(),
        documents_per_second: documents as f64 / indexed.as_secs_f64(),
        lexical: percentiles(lexical),
        fused: percentiles(fused),
    })
}

#[test]
fn measured_work_is_really_done() {
    let measured = measure(50, 10, 16).unwrap();
    assert!(measured.documents == 50 && measured.passages > 50 && measured.documents_per_second > 0.0);
    assert!(measured.lexical.p95 >= measured.lexical.p50 && measured.fused.p95 >= measured.fused.p50);
}

#[test]
#[ignore = "a measurement, which scripts/bench runs on the release build"]
fn speed_of_ten_thousand_documents() {
    println!("{:#?}", measure(10_000, 400, 384).unwrap());
}
