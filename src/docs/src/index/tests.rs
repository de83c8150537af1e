use std::sync::Arc;

use super::*;
use crate::{
    model::{Document, Filter, Level, Ranking},
    text::{DocTypes, parse},
};

fn stamp(size: u64) -> FileStamp {
    FileStamp { size, mtime_ns: 1, read_at_ns: 2, hash: [7; 32] }
}

fn document(path: &str, text: &str) -> (FileStamp, Document) {
    (stamp(text.len() as u64), parse(path, text, &DocTypes::built_in()).unwrap())
}

struct TestIndex {
    index: Arc<Index>,
    dir: tempfile::TempDir,
}

impl TestIndex {
    fn new(documents: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let index = Index::open(&dir.path().join("a.db")).unwrap();
        index.put(&documents.iter().map(|(path, text)| document(path, text)).collect::<Vec<_>>()).unwrap();
        Self { index: Arc::new(index), dir }
    }

    fn find(&self, text: &str) -> Vec<String> {
        self.search(text, None, &Filter::default(), 0.0).hits.into_iter().map(|hit| hit.path).collect()
    }

    fn search(&self, text: &str, vector: Option<&[f32]>, filter: &Filter, min_relevance: f64) -> SearchResult {
        self.index.search(&Query { text, vector, filter, limit: 10, min_relevance }).unwrap()
    }
}

const POOL: &str = "---\ndoc_type: problem\npromotion_level: critical\n---\n# Connection pool exhausted\n\n\
                    The pool ran dry because `maxInFlight` was never lowered after E_CONN_RESET.\n";
const STYLE: &str = "---\ndoc_type: style\n---\n# Names of tests\n\nA test is named after what it shows.\n";
const NOTE: &str = "# Deployments\n\nWe deploy on Tuesdays. A pool party is on Friday. 数据库连接池.\n";

fn three_documents() -> TestIndex {
    TestIndex::new(&[("problems/pool.md", POOL), ("styles/tests.md", STYLE), ("notes/deploy.md", NOTE)])
}

#[test]
fn words_identifiers_and_other_scripts_are_found() {
    let bench = three_documents();
    assert_eq!(bench.find("why is the connection pool exhausted?")[0], "problems/pool.md");
    assert_eq!(bench.find("maxInFlight"), ["problems/pool.md"]);
    assert_eq!(bench.find("in flight"), ["problems/pool.md"]);
    assert_eq!(bench.find("E_CONN_RESET"), ["problems/pool.md"]);
    assert_eq!(bench.find("naming tests")[0], "styles/tests.md", "words are stemmed");
    assert_eq!(bench.find("数据库"), ["notes/deploy.md"]);
    assert_eq!(bench.find("deploy"), ["notes/deploy.md"]);
    assert_eq!(bench.find("kubernetes"), Vec::<String>::new());
    let found = bench.search("connection pool exhausted", None, &Filter::default(), 0.5);
    assert_eq!((found.hits[0].path.as_str(), found.total, found.ranking), ("problems/pool.md", 1, Ranking::Lexical));
    let hit = &found.hits[0];
    assert_eq!((hit.passage.first_line, hit.passage.last_line, hit.level), (5, 7, Level::Critical));
    assert!((0.5..=1.0).contains(&hit.relevance));
}

#[test]
fn hostile_queries_are_treated_as_plain_words() {
    let bench = three_documents();
    for query in [
        "\"",
        "pool\" OR \"",
        "NEAR(pool, 3)",
        "title:pool",
        "pool*",
        "^pool",
        "pool AND NOT test",
        "-pool",
        "{title}: x",
        "\0",
        "';DROP TABLE documents;--",
        "",
        "   ",
        "the of and",
        "\u{202e}pool",
        "(((((",
        "🦀",
    ] {
        bench.search(query, None, &Filter::default(), 0.0);
    }
    bench.search(&"pool ".repeat(200_000), None, &Filter::default(), 0.0);
    bench.search(&"x".repeat(1 << 20), None, &Filter::default(), 0.0);
    assert_eq!(bench.find("pool\" OR \"exhausted")[0], "problems/pool.md");
}

#[test]
fn filters_and_changed_levels_apply_to_searches() {
    let bench = three_documents();
    let types = |names: &[&str]| Filter { doc_types: Some(names.iter().map(|n| (*n).into()).collect()), levels: None };
    let paths = |found: SearchResult| found.hits.into_iter().map(|hit| hit.path).collect::<Vec<_>>();
    assert_eq!(paths(bench.search("pool", None, &types(&["problem"]), 0.0)), ["problems/pool.md"]);
    assert_eq!(paths(bench.search("pool", None, &types(&["style"]), 0.0)), Vec::<String>::new());
    let levels = |levels: &[Level]| Filter { doc_types: None, levels: Some(levels.to_vec()) };
    assert_eq!(paths(bench.search("pool", None, &levels(&[Level::Standard]), 0.0)), ["notes/deploy.md"]);
    assert_eq!(paths(bench.search("pool", None, &levels(&[]), 0.0)), Vec::<String>::new());

    let critical = |filter: &Filter| {
        let hits = bench.index.critical_documents(filter, "tests", 5).unwrap();
        hits.into_iter().map(|hit| hit.path).collect::<Vec<_>>()
    };
    assert_eq!(
        critical(&Filter::default()),
        ["problems/pool.md"],
        "critical documents are returned regardless of relevance"
    );
    let promoted = crate::text::front_matter::with_level(STYLE, Level::Critical).unwrap();
    bench.index.put(&[document("styles/tests.md", &promoted)]).unwrap();
    assert_eq!(critical(&Filter::default()), ["styles/tests.md", "problems/pool.md"]);
    assert_eq!(critical(&types(&["problem"])), ["problems/pool.md"]);
    assert_eq!(critical(&levels(&[Level::Standard])), Vec::<String>::new());
    let conn = rusqlite::Connection::open(bench.dir.path().join("a.db")).unwrap();
    let sql =
        "SELECT count(*) FROM chunks JOIN documents ON documents.id = document WHERE chunks.level <> documents.level";
    assert_eq!(conn.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap(), 0);
}

#[test]
fn documents_are_replaced_removed_and_counted() {
    let bench = three_documents();
    let counts = bench.index.counts().unwrap();
    assert_eq!(counts.documents, 3);
    assert_eq!(counts.by_type[&Some("problem".to_owned())], 1);
    assert_eq!(counts.by_type[&None], 1);
    bench.index.put(&[document("problems/pool.md", "# Another\n\nSee [x](../notes/deploy.md).\n")]).unwrap();
    assert_eq!(bench.find("exhausted"), Vec::<String>::new());
    let entry = bench.index.document("problems/pool.md").unwrap().unwrap();
    assert_eq!(
        (entry.title.as_str(), entry.links.as_slice(), entry.chunks),
        ("Another", &["notes/deploy.md".to_owned()][..], 1)
    );
    let removed = ["problems/pool.md".to_owned(), "nothing.md".to_owned()];
    bench.index.remove(&removed).unwrap();
    assert!(bench.index.document("problems/pool.md").unwrap().is_none());
    let (entries, total) = bench.index.list("styles/", 10).unwrap();
    assert_eq!((entries.len(), total, entries[0].path.as_str()), (1, 1, "styles/tests.md"));
    assert_eq!(bench.index.list("", 1).unwrap().1, 2);
    assert_eq!(bench.index.stamps().unwrap()["styles/tests.md"], stamp(STYLE.len() as u64));
}

#[test]
fn long_document_is_one_hit_with_its_best_passage() {
    let mut text = "# Handbook\n\n".to_owned();
    for section in 0..100 {
        text.push_str(&format!("## Part {section}\n\n{}\n", "Filler about nothing much.\n".repeat(8)));
        if section == 60 {
            text.push_str("The zebra crosses here.\n\n");
        }
    }
    let bench = TestIndex::new(&[("long.md", &text), ("other.md", "# Zoo\n\nA zebra.\n")]);
    let found = bench.search("zebra crosses", None, &Filter::default(), 0.0);
    assert_eq!(found.total, 2);
    assert_eq!((found.hits[0].path.as_str(), found.hits[0].header_path.as_str()), ("long.md", "## Part 60"));
    assert!(found.hits[0].passage.text.contains("The zebra crosses here."));
}

fn embed(bench: &TestIndex, model: &str, vector_of: impl Fn(&str) -> Vec<f32>) {
    let pending = bench.index.unembedded_passages(model, 0, 100).unwrap();
    let vectors: Vec<_> = pending.iter().map(|(id, text)| (*id, vector_of(text))).collect();
    bench.index.set_vectors(model, &vectors).unwrap();
}

#[test]
fn vectors_find_synonyms_and_new_model_starts_over() {
    let bench = three_documents();
    let vector_of = |text: &str| if text.contains("pool ran") { vec![1.0, 0.1] } else { vec![0.1, 1.0] };
    embed(&bench, "m1", vector_of);
    assert!(bench.index.unembedded_passages("m1", 0, 10).unwrap().is_empty());
    assert_eq!(bench.index.unembedded_passages("m2", 0, 10).unwrap().len(), 3);
    let found = bench.search("nothing in common", Some(&[1.0, 0.0]), &Filter::default(), 0.0);
    assert_eq!((found.hits[0].path.as_str(), found.ranking), ("problems/pool.md", Ranking::Fused));
    let scores: Vec<f64> = found.hits.iter().map(|hit| hit.relevance).collect();
    assert!(scores.is_sorted_by(|a, b| a >= b) && scores.iter().all(|score| (0.0..=1.0).contains(score)));
    for bad in [vec![1.0, 0.0, 0.0], vec![f32::NAN, 0.0], vec![0.0, 0.0], vec![]] {
        let found = bench.search("pool exhausted", Some(&bad), &Filter::default(), 0.0);
        assert_eq!((found.hits[0].path.as_str(), found.ranking), ("problems/pool.md", Ranking::Lexical));
    }
    assert_eq!(bench.index.dimensions().unwrap(), 2);
    // The loaded vectors follow later writes.
    bench.index.remove(&["problems/pool.md".to_owned()]).unwrap();
    assert!(
        bench
            .search("x", Some(&[1.0, 0.0]), &Filter::default(), 0.0)
            .hits
            .iter()
            .all(|hit| hit.path != "problems/pool.md")
    );
    bench.index.put(&[document("problems/pool.md", POOL)]).unwrap();
    embed(&bench, "m1", vector_of);
    assert_eq!(bench.search("x", Some(&[1.0, 0.0]), &Filter::default(), 0.0).hits[0].path, "problems/pool.md");
    embed(&bench, "m2", |_| vec![1.0, 0.0, 0.0]);
    assert_eq!(bench.index.dimensions().unwrap(), 3);
    // Loading them again gives the same result.
    let again = Index::open(&bench.dir.path().join("a.db")).unwrap();
    assert_eq!(again.dimensions().unwrap(), 3);
    let pending_passages = bench.index.unembedded_passages_of("problems/pool.md", "m3").unwrap();
    assert!(
        pending_passages.len() == 1 && pending_passages[0].1.starts_with("Connection pool exhausted\n"),
        "{pending_passages:?}"
    );
}

#[test]
fn invalid_and_orphaned_vectors_are_ignored() {
    let bench = three_documents();
    let pending = bench.index.unembedded_passages("m", 0, 10).unwrap();
    let bad = [vec![f32::NAN, 1.0], vec![0.0, 0.0], vec![f32::INFINITY, 0.0]];
    let bad: Vec<_> = pending.iter().zip(bad).map(|((id, _), vector)| (*id, vector)).collect();
    bench.index.set_vectors("m", &bad).unwrap();
    bench.index.set_vectors("m", &[(-5, vec![1.0, 0.0])]).unwrap();
    assert_eq!(bench.index.unembedded_passages("m", 0, 10).unwrap().len(), 3);
    assert_eq!(bench.index.dimensions().unwrap(), 0);
}

#[test]
fn damaged_or_outdated_index_is_recreated() {
    for damage in 0..4 {
        let bench = three_documents();
        let path = bench.dir.path().join("a.db");
        drop(bench.index);
        match damage {
            0 => std::fs::write(&path, b"this is no database, whatever it says, and long enough to be looked at")
                .unwrap(),
            1 => std::fs::write(&path, b"").unwrap(),
            2 => {
                let mut bytes = std::fs::read(&path).unwrap();
                bytes[4096..12_000].fill(0xAA);
                std::fs::write(&path, bytes).unwrap();
            }
            _ => rusqlite::Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap(),
        }
        let index = Index::open(&path).unwrap();
        assert_eq!(index.counts().unwrap().documents, 0, "{damage}");
        index.put(&[document("a.md", NOTE)]).unwrap();
        assert_eq!(index.counts().unwrap().documents, 1);
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(Index::open(&dir.path().join("nowhere/a.db")).is_err());
}

#[test]
fn index_files_are_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let bench = three_documents();
    for file in std::fs::read_dir(bench.dir.path()).unwrap() {
        let file = file.unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o077, 0, "{:?}", file.path());
    }
}

#[test]
fn readers_see_only_whole_batches() {
    let bench = TestIndex::new(&[]);
    std::thread::scope(|threads| {
        let (index, bench) = (&bench.index, &bench);
        let writer = threads.spawn(move || {
            for round in 0..20 {
                let batch: Vec<_> = (0..10)
                    .map(|number| document(&format!("{number}.md"), &format!("# Round{round}\n\nround word\n")))
                    .collect();
                index.put(&batch).unwrap();
            }
        });
        while !writer.is_finished() {
            let counts = bench.index.counts().unwrap().documents;
            assert!(counts == 0 || counts == 10, "{counts}");
            let found = bench.search("word", None, &Filter::default(), 0.0);
            assert!(found.total == 0 || found.total == 10, "{}", found.total);
        }
    });
    assert_eq!(bench.find("round19").len(), 10);
}

#[test]
fn empty_and_huge_documents_are_bounded() {
    let bench = TestIndex::new(&[("empty.md", ""), ("front.md", "---\npromotion_level: critical\n---\n")]);
    let hits = bench.index.critical_documents(&Filter::default(), "x", 5).unwrap();
    assert_eq!((hits[0].path.as_str(), hits[0].passage.text.as_str()), ("front.md", ""));
    let many = "A paragraph that is long enough to be a passage by itself. ".repeat(30) + "\n\n";
    let text = many.repeat(5000);
    bench.index.put(&[document("huge.md", &text)]).unwrap();
    assert_eq!(bench.find("paragraph"), ["huge.md"]);
}
